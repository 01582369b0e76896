//! Chooses a host for a connection, and another host if that one does not answer.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use signalbox_common::hash;
use signalbox_common::peek::proxy::ConnectionId;
use signalbox_core::model::claimed::{ClusterAllow, is_served};
use signalbox_core::model::{ClusterWithBackup, Protocol};
use signalbox_core::routing::affinity::Stickiness;
use signalbox_core::routing::balance::PickContext;
use signalbox_core::routing::view::Destination;
use signalbox_core::wire::address::ipv4_mapped;
use signalbox_core::wire::peek::proxy::{ProxyTlvs, ToldConnection, v2_header};

use crate::kernel::cut::table::tick;
use crate::kernel::peek::ChosenHost;
use crate::state::connection_ids::ConnectionIds;
use crate::state::route_stats::RouteClusterStats;
use crate::state::{ClusterState, HostState, RouteState, Shared, Snapshot};

/// Maximum number of hosts tried for one connection.
pub(super) const MAX_HOSTS_TRIED: usize = 3;

/// A backend host that a connection counts against. The count is given back on drop.
pub struct Lease {
    pub cluster: Arc<ClusterState>,
    pub host: Arc<HostState>,
    pub backend: SocketAddr,
    /// TLVs of the PROXY header that the host gets; `None`: it gets no header.
    pub proxy: Option<ProxyTlvs>,
    /// Id of the connection in the header.
    pub connection_id: Option<ConnectionId>,
    /// Whether the host gets HTTP/2 with prior knowledge when the connection to it has no TLS.
    pub h2c: bool,
    pub repairs_answers: bool,
    pub(super) protocol: Protocol,
    /// Whether another host of the cluster may be asked if this one does not answer.
    pub(super) has_others: bool,
    /// Counters of the connection's cluster within its route. Set once connected.
    pub stats: Option<Arc<RouteClusterStats>>,
    is_counted: bool,
}

impl Lease {
    /// Counts the connection for its route too, once the host has accepted it.
    pub fn count_for_route(&mut self, route: &RouteState) {
        let share = route.stats.for_cluster(&self.cluster.name);
        share.connections.inc();
        share.active.enter();
        self.stats = Some(share);
    }

    /// PROXY header for a new connection to the host, empty if it gets none. The connection gets its id here.
    pub fn proxy_header(&mut self, ids: &ConnectionIds, told: &ToldConnection<'_>) -> Vec<u8> {
        let Some(tlvs) = self.proxy else {
            return Vec::new();
        };
        self.connection_id = tlvs.unique_id.then(|| ids.next());
        let id = self.connection_id;
        v2_header(&ToldConnection { id, ..*told }, tlvs)
    }

    /// Keeps the connection counted after the drop: the flow GC gives the count back when the flow
    /// ends.
    pub fn detach(mut self) {
        self.is_counted = false;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.is_counted {
            self.cluster.leave_host(&self.host);
            if let Some(share) = &self.stats {
                share.active.leave();
            }
        }
    }
}

/// The choices made for one connection.
pub struct Chooser<'a> {
    snapshot: &'a Snapshot,
    to: Destination,
    protocol: Protocol,
    /// The ticket that drew the cluster.
    ticket: u64,
    /// Cluster that the route prefers for this client over all others, or that the client's cookie names.
    preferred: Option<usize>,
    /// Host that the client's cookie names.
    stays_at: Option<(usize, u16)>,
    /// Host that the kernel peek has chosen.
    chosen: Option<(usize, u16)>,
    /// Lists of the clients that clusters serve, and the client.
    allow: Option<(&'a [ClusterAllow], IpAddr)>,
    source: u64,
    seed: u64,
    /// Hosts already chosen: none of them is chosen again.
    tried: Vec<(usize, u16)>,
    /// Hosts among the tried ones that refused a request. They may accept it later, so they are chosen again when no
    /// other host is left.
    refused: Vec<(usize, u16)>,
    /// Maximum number of connections of a host by the route, in addition to the cluster's limit.
    limit: Option<u32>,
    /// Hosts that had no room at the last choice.
    full: Vec<(usize, u16)>,
    /// Whether it is this connection's turn: no other connection in the queue goes first.
    is_in_turn: bool,
}

