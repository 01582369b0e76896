//! ICMP errors about a forwarded packet, rewritten for the packet's sender.
//!
//! A router that cannot forward a packet quotes its beginning (RFC 792, RFC 4443). The quoted packet is one of ours, as
//! we sent it; its sender knows it by the addresses, ports and numbers that it wrote itself. Without the rewriting, path
//! MTU discovery would go blind.

use super::addresses::write_addresses;
use super::{Buffer, Diff};

/// IPv4: destination unreachable, with "fragmentation needed" among its codes.
pub const V4_UNREACHABLE: u8 = 3;
/// Code of IPv4 destination unreachable: "fragmentation needed" (RFC 1191).
pub const V4_TOO_BIG: u8 = 4;
/// IPv4: time exceeded.
pub const V4_EXCEEDED: u8 = 11;
/// IPv6: destination unreachable.
pub const V6_UNREACHABLE: u8 = 1;
/// IPv6: packet too big.
pub const V6_TOO_BIG: u8 = 2;
/// IPv6: time exceeded.
pub const V6_EXCEEDED: u8 = 3;

/// Length of the ICMP header in front of the quoted packet.
pub const ICMP_HEADER: u32 = 8;
/// Offset of the checksum in the ICMP header.
pub const AT_CHECKSUM: u32 = 2;

/// A quoted packet as its sender wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotedChange<'a> {
    /// Source address.
    pub source: &'a [u32; 4],
    /// Destination address.
    pub destination: &'a [u32; 4],
    /// Ports: source port in the upper half (see [`super::Tuple`]).
    pub ports: u32,
    /// Offset added to the sequence number of TCP; `None` leaves the number as it is.
    pub seq_delta: Option<u32>,
}

/// Whether a message of this type says that a packet did not get through, and quotes it.
#[inline(always)]
#[must_use]
pub const fn is_error(version: u32, kind: u8) -> bool {
    if version == 4 {
        matches!(kind, V4_UNREACHABLE | V4_EXCEEDED)
    } else {
        matches!(kind, V6_UNREACHABLE | V6_TOO_BIG | V6_EXCEEDED)
    }
}

/// Rewrites the quoted packet whose IP header is at `l3` and whose ports are at `l4`: only the eight bytes after the IP
/// header, which every router quotes. Returns the difference to the message's checksum.
#[inline(always)]
pub fn rewrite_quoted<B: Buffer + ?Sized>(
    packet: &mut B,
    version: u32,
    l3: u32,
    l4: u32,
    new: &QuotedChange<'_>,
) -> Option<Diff> {
    let before = packet.u16(l3 + 10)?;
    let mut diff = write_addresses(packet, l3, version, Some(new.source), new.destination, 0)?;
    if version == 4 {
        diff.u16(before, packet.u16(l3 + 10)?);
    }
    let ports = packet.u32(l4)?;
    packet.set_u32(l4, new.ports)?;
    diff.u32(ports, new.ports);
    if let Some(delta) = new.seq_delta {
        let seq = packet.u32(l4 + 4)?;
        packet.set_u32(l4 + 4, seq.wrapping_add(delta))?;
        diff.u32(seq, seq.wrapping_add(delta));
    }
    Some(diff)
}
