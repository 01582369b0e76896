//! ICMP errors about packets of a flow, forwarded to the end that sent the packet (RFC 792, RFC 4443).
//!
//! A router quotes the beginning of the packet that it could not forward. In mode `nat` that is the packet as we sent
//! it, and its sender knows it by the addresses and ports that it wrote itself. In the other modes the host answered
//! the client by itself, and the quoted packet is the host's own: the error is forwarded to it unchanged.

use super::abi::L4Flow;
use crate::net::addresses::write_addresses;
use crate::net::icmp::{
    AT_CHECKSUM, ICMP_HEADER, QuotedChange, V4_TOO_BIG, V4_UNREACHABLE, V6_TOO_BIG, is_error, rewrite_quoted,
};
use crate::net::ip::{ICMP, ICMPV6, TCP, UDP, V6_HEADER};
use crate::net::packet::NOT_FRAGMENTED;
use crate::net::{Buffer, Key, ParsedHeaders, Tuple};

/// The packet that an ICMP error quotes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotedPacket {
    /// Key of the packets that arrive from the quoted packet's receiver.
    pub arriving_key: Key,
    /// Offset of the quoted IP header.
    pub l3: u32,
    /// Offset of the quoted ports.
    pub l4: u32,
}

/// Whether a packet is a whole ICMP message of the address family that carries it.
#[inline(always)]
#[must_use]
pub fn is_icmp(seen: &ParsedHeaders) -> bool {
    seen.key.protocol == if seen.version == 4 { ICMP } else { ICMPV6 } && seen.fragment == NOT_FRAGMENTED
}

/// Whether an ICMP error says that a packet was too big for a link on its way.
#[inline(always)]
#[must_use]
pub fn is_too_big<B: Buffer + ?Sized>(packet: &B, seen: &ParsedHeaders) -> bool {
    let kind = packet.u8(seen.l4);
    if seen.version == 4 {
        kind == Some(V4_UNREACHABLE) && packet.u8(seen.l4 + 1) == Some(V4_TOO_BIG)
    } else {
        kind == Some(V6_TOO_BIG)
    }
}

/// Reads the packet that an ICMP error quotes. `None` for other messages, and for packets that cannot be a service's.
#[inline(always)]
pub fn read_quoted<B: Buffer + ?Sized>(packet: &B, seen: &ParsedHeaders) -> Option<QuotedPacket> {
    let kind = packet.u8(seen.l4)?;
    if !is_error(seen.version, kind) {
        return None;
    }
    let l3 = packet.hide_from_verifier(seen.l4 + ICMP_HEADER) & 0xff;
    let mut arriving = Key::default();
    let (protocol, l4) = if seen.version == 4 {
        let first = packet.u8(l3)?;
        arriving.source = Tuple::mapped(packet.u32(l3 + 16)?);
        arriving.destination = Tuple::mapped(packet.u32(l3 + 12)?);
        // A later fragment has no ports.
        if packet.u16(l3 + 6)? & 0x1fff != 0 {
            return None;
        }
        (packet.u8(l3 + 9)?, l3 + u32::from(first & 15) * 4)
    } else {
        let mut i = 0;
        while i < 4 {
            arriving.source[i] = packet.u32(l3 + 24 + 4 * i as u32)?;
            arriving.destination[i] = packet.u32(l3 + 8 + 4 * i as u32)?;
            i += 1;
        }
        (packet.u8(l3 + 6)?, l3 + V6_HEADER)
    };
    arriving.protocol = u32::from(protocol);
    if !matches!(arriving.protocol, TCP | UDP) || l4 > 240 {
        return None;
    }
    arriving.ports = packet.u32(l4)?.rotate_left(16);
    Some(QuotedPacket {
        arriving_key: arriving,
        l3,
        l4,
    })
}

/// Rewrites an ICMP error for the sender of the quoted packet. `flow` is the direction of
/// [`QuotedPacket::arriving_key`]: its destination is that sender.
#[inline(always)]
pub fn translate<B: Buffer + ?Sized>(
    packet: &mut B,
    seen: &ParsedHeaders,
    quoted: &QuotedPacket,
    flow: &L4Flow,
) -> Option<()> {
    // The quoted packet went from the peer to the address that the peer knows.
    let peer = &flow.destination;
    let change = QuotedChange {
        source: peer,
        destination: &flow.source,
        ports: flow.ports.rotate_left(16),
        seq_delta: None,
    };
    let mut diff = rewrite_quoted(packet, seen.version, quoted.l3, quoted.l4, &change)?;
    // The source address stays: it is a router's.
    let outer = write_addresses(packet, seen.l3, seen.version, None, peer, 0)?;
    if seen.version == 6 {
        diff.merge(outer);
    }
    // Always computed by its sender, never left to hardware.
    let at = seen.l4 + AT_CHECKSUM;
    let checksum = packet.u16(at)?;
    packet.set_u16(at, diff.apply_to(checksum))
}
