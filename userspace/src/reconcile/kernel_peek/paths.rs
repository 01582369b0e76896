//! Reasons why workers route connections, noted in listeners and routes, where each connection is counted by them.

use std::sync::Arc;

use signalbox_core::model::Protocol;
use signalbox_core::routing::obstacle::PeekObstacle;

use super::conditions::Conditions;
use super::filter;
use super::tables;
use super::written::Written;
use crate::kernel::interfaces;
use crate::state::{Shared, Snapshot};

/// Protocols that the program routes, in the order of a route's reasons.
const PROTOCOLS: [Protocol; 2] = [Protocol::Http, Protocol::Tls];

/// Notes the reasons that the tables have.
pub(super) fn show(written: &Written, snapshot: &Snapshot, conditions: &Conditions) {
    for (route, state) in snapshot.model.routes.iter().zip(&snapshot.routes) {
        for (protocol, left) in PROTOCOLS.into_iter().zip(&state.left_to_workers) {
            left.set(match tables::name_of(route, protocol) {
                Some(name) => written.obstacle_of_name(&name),
                None => Some(PeekObstacle::LongName),
            });
        }
    }
    for (listener, state) in snapshot.model.listeners.iter().zip(&snapshot.listeners) {
        let in_tables = written.listener_obstacles.get(&listener.name).copied();
        let obstacle = in_tables.or_else(|| conditions.first_obstacle(listener));
        state.left_to_workers.set(obstacle);
    }
}

/// Notes that workers route all connections. `why`: the reason where the configuration has none.
pub(super) fn show_without_program(shared: &Shared, why: PeekObstacle) {
    let snapshot = shared.snapshot.load();
    for (listener, state) in snapshot.model.listeners.iter().zip(&snapshot.listeners) {
        let of_configuration = PeekObstacle::of_configuration(listener);
        state
            .left_to_workers
            .set(Some(of_configuration.first().copied().unwrap_or(why)));
    }
}

/// Keeps the reasons of listeners in a process that has not loaded the program, and why it has not.
pub fn follow_without_program(shared: &Arc<Shared>, why: PeekObstacle) {
    let of = Arc::downgrade(shared);
    let follow = move || {
        if let Some(shared) = of.upgrade() {
            show_without_program(&shared, why);
        }
    };
    // Set once, because a process has only one.
    let _ = shared.snapshot_follower.set(Box::new(follow));
    // The rules are told by `explain`, although nothing depends on them.
    let carriers = || {
        interfaces::routed()
            .into_iter()
            .flatten()
            .map(|interface| interface.name)
            .collect()
    };
    if let Err(error) = filter::start(shared, carriers) {
        tracing::warn!(%error, "The thread that reads rules of packet filters could not be started.");
    }
}
