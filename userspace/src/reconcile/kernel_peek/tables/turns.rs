//! Turns of routes among clusters, and of clusters among hosts, or why the kernel cannot follow them.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use signalbox_common::peek::abi::{MAGLEV_SLOTS, MAX_CLUSTER_HOSTS, MAX_TURNS, PeekMaglev, balance, protocol};
use signalbox_core::model::{Balance, Protocol, Route};
use signalbox_core::routing::balance::HostTurns;
use signalbox_core::routing::obstacle::PeekObstacle;

use super::key_of;
use crate::reconcile::kernel_peek::PeekReason;
use crate::state::Snapshot;

/// Turns of a route among clusters of the model. The first is not that of ticket 0.
pub(in super::super) fn route_turns<'a>(
    snapshot: &'a Snapshot,
    id: usize,
    route: &Route,
    protocol: Protocol,
) -> Result<&'a [u16], PeekObstacle> {
    if let Some(obstacle) = PeekObstacle::of_route(route, protocol, snapshot.rotation.is_closed(route)).first() {
        return Err(*obstacle);
    }
    turns_among_clusters(snapshot, id)
}

/// Turns of a route among clusters, whatever else its configuration has.
fn turns_among_clusters(snapshot: &Snapshot, id: usize) -> Result<&[u16], PeekObstacle> {
    let turns = snapshot
        .view
        .routes
        .get(id)
        .map_or(&[][..], |schedule| schedule.choices());
    match turns.len() {
        0 => Err(PeekObstacle::NoUsableHost),
        len if len > MAX_TURNS => Err(PeekObstacle::ManyTurns),
        _ => Ok(turns),
    }
}

/// How a cluster's host is chosen, as the snapshot says.
pub(in super::super) struct TurnsOf<'a> {
    /// A constant of [`balance`].
    pub(super) balance: u32,
    /// Hosts in turn, or all hosts to compare.
    pub(super) hosts: Vec<u16>,
    pub(super) maglev: Option<&'a [u16]>,
}

/// How the hosts of a cluster are chosen, for routes whose own balancing is `own`.
pub(in super::super) fn cluster_turns(
    snapshot: &Snapshot,
    at: usize,
    protocol: Protocol,
    own: Option<Balance>,
) -> Result<TurnsOf<'_>, PeekObstacle> {
    let cluster = snapshot.model.clusters.get(at).ok_or(PeekObstacle::NoUsableHost)?;
    if let Some(obstacle) = PeekObstacle::of_cluster(cluster, protocol).first() {
        return Err(*obstacle);
    }
    turns_among_hosts(snapshot, at, protocol, own)
}

/// How the hosts of a cluster are chosen, whatever else its configuration has.
fn turns_among_hosts(
    snapshot: &Snapshot,
    at: usize,
    protocol: Protocol,
    own: Option<Balance>,
) -> Result<TurnsOf<'_>, PeekObstacle> {
    let all = |hosts: &[(u16, u32)]| hosts.iter().map(|(host, _)| *host).collect();
    let turns = snapshot
        .view
        .host_turns(at, protocol, own)
        .ok_or(PeekObstacle::NoUsableHost)?;
    let (balance, hosts, maglev, most): (u32, Vec<u16>, Option<&[u16]>, usize) = match turns {
        HostTurns::ByTurn(turns) => (balance::TURNS, turns.to_vec(), None, MAX_TURNS),
        HostTurns::RandomTwo(turns) => (balance::RANDOM_TWO, turns.to_vec(), None, MAX_TURNS),
        HostTurns::ByLoad(hosts) => (balance::LEAST_CONNECTIONS, all(hosts), None, MAX_CLUSTER_HOSTS),
        HostTurns::Maglev(table, hosts) => (balance::MAGLEV, all(hosts), Some(table), MAX_TURNS),
    };
    match hosts.len() {
        0 => Err(PeekObstacle::NoUsableHost),
        len if len > most => Err(PeekObstacle::ManyHosts),
        _ => Ok(TurnsOf { balance, hosts, maglev }),
    }
}

/// A Maglev table whose slots are indexes of `hosts`.
pub(super) fn maglev_of(table: &[u16], hosts: &[u16]) -> Box<PeekMaglev> {
    let places: HashMap<u16, u8> = hosts.iter().zip(0..).map(|(host, place)| (*host, place)).collect();
    let mut entry = Box::new(PeekMaglev {
        slot: [0; MAGLEV_SLOTS],
        _pad: [0; 7],
    });
    for (slot, host) in entry.slot.iter_mut().zip(table) {
        *slot = places.get(host).copied().unwrap_or_default();
    }
    entry
}

/// Whether no host of a route's clusters has the client's address family.
pub(in super::super) fn is_of_other_family(snapshot: &Snapshot, route: usize, client: IpAddr) -> bool {
    let turns = snapshot
        .view
        .routes
        .get(route)
        .map_or(&[][..], |schedule| schedule.choices());
    let of = |cluster: &u16| snapshot.model.clusters.get(usize::from(*cluster));
    let mut hosts = turns.iter().filter_map(of).flat_map(|cluster| &cluster.hosts);
    hosts.all(|host| host.address.is_ipv4() != client.is_ipv4())
}

/// Returns all reasons for which connections of a route are left to userspace, from the snapshot, each with the item
/// of the configuration that it is a property of.
pub(in super::super) fn obstacles_of_route(
    snapshot: &Snapshot,
    (id, route): (usize, &Route),
    protocol: Protocol,
) -> Vec<PeekReason> {
    let of_route = |obstacle| PeekReason::new(obstacle, format!("route {}", route.hostname));
    let of_configuration = PeekObstacle::of_route(route, protocol, snapshot.rotation.is_closed(route));
    let mut found: Vec<_> = of_configuration.into_iter().map(of_route).collect();
    if key_of(protocol::HTTP, &route.hostname).is_none() {
        found.push(of_route(PeekObstacle::LongName));
    }
    let mut clusters: BTreeSet<usize> = BTreeSet::new();
    match turns_among_clusters(snapshot, id) {
        Ok(turns) => clusters.extend(turns.iter().map(|cluster| usize::from(*cluster))),
        // A route may have clusters only for its paths.
        Err(_) if !route.paths.is_empty() => {}
        Err(obstacle) => found.push(of_route(obstacle)),
    }
    let of_paths = route.paths.iter().flat_map(|path| &path.clusters);
    clusters.extend(of_paths.filter(|(_, weight)| *weight > 0).map(|(cluster, _)| *cluster));
    for at in clusters {
        let Some(cluster) = snapshot.model.clusters.get(at) else {
            continue;
        };
        let hosts = turns_among_hosts(snapshot, at, protocol, route.own_balance()).err();
        let obstacles = PeekObstacle::of_cluster(cluster, protocol).into_iter().chain(hosts);
        found.extend(obstacles.map(|obstacle| PeekReason::new(obstacle, format!("cluster {}", cluster.name))));
    }
    found
}