/// Reason why a chosen host cannot be leased.
enum LeaseError {
    /// The host is at its connection limit, or other connections wait for a host of its cluster.
    Full,
    /// The host is not in the configuration.
    Unknown,
}

impl<'a> Chooser<'a> {
    pub fn new(shared: &Shared, snapshot: &'a Snapshot, to: Destination, protocol: Protocol, client: IpAddr) -> Self {
        Self::sticky(shared, snapshot, to, protocol, client, None)
    }

    /// Choices for a client that stays at the host named by its cookie. A cluster that the route prefers for the client
    /// has priority. The client takes no ticket: weights apply to the other clients only.
    pub fn sticky(
        shared: &Shared,
        snapshot: &'a Snapshot,
        to: Destination,
        protocol: Protocol,
        client: IpAddr,
        stays_at: Option<Stickiness>,
    ) -> Self {
        let preferred = match to {
            Destination::Route(route) => snapshot.preferred(route, protocol, client),
            _ => None,
        };
        let stays_at = stays_at.filter(|at| preferred.is_none_or(|preferred| preferred == at.cluster));
        let ticket = match to {
            _ if stays_at.is_some() => 0,
            Destination::Route(route) => snapshot.routes.get(route).map_or(0, |route| route.total.ticket()),
            Destination::Path(route, path) => snapshot.path_ticket(route, path),
            Destination::Any => shared.any_ticket.ticket(),
            Destination::Cluster(_) | Destination::Closed | Destination::NoRoute => 0,
        };
        Self {
            snapshot,
            preferred: preferred.or_else(|| stays_at.map(|at| at.cluster)),
            stays_at: stays_at.and_then(|at| Some((at.cluster, at.host?))),
            chosen: None,
            to,
            protocol,
            ticket,
            allow: None,
            source: hash::addr(0, ipv4_mapped(client)),
            seed: shared.seed,
            tried: Vec::new(),
            refused: Vec::new(),
            limit: None,
            full: Vec::new(),
            is_in_turn: false,
        }
    }

    /// Leaves out hosts that have this many connections.
    #[must_use]
    pub const fn limited(mut self, limit: Option<u32>) -> Self {
        self.limit = limit;
        self
    }

    /// Connects to the host that the kernel peek has chosen, or to another one of its cluster: the cluster's turn is taken.
    #[must_use]
    pub fn keeping(mut self, chosen: Option<ChosenHost>) -> Self {
        let place = chosen.and_then(|chosen| self.place_of(chosen.number).map(|place| (place, chosen)));
        if let Some((place, chosen)) =
            place.filter(|((cluster, _), _)| self.preferred.is_none_or(|one| one == *cluster))
        {
            self.preferred = Some(place.0);
            if chosen.is_away {
                // Only where no other host is left.
                self.tried.push(place);
                self.refused.push(place);
            } else {
                self.chosen = Some(place);
            }
        }
        self
    }

    /// A host of the route, by its number.
    fn place_of(&self, number: u32) -> Option<(usize, u16)> {
        let Destination::Route(route) = self.to else {
            return None;
        };
        let clusters = self.snapshot.model.routes.get(route)?.clusters.iter();
        let mut clusters = clusters.filter(|(_, weight)| *weight > 0);
        clusters.find_map(|(cluster, _)| {
            let mut hosts = self.snapshot.hosts.get(*cluster)?.iter();
            let host = hosts.position(|host| host.number.load(Relaxed) == number)?;
            Some((*cluster, host as u16))
        })
    }

    /// Leaves out clusters that do not serve the client.
    #[must_use]
    pub fn serving_only(mut self, allow: &'a [ClusterAllow], client: IpAddr) -> Self {
        self.allow = (!allow.is_empty()).then_some((allow, client));
        self.stays_at = self.stays_at.take().filter(|(cluster, _)| self.serves(*cluster));
        self
    }

