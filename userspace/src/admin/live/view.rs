//! Samples, in the API's types.

use std::sync::Arc;

use signalbox_api::by_label;
use signalbox_api::live::{HistoryAnswer, HostHistory, HostName, HostSample, OverallFigures, SampleChange};
use signalbox_core::model::Tier;
use signalbox_core::routing::health::Health;

use crate::state::HostState;
use crate::state::outcome::Ineligible;
use crate::state::series::{HostFigures, Overall, SAMPLE_INTERVAL, Sample};

/// Returns the changes for a viewer of the sample `before`.
pub(super) fn change(before: Option<&Sample>, now: &Sample) -> SampleChange {
    let before = before.filter(|before| Arc::ptr_eq(&before.hosts, &now.hosts));
    let known = |at: usize| before.and_then(|before| before.figures.get(at));
    let figures = now.figures.iter().enumerate();
    let changed = figures.filter(|(at, host)| known(*at) != Some(*host));
    SampleChange {
        at: now.at_ms,
        overall: overall(&now.overall),
        figures: changed.map(|(at, host)| (at, list(host))).collect(),
        hosts: before
            .is_none()
            .then(|| now.hosts.iter().map(|host| name(host)).collect()),
        left_out_hosts: before.is_none().then_some(now.left_out_hosts),
    }
}

/// Returns one list per number, oldest first, with the hosts in `wanted` (`all`, or names separated by commas). A host
/// that did not exist has `null`.
pub(super) fn history(samples: &[Arc<Sample>], wanted: &str) -> HistoryAnswer {
    let last = samples.last();
    let hosts = last.map(|last| &last.hosts[..]).unwrap_or_default();
    let wanted_hosts = hosts.iter().filter(|host| {
        let full = format!("{}/{}", host.cluster, host.name);
        wanted == "all" || wanted.split(',').any(|wanted| wanted == host.name || wanted == full)
    });
    HistoryAnswer {
        interval_ms: SAMPLE_INTERVAL.as_millis() as u64,
        at: samples.iter().map(|sample| sample.at_ms).collect(),
        overall: samples.iter().map(|sample| overall(&sample.overall)).collect(),
        hosts: wanted_hosts.map(|host| host_history(samples, host)).collect(),
        left_out_hosts: last.map_or(0, |last| last.left_out_hosts),
    }
}

fn host_history(samples: &[Arc<Sample>], host: &Arc<HostState>) -> HostHistory {
    let figures = samples.iter().map(|sample| {
        let at = sample.hosts.iter().position(|other| Arc::ptr_eq(other, host))?;
        sample.figures.get(at).map(list)
    });
    HostHistory {
        host: name(host),
        figures: figures.collect(),
    }
}

fn name(host: &HostState) -> HostName {
    HostName {
        cluster: host.cluster.clone(),
        name: host.name.clone(),
        address: host.address.to_string(),
    }
}

fn list(host: &HostFigures) -> HostSample {
    let health = match host.health {
        Health::Unknown => 0,
        Health::Healthy => 1,
        Health::Unhealthy => 2,
    };
    [
        host.active.into(),
        host.total,
        host.refused,
        host.bytes_in,
        host.bytes_out,
        health,
    ]
}

fn overall(overall: &Overall) -> OverallFigures {
    let not_cut = Ineligible::LABELS.into_iter().zip(overall.not_cut);
    OverallFigures {
        active: overall.active,
        total: overall.total,
        refused: overall.refused,
        bytes_in: overall.bytes_in,
        bytes_out: overall.bytes_out,
        usable_hosts: overall.usable_hosts,
        unhealthy_hosts: overall.unhealthy_hosts,
        tiers: by_label(Tier::ALL.map(Tier::as_str).into_iter().zip(overall.tiers)),
        not_cut: by_label(not_cut.filter(|(_, n)| *n > 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::series::{Series, tests::with_hosts};

    #[test]
    fn a_sample_has_only_changed_figures_and_names_hosts_once() {
        let shared = with_hosts();
        let series = Series::default();
        series.sample(&shared);
        shared.snapshot.load().hosts[0][1].total.inc();
        series.sample(&shared);
        let samples = series.last(2);
        let first = change(None, &samples[0]);
        assert_eq!(first.hosts.unwrap()[1].name, "east-2");
        assert_eq!(first.figures[&1], [0; 6]);
        let second = change(Some(&samples[0]), &samples[1]);
        assert_eq!(
            second.figures.into_iter().collect::<Vec<_>>(),
            [(1, [0, 1, 0, 0, 0, 0])]
        );
        assert!(second.hosts.is_none());
    }

    #[test]
    fn history_has_the_hosts_that_are_asked_for() {
        let shared = with_hosts();
        let series = Series::default();
        series.sample(&shared);
        series.sample(&shared);
        let samples = series.last(120);
        let count = |wanted| history(&samples, wanted).hosts.len();
        assert_eq!(
            [count(""), count("east-1"), count("east/east-1,east-2"), count("all")],
            [0, 1, 2, 2]
        );
        assert_eq!(history(&samples, "all").hosts[0].figures.len(), 2);
    }
}
