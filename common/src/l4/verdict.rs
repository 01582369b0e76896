//! What becomes of a packet, and how it is sent.

use super::abi::{Flow, Host};
use super::rewrite::Changes;
use crate::Reason;

/// What the kernel is to do with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    /// It goes its way as if we were not there.
    Pass = 0,
    /// It ends here.
    Drop = 1,
    /// It is sent as [`Out`] says.
    Send = 2,
    /// Its sender is told that [`Out::mtu`] bytes are the most.
    TooBig = 3,
}

/// What is done with a packet, and why. One number, because a function of a BPF program returns one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Verdict(u64);

impl Verdict {
    /// A verdict.
    #[inline(always)]
    #[must_use]
    pub const fn new(reason: Reason, action: Action) -> Self {
        Self((reason as u64) << 8 | action as u64)
    }

    /// The number of its [`Reason`].
    #[inline(always)]
    #[must_use]
    pub const fn reason(self) -> u32 {
        (self.0 >> 8) as u32
    }

    /// What is done.
    #[inline(always)]
    #[must_use]
    pub const fn action(self) -> u32 {
        (self.0 & 0xff) as u32
    }
}

/// How a packet is sent.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Out {
    /// Destination and source Ethernet addresses, as they stand in a header.
    pub macs: [u32; 3],
    /// The interface it leaves by.
    pub ifindex: u32,
    /// The interface below it.
    pub port: u32,
    /// Its VLAN; 0 for none.
    pub vlan: u32,
    /// The IP version of the tunnel; 0 for none.
    pub tunnel: u32,
    /// Outer source address.
    pub outer_source: [u32; 4],
    /// Outer destination address.
    pub outer_destination: [u32; 4],
    /// 1 where addresses were written.
    pub translated: u32,
    /// Hops before and after that, as far as they differ.
    pub hops_before: u32,
    /// See above.
    pub hops: u32,
    /// Where the checksum is that `changes` apply to; 0 for none.
    pub checksum: u32,
    /// The most that gets there.
    pub mtu: u32,
    /// What the checksum changes by.
    pub changes: Changes,
}

impl Out {
    /// To a host.
    #[inline(always)]
    pub(super) fn aim_at_host(&mut self, host: &Host) {
        self.set_macs(&host.macs);
        self.ifindex = host.ifindex;
        self.port = host.port;
        self.vlan = u32::from(host.vlan);
    }

    /// To a flow's client.
    #[inline(always)]
    pub(super) fn aim_at_client(&mut self, flow: &Flow) {
        self.set_macs(&flow.macs);
        self.ifindex = flow.ifindex;
        self.port = flow.ifindex;
        self.vlan = u32::from(flow.vlan);
    }

    /// Word by word: an array's copy becomes a call that goes byte by byte, for as long as a look-up takes.
    #[inline(always)]
    pub(super) fn set_macs(&mut self, macs: &[u32; 3]) {
        let (a, b, c) = (macs[0], macs[1], macs[2]);
        self.macs[0] = a;
        self.macs[1] = b;
        self.macs[2] = c;
    }
}
