//! The overview of healthy and unhealthy parts, as lines and as charts of two minutes.

use signalbox_api::status::ServingState;

use super::data::TopData;
use super::grid::Look;
use super::history::{HostSeries, Points, last};
use super::panes::host_state;
use super::text::{bytes, seconds, short};

/// Maximum number of reasons for not cutting that are shown.
const MAX_REASONS: usize = 3;

/// A number with its last two minutes.
pub(super) struct TopChart {
    pub(super) title: &'static str,
    pub(super) value: String,
    pub(super) values: Points,
    /// Formats one of the values.
    pub(super) format: fn(f64) -> String,
}

/// Returns the charts of the overview.
pub(super) fn charts(data: &TopData) -> [TopChart; 4] {
    let history = &data.history;
    let rate = |of| history.rates(&history.overall(of));
    let (fresh, refused) = (rate(|of| of.total), rate(|of| of.refused));
    let (inwards, outwards) = (rate(|of| of.bytes_in), rate(|of| of.bytes_out));
    let traffic: Points = inwards
        .iter()
        .zip(&outwards)
        .map(|(a, b)| Some((*a)? + (*b)?))
        .collect();
    let active = history.overall(|of| of.active.into());
    let [all, from, to] = [&traffic, &inwards, &outwards].map(|values| bytes(last(values)));
    let now = history.now();
    [
        TopChart {
            title: "Connections",
            value: short(last(&active)),
            values: active,
            format: short,
        },
        TopChart {
            title: "New/s",
            value: format!("{}, {} in all", short(last(&fresh)), short(now.total as f64)),
            values: fresh,
            format: short,
        },
        TopChart {
            title: "Refused/s",
            value: format!("{}, {} in all", short(last(&refused)), short(now.refused as f64)),
            values: refused,
            format: short,
        },
        TopChart {
            title: "Bytes/s",
            value: format!("{all}: {from} from clients, {to} to clients"),
            values: traffic,
            format: bytes,
        },
    ]
}

/// Returns the balancer's state, and whether it is ready.
pub(super) fn headline(data: &TopData) -> (Look, String) {
    let Some(status) = &data.answers.status else {
        return (Look::Idle, "no status yet".to_owned());
    };
    let (look, state) = match (status.state, status.ready) {
        (ServingState::Serving, true) => (Look::Good, "serving; ready"),
        (ServingState::Serving, false) => (Look::Warn, "serving; not ready"),
        (ServingState::Draining, _) => (Look::Warn, "draining"),
    };
    let (routes, up) = (status.routes, seconds(status.uptime_seconds as f64));
    (look, format!("{state}, {routes} routes, up {up}"))
}

/// Counts of hosts, tiers, and reasons for not cutting.
pub(super) fn counts(data: &TopData) -> Vec<(&'static str, String)> {
    let now = data.history.now();
    let tier = |tier| {
        format!(
            "{tier} {}",
            short(now.tiers.get(tier).copied().unwrap_or_default().into())
        )
    };
    let tiers = ["cut", "sockmap", "splice", "copy"].map(tier);
    let mut reasons: Vec<_> = now.not_cut.iter().collect();
    reasons.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
    let reasons: Vec<_> = reasons
        .iter()
        .take(MAX_REASONS)
        .map(|(reason, n)| format!("{reason} {}", short(**n as f64)))
        .collect();
    let (usable, unhealthy) = (now.usable_hosts, now.unhealthy_hosts);
    vec![
        ("hosts", format!("{usable} usable, {unhealthy} unhealthy")),
        ("tiers", tiers.join(", ")),
        (
            "not cut",
            if reasons.is_empty() {
                "none".to_owned()
            } else {
                reasons.join(", ")
            },
        ),
    ]
}

/// Returns the problems, each with the place of more information.
pub(super) fn troubles(data: &TopData) -> Vec<(Look, String)> {
    let status = data.answers.status.clone().unwrap_or_default();
    let mut all = Vec::new();
    for reason in &status.not_ready {
        all.push((Look::Bad, format!("not ready: {reason} (signalbox status)")));
    }
    let feature = |feature: &str, why: &str| format!("{feature}: {why} (signalbox doctor)");
    let missing = status.missing_features.iter();
    all.extend(missing.map(|of| (Look::Bad, feature(&of.feature, &of.why))));
    if let Some(reload) = status.last_reload.filter(|reload| !reload.ok) {
        let why = reload.error.unwrap_or_default();
        all.push((
            Look::Bad,
            format!("the last configuration was refused: {why} (signalbox check)"),
        ));
    }
    all.extend(unwell_hosts(data));
    let degraded = status.degraded.iter();
    all.extend(degraded.map(|of| (Look::Warn, feature(&of.feature, &of.why))));
    all
}

