//! Verdict on a packet, and how it is sent.

use super::abi::{Host, L4Flow};
use super::rewrite::ChecksumDiffs;
use crate::Reason;

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
    /// Tell the packet's sender that [`SendInfo::mtu`] bytes are the most (ICMP).
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

/// How a packet is sent.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SendInfo {
    /// Ethernet header of the packet: destination, then source.
    pub macs: [u32; 3],
    /// Interface by which the packet leaves.
    pub ifindex: u32,
    /// Interface that XDP sends by: the lower one, where `ifindex` is a VLAN's.
    pub xdp_ifindex: u32,
    /// VLAN of the packet; 0 for none.
    pub vlan: u32,
    /// IP version of the tunnel; 0 for none.
    pub tunnel: u32,
    /// Outer source address.
    pub outer_source: [u32; 4],
    /// Outer destination address.
    pub outer_destination: [u32; 4],
    /// 1 where addresses were written: `l4_tc` then updates checksums.
    pub translated: u32,
    /// Hop limit before the change; only its difference to `new_hop_limit` counts.
    pub old_hop_limit: u32,
    /// Hop limit after the change.
    pub new_hop_limit: u32,
    /// Offset of the checksum that `checksum_diffs` apply to; 0 for none.
    pub checksum_offset: u32,
    /// Largest IP packet that gets to the host.
    pub mtu: u32,
    /// Differences to that checksum.
    pub checksum_diffs: ChecksumDiffs,
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

    /// Sets the Ethernet addresses, word by word: an array's copy becomes a call that goes byte by byte, for as long as
    /// a look-up takes.
    #[inline(always)]
    pub(super) fn set_macs(&mut self, macs: &[u32; 3]) {
        let (a, b, c) = (macs[0], macs[1], macs[2]);
        self.macs[0] = a;
        self.macs[1] = b;
        self.macs[2] = c;
    }
}
