//! Share of connections and names that the kernel routes, for the status.

use std::collections::BTreeMap;

use signalbox_api::status::{FastPath, LeftToWorkers};
use signalbox_core::model::{PeekPlace, Protocol};
use signalbox_core::routing::obstacle::PeekObstacle;

use crate::state::{Shared, Snapshot};

/// Number of samples of the last minute: one more than seconds, because counters are subtracted.
const SAMPLES: usize = 61;

pub(super) fn view(shared: &Shared, snapshot: &Snapshot) -> FastPath {
    let samples = shared.series.last(SAMPLES);
    let of_last_minute = |of: fn(&crate::state::series::Overall) -> u64| {
        let (first, last) = (samples.first()?, samples.last()?);
        Some(of(&last.overall).saturating_sub(of(&first.overall)))
    };
    let mut left: BTreeMap<(&str, PeekObstacle), usize> = BTreeMap::new();
    let mut protocols: Vec<Protocol> = Vec::new();
    for (listener, state) in snapshot.model.listeners.iter().zip(&snapshot.listeners) {
        match state.left_to_workers.get() {
            Some(obstacle) => *left.entry(("listener", obstacle)).or_default() += 1,
            None => protocols.push(listener.protocol),
        }
    }
    let filter = shared.kernel.filter_verdicts.load();
    let listeners = || snapshot.model.listeners.iter();
    let of_clients: Vec<_> = listeners()
        .filter(|listener| listener.datapath.peek == PeekPlace::Auto)
        .filter_map(|listener| filter.left_ranges(&listener.name))
        .collect();
    if let Some(most) = of_clients.iter().map(|(ranges, _)| *ranges).max() {
        left.insert(("client range", PeekObstacle::PacketFilter), most);
    }
    let rule = listeners().find_map(|listener| filter.cause(&listener.name));
    let rule = rule.or_else(|| of_clients.first().map(|(_, rule)| *rule));
    let reason = |obstacle: PeekObstacle| match rule {
        Some(rule) if obstacle == PeekObstacle::PacketFilter => format!("{}: {rule}", obstacle.text()),
        _ => obstacle.text().to_owned(),
    };
    let mut names_in_kernel = 0;
    for route in snapshot.routes.iter().filter(|_| !protocols.is_empty()) {
        // Most names have hosts for both protocols; one that has hosts for one protocol is used by that alone.
        let mut obstacles = protocols.iter().map(|protocol| route.obstacle(*protocol));
        let first = obstacles.next().flatten();
        match first.filter(|_| obstacles.all(|obstacle| obstacle.is_some())) {
            Some(obstacle) => *left.entry(("route", obstacle)).or_default() += 1,
            None => names_in_kernel += 1,
        }
    }
    FastPath {
        connections: of_last_minute(|overall| overall.total).unwrap_or_default(),
        connections_in_kernel: of_last_minute(|overall| overall.in_kernel).unwrap_or_default(),
        names: snapshot.routes.len(),
        names_in_kernel,
        left_to_workers: left
            .into_iter()
            .map(|((kind, obstacle), count)| LeftToWorkers {
                kind: kind.into(),
                label: obstacle.label().into(),
                reason: reason(obstacle).into(),
                count,
            })
            .collect(),
    }
}
