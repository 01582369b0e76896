//! Snapshot of model and health of the hosts: the facts that a worker needs to choose. Immutable.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;

use signalbox_common::hash;

use crate::model::http::AffinityScope;
use crate::model::{Balance, ClusterWithBackup, Model, Protocol, Route, Unmatched};
use crate::routing::affinity::{AffinityTable, Stickiness};
use crate::routing::balance::{HostPicker, HostTurns, PickContext};
use crate::routing::route_table::{RouteId, RouteTable};
use crate::routing::schedule::Schedule;
use crate::routing::subset::HostOrder;
use crate::wire::address::ipv4_mapped;
use crate::wire::hostname::Hostname;
use crate::wire::http::path::PathTable;
use crate::wire::http::path_reading::readings;

/// Snapshot that workers choose from.
#[derive(Debug)]
pub struct RoutingView {
    /// Table from names to routes.
    pub table: RouteTable,
    /// Turns of each route among its clusters that have a usable host.
    pub routes: Vec<Schedule>,
    /// Turns among clusters of the routes that a path decides.
    paths: HashMap<RouteId, PathSchedules, FixedState>,
    /// Routes that are out of rotation.
    closed: HashSet<RouteId, FixedState>,
    /// Usable hosts of each cluster, for each protocol.
    clusters: Vec<[HostPicker; 3]>,
    /// Routes with their own way of balancing, and the hosts of their clusters for it.
    balances: HashMap<RouteId, Balance, FixedState>,
    balanced: HashMap<(usize, Balance), [HostPicker; 3], FixedState>,
    affinity: AffinityTable,
    unmatched: Unmatched,
    /// Hosts of all clusters that are used, for each protocol, as (cluster, host, weight).
    used_hosts: [Vec<(usize, u16, u32)>; 3],
    /// Hosts of each cluster that may get new flows of any kind, in order; backups too, whether or not they are used.
    eligible: Vec<Vec<u16>>,
    /// Whether the hosts of each cluster are eligible only because all of them are ejected.
    all_ejected: Vec<bool>,
    /// Backups that are usable and not used, by cluster and protocol: a client's cookie may name them.
    spared_backups: HashMap<(usize, Protocol), Vec<u16>, FixedState>,
}

/// Destination of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Route by its index.
    Route(RouteId),
    /// Path of a route, by the indices of both.
    Path(RouteId, usize),
    /// Cluster without a route: a `tcp` listener's, or the one for unmatched names.
    Cluster(ClusterWithBackup),
    /// Any healthy host of any cluster.
    Any,
    /// Route that is out of rotation.
    Closed,
    /// No destination: the connection is refused.
    NoRoute,
}

/// Routes of a name by path.
#[derive(Debug)]
struct PathSchedules {
    table: PathTable<usize>,
    schedules: Vec<Schedule>,
    /// Whether requests of other paths have clusters.
    has_rest: bool,
}

/// Standing of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eligibility {
    /// Whether the checks leave the host in.
    pub usable: bool,
    /// Whether the host is ejected because real connects failed.
    pub ejected: bool,
    /// Whether the host is out of rotation.
    pub rotated_out: bool,
}

impl RoutingView {
    /// Builds the snapshot; `standing(cluster, host)` gives the standing of each host.
    pub fn new(
        model: &Model,
        eligibility: impl Fn(usize, usize) -> Eligibility,
        is_closed: impl Fn(&Route) -> bool,
    ) -> Self {
        Self::with_subsets(model, &[], eligibility, is_closed)
    }

