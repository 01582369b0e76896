//! Another host for a connection whose host does not answer, or refuses: chosen as a worker would choose it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use signalbox_common::hash;
use signalbox_common::net::tuple::is_v4;
use signalbox_common::peek::abi::PeekSourceKey;
use signalbox_common::steer::{STEER_FIXED_BITS, SteerKey};
use signalbox_core::model::{Protocol, Route};
use signalbox_core::routing::balance::PickContext;
use signalbox_core::routing::view::Destination;
use signalbox_core::wire::address::ipv4_mapped;

use super::super::KernelPeek;
use super::super::tables::PeekHostKey;
use super::super::written::Written;
use crate::kernel::address::from_words;
use crate::kernel::peek::WaitingFlow;
use crate::state::{ClusterState, HostState, Snapshot};

/// Another host for a connection, which counts for it already.
pub(super) struct OtherHost {
    pub(super) state: Arc<HostState>,
    /// Element of `PEEK_HOSTS`.
    pub(super) element: u32,
    /// Source address of the connection.
    pub(super) local: [u32; 4],
    /// Number of nodes that divide the source ports of that address.
    pub(super) nodes: u32,
}

/// The connection that is to go to another host, its listener and route, and the tables that are in force.
pub(super) struct Choice<'a> {
    kernel_peek: &'a KernelPeek,
    snapshot: Arc<Snapshot>,
    written: &'a Written,
    waiting: &'a WaitingFlow,
    from: &'a Arc<HostState>,
    cluster: &'a Arc<ClusterState>,
    /// Index of the cluster in the snapshot.
    at: usize,
    protocol: Protocol,
    route: usize,
}

impl<'a> Choice<'a> {
    pub(super) fn new(
        kernel_peek: &'a KernelPeek,
        written: &'a Written,
        waiting: &'a WaitingFlow,
        (from, cluster): (&'a Arc<HostState>, &'a Arc<ClusterState>),
    ) -> Option<Self> {
        let snapshot = kernel_peek.shared.snapshot.load_full();
        let listener = kernel_peek.registry.listener_of(waiting.flow.listener)?;
        let mut listeners = snapshot.model.listeners.iter();
        let protocol = listeners.find(|known| known.name == listener.name)?.protocol;
        let number = waiting.flow.route;
        let route = snapshot
            .routes
            .iter()
            .position(|route| route.number.load(Relaxed) == number)?;
        let at = snapshot.clusters.iter().position(|known| Arc::ptr_eq(known, cluster))?;
        Some(Self {
            kernel_peek,
            snapshot,
            written,
            waiting,
            from,
            cluster,
            at,
            protocol,
            route,
        })
    }

    /// Whether so many of the hosts that take connections are silent that the cause is not one of them.
    pub(super) fn are_most_silent(&self) -> bool {
        let hosts = self.snapshot.hosts.get(self.at).map_or(0, Vec::len) as u16;
        let used = || (0..hosts).filter(|host| self.element(*host).is_some());
        2 * used().filter(|host| self.is_silent(*host)).count() > used().count()
    }

    fn is_silent(&self, host: u16) -> bool {
        let is_away = |element| self.kernel_peek.peek.is_away(element);
        self.is_from(host) || self.element(host).is_some_and(is_away)
    }

    /// Another host, chosen as a worker would choose it. `None` where there is none that has room. The connection counts for
    /// the host at once.
    pub(super) fn other_host(&self) -> Option<OtherHost> {
        let hosts = self.snapshot.hosts.get(self.at)?;
        let is_left_out = |host: &u16| self.is_silent(*host) || self.source(*host).is_none();
        let tried: Vec<u16> = (0..hosts.len() as u16).filter(is_left_out).collect();
        let ticket = self.cluster.ticket.ticket();
        let draw = PickContext {
            ticket,
            random: hash::mix(self.kernel_peek.shared.seed ^ hash::mix(ticket)),
            source_hash: hash::addr(0, ipv4_mapped(from_words(self.waiting.flow.client))),
        };
        let load = |host: u16| hosts.get(usize::from(host)).map_or(0, |host| host.active.get());
        let view = &self.snapshot.view;
        let chosen = view.host_to(
            Destination::Route(self.route),
            self.at,
            self.protocol,
            draw,
            &tried,
            load,
        )?;
        let (element, (local, nodes)) = (self.element(chosen)?, self.source(chosen)?);
        let state = hosts.get(usize::from(chosen))?;
        self.has_room(state).then_some(OtherHost {
            state: Arc::clone(state),
            element,
            local,
            nodes,
        })
    }

    fn is_from(&self, host: u16) -> bool {
        let hosts = self.snapshot.hosts.get(self.at);
        let state = hosts.and_then(|hosts| hosts.get(usize::from(host)));
        state.is_some_and(|state| Arc::ptr_eq(state, self.from))
    }

    /// Element of `PEEK_HOSTS` of a host of the cluster, if it is that of the host's present state.
    fn element(&self, host: u16) -> Option<u32> {
        let configured = self
            .snapshot
            .model
            .clusters
            .get(self.at)?
            .hosts
            .get(usize::from(host))?;
        let address = SocketAddr::new(configured.address, configured.port(self.protocol)?);
        let key: PeekHostKey = (self.cluster.name.clone(), configured.name.clone(), address);
        let (element, state) = self.written.hosts.get(&key)?;
        let present = self.snapshot.hosts.get(self.at)?.get(usize::from(host))?;
        Arc::ptr_eq(state, present).then_some(*element)
    }

    /// Source address of a connection to a host, and the number of nodes that divide its ports. `None` where the program would
    /// not connect this client to the host.
    fn source(&self, host: u16) -> Option<([u32; 4], u32)> {
        let element = self.element(host)?;
        let entry = self.written.entries.get(&element)?;
        let flow = &self.waiting.flow;
        if is_v4(&entry.address) != is_v4(&flow.client) || self.kernel_peek.peek.is_unfit(element) {
            return None;
        }
        let family = if is_v4(&flow.vip) { 4 } else { 6 };
        let key = SteerKey::new(flow.ports_a as u16, family, ipv4_mapped(from_words(flow.vip)));
        let moving = self.written.bindings.get(&(STEER_FIXED_BITS + 128, key))?.moving;
        let source = self.written.sources.get(&PeekSourceKey {
            moving: moving.into(),
            host: element,
        });
        let share = self.kernel_peek.shared.node;
        let (slot, all) = (u32::from(share.slot), u32::from(share.nodes).max(1));
        let (local, nodes) = match source {
            Some(source) if moving != 0 => (*source, all),
            _ if entry.is_moving != 0 => (entry.local, all),
            _ => (entry.local, 1),
        };
        let port = flow.ports_b & 0xffff;
        (nodes == 1 || port % nodes == slot).then_some((local, nodes))
    }

    /// Counts the connection for a host, unless that has as many as it may have.
    fn has_room(&self, host: &HostState) -> bool {
        let of_cluster = self.snapshot.model.clusters.get(self.at);
        let of_cluster = of_cluster.and_then(|cluster| cluster.max_host_connections);
        let of_route = self.snapshot.model.routes.get(self.route);
        let of_route = of_route.and_then(Route::max_host_connections);
        match of_cluster.into_iter().chain(of_route).min() {
            // Nobody overtakes those that wait.
            Some(_) if self.cluster.queue.waiting.get() > 0 => false,
            Some(limit) => host.active.try_enter(limit),
            None => {
                host.active.enter();
                true
            }
        }
    }
}
