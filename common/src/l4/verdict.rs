//! Verdict on a packet, and the next hop of one that is sent.

use super::abi::{Host, L4Flow};
use crate::Reason;
use crate::net::SendInfo;

/// Action of the hook on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    /// Pass the packet to the kernel, as if there were no program.
    Pass = 0,
    /// Drop the packet.
    Drop = 1,
    /// Send the packet as [`SendInfo`] says.
    Send = 2,
    /// Report to the packet's sender that [`SendInfo::mtu`] bytes are the maximum (ICMP).
    TooBig = 3,
}

/// Action on a packet, and its reason. One number, because a function of a BPF program returns one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Verdict(u64);

impl Verdict {
    /// Verdict of an action and its reason.
    #[inline(always)]
    #[must_use]
    pub const fn new(reason: Reason, action: Action) -> Self {
        Self((reason as u64) << 8 | action as u64)
    }

    /// Number of the [`Reason`].
    #[inline(always)]
    #[must_use]
    pub const fn reason(self) -> u32 {
        (self.0 >> 8) as u32
    }

    /// Number of the [`Action`].
    #[inline(always)]
    #[must_use]
    pub const fn action(self) -> u32 {
        (self.0 & 0xff) as u32
    }
}

impl SendInfo {
    /// Sets next hop and interface to a host's.
    #[inline(always)]
    pub(super) fn set_next_hop_to_host(&mut self, host: &Host) {
        self.set_macs(&host.macs);
        self.ifindex = host.ifindex;
        self.xdp_ifindex = host.xdp_ifindex;
        self.vlan = u32::from(host.vlan);
    }

    /// Sets next hop and interface to those of a flow's client.
    #[inline(always)]
    pub(super) fn set_next_hop_to_client(&mut self, flow: &L4Flow) {
        self.set_macs(&flow.macs);
        self.ifindex = flow.ifindex;
        self.xdp_ifindex = flow.ifindex;
        self.vlan = u32::from(flow.vlan);
    }
}
