//! The Ethernet frame of a packet, and the outer headers of tunnels.

use signalbox_common::net::{Buffer, Diff, ParsedHeaders, SendInfo};

/// `IPPROTO_IPIP` and `IPPROTO_IPV6`.
pub const TUNNEL_PROTOCOLS: [u8; 2] = [4, 41];
pub const IPV4: u16 = 0x0800;
pub const IPV6: u16 = 0x86dd;
pub const VLAN: u16 = 0x8100;
/// Outer tag of two (IEEE 802.1ad).
pub const SERVICE_VLAN: u16 = 0x88a8;
pub const ETH_HEADER: u32 = 14;
pub const VLAN_TAG: u32 = 4;

const HOPS: u32 = 64;
const DONT_FRAGMENT: u32 = 0x4000;

/// Ethernet header back to a frame's sender: destination, then source.
#[inline(always)]
pub fn reply_macs<B: Buffer>(packet: &B) -> Option<[u32; 3]> {
    let [a, b, c] = packet.words(0)?;
    Some([b << 16 | c >> 16, c << 16 | a >> 16, a << 16 | b >> 16])
}

/// EtherType of an address family.
#[inline(always)]
pub fn ethertype(version: u32) -> u16 {
    if version == 4 { IPV4 } else { IPV6 }
}

/// Words of a tunnel's outer IPv4 header (RFC 2003).
#[inline(always)]
pub fn outer_v4(seen: &ParsedHeaders, out: &SendInfo) -> [u32; 5] {
    let protocol = if seen.version == 4 {
        TUNNEL_PROTOCOLS[0]
    } else {
        TUNNEL_PROTOCOLS[1]
    };
    let mut words = [
        0x4500 << 16 | ((seen.length + 20) & 0xffff),
        DONT_FRAGMENT,
        HOPS << 24 | u32::from(protocol) << 16,
        out.outer_source[3],
        out.outer_destination[3],
    ];
    let mut sum = Diff::default();
    let mut i = 0;
    while i < 5 {
        sum.u32(0, words[i]);
        i += 1;
    }
    // The checksum of an empty header, changed by the difference to this one.
    words[2] |= u32::from(sum.apply_to(0xffff));
    words
}

/// First two words of a tunnel's outer IPv6 header (RFC 2473). The flow label varies with the flow.
#[inline(always)]
pub fn outer_v6(seen: &ParsedHeaders, out: &SendInfo) -> [u32; 2] {
    let protocol = if seen.version == 4 {
        TUNNEL_PROTOCOLS[0]
    } else {
        TUNNEL_PROTOCOLS[1]
    };
    [
        6 << 28 | (out.outer_source[3] & 0xf_ffff),
        (seen.length & 0xffff) << 16 | u32::from(protocol) << 8 | HOPS,
    ]
}
