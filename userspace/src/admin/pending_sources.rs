//! Watched clusters without a report: a balancer without their names would not serve any of them.

use std::fmt::Write as _;

use crate::control::Control;
use crate::control::watchers::KUBE_PREFIX;
use crate::source::SourceStatus;

/// Returns the sources that readiness waits for: those without a report, to this or an earlier process.
pub(super) fn pending_sources(control: &Control) -> Vec<String> {
    let snapshot = control.shared.snapshot.load();
    if control.shared.life.started.elapsed() >= snapshot.file.timeouts.first_read {
        return Vec::new();
    }
    unheard_sources(control)
        .map(|name| format!("{name} has not been read yet"))
        .collect()
}

/// Returns all sources that should have reported a cluster but have not, regardless of the time.
fn unheard_sources(control: &Control) -> impl Iterator<Item = String> {
    let snapshot = control.shared.snapshot.load();
    let unknown = |cluster: &signalbox_core::model::Cluster| {
        let name = format!("{KUBE_PREFIX}{}", cluster.name);
        let is_known = snapshot
            .discovered
            .get(&name)
            .is_some_and(|of| of.contains_key(&cluster.name));
        (cluster.kubernetes.is_some() && !is_known).then_some(name)
    };
    snapshot
        .file
        .clusters
        .iter()
        .filter_map(unknown)
        .collect::<Vec<_>>()
        .into_iter()
}

/// Returns a line for each source, in the format of `readyz?verbose`.
pub(super) fn verbose_lines(control: &Control) -> String {
    let unknown: Vec<_> = unheard_sources(control).collect();
    let waits = !pending_sources(control).is_empty();
    let mut text = String::new();
    for source in control.shared.sources() {
        let is_unknown = unknown.contains(&source.name);
        let mark = match (source.connected(), is_unknown && waits) {
            (true, _) => "+",
            (false, true) => "-",
            (false, false) => "~",
        };
        let _ = writeln!(
            text,
            "[{mark}] source {}: {}",
            source.name,
            source_state(&source, is_unknown)
        ); // a String takes everything
    }
    text
}

fn source_state(source: &SourceStatus, is_unknown: bool) -> String {
    let heard = source.staleness().map(|age| format!("heard {age:.0} s ago"));
    let heard = heard.unwrap_or_else(|| "never heard".to_owned());
    let known = if is_unknown {
        "nothing is known of its cluster, "
    } else {
        ""
    };
    match source.last_error() {
        Some(error) => format!("{known}{heard}: {error}"),
        None => format!("{known}{heard}"),
    }
}