    fn serves(&self, cluster: usize) -> bool {
        self.allow
            .is_none_or(|(allow, client)| is_served(allow, cluster, client))
    }

    /// Number of hosts tried so far, except those that refused a request.
    pub fn attempts(&self) -> usize {
        self.tried.len() - self.refused.len()
    }

    /// Notes that the last chosen host refused a request.
    pub fn refused(&mut self) {
        self.refused.extend(self.tried.last());
    }

    /// Returns an untried host that has room. The connection counts against the host at once, so that concurrent
    /// choices see it.
    pub fn next_host(&mut self) -> Option<Lease> {
        self.full.clear();
        loop {
            let first = self.stays_at.take();
            let chosen = self.chosen.take().filter(|(cluster, _)| self.serves(*cluster));
            let at = first
                .or(chosen)
                .or_else(|| self.draw())
                .or_else(|| self.draw_refused())?;
            match self.lease(at, self.is_in_turn || first.is_some()) {
                Ok(lease) => {
                    self.tried.push(at);
                    return Some(lease);
                }
                Err(LeaseError::Unknown) => return None,
                // The client waits for the host that its cookie names.
                Err(LeaseError::Full) if first.is_some() => {
                    self.full.push(at);
                    self.stays_at = first;
                    return None;
                }
                Err(LeaseError::Full) => self.full.push(at),
            }
        }
    }

    /// Queue to wait in if the last choice failed for lack of room, and whether any host of the cluster will do.
    pub(super) fn queue(&self) -> Option<(Arc<ClusterState>, bool)> {
        let (cluster, _) = self.full.first()?;
        let cluster = self.snapshot.clusters.get(*cluster)?;
        Some((Arc::clone(cluster), self.stays_at.is_none()))
    }

    /// Makes later choices as a connection that has waited.
    pub(super) const fn queue_up(&mut self) {
        self.is_in_turn = true;
    }

    /// Draws one of the hosts that refused a request.
    fn draw_refused(&mut self) -> Option<(usize, u16)> {
        let refused = std::mem::take(&mut self.refused);
        if refused.is_empty() {
            return None;
        }
        self.tried.retain(|at| !refused.contains(at));
        self.draw()
    }

    fn draw(&self) -> Option<(usize, u16)> {
        match self.to {
            Destination::Closed | Destination::NoRoute => None,
            Destination::Any => self.choose_any(),
            Destination::Cluster(clusters) => self.choose_without_route(clusters),
            Destination::Route(_) | Destination::Path(..) => {
                let drawn = self
                    .preferred
                    .or_else(|| self.snapshot.view.cluster(self.to, self.ticket));
                drawn
                    .and_then(|cluster| self.choose_in_cluster(cluster))
                    .or_else(|| self.choose_in_other_cluster(drawn))
            }
        }
    }

    /// Returns a host of a cluster or, if no host of it can take the connection, of its backup. The client waits for
    /// hosts that have no room, as it would without a backup.
    fn choose_without_route(&self, clusters: ClusterWithBackup) -> Option<(usize, u16)> {
        let first = self.snapshot.view.taking(clusters, self.protocol);
        let waits = || self.full.iter().any(|(cluster, _)| *cluster == first);
        self.choose_in_cluster(first)
            .or_else(|| self.choose_in_cluster(clusters.other(first).filter(|_| !waits())?))
    }

    /// Hosts that are not to be chosen.
    fn left_out(&self) -> impl Iterator<Item = (usize, u16)> {
        self.tried.iter().chain(&self.full).copied()
    }

