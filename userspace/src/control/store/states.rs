//! States that outlive a change of the model: those of hosts, clusters, routes, paths and listeners, by name.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use foldhash::fast::FixedState;
use signalbox_core::limits::stats::Counter;
use signalbox_core::model::{Cluster, Host, Model, PathRoute};
use signalbox_core::wire::hostname::HostnamePattern;

use super::hosts::{HostEntry, HostKey};
use crate::state::{ClusterState, HostQueue, HostState, ListenerState, RouteState, Shared};

#[derive(Default)]
pub(super) struct LastingStates {
    pub(super) hosts: HashMap<HostKey, HostEntry>,
    pub(super) clusters: HashMap<String, Arc<ClusterState>>,
    pub(super) routes: HashMap<HostnamePattern, Arc<RouteState>, FixedState>,
    /// Counters of choices, for each path of a route.
    path_tickets: HashMap<(HostnamePattern, String), Arc<Counter>>,
    pub(super) listeners: HashMap<String, Arc<ListenerState>>,
    /// Hosts that have left the model and still have connections.
    pub(super) draining: Vec<Arc<HostState>>,
}

impl LastingStates {
    /// Keeps the states of all names of a model except hosts, and makes those of new names.
    pub(super) fn keep(&mut self, model: &Model, shared: &Shared) {
        let counts = shared.limits.words;
        let names = model.clusters.iter().map(|cluster| cluster.name.clone());
        retain_states(&mut self.clusters, names, |name| ClusterState {
            name: name.to_owned(),
            queue: HostQueue::counted_by(counts.gauge()),
            ..ClusterState::default()
        });
        self.keep_routes(model, shared);
        let paths = model.routes.iter().flat_map(|route| {
            let path = |path: &PathRoute| (route.hostname.clone(), path.path.clone());
            route.paths.iter().map(path)
        });
        retain_states(&mut self.path_tickets, paths, |_| Counter::default());
        let taken: Vec<u32> = self.listeners.values().map(|listener| listener.id).collect();
        let mut free = (0..).filter(|id| !taken.contains(id));
        let names = model.listeners.iter().map(|listener| listener.name.clone());
        retain_states(&mut self.listeners, names, |name| ListenerState {
            name: name.to_owned(),
            id: free.next().unwrap_or_default(),
            ..ListenerState::default()
        });
    }

    /// Flows of a removed route still count, and the route may come back.
    fn keep_routes(&mut self, model: &Model, shared: &Shared) {
        let book = &shared.route_labels;
        book.set_max(model.metrics.routes);
        let mut before = std::mem::take(&mut self.routes);
        for route in &model.routes {
            let known = before.remove(&route.hostname);
            let state = known.unwrap_or_else(|| book.revive(&route.hostname.to_string()));
            self.routes.insert(route.hostname.clone(), state);
        }
        for gone in before.into_values() {
            book.retire(gone);
        }
        book.forget_unused();
    }

    /// Hosts of a model's clusters, in its order.
    pub(super) fn hosts_of(&self, model: &Model) -> Vec<Vec<Arc<HostState>>> {
        let of_cluster = |cluster: &Cluster| {
            let entry = |host: &Host| self.hosts.get(&(cluster.name.clone(), host.name.clone()));
            let entries = cluster.hosts.iter().filter_map(entry);
            entries.map(|entry| Arc::clone(&entry.state)).collect()
        };
        model.clusters.iter().map(of_cluster).collect()
    }

    /// Counters of choices for each path, by the index of its route.
    pub(super) fn path_tickets(&self, model: &Model) -> HashMap<usize, Vec<Arc<Counter>>, FixedState> {
        if self.path_tickets.is_empty() {
            return HashMap::default();
        }
        let routes = model.routes.iter().enumerate();
        let with_paths = routes.filter(|(_, route)| !route.paths.is_empty());
        let tickets = with_paths.map(|(at, route)| {
            let ticket = |path: &PathRoute| {
                let known = self.path_tickets.get(&(route.hostname.clone(), path.path.clone()));
                known.cloned().unwrap_or_default()
            };
            (at, route.paths.iter().map(ticket).collect())
        });
        tickets.collect()
    }

    /// Forgets hosts whose last connection has ended, and returns whether there were any.
    pub(super) fn forget_drained(&mut self) -> bool {
        let before = self.draining.len();
        self.draining.retain(|host| host.active.get() > 0);
        self.draining.len() != before
    }
}

/// States of names that have one, in the order of the names.
pub(super) fn known<'a, K: Eq + Hash + 'a, T, S: BuildHasher>(
    states: &HashMap<K, Arc<T>, S>,
    names: impl Iterator<Item = &'a K>,
) -> Vec<Arc<T>> {
    names.filter_map(|name| states.get(name).cloned()).collect()
}

/// Keeps the states of names that stay, makes those of new names, and forgets the rest.
fn retain_states<K: Eq + Hash, T, S: BuildHasher + Default>(
    states: &mut HashMap<K, Arc<T>, S>,
    names: impl Iterator<Item = K>,
    mut make: impl FnMut(&K) -> T,
) {
    let mut before = std::mem::take(states);
    for name in names {
        let state = before.remove(&name).unwrap_or_else(|| Arc::new(make(&name)));
        states.insert(name, state);
    }
}
