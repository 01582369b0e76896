//! Limits of connections that the program keeps together with workers: the same seeds make the same cells.

use signalbox_common::peek::abi::{LIMITS_OF_LISTENER, PeekLimits};
use signalbox_core::limits::limit;
use signalbox_core::limits::request_limit::cost_and_depth;
use signalbox_core::model::claimed::ConnectionLimits;
use signalbox_core::model::{Listener, Route};
use signalbox_core::routing::obstacle::PeekObstacle;

use crate::state::{ListenerState, Snapshot};

/// Limits of a listener's sources (`shield.limits.concurrent`), and the bit of their key; `None`: it has none.
pub(super) fn of_listener(listener: &Listener, state: &ListenerState, seed: u64) -> Option<(u32, PeekLimits)> {
    let limits = listener.shield.as_ref()?.limits;
    let (v4, v6) = *state
        .source_bits
        .get_or_init(|| (limits.ipv4_prefix, limits.ipv6_prefix));
    let limits = PeekLimits {
        seed: limit::seed_of(seed, &listener.name),
        concurrent: limits.concurrent,
        bits: v6.min(128) | (96 + v4.min(32)) << 8,
        ..PeekLimits::default()
    };
    (limits.concurrent != 0).then_some((LIMITS_OF_LISTENER, limits))
}

/// Limits of a route's sources; `None`: it has none.
pub(super) fn of_route(route: &Route, seed: u64) -> Option<PeekLimits> {
    let limits = route.connection_limits();
    let (cost, most) = limits.rate.map_or((0, 0), cost_and_depth);
    (limits != ConnectionLimits::default()).then(|| PeekLimits {
        seed: limit::seed_of_path(seed, &route.hostname, ""),
        cost,
        most,
        concurrent: limits.concurrent,
        bits: 0,
    })
}

/// Most connections of a host of a cluster, for a route with a limit of its own, and the word that counts the
/// connections that wait for one; zero: no limit.
pub(super) fn of_hosts(snapshot: &Snapshot, at: usize, own: Option<u32>) -> Result<(u32, u32), PeekObstacle> {
    let of_cluster = snapshot
        .model
        .clusters
        .get(at)
        .and_then(|cluster| cluster.max_host_connections);
    let Some(limit) = of_cluster.into_iter().chain(own).min() else {
        return Ok((0, 0));
    };
    let queue = snapshot.clusters.get(at).and_then(|state| state.queue.waiting.word());
    Ok((limit, queue.ok_or(PeekObstacle::TableFull)?))
}
