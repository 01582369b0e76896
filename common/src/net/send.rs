//! How a packet is sent.

use super::checksum::ChecksumDiffs;

/// Next hop, tunnel and pending checksum changes of a packet that is sent.
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
    /// Address family of the tunnel, 4 or 6; 0 for none.
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
    /// Sets the Ethernet addresses, word by word: a copy of an array becomes a call that goes byte by byte and costs as
    /// much as a lookup.
    #[inline(always)]
    pub fn set_macs(&mut self, macs: &[u32; 3]) {
        let (a, b, c) = (macs[0], macs[1], macs[2]);
        self.macs[0] = a;
        self.macs[1] = b;
        self.macs[2] = c;
    }
}
