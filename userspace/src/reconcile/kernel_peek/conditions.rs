//! Conditions of the machine under which the kernel peek leaves connections to userspace.

use std::net::IpAddr;
use std::sync::Arc;

use signalbox_common::cut::moving::{MovingAddress, role};
use signalbox_core::firewall::LeftClients;
use signalbox_core::model::{Listener, PeekPlace};
use signalbox_core::routing::obstacle::{PeekObstacle, given};

use super::reason::PeekReason;
use super::sysctl::kernel_offers;
use crate::kernel::Cut;
use crate::kernel::cut::moving::is_over;
use crate::state::filter_verdicts::FilterVerdicts;
use crate::state::shield::ShieldCover;
use crate::state::{HostState, Shared, Snapshot};

/// Conditions for all listeners, in addition to the snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conditions {
    /// Virtual addresses that this machine has.
    pub(super) present: Vec<IpAddr>,
    /// Virtual addresses whose former owners drain: connections without a socket here are theirs.
    pub(super) chained: Vec<IpAddr>,
    pub(super) has_ports: bool,
    /// Verdicts on the rules of packet filters.
    filter: Arc<FilterVerdicts>,
    /// Whether no host answers the program's SYNs.
    pub(super) has_no_answers: bool,
    /// Where the shield is active.
    cover: Arc<ShieldCover>,
    /// Hosts whose handshakes do not match what clients are offered, by cluster index and host index.
    pub(super) unfit: Vec<(usize, usize)>,
}

/// Time, in milliseconds, for which a host's connections are left to userspace after its handshake did not match the
/// client's. Such a client loses the time of one retransmission, and a health check may not see the mismatch.
const UNFIT_PERIOD_MS: u64 = 600_000;

impl Conditions {
    pub(super) fn now(shared: &Shared, cut: &Cut) -> Self {
        let chained = |(address, entry): (IpAddr, MovingAddress)| {
            (entry.has_role(role::NEW_OWNER) && !is_over(&entry)).then_some(address)
        };
        let moving = if shared.snapshot.load().floating.is_empty() {
            Vec::new()
        } else {
            cut.moving_addresses().unwrap_or_default()
        };
        let mut chained: Vec<_> = moving.into_iter().filter_map(chained).collect();
        chained.sort_unstable();
        Self {
            present: Vec::new(),
            chained,
            has_ports: true,
            filter: shared.kernel.filter_verdicts.load_full(),
            has_no_answers: false,
            cover: shared.kernel.shield_cover.load_full(),
            unfit: unfit_hosts(&shared.snapshot.load()),
        }
    }

    /// Returns the first reason for which connections of a listener are left to userspace.
    pub(super) fn first_obstacle(&self, listener: &Listener) -> Option<PeekObstacle> {
        let of_configuration = PeekObstacle::of_configuration(listener);
        of_configuration.into_iter().chain(self.obstacles(listener)).next()
    }

    /// Returns all reasons for which this machine leaves the connections of a listener to userspace.
    pub(super) fn obstacles(&self, listener: &Listener) -> Vec<PeekObstacle> {
        let is_auto = listener.datapath.peek == PeekPlace::Auto;
        let is_covered = !self.cover.is_partial && self.cover.listeners.contains(&listener.name);
        given(&[
            (!self.has_ports, PeekObstacle::NoPorts),
            (listener.shield.is_some() && !is_covered, PeekObstacle::ShieldGap),
            (
                is_auto && self.filter.cause(&listener.name).is_some(),
                PeekObstacle::PacketFilter,
            ),
            (self.has_no_answers && is_auto, PeekObstacle::NoAnswers),
        ])
    }

    /// Whether rules of packet filters may touch all connections to an address of a listener.
    pub(super) fn is_filtered(&self, listener: &Listener, address: IpAddr) -> bool {
        listener.datapath.peek == PeekPlace::Auto && self.filter.cause_for(&listener.name, address).is_some()
    }

    /// Returns the clients whose connections to an address of a listener rules of packet filters may touch, and not those
    /// of others.
    pub(super) fn left_clients(&self, listener: &Listener, address: IpAddr) -> Option<&LeftClients> {
        let is_auto = listener.datapath.peek == PeekPlace::Auto;
        self.filter.left_clients(&listener.name, address).filter(|_| is_auto)
    }

    /// Returns all reasons of [`Self::obstacles`], and those that concern a client or its address family alone.
    pub(super) fn reasons(&self, listener: &Listener, client: Option<IpAddr>) -> Vec<PeekReason> {
        let mut obstacles = self.obstacles(listener);
        let is_new = !obstacles.contains(&PeekObstacle::PacketFilter);
        let is_filtered = |client| self.filter.cause_for_client(&listener.name, client).is_some();
        if is_new && listener.datapath.peek == PeekPlace::Auto && client.is_some_and(is_filtered) {
            obstacles.push(PeekObstacle::PacketFilter);
        }
        let of = |obstacle| reason(obstacle, listener, client, &self.filter);
        obstacles.into_iter().map(of).collect()
    }
}

/// A reason of this machine, with the rule if there is one.
fn reason(obstacle: PeekObstacle, listener: &Listener, client: Option<IpAddr>, filter: &FilterVerdicts) -> PeekReason {
    let rule = match client {
        Some(client) => filter.cause_for_client(&listener.name, client),
        None => filter.cause(&listener.name),
    };
    match rule.or_else(|| filter.cause(&listener.name)) {
        Some(rule) if obstacle == PeekObstacle::PacketFilter => PeekReason::new(obstacle, rule),
        _ => PeekReason::of_machine(obstacle),
    }
}

/// Returns why this machine leaves the connections of a listener to userspace, in a process that has not loaded the
/// program. `why`: the reason for that.
#[must_use]
pub(super) fn without_program(
    listener: &Listener,
    client: Option<IpAddr>,
    filter: &FilterVerdicts,
    why: PeekObstacle,
) -> Vec<PeekReason> {
    let is_filtered = listener.datapath.peek == PeekPlace::Auto && filter.cause(&listener.name).is_some();
    let obstacles = given(&[(is_filtered, PeekObstacle::PacketFilter), (true, why)]);
    let of = |obstacle| reason(obstacle, listener, client, filter);
    obstacles.into_iter().map(of).collect()
}

fn unfit_hosts(snapshot: &Snapshot) -> Vec<(usize, usize)> {
    let offered = kernel_offers() as u8;
    let is_unfit = |host: &HostState| host.was_unfit_within(UNFIT_PERIOD_MS) || host.handshake.lacks(offered);
    let hosts = snapshot.hosts.iter().enumerate();
    let places = hosts.flat_map(|(c, hosts)| hosts.iter().enumerate().map(move |(h, host)| ((c, h), host)));
    places
        .filter(|(_, host)| is_unfit(host))
        .map(|(place, _)| place)
        .collect()
}
