//! The snapshot that the store publishes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use foldhash::fast::FixedState;
use signalbox_core::availability::ha::floating::FloatingSources;
use signalbox_core::limits::stats::Counter;
use signalbox_core::model::{Host, PathRoute};
use signalbox_core::routing::obstacle::PeekObstacle;
use signalbox_core::routing::rotation::Rotation;
use signalbox_core::routing::view::{Eligibility, RoutingView};

use super::{Store, own_listener};
use crate::state::{Binds, HostState, IdleTimeouts, Snapshot};

impl Store {
    /// Counters of choices for each path, by the index of its route.
    fn path_tickets(&self) -> HashMap<usize, Vec<Arc<Counter>>, FixedState> {
        if self.path_tickets.is_empty() {
            return HashMap::default();
        }
        let with_paths = self
            .model
            .routes
            .iter()
            .enumerate()
            .filter(|(_, route)| !route.paths.is_empty());
        let tickets = with_paths.map(|(at, route)| {
            let ticket = |path: &PathRoute| {
                let known = self.path_tickets.get(&(route.hostname.clone(), path.path.clone()));
                known.cloned().unwrap_or_default()
            };
            (at, route.paths.iter().map(ticket).collect())
        });
        tickets.collect()
    }

    /// Publishes a snapshot for the workers.
    pub(super) fn publish(&mut self) {
        let hosts: Vec<Vec<Arc<HostState>>> = self
            .model
            .clusters
            .iter()
            .map(|cluster| {
                let state = |host: &Host| self.hosts.get(&(cluster.name.clone(), host.name.clone()));
                cluster
                    .hosts
                    .iter()
                    .filter_map(state)
                    .map(|entry| Arc::clone(&entry.state))
                    .collect()
            })
            .collect();
        let binds = Binds::new(&self.model);
        own_listener::note(&self.model, &binds, &hosts);
        let rotation = Arc::clone(&self.persistent.rotation);
        let view = RoutingView::with_subsets(
            &self.model,
            &self.subsets,
            |cluster, host| eligibility(&hosts, &rotation, cluster, host),
            |route| rotation.is_closed(route),
        );
        let snapshot = Snapshot {
            view,
            listeners: self
                .model
                .listeners
                .iter()
                .filter_map(|l| self.listeners.get(&l.name).cloned())
                .collect(),
            clusters: self
                .model
                .clusters
                .iter()
                .filter_map(|c| self.clusters.get(&c.name).cloned())
                .collect(),
            routes: self
                .model
                .routes
                .iter()
                .filter_map(|r| self.routes.get(&r.hostname).cloned())
                .collect(),
            draining: self.draining.clone(),
            subsets: Arc::clone(&self.subsets),
            binds,
            model: Arc::clone(&self.model),
            file: Arc::clone(&self.file),
            discovered: Arc::clone(&self.persistent.discovered),
            weights: Arc::clone(&self.persistent.weights),
            testers: Arc::clone(&self.testers),
            shield: Arc::clone(&self.persistent.shield),
            exposure: Arc::clone(&self.exposure),
            rotation,
            hosts,
            path_tickets: self.path_tickets(),
            tls: Arc::clone(&self.tls.state),
            http2: self.tls.http2_offers(&self.model),
            idle_timeouts: IdleTimeouts::new(&self.model),
            floating: FloatingSources::new(self.model.ha.as_ref()),
        };
        let snapshot = Arc::new(snapshot);
        name_paths(&snapshot);
        self.shared.snapshot.store(Arc::clone(&snapshot));
        if let Some(follow) = self.shared.snapshot_follower.get() {
            // The follower waits for a thread. Meanwhile more results of checks may come, which are published together.
            tokio::task::block_in_place(follow);
        }
        // Health is shown only now, when the kernel goes by it too: an unhealthy host gets no connections.
        snapshot
            .hosts
            .iter()
            .flatten()
            .for_each(|host| host.put_health_in_force());
        self.services.changed();
    }
}

/// Gives new listeners the reason of their configuration why workers route their connections. Until the kernel peek
/// has written its tables, workers route all.
fn name_paths(snapshot: &Snapshot) {
    let all = snapshot.model.listeners.iter().zip(&snapshot.listeners);
    for (listener, state) in all.filter(|(_, state)| state.left_to_workers.is_unknown()) {
        if let Some(&obstacle) = PeekObstacle::of_configuration(listener).first() {
            state.left_to_workers.set(Some(obstacle));
        }
    }
}

/// Returns the eligibility of a host in a snapshot.
pub(super) fn eligibility(
    hosts: &[Vec<Arc<HostState>>],
    rotation: &Rotation,
    cluster: usize,
    host: usize,
) -> Eligibility {
    let state = hosts.get(cluster).and_then(|hosts| hosts.get(host));
    state.map_or(
        Eligibility {
            usable: false,
            ejected: false,
            rotated_out: false,
        },
        |state| Eligibility {
            usable: state.decided_health().usable() && !state.is_own_listener.load(Relaxed),
            ejected: state.ejected.load(Relaxed),
            rotated_out: rotation.is_out(&state.cluster, &state.name, state.address),
        },
    )
}