    /// Builds the snapshot with subsets: of a cluster with an order only the first usable hosts are used.
    pub fn with_subsets(
        model: &Model,
        subsets: &[Option<HostOrder>],
        eligibility: impl Fn(usize, usize) -> Eligibility,
        is_closed: impl Fn(&Route) -> bool,
    ) -> Self {
        let mut used_hosts = [const { Vec::new() }; 3];
        let mut spared_backups = HashMap::default();
        let balances = balances_of_routes(model);
        let wanted = wanted_balances(model, &balances);
        let mut balanced = HashMap::default();
        let mut clusters = Vec::with_capacity(model.clusters.len());
        let mut in_rotation = Vec::with_capacity(model.clusters.len());
        let mut all_ejected = Vec::with_capacity(model.clusters.len());
        for (c, cluster) in model.clusters.iter().enumerate() {
            let up = |&h: &usize| eligibility(c, h).usable && !eligibility(c, h).rotated_out;
            let up: Vec<_> = (0..cluster.hosts.len()).filter(up).collect();
            let kept: Vec<_> = up.iter().copied().filter(|&h| !eligibility(c, h).ejected).collect();
            // Fail open: ejection alone never leaves a cluster without a host that the checks call good.
            all_ejected.push(kept.is_empty() && !up.is_empty());
            let usable = if kept.is_empty() { up } else { kept };
            // Layer-4 services use all hosts: their tables are equal on every balancer.
            in_rotation.push(usable.iter().map(|&h| h as u16).collect());
            let order = subsets.get(c).and_then(Option::as_ref);
            let hosts = [Protocol::Http, Protocol::Tls, Protocol::Tcp].map(|protocol| {
                let with_port = usable
                    .iter()
                    .filter_map(|&h| cluster.hosts.get(h).map(|host| (h as u16, host)))
                    .filter(|(_, host)| host.port(protocol).is_some());
                let (backups, ordinary): (Vec<_>, Vec<_>) = with_port.partition(|(_, host)| host.backup);
                let chosen = if ordinary.is_empty() {
                    backups
                } else {
                    if !backups.is_empty() {
                        spared_backups.insert((c, protocol), backups.iter().map(|(h, _)| *h).collect());
                    }
                    ordinary
                };
                let mut hosts: Vec<_> = chosen
                    .iter()
                    .map(|(h, host)| (*h, host.weight, ipv4_mapped(host.address)))
                    .collect();
                if let Some(order) = order {
                    retain_used(order, &mut hosts, cluster.hosts.len());
                }
                used_hosts[protocol as usize].extend(hosts.iter().map(|&(h, weight, _)| (c, h, weight)));
                hosts
            });
            let pickers = |balance| hosts.each_ref().map(|hosts| HostPicker::new(balance, hosts));
            for &balance in wanted.get(&c).into_iter().flatten() {
                balanced.insert((c, balance), pickers(balance));
            }
            clusters.push(pickers(cluster.balance));
        }
        let alive = |c: usize| {
            clusters
                .get(c)
                .is_some_and(|by_protocol| by_protocol.iter().any(|choices| !choices.is_empty()))
        };
        // Most routes have one of a few splits: each schedule is made once.
        let mut schedules: HashMap<Vec<(u16, u32)>, Schedule, FixedState> = HashMap::default();
        let mut weights = Vec::new();
        let mut schedule = |clusters: &[(usize, u32)]| {
            let living = clusters.iter().filter(|(c, _)| alive(*c));
            weights.clear();
            weights.extend(living.map(|&(c, weight)| (c as u16, weight)));
            if let Some(known) = schedules.get(&weights) {
                return known.clone();
            }
            let new = Schedule::new(&weights);
            schedules.insert(weights.clone(), new.clone());
            new
        };
        let mut schedule = |route: &Route, clusters: &[(usize, u32)]| {
            let common = schedule(clusters);
            // Most routes have one turn: their names need no hash.
            if common.period() < 2 {
                return common;
            }
            common.starting_at(hash::bytes(0, route.hostname.to_string().as_bytes()))
        };
        let routes = model.routes.iter().map(|route| schedule(route, &route.clusters));
        let routes = routes.collect();
        let with_paths = (0..).zip(&model.routes).filter(|(_, route)| !route.paths.is_empty());
        let paths = with_paths.map(|(id, route)| {
            let table = route.paths.iter().enumerate();
            let schedules = PathSchedules {
                table: PathTable::new(table.map(|(at, path)| (path.path.as_bytes().into(), at))),
                schedules: route.paths.iter().map(|path| schedule(route, &path.clusters)).collect(),
                has_rest: !route.clusters.is_empty(),
            };
            (id, schedules)
        });
        let paths = paths.collect();
        let table = RouteTable::new(model.routes.iter().map(|route| (&route.hostname, route.depth)));
        let closed = (0..).zip(&model.routes).filter(|(_, route)| is_closed(route));
        Self {
            table,
            closed: closed.map(|(id, _)| id).collect(),
            routes,
            paths,
            clusters,
            balances,
            balanced,
            affinity: AffinityTable::new(model),
            unmatched: model.unmatched,
            used_hosts,
            eligible: in_rotation,
            all_ejected,
            spared_backups,
        }
    }