    fn choose_in_cluster(&self, cluster: usize) -> Option<(usize, u16)> {
        if !self.serves(cluster) {
            return None;
        }
        let hosts = self.snapshot.hosts.get(cluster)?;
        let ticket = self.snapshot.clusters.get(cluster)?.ticket.ticket();
        let draw = PickContext {
            ticket,
            random: hash::mix(self.seed ^ hash::mix(ticket)),
            source_hash: self.source,
        };
        // Nearly always empty: a `Vec` without elements does not allocate.
        let tried: Vec<u16> = self
            .left_out()
            .filter(|(c, _)| *c == cluster)
            .map(|(_, host)| host)
            .collect();
        let load = |host: u16| hosts.get(usize::from(host)).map_or(0, |host| host.active.get());
        let choose = |tried: &[u16]| {
            let view = &self.snapshot.view;
            view.host_to(self.to, cluster, self.protocol, draw, tried, load)
        };
        let now = tick();
        let host = if self.snapshot.clusters.get(cluster)?.has_away_hosts(now) {
            let away = (0..).zip(hosts).filter(|(_, host)| host.is_away(now)).map(|(at, _)| at);
            let left_out: Vec<u16> = tried.iter().copied().chain(away).collect();
            choose(&left_out).or_else(|| choose(&tried))
        } else {
            choose(&tried)
        };
        Some((cluster, host?))
    }

    /// Returns a host of another cluster of the route if the drawn cluster has no usable host left. Clusters of weight
    /// 0 are left out.
    fn choose_in_other_cluster(&self, drawn: Option<usize>) -> Option<(usize, u16)> {
        let routes = &self.snapshot.model.routes;
        let clusters = match self.to {
            Destination::Route(route) => &routes.get(route)?.clusters,
            Destination::Path(route, path) => &routes.get(route)?.paths.get(path)?.clusters,
            _ => return None,
        };
        clusters
            .iter()
            .filter(|(_, weight)| *weight > 0)
            .map(|&(cluster, _)| cluster)
            .filter(|&c| Some(c) != drawn)
            .find_map(|c| self.choose_in_cluster(c))
    }

    fn choose_any(&self) -> Option<(usize, u16)> {
        let state = |cluster: usize, host: u16| self.snapshot.hosts.get(cluster)?.get(usize::from(host));
        let left_out: Vec<_> = self.left_out().collect();
        self.snapshot
            .view
            .any_host(self.protocol, self.ticket, &left_out, |c, h| {
                state(c, h).map_or(u32::MAX, |state| state.active.get())
            })
    }

    fn lease(&self, at: (usize, u16), is_in_turn: bool) -> Result<Lease, LeaseError> {
        let mut lease = self.unlimited_lease(at).ok_or(LeaseError::Unknown)?;
        let limit = self.snapshot.model.clusters.get(at.0);
        let limit = limit.and_then(|cluster| cluster.max_host_connections);
        match limit.into_iter().chain(self.limit).min() {
            None => lease.host.active.enter(),
            Some(_) if !is_in_turn && lease.cluster.queue.waiting.get() > 0 => return Err(LeaseError::Full),
            Some(limit) if !lease.host.active.try_enter(limit) => return Err(LeaseError::Full),
            Some(_) => {}
        }
        lease.is_counted = true;
        Ok(lease)
    }

    /// Whether a host of a cluster would be left after the next one.
    fn has_others(&self, cluster: usize) -> bool {
        let tried = self.tried.iter().filter(|(c, _)| *c == cluster).count() + 1;
        self.attempts() + 1 < MAX_HOSTS_TRIED && tried < self.snapshot.view.usable(cluster, self.protocol).len()
    }

    /// Leases a host without counting the connection yet.
    fn unlimited_lease(&self, at: (usize, u16)) -> Option<Lease> {
        let (c, h) = (at.0, usize::from(at.1));
        let configured = self.snapshot.model.clusters.get(c)?;
        let host = configured.hosts.get(h)?;
        Some(Lease {
            cluster: Arc::clone(self.snapshot.clusters.get(c)?),
            host: Arc::clone(self.snapshot.hosts.get(c)?.get(h)?),
            backend: SocketAddr::new(host.address, host.port(self.protocol)?),
            proxy: configured.proxy_protocol,
            connection_id: None,
            h2c: configured.h2c,
            repairs_answers: configured.repairs_answers,
            protocol: self.protocol,
            has_others: self.has_others(c),
            stats: None,
            is_counted: false,
        })
    }
}
