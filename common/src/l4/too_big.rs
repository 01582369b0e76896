//! "Packet too big", said to the sender of a packet that does not get to its host (RFC 1191, RFC 8201).
//!
//! It comes from the address that the packet was sent to, and quotes its beginning: as much as every sender needs to know
//! its own packet again.

use super::packet::{ICMP, ICMPV6, Seen, V4_HEADER, V6_HEADER};
use crate::cut::icmp::{HEADER, V4_UNREACHABLE, V6_TOO_BIG};
use crate::cut::{Buffer, Diff};

/// Bytes of the quoted packet behind its IP header: a TCP header without options.
const QUOTED: u32 = 20;
/// "Fragmentation needed", a code of [`V4_UNREACHABLE`].
const NEEDED: u32 = 4;
const HOPS: u32 = 64;

/// Length of the headers that are put in front of the quoted packet.
#[inline(always)]
#[must_use]
pub const fn room(version: u32) -> u32 {
    HEADER + if version == 4 { V4_HEADER } else { V6_HEADER }
}

/// Length of what is quoted.
#[inline(always)]
#[must_use]
pub const fn quoted(version: u32) -> u32 {
    QUOTED + if version == 4 { V4_HEADER } else { V6_HEADER }
}

/// Whether the sender can be told, and wants to know: an IPv4 packet that may be fragmented is simply lost, and one with
/// options is rare.
#[inline(always)]
pub fn may_be_told<B: Buffer + ?Sized>(packet: &B, seen: &Seen) -> bool {
    if seen.version == 4 {
        seen.l4 - seen.l3 == V4_HEADER && packet.u16(seen.l3 + 6).is_some_and(|flags| flags & 0x4000 != 0)
    } else {
        true
    }
}

/// Writes the headers at `l3`; the quoted packet stands behind them and ends the packet.
#[inline(always)]
pub fn write<B: Buffer + ?Sized>(packet: &mut B, l3: u32, seen: &Seen, mtu: u32) -> Option<()> {
    let key = &seen.key;
    let mut sum = Diff::default();
    let l4 = if seen.version == 4 {
        let (source, destination) = (key.destination[3], key.source[3]);
        let first = 0x4500 << 16 | (room(4) + quoted(4));
        let third = HOPS << 24 | ICMP << 16;
        let mut header = Diff::default();
        header.u32(0, first);
        header.u32(0, third);
        header.u32(0, source);
        header.u32(0, destination);
        packet.set_u32(l3 + 16, destination)?;
        packet.set_u32(l3, first)?;
        packet.set_u32(l3 + 4, 0)?;
        packet.set_u32(l3 + 8, third | u32::from(header.applied(0xffff)))?;
        packet.set_u32(l3 + 12, source)?;
        l3 + V4_HEADER
    } else {
        let length = HEADER + quoted(6);
        packet.set_u32(l3 + 36, key.source[3])?;
        packet.set_u32(l3, 6 << 28)?;
        packet.set_u32(l3 + 4, length << 16 | ICMPV6 << 8 | HOPS)?;
        let mut i = 0;
        while i < 4 {
            packet.set_u32(l3 + 8 + 4 * i as u32, key.destination[i])?;
            packet.set_u32(l3 + 24 + 4 * i as u32, key.source[i])?;
            sum.u32(0, key.destination[i]);
            sum.u32(0, key.source[i]);
            i += 1;
        }
        sum.u32(0, length + ICMPV6);
        l3 + V6_HEADER
    };
    let kind = if seen.version == 4 {
        u32::from(V4_UNREACHABLE) << 24 | NEEDED << 16
    } else {
        u32::from(V6_TOO_BIG) << 24
    };
    sum.u32(0, kind);
    sum.u32(0, mtu);
    let words = quoted(seen.version) / 4;
    let mut i = 0;
    while i < (V6_HEADER + QUOTED) / 4 {
        if i < words {
            sum.u32(0, packet.u32(l4 + HEADER + 4 * i)?);
        }
        i += 1;
    }
    packet.set_u32(l4, kind | u32::from(sum.applied(0xffff)))?;
    packet.set_u32(l4 + 4, mtu)
}