/// Unhealthy hosts, hosts out of rotation, and hosts whose name is not resolved.
fn unwell_hosts(data: &TopData) -> impl Iterator<Item = (Look, String)> {
    let line = |host: &HostSeries| {
        let view = data.host_view(&host.key());
        let (look, state) = host_state(host, view);
        let check = view.and_then(|view| view.last_check.as_ref());
        let check = check
            .filter(|_| look == Look::Bad)
            .map_or_else(String::new, |check| format!(" ({})", check.detail));
        matches!(look, Look::Warn | Look::Bad).then(|| (look, format!("{} is {state}{check}", host.name())))
    };
    let unresolved = data.unresolved().filter_map(move |host| line(&host));
    data.history.hosts.iter().filter_map(line).chain(unresolved)
}

/// Draws values as one line of blocks, at most `width` of them, the newest last.
pub(super) fn line_of_blocks(values: &[Option<f64>], width: usize) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let columns = resampled(values, width);
    let top = columns.iter().flatten().copied().fold(0.0, f64::max);
    let block = |value: &Option<f64>| match value {
        Some(value) if top > 0.0 => BLOCKS[((value / top * 7.0).round() as usize).min(7)],
        Some(_) => BLOCKS[0],
        None => ' ',
    };
    columns.iter().map(block).collect()
}

/// Shows two minutes in `width` columns. If several seconds share a column, it shows their maximum, so that a short
/// peak is visible. Seconds before the first sample are `None`.
pub(super) fn resampled(values: &[Option<f64>], width: usize) -> Points {
    const SECONDS: usize = super::history::MAX_SAMPLES;
    let missing = SECONDS.saturating_sub(values.len());
    let at = |second: usize| {
        second
            .checked_sub(missing)
            .and_then(|at| values.get(at).copied().flatten())
    };
    let width = width.min(SECONDS);
    (0..width)
        .map(|column| {
            let seconds = (column * SECONDS / width)..((column + 1) * SECONDS / width);
            seconds.filter_map(at).reduce(f64::max)
        })
        .collect()
}

/// Width of the charts of [`plain`].
const PLAIN_CHART_WIDTH: usize = 60;

/// The overview as plain text.
pub(super) fn plain(data: &TopData) -> String {
    let version = data.version();
    let mut lines = vec![format!("signalbox {version}: {}", headline(data).1)];
    let mut add = |name: &str, text: &str| lines.push(format!("{name:<12} {text}").trim_end().to_owned());
    for chart in charts(data) {
        add(&chart.title.to_lowercase(), &chart.value);
        add("", &line_of_blocks(&chart.values, PLAIN_CHART_WIDTH));
    }
    counts(data).iter().for_each(|(name, text)| add(name, text));
    let troubles = troubles(data);
    if troubles.is_empty() {
        add("troubles", "none");
    }
    for (at, (look, text)) in troubles.iter().enumerate() {
        add(
            if at == 0 { "troubles" } else { "" },
            &format!("{} {text}", look.shape()),
        );
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_that_share_a_column_show_their_peak() {
        let mut values = vec![Some(1.0); 120];
        values[60] = Some(9.0);
        let columns = resampled(&values, 40);
        assert_eq!(columns.len(), 40);
        assert_eq!(columns.iter().filter(|value| **value == Some(9.0)).count(), 1);
        assert_eq!(columns[20], Some(9.0));
        assert_eq!(resampled(&values, 300).len(), 120);
        let young = resampled(&[Some(3.0)], 60);
        assert_eq!((young[58], young[59]), (None, Some(3.0)));
        assert_eq!(resampled(&[], 0), []);
    }

    #[test]
    fn a_line_of_blocks_is_as_high_as_its_greatest_value() {
        let values: Vec<_> = (0..120).map(|second| Some(f64::from(second / 15))).collect();
        assert_eq!(line_of_blocks(&values, 8), "▁▂▃▄▅▆▇█");
        assert_eq!(line_of_blocks(&[Some(0.0)], 3), "  ▁");
    }
}
