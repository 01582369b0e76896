//! The snapshot that the store publishes.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use signalbox_core::availability::ha::floating::FloatingSources;
use signalbox_core::routing::obstacle::PeekObstacle;
use signalbox_core::routing::rotation::Rotation;
use signalbox_core::routing::view::{Eligibility, RoutingView};

use super::states::known;
use super::{Store, own_listener};
use crate::state::{Binds, HostState, IdleTimeouts, Snapshot};

impl Store {
    /// Publishes a snapshot for the workers.
    pub(super) fn publish(&mut self) {
        let (model, states) = (&self.active.model, &self.states);
        let hosts = states.hosts_of(model);
        let binds = Binds::new(model);
        own_listener::note(model, &binds, &hosts);
        let rotation = Arc::clone(&self.persistent.rotation);
        let view = RoutingView::with_subsets(
            model,
            &self.active.subsets,
            |cluster, host| eligibility(&hosts, &rotation, cluster, host),
            |route| rotation.is_closed(route),
        );
        let snapshot = Snapshot {
            view,
            listeners: known(&states.listeners, model.listeners.iter().map(|of| &of.name)),
            clusters: known(&states.clusters, model.clusters.iter().map(|of| &of.name)),
            routes: known(&states.routes, model.routes.iter().map(|of| &of.hostname)),
            draining: states.draining.clone(),
            subsets: Arc::clone(&self.active.subsets),
            binds,
            model: Arc::clone(model),
            file: Arc::clone(&self.file),
            discovered: Arc::clone(&self.persistent.discovered),
            weights: Arc::clone(&self.persistent.weights),
            testers: Arc::clone(&self.testers),
            shield: Arc::clone(&self.persistent.shield),
            exposure: Arc::clone(&self.active.exposure),
            rotation,
            hosts,
            path_tickets: states.path_tickets(model),
            tls: Arc::clone(&self.tls.state),
            http2: self.tls.http2_offers(model),
            idle_timeouts: IdleTimeouts::new(model),
            floating: FloatingSources::new(model.ha.as_ref()),
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
