//! A reason why connections are left to userspace, with the item that causes it.

use std::net::IpAddr;

use signalbox_common::peek::name::MAX_NAME_BYTES;
use signalbox_core::model::{Listener, Protocol};
use signalbox_core::routing::obstacle::PeekObstacle;
use signalbox_core::wire::hostname::Hostname;

use super::conditions::without_program;
use super::tables;
use crate::state::Snapshot;
use crate::state::filter_verdicts::FilterVerdicts;

/// Reason why connections are left to userspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeekReason {
    pub obstacle: PeekObstacle,
    /// Item that causes it, such as `cluster v1`.
    pub of: String,
}

impl PeekReason {
    pub(super) fn new(obstacle: PeekObstacle, of: impl Into<String>) -> Self {
        Self {
            obstacle,
            of: of.into(),
        }
    }

    pub(super) fn of_machine(obstacle: PeekObstacle) -> Self {
        Self::new(obstacle, "this machine")
    }
}

/// Connections whose path is asked for.
pub struct PeekQuestion<'a> {
    pub listener: &'a Listener,
    pub name: &'a Hostname,
    /// Route of the name, by its place in the model.
    pub route: Option<usize>,
    /// Protocol that hosts are spoken to in.
    pub protocol: Protocol,
    pub client: Option<IpAddr>,
}

impl PeekQuestion<'_> {
    /// Returns all reasons in a process that has not loaded the program. `why`: the reason for that.
    #[must_use]
    pub fn reasons_without_program(
        &self,
        snapshot: &Snapshot,
        filter: &FilterVerdicts,
        why: PeekObstacle,
    ) -> Vec<PeekReason> {
        self.reasons(snapshot, without_program(self.listener, self.client, filter, why))
    }

    /// Returns all reasons that the snapshot shows, and those of the machine.
    pub(super) fn reasons(&self, snapshot: &Snapshot, of_machine: Vec<PeekReason>) -> Vec<PeekReason> {
        let of_listener = format!("listener {}", self.listener.name);
        let of_configuration = PeekObstacle::of_configuration(self.listener);
        let mut found: Vec<_> = of_configuration
            .into_iter()
            .map(|obstacle| PeekReason::new(obstacle, of_listener.as_str()))
            .chain(of_machine)
            .collect();
        if self.listener.protocol == Protocol::Tcp {
            return found;
        }
        let of_name = format!("name {}", self.name.as_str());
        let Some((at, route)) = self.route.and_then(|at| Some((at, snapshot.model.routes.get(at)?))) else {
            found.push(PeekReason::new(PeekObstacle::NoRoute, of_name));
            return found;
        };
        found.extend(tables::obstacles_of_route(snapshot, (at, route), self.protocol));
        if self.name.as_str().len() > MAX_NAME_BYTES {
            found.push(PeekReason::new(PeekObstacle::LongName, of_name));
        }
        if let Some(client) = self.client {
            let family = tables::is_of_other_family(snapshot, at, client).then_some(PeekObstacle::ClientFamily);
            let of_client = family.into_iter().chain(PeekObstacle::of_client(route, client));
            found.extend(of_client.map(|obstacle| PeekReason::new(obstacle, format!("client {client}"))));
        }
        found
    }
}
