//! "Packet too big": the message to the sender of a packet that does not get to its receiver (RFC 1191, RFC 8201).
//!
//! The message comes from the address that the packet was sent to, and quotes the packet's beginning: the part by which
//! every sender recognises its own packet.

use super::icmp::{ICMP_HEADER, V4_TOO_BIG, V4_UNREACHABLE, V6_TOO_BIG};
use super::ip::{ICMP, ICMPV6, V4_HEADER, V6_HEADER};
use super::{Buffer, Diff};

/// Bytes of the quoted packet after its IP header: a TCP header without options.
const QUOTED_TCP: u32 = 20;
const HOPS: u32 = 64;

/// Length of the IP and ICMP headers before the quoted packet.
#[inline(always)]
#[must_use]
pub const fn headers_length(version: u32) -> u32 {
    ICMP_HEADER + if version == 4 { V4_HEADER } else { V6_HEADER }
}

/// Length of the quoted part of the packet.
#[inline(always)]
#[must_use]
pub const fn quoted_length(version: u32) -> u32 {
    QUOTED_TCP + if version == 4 { V4_HEADER } else { V6_HEADER }
}

/// A packet that is too big, as its sender wrote it.
#[derive(Clone, Copy, Debug)]
pub struct TooBig<'a> {
    /// IP version, 4 or 6.
    pub version: u32,
    /// Address of the packet's sender: four words in host order, of which the last one is an IPv4 address.
    pub source: &'a [u32; 4],
    /// Address of the packet's receiver.
    pub destination: &'a [u32; 4],
    /// Largest IP packet that would get through.
    pub mtu: u32,
}

/// Writes the message's IP and ICMP headers at `l3`; the quoted packet follows them and ends the packet.
#[inline(always)]
pub fn write<B: Buffer + ?Sized>(packet: &mut B, l3: u32, about: &TooBig<'_>) -> Option<()> {
    let TooBig {
        version,
        source: to,
        destination: from,
        mtu,
    } = *about;
    let mut sum = Diff::default();
    let l4 = if version == 4 {
        let (source, destination) = (from[3], to[3]);
        let first = 0x4500 << 16 | (headers_length(4) + quoted_length(4));
        let third = HOPS << 24 | ICMP << 16;
        let mut header = Diff::default();
        header.u32(0, first);
        header.u32(0, third);
        header.u32(0, source);
        header.u32(0, destination);
        packet.set_u32(l3 + 16, destination)?;
        packet.set_u32(l3, first)?;
        packet.set_u32(l3 + 4, 0)?;
        packet.set_u32(l3 + 8, third | u32::from(header.apply_to(0xffff)))?;
        packet.set_u32(l3 + 12, source)?;
        l3 + V4_HEADER
    } else {
        let length = ICMP_HEADER + quoted_length(6);
        packet.set_u32(l3 + 36, to[3])?;
        packet.set_u32(l3, 6 << 28)?;
        packet.set_u32(l3 + 4, length << 16 | ICMPV6 << 8 | HOPS)?;
        let mut i = 0;
        while i < 4 {
            packet.set_u32(l3 + 8 + 4 * i as u32, from[i])?;
            packet.set_u32(l3 + 24 + 4 * i as u32, to[i])?;
            sum.u32(0, from[i]);
            sum.u32(0, to[i]);
            i += 1;
        }
        sum.u32(0, length + ICMPV6);
        l3 + V6_HEADER
    };
    let kind = if version == 4 {
        u32::from(V4_UNREACHABLE) << 24 | u32::from(V4_TOO_BIG) << 16
    } else {
        u32::from(V6_TOO_BIG) << 24
    };
    sum.u32(0, kind);
    sum.u32(0, mtu);
    let words = quoted_length(version) / 4;
    let mut i = 0;
    while i < (V6_HEADER + QUOTED_TCP) / 4 {
        if i < words {
            sum.u32(0, packet.u32(l4 + ICMP_HEADER + 4 * i)?);
        }
        i += 1;
    }
    packet.set_u32(l4, kind | u32::from(sum.apply_to(0xffff)))?;
    packet.set_u32(l4 + 4, mtu)
}
