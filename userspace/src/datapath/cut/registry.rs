//! Registry of numbers: finds the host, cluster and listener of a flow in the table.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::RwLock;
use signalbox_core::limits::stats::WordPool;

use crate::kernel::Cut;
use crate::state::route_stats::RouteClusterStats;
use crate::state::{ClusterState, HostQueue, HostState, ListenerState, RouteState, Shared, Snapshot};

/// A host and the cluster it belongs to.
pub type HostAndCluster = (Arc<HostState>, Arc<ClusterState>);

/// Kinds of things with numbers: the first part of a name.
const HOST_KIND: &str = "host";
const LISTENER_KIND: &str = "listener";
const ROUTE_KIND: &str = "route";

/// States of hosts, listeners and routes, by number.
pub struct Registry {
    cut: Arc<Cut>,
    states: RwLock<NumberedStates>,
}

#[derive(Default)]
struct NumberedStates {
    hosts: HashMap<u32, HostAndCluster>,
    listeners: HashMap<u32, Arc<ListenerState>>,
    /// Weak references: a removed route without flows is forgotten.
    routes: HashMap<u32, Weak<RouteState>>,
}

impl Registry {
    #[must_use]
    pub fn new(cut: Arc<Cut>) -> Self {
        Self {
            cut,
            states: RwLock::default(),
        }
    }

    /// Returns a host's number.
    pub fn host(&self, host: &Arc<HostState>, cluster: &Arc<ClusterState>) -> Option<u32> {
        let address = host.address.to_string();
        let number = self.number(&host.number, &[HOST_KIND, &host.cluster, &host.name, &address]);
        number.map(|(number, is_new)| {
            if is_new {
                let party = (Arc::clone(host), Arc::clone(cluster));
                self.states.write().hosts.insert(number, party);
            }
            number
        })
    }

    /// Returns a listener's number.
    pub fn listener(&self, listener: &Arc<ListenerState>) -> Option<u16> {
        let (number, is_new) = self.number(&listener.number, &[LISTENER_KIND, &listener.name])?;
        if is_new {
            self.states.write().listeners.insert(number, Arc::clone(listener));
        }
        u16::try_from(number).ok()
    }

    /// Returns a route's number.
    pub fn route(&self, route: &Arc<RouteState>) -> Option<u32> {
        let (number, is_new) = self.number(&route.number, &[ROUTE_KIND, &route.hostname])?;
        if is_new {
            self.states.write().routes.insert(number, Arc::downgrade(route));
        }
        Some(number)
    }

    fn number(&self, cached: &AtomicU32, parts: &[&str]) -> Option<(u32, bool)> {
        match cached.load(Relaxed) {
            0 => {
                let number = self.cut.names.number(parts).ok()?;
                cached.store(number, Relaxed);
                Some((number, true))
            }
            number => Some((number, false)),
        }
    }

    /// Returns the host and cluster of a flow, by the host's number.
    #[must_use]
    pub fn host_of(&self, number: u32) -> Option<HostAndCluster> {
        self.states.read().hosts.get(&number).cloned()
    }

    /// Returns the listener of a flow.
    #[must_use]
    pub fn listener_of(&self, number: u16) -> Option<Arc<ListenerState>> {
        self.states.read().listeners.get(&u32::from(number)).cloned()
    }

    /// Returns the figures of a flow: those of its cluster within its route.
    #[must_use]
    pub fn stats_of(&self, route: u32, cluster: &ClusterState) -> Option<Arc<RouteClusterStats>> {
        let state = self.states.read().routes.get(&route)?.upgrade()?;
        Some(state.stats.for_cluster(&cluster.name))
    }

    /// Returns the name of a flow's route.
    #[must_use]
    pub fn route_of(&self, number: u32) -> Option<String> {
        self.cut.names.parts(number)?.into_iter().nth(1)
    }

    /// Finds the route for a number of an earlier process. If no route has the name any more, makes one for it.
    pub fn adopt_route(&self, shared: &Shared, number: u32) -> Option<Arc<RouteState>> {
        let known = self.states.read().routes.get(&number).and_then(Weak::upgrade);
        if known.is_some() {
            return known;
        }
        let name = self.route_of(number)?;
        let _hold = shared.route_labels.lock_changes();
        let snapshot = shared.snapshot.load();
        let configured = snapshot.routes.iter().find(|state| state.hostname == name);
        let state = configured.cloned().unwrap_or_else(|| shared.route_labels.adopt(&name));
        state.number.store(number, Relaxed);
        self.states.write().routes.insert(number, Arc::downgrade(&state));
        Some(state)
    }

    /// Finds the host and listener for numbers of an earlier process. A host that is no longer configured is created as
    /// a draining one, and returned for the store to keep.
    pub fn adopt(
        &self,
        snapshot: &Snapshot,
        counts: &'static WordPool,
        host: u32,
        listener: u16,
    ) -> Option<Arc<HostState>> {
        if self.listener_of(listener).is_none()
            && let Some(name) = self
                .cut
                .names
                .parts(u32::from(listener))
                .and_then(|parts| parts.into_iter().nth(1))
        {
            let found = snapshot.listeners.iter().find(|state| state.name == name);
            let state = found.cloned().unwrap_or_else(|| {
                Arc::new(ListenerState {
                    name,
                    ..ListenerState::default()
                })
            });
            state.number.store(u32::from(listener), Relaxed);
            self.states.write().listeners.insert(u32::from(listener), state);
        }
        if self.host_of(host).is_some() {
            return None;
        }
        let parts = self.cut.names.parts(host)?;
        let [_, cluster, name, address] = parts.as_slice() else {
            return None;
        };
        let address: IpAddr = address.parse().ok()?;
        let mut configured = snapshot
            .hosts
            .iter()
            .zip(&snapshot.clusters)
            .flat_map(|(hosts, cluster)| {
                let cluster = Arc::clone(cluster);
                hosts.iter().map(move |host| (Arc::clone(host), Arc::clone(&cluster)))
            });
        let same = |host: &HostState| host.cluster == *cluster && host.name == *name && host.address == address;
        let (party, orphan) = match configured.find(|(host, _)| same(host)) {
            Some(party) => (party, None),
            None => {
                let host = Arc::new(HostState::new(cluster, name, address).counted_by(counts.gauge()));
                host.draining.store(true, Relaxed);
                let known = snapshot.clusters.iter().find(|state| state.name == *cluster);
                let state = known.cloned().unwrap_or_else(|| {
                    Arc::new(ClusterState {
                        name: cluster.clone(),
                        queue: HostQueue::counted_by(counts.gauge()),
                        ..ClusterState::default()
                    })
                });
                ((Arc::clone(&host), state), Some(host))
            }
        };
        party.0.number.store(host, Relaxed);
        self.states.write().hosts.insert(host, party);
        orphan
    }
}