    /// Destination of a name; `fallback` is the listener's own cluster.
    #[must_use]
    pub fn destination(&self, name: Option<&Hostname>, fallback: Option<ClusterWithBackup>) -> Destination {
        if let Some(route) = name.and_then(|name| self.table.find(name)) {
            return match self.paths.get(&route) {
                _ if self.closed.contains(&route) => Destination::Closed,
                Some(paths) if !paths.has_rest => Destination::NoRoute,
                _ => Destination::Route(route),
            };
        }
        match (fallback, self.unmatched) {
            (Some(clusters), _) => Destination::Cluster(clusters),
            (None, Unmatched::Cluster(cluster)) => Destination::Cluster(ClusterWithBackup { cluster, backup: None }),
            (None, Unmatched::Any) => Destination::Any,
            (None, Unmatched::Reject) => Destination::NoRoute,
        }
    }

    /// Destination of a request, by its name and path.
    #[must_use]
    pub fn request_destination(
        &self,
        name: Option<&Hostname>,
        path: &[u8],
        fallback: Option<ClusterWithBackup>,
    ) -> Destination {
        if !self.paths.is_empty()
            && let Some(route) = name.and_then(|name| self.table.find(name))
            && let Some(paths) = self.paths.get(&route)
            && let Some(at) = paths.table.find(path)
            && !self.closed.contains(&route)
        {
            return Destination::Path(route, *at);
        }
        self.destination(name, fallback)
    }

    /// Whether a request's path, as some host may read it, belongs to another route of its name than its bytes do.
    #[must_use]
    pub fn is_ambiguous(&self, name: &Hostname, route: &Route, path: &[u8]) -> bool {
        let claimed = route.claimed.as_ref().map_or(&[][..], |claimed| &claimed.paths);
        if route.paths.is_empty() && claimed.is_empty() {
            return false;
        }
        let place = |path: &[u8]| {
            let to = self.request_destination(Some(name), path, None);
            (to, route.path_policy(path).map(|claimed| &*claimed.path))
        };
        let own = place(path);
        readings(path).any(|other| place(&other) != own)
    }

    /// Which of two clusters gets new connections for a protocol.
    #[must_use]
    pub fn taking(&self, clusters: ClusterWithBackup, protocol: Protocol) -> usize {
        self.taking_by(clusters, |cluster| !self.usable(cluster, protocol).is_empty())
    }

    /// Which of two clusters gets new connections: the backup if it has a host and the other has none, or only ejected
    /// ones.
    pub fn taking_by(&self, clusters: ClusterWithBackup, has_host: impl Fn(usize) -> bool) -> usize {
        let ClusterWithBackup { cluster, backup } = clusters;
        let Some(backup) = backup.filter(|backup| has_host(*backup)) else {
            return cluster;
        };
        let is_ejected = |cluster: usize| self.all_ejected.get(cluster).copied().unwrap_or(false);
        if has_host(cluster) && (!is_ejected(cluster) || is_ejected(backup)) {
            cluster
        } else {
            backup
        }
    }

    /// Cluster of a route that takes this ticket; `None` where none has a usable host.
    #[must_use]
    pub fn cluster(&self, to: Destination, ticket: u64) -> Option<usize> {
        match to {
            Destination::Route(route) => self.routes.get(route)?.draw(ticket).map(usize::from),
            Destination::Path(route, path) => {
                let schedule = self.paths.get(&route)?.schedules.get(path)?;
                schedule.draw(ticket).map(usize::from)
            }
            Destination::Cluster(_) | Destination::Any | Destination::Closed | Destination::NoRoute => None,
        }
    }

    /// Cluster and host that the value of a client's cookie names, if the route's `clusters` have the cluster, with any
    /// weight, and it has usable hosts; with a host only if that is one of them. A client stays at a backup when the
    /// other hosts come back.
    #[must_use]
    pub fn stickiness(
        &self,
        value: &[u8],
        scope: AffinityScope,
        clusters: &[(usize, u32)],
        protocol: Protocol,
    ) -> Option<Stickiness> {
        let found = self.affinity.find(value)?;
        let usable = self.usable(found.cluster, protocol);
        let is_usable = match (scope, found.host) {
            (AffinityScope::Cluster, None) => !usable.is_empty(),
            (AffinityScope::Host, Some(host)) => {
                let spared = self.spared_backups.get(&(found.cluster, protocol));
                usable.iter().any(|(usable, _)| *usable == host) || spared.is_some_and(|spared| spared.contains(&host))
            }
            _ => false,
        };
        let has_cluster = clusters.iter().any(|(cluster, _)| *cluster == found.cluster);
        (is_usable && has_cluster).then_some(found)
    }

