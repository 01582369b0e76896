//! The overview of healthy and unhealthy parts, as lines and as charts of two minutes.

use serde_json::Value;

use super::data::{TopData, Topic};
use super::grid::Look;
use super::history::{HostSeries, Points, last};
use super::panes::host_state;
use super::text::{bytes, field, list, number, seconds, short};

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
    let rate = |key| history.rates(&history.overall(key));
    let (fresh, refused) = (rate("total"), rate("refused"));
    let (inwards, outwards) = (rate("bytes_in"), rate("bytes_out"));
    let traffic: Points = inwards
        .iter()
        .zip(&outwards)
        .map(|(a, b)| Some((*a)? + (*b)?))
        .collect();
    let active = history.overall("active");
    let [all, from, to] = [&traffic, &inwards, &outwards].map(|values| bytes(last(values)));
    let total = |key| short(number(history.now(), key));
    [
        TopChart {
            title: "Connections",
            value: short(last(&active)),
            values: active,
            format: short,
        },
        TopChart {
            title: "New/s",
            value: format!("{}, {} in all", short(last(&fresh)), total("total")),
            values: fresh,
            format: short,
        },
        TopChart {
            title: "Refused/s",
            value: format!("{}, {} in all", short(last(&refused)), total("refused")),
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
    let status = data.answer(Topic::Status);
    let (look, state) = match (field(status, "state"), status["ready"] == true) {
        ("serving", true) => (Look::Good, "serving; ready"),
        ("serving", false) => (Look::Warn, "serving; not ready"),
        ("draining", _) => (Look::Warn, "draining"),
        _ => return (Look::Idle, "no status yet".to_owned()),
    };
    let (routes, up) = (number(status, "routes"), seconds(number(status, "uptime_seconds")));
    (look, format!("{state}, {routes} routes, up {up}"))
}

/// Counts of hosts, tiers, and reasons for not cutting.
pub(super) fn counts(data: &TopData) -> Vec<(&'static str, String)> {
    let now = data.history.now();
    let tiers =
        ["cut", "sockmap", "splice", "copy"].map(|tier| format!("{tier} {}", short(number(&now["tiers"], tier))));
    let mut reasons: Vec<_> = now["not_cut"].as_object().into_iter().flatten().collect();
    reasons.sort_by_key(|(_, n)| std::cmp::Reverse(n.as_u64()));
    let reasons: Vec<_> = reasons
        .iter()
        .take(MAX_REASONS)
        .map(|(reason, n)| format!("{reason} {}", short(n.as_f64().unwrap_or(0.0))))
        .collect();
    let (usable, unhealthy) = (number(now, "usable_hosts"), number(now, "unhealthy_hosts"));
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
    let status = data.answer(Topic::Status);
    let mut all = Vec::new();
    for reason in list(status, "not_ready").iter().filter_map(Value::as_str) {
        all.push((Look::Bad, format!("not ready: {reason} (signalbox status)")));
    }
    let feature = |of: &Value| format!("{}: {} (signalbox doctor)", field(of, "feature"), field(of, "why"));
    all.extend(
        list(status, "missing_features")
            .iter()
            .map(|of| (Look::Bad, feature(of))),
    );
    let reload = &status["last_reload"];
    if reload["ok"] == false {
        let why = field(reload, "error");
        all.push((
            Look::Bad,
            format!("the last configuration was refused: {why} (signalbox check)"),
        ));
    }
    all.extend(unwell_hosts(data));
    all.extend(list(status, "degraded").iter().map(|of| (Look::Warn, feature(of))));
    all
}

/// Unhealthy hosts, hosts out of rotation, and hosts whose name is not resolved.
fn unwell_hosts(data: &TopData) -> impl Iterator<Item = (Look, String)> {
    let line = |host: &HostSeries| {
        let view = data.host_view(&host.key());
        let (look, state) = host_state(host, view);
        let check = view.and_then(|view| view["last_check"]["detail"].as_str());
        let check = check
            .filter(|_| look == Look::Bad)
            .map_or_else(String::new, |check| format!(" ({check})"));
        matches!(look, Look::Warn | Look::Bad)
            .then(|| (look, format!("{}/{} is {state}{check}", host.cluster, host.name)))
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
    let version = field(data.answer(Topic::Status), "version");
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
