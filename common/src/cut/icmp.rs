//! ICMP errors about a forwarded packet, rewritten for the packet's sender.
//!
//! A router that cannot forward a packet quotes its beginning (RFC 792, RFC 4443). The quoted packet is one of ours,
//! with the numbers of the leg it left on; its sender knows it by those of the other leg. Without this, path MTU
//! discovery would go blind on both legs.

use super::Buffer;
use super::checksum::Diff;

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

/// Changes to the quoted TCP header: ports and sequence number, the eight bytes that every router quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotedChange {
    /// Ports as the packet's sender wrote them: source port in the upper half (see [`super::Tuple::ports`]).
    pub ports: u32,
    /// Offset added to the sequence number.
    pub seq: u32,
}

/// Rewrites the quoted TCP header at `at`.
#[inline(always)]
pub fn rewrite_quoted<B: Buffer + ?Sized>(packet: &mut B, at: u32, new: &QuotedChange) -> Option<Diff> {
    let mut diff = Diff::default();
    let (ports, seq) = (packet.u32(at)?, packet.u32(at + 4)?);
    packet.set_u32(at, new.ports)?;
    packet.set_u32(at + 4, seq.wrapping_add(new.seq))?;
    diff.u32(ports, new.ports);
    diff.u32(seq, seq.wrapping_add(new.seq));
    Some(diff)
}
