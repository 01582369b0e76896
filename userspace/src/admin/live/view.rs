//! Samples as JSON.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use signalbox_core::health::Health;
use signalbox_core::model::Tier;

use crate::state::HostState;
use crate::state::outcome::Ineligible;
use crate::state::series::{HostFigures, Overall, SAMPLE_INTERVAL, Sample};

/// Returns the changes for a viewer of the sample `before`. A host's figures are a list, to be short: `[active, total,
/// refused, bytes_in, bytes_out, health]`, with the host's index in the list of hosts as key.
pub(super) fn change(before: Option<&Sample>, now: &Sample) -> Value {
    let before = before.filter(|before| Arc::ptr_eq(&before.hosts, &now.hosts));
    let known = |at: usize| before.and_then(|before| before.figures.get(at));
    let changed = now
        .figures
        .iter()
        .enumerate()
        .filter(|(at, host)| known(*at) != Some(*host));
    let figures: Map<String, Value> = changed.map(|(at, host)| (at.to_string(), list(host))).collect();
    let mut view = json!({ "at": now.at_ms, "overall": overall(&now.overall), "figures": figures });
    if before.is_none() {
        view["hosts"] = now.hosts.iter().map(name).collect();
        view["left_out_hosts"] = json!(now.left_out_hosts);
    }
    view
}

/// Returns one list per number, oldest first, with the hosts in `wanted` (`all`, or names separated by commas). A host
/// that did not exist has `null`.
pub(super) fn history(samples: &[Arc<Sample>], wanted: &str) -> Value {
    let last = samples.last();
    let hosts = last.map(|last| &last.hosts[..]).unwrap_or_default();
    let wanted_hosts = hosts.iter().filter(|host| {
        let full = format!("{}/{}", host.cluster, host.name);
        wanted == "all" || wanted.split(',').any(|wanted| wanted == host.name || wanted == full)
    });
    json!({
        "apiVersion": "v1",
        "interval_ms": SAMPLE_INTERVAL.as_millis(),
        "at": samples.iter().map(|sample| sample.at_ms).collect::<Vec<_>>(),
        "overall": samples.iter().map(|sample| overall(&sample.overall)).collect::<Vec<_>>(),
        "hosts": wanted_hosts.map(|host| host_history(samples, host)).collect::<Vec<_>>(),
        "left_out_hosts": last.map_or(0, |last| last.left_out_hosts),
    })
}

fn host_history(samples: &[Arc<Sample>], host: &Arc<HostState>) -> Value {
    let figures = samples.iter().map(|sample| {
        let at = sample.hosts.iter().position(|other| Arc::ptr_eq(other, host));
        at.and_then(|at| sample.figures.get(at)).map_or(Value::Null, list)
    });
    let figures: Vec<_> = figures.collect();
    let mut view = name(host);
    view["figures"] = json!(figures);
    view
}

fn name(host: &Arc<HostState>) -> Value {
    json!({ "cluster": host.cluster, "name": host.name, "address": host.address })
}

fn list(host: &HostFigures) -> Value {
    let health = match host.health {
        Health::Unknown => 0,
        Health::Healthy => 1,
        Health::Unhealthy => 2,
    };
    json!([
        host.active,
        host.total,
        host.refused,
        host.bytes_in,
        host.bytes_out,
        health
    ])
}

fn overall(overall: &Overall) -> Value {
    let tiers: Map<_, _> = Tier::ALL
        .iter()
        .zip(overall.tiers)
        .map(|(tier, n)| (tier.as_str().into(), n.into()))
        .collect();
    let not_cut = Ineligible::LABELS.iter().zip(overall.not_cut).filter(|(_, n)| *n > 0);
    let not_cut: Map<_, _> = not_cut.map(|(label, n)| ((*label).into(), n.into())).collect();
    json!({
        "active": overall.active,
        "total": overall.total,
        "refused": overall.refused,
        "bytes_in": overall.bytes_in,
        "bytes_out": overall.bytes_out,
        "usable_hosts": overall.usable_hosts,
        "unhealthy_hosts": overall.unhealthy_hosts,
        "tiers": tiers,
        "not_cut": not_cut,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::series::{Series, tests::with_hosts};

    #[test]
    fn a_sample_has_the_figures_that_have_changed_and_names_hosts_only_once() {
        let shared = with_hosts();
        let series = Series::default();
        series.sample(&shared);
        shared.snapshot.load().hosts[0][1].total.inc();
        series.sample(&shared);
        let samples = series.last(2);
        let first = change(None, &samples[0]);
        assert_eq!(first["hosts"][1]["name"], "east-2");
        assert_eq!(first["figures"]["1"], json!([0, 0, 0, 0, 0, 0]));
        let second = change(Some(&samples[0]), &samples[1]);
        assert_eq!(second["figures"], json!({ "1": [0, 1, 0, 0, 0, 0] }));
        assert_eq!(second.get("hosts"), None);
    }

    #[test]
    fn history_has_the_hosts_that_are_asked_for() {
        let shared = with_hosts();
        let series = Series::default();
        series.sample(&shared);
        series.sample(&shared);
        let samples = series.last(120);
        let count = |wanted| history(&samples, wanted)["hosts"].as_array().unwrap().len();
        assert_eq!(
            [count(""), count("east-1"), count("east/east-1,east-2"), count("all")],
            [0, 1, 2, 2]
        );
        assert_eq!(
            history(&samples, "all")["hosts"][0]["figures"]
                .as_array()
                .unwrap()
                .len(),
            2
        );
    }
}
