//! Conditions of the machine under which the kernel peek leaves connections to userspace.

use std::net::IpAddr;
use std::sync::Arc;

use signalbox_common::cut::moving::{MovingAddress, role};
use signalbox_core::model::{Listener, PeekPlace};
use signalbox_core::peek::obstacle::{PeekObstacle, given};

use super::sysctl::kernel_offers;
use crate::datapath::cut::program_ports;
use crate::kernel::Cut;
use crate::kernel::cut::moving::is_over;
use crate::kernel::packet_filter::PacketFilter;
use crate::state::ha::OwnedGroups;
use crate::state::shield::ShieldCover;
use crate::state::{HostState, Shared, Snapshot};

/// Conditions for all listeners, in addition to the snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conditions {
    /// Groups of virtual addresses that this node has; `None` before the first report.
    pub(super) owned: Option<Arc<OwnedGroups>>,
    /// Virtual addresses whose former owners drain: connections without a socket here are theirs.
    pub(super) chained: Vec<IpAddr>,
    has_ports: bool,
    has_filter: bool,
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
    /// `has_filter`: a packet filter has rules.
    pub(super) fn now(shared: &Shared, cut: &Cut, has_filter: bool) -> Self {
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
            chained,
            owned: shared.ha.is_reported().then(|| shared.ha.owned()),
            has_ports: program_ports().is_some(),
            has_filter,
            has_no_answers: false,
            cover: shared.shield_cover.load_full(),
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
            (self.has_filter && is_auto, PeekObstacle::PacketFilter),
            (self.has_no_answers && is_auto, PeekObstacle::NoAnswers),
        ])
    }
}

/// Returns why this machine leaves the connections of a listener to userspace, in a process that has not loaded the
/// program. `why`: the reason for that.
#[must_use]
pub(super) fn without_program(listener: &Listener, why: PeekObstacle) -> Vec<PeekObstacle> {
    let is_filtered = || PacketFilter::default().has_rules().unwrap_or(true);
    let has_filter = listener.datapath.peek == PeekPlace::Auto && is_filtered();
    given(&[(has_filter, PeekObstacle::PacketFilter), (true, why)])
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