    /// Host of a cluster that takes a connection to a destination, by the balancing of its route.
    pub fn host_to(
        &self,
        to: Destination,
        cluster: usize,
        protocol: Protocol,
        draw: PickContext,
        tried: &[u16],
        load: impl Fn(u16) -> u32,
    ) -> Option<u16> {
        let own = match to {
            Destination::Route(route) | Destination::Path(route, _) => self.balances.get(&route),
            _ => None,
        };
        match own.and_then(|balance| self.balanced.get(&(cluster, *balance))) {
            Some(pickers) => pickers[protocol as usize].pick(draw, tried, load),
            None => self.host(cluster, protocol, draw, tried, load),
        }
    }

    /// Host of a cluster that takes a connection, by the balancing of the cluster.
    pub fn host(
        &self,
        cluster: usize,
        protocol: Protocol,
        draw: PickContext,
        tried: &[u16],
        load: impl Fn(u16) -> u32,
    ) -> Option<u16> {
        self.clusters.get(cluster)?[protocol as usize].pick(draw, tried, load)
    }

    /// Least loaded usable host of all clusters, for [`Destination::Any`].
    pub fn any_host(
        &self,
        protocol: Protocol,
        ticket: u64,
        tried: &[(usize, u16)],
        load: impl Fn(usize, u16) -> u32,
    ) -> Option<(usize, u16)> {
        let hosts = &self.used_hosts[protocol as usize];
        let (before, from) = hosts.split_at(ticket as usize % hosts.len().max(1));
        let mut best: Option<(u64, u64, (usize, u16))> = None;
        for &(cluster, host, weight) in from.iter().chain(before) {
            if tried.contains(&(cluster, host)) {
                continue;
            }
            let (would_have, weight) = (u64::from(load(cluster, host)) + 1, u64::from(weight));
            if best.is_none_or(|(least, of, _)| would_have * of < least * weight) {
                best = Some((would_have, weight, (cluster, host)));
            }
        }
        best.map(|(_, _, at)| at)
    }

    /// Hosts of a cluster that may get new flows, with any ports, in order; backups too, whether or not they are used.
    #[must_use]
    pub fn eligible_hosts(&self, cluster: usize) -> &[u16] {
        self.eligible.get(cluster).map_or(&[], Vec::as_slice)
    }

    /// How hosts of a cluster are chosen, for routes whose own balancing is `own`.
    #[must_use]
    pub fn host_turns(&self, cluster: usize, protocol: Protocol, own: Option<Balance>) -> Option<HostTurns<'_>> {
        let balanced = own.and_then(|balance| self.balanced.get(&(cluster, balance)));
        let pickers = balanced.or_else(|| self.clusters.get(cluster))?;
        Some(pickers[protocol as usize].turns())
    }

    /// Hosts of a cluster that new connections may go to.
    #[must_use]
    pub fn usable(&self, cluster: usize, protocol: Protocol) -> &[(u16, u32)] {
        self.clusters
            .get(cluster)
            .map_or(&[], |by_protocol| by_protocol[protocol as usize].hosts())
    }
}

/// Routes with their own way of balancing.
fn balances_of_routes(model: &Model) -> HashMap<RouteId, Balance, FixedState> {
    let routes = model.routes.iter().enumerate();
    routes
        .filter_map(|(id, route)| Some((id, route.own_balance()?)))
        .collect()
}

/// Ways to balance, beside a cluster's own, that routes want of it.
fn wanted_balances(
    model: &Model,
    balances: &HashMap<RouteId, Balance, FixedState>,
) -> HashMap<usize, HashSet<Balance, FixedState>, FixedState> {
    let mut wanted: HashMap<usize, HashSet<Balance, FixedState>, FixedState> = HashMap::default();
    for (id, balance) in balances {
        let clusters = model.routes.get(*id).into_iter().flat_map(|route| &route.clusters);
        for (cluster, _) in clusters {
            wanted.entry(*cluster).or_default().insert(*balance);
        }
    }
    wanted
}

/// Keeps the first `order.size` of these hosts, which are of a cluster of `count`.
fn retain_used(order: &HostOrder, hosts: &mut Vec<(u16, u32, [u8; 16])>, count: usize) {
    let mut is_candidate = vec![false; count];
    for (h, ..) in hosts.iter() {
        is_candidate[usize::from(*h)] = true;
    }
    let mut is_used = vec![false; count];
    for host in order.used(|h| is_candidate.get(usize::from(h)).copied().unwrap_or(false)) {
        is_used[usize::from(host)] = true;
    }
    hosts.retain(|(h, ..)| is_used[usize::from(*h)]);
}

#[cfg(test)]
pub(crate) mod tests;
