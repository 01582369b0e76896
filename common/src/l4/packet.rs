//! What a packet says of itself: its addresses, its ports, whether it is a fragment.

use super::abi::Key;
use crate::Reason;
use crate::cut::header::{AT_ACK, AT_FLAGS, AT_LENGTH, AT_SEQ, FIXED};
use crate::cut::{Buffer, Tuple};

/// `IPPROTO_ICMP`.
pub const ICMP: u32 = 1;
/// `IPPROTO_TCP`.
pub const TCP: u32 = 6;
/// `IPPROTO_UDP`.
pub const UDP: u32 = 17;
/// `IPPROTO_ICMPV6`.
pub const ICMPV6: u32 = 58;

/// Length of an IPv4 header without options, and of an IPv6 header.
pub const V4_HEADER: u32 = 20;
/// See above.
pub const V6_HEADER: u32 = 40;
/// Length of a UDP header.
pub const UDP_HEADER: u32 = 8;
/// IPv6 extension headers that are gone through; a packet with more is the kernel's business.
pub const MOST_EXTENSIONS: u32 = 6;

/// A packet, as far as it has been understood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Seen {
    /// Addresses, ports (0 in a later fragment) and protocol.
    pub key: Key,
    /// Where the IP header begins.
    pub l3: u32,
    /// Where what it carries begins.
    pub l4: u32,
    /// Length of the IP packet, by its header.
    pub length: u32,
    /// 4 or 6.
    pub version: u32,
    /// A fragment: [`WHOLE`], [`FIRST`] or [`LATER`].
    pub fragment: u32,
    /// The datagram's number, where it is a fragment.
    pub id: u32,
    /// Length of the TCP or UDP header.
    pub header: u32,
    /// TCP control bits.
    pub flags: u32,
    /// TCP sequence number.
    pub seq: u32,
    /// TCP acknowledgement number.
    pub ack: u32,
}

/// No fragment.
pub const WHOLE: u32 = 0;
/// The first fragment of a datagram.
pub const FIRST: u32 = 1;
/// One behind it.
pub const LATER: u32 = 2;

/// Reads the IP header at `l3`. `Err` says why it cannot be any service's packet.
#[inline(always)]
pub fn ip<B: Buffer + ?Sized>(packet: &B, l3: u32, version: u32, seen: &mut Seen) -> Result<(), Reason> {
    seen.l3 = l3;
    seen.version = version;
    if version == 4 {
        v4(packet, l3, seen)
    } else {
        v6(packet, l3, seen)
    }
}

#[inline(always)]
fn v4<B: Buffer + ?Sized>(packet: &B, l3: u32, seen: &mut Seen) -> Result<(), Reason> {
    let short = Err(Reason::L4Malformed);
    let (Some(destination), Some(first)) = (packet.u32(l3 + 16), packet.u8(l3)) else {
        return short;
    };
    let (Some(source), Some(length), Some(offset), Some(protocol)) = (
        packet.u32(l3 + 12),
        packet.u16(l3 + 2),
        packet.u16(l3 + 6),
        packet.u8(l3 + 9),
    ) else {
        return short;
    };
    let header = u32::from(first & 15) * 4;
    if first >> 4 != 4 || header < V4_HEADER || u32::from(length) < header {
        return short;
    }
    seen.key.source = Tuple::mapped(source);
    seen.key.destination = Tuple::mapped(destination);
    seen.key.protocol = u32::from(protocol);
    seen.length = u32::from(length);
    seen.l4 = l3 + header;
    seen.fragment = WHOLE;
    if offset & 0x3fff != 0 {
        seen.fragment = if offset & 0x1fff == 0 { FIRST } else { LATER };
        seen.id = u32::from(packet.u16(l3 + 4).unwrap_or(0));
    }
    Ok(())
}

#[inline(always)]
fn v6<B: Buffer + ?Sized>(packet: &B, l3: u32, seen: &mut Seen) -> Result<(), Reason> {
    let short = Err(Reason::L4Malformed);
    let (Some(d3), Some(first), Some(payload), Some(next)) = (
        packet.u32(l3 + 36),
        packet.u8(l3),
        packet.u16(l3 + 4),
        packet.u8(l3 + 6),
    ) else {
        return short;
    };
    if first >> 4 != 6 {
        return short;
    }
    let mut i = 0;
    while i < 4 {
        seen.key.source[i] = packet.u32(l3 + 8 + 4 * i as u32).unwrap_or(0);
        i += 1;
    }
    i = 0;
    while i < 3 {
        seen.key.destination[i] = packet.u32(l3 + 24 + 4 * i as u32).unwrap_or(0);
        i += 1;
    }
    seen.key.destination[3] = d3;
    seen.length = u32::from(payload) + V6_HEADER;
    seen.fragment = WHOLE;
    let (mut next, mut l4) = (u32::from(next), l3 + V6_HEADER);
    if !matches!(next, TCP | UDP | ICMPV6) {
        let mut extensions = 0;
        while extensions < MOST_EXTENSIONS {
            let at = packet.forgotten(l4) & 0xff;
            let length = match next {
                // Hop-by-hop, routing and destination options (RFC 8200, section 4).
                0 | 43 | 60 => match packet.u8(at + 1) {
                    Some(length) => (u32::from(length) + 1) * 8,
                    None => return short,
                },
                44 => {
                    let (Some(offset), Some(id)) = (packet.u16(at + 2), packet.u32(at + 4)) else {
                        return short;
                    };
                    seen.fragment = if offset & 0xfff8 != 0 {
                        LATER
                    } else if offset & 1 != 0 {
                        FIRST
                    } else {
                        WHOLE
                    };
                    seen.id = id;
                    8
                }
                _ => break,
            };
            next = match packet.u8(at) {
                Some(next) => packet.forgotten(u32::from(next)),
                None => return short,
            };
            // Beyond 255 no byte is read.
            l4 = at + length;
            if l4 > 200 {
                return Err(Reason::L4Extended);
            }
            extensions += 1;
            if seen.fragment == LATER {
                break;
            }
        }
    }
    seen.key.protocol = next;
    seen.l4 = l4;
    Ok(())
}

/// Reads the ports, and of TCP what is followed of a connection. `Err` where the header is not whole or not possible.
#[inline(always)]
pub fn ports<B: Buffer + ?Sized>(packet: &B, seen: &mut Seen) -> Result<(), Reason> {
    let malformed = Err(Reason::L4Malformed);
    let at = seen.l4;
    if seen.key.protocol == TCP {
        let (Some(_), Some(ports), Some(seq), Some(ack), Some(length), Some(flags)) = (
            packet.u16(at + 18),
            packet.u32(at),
            packet.u32(at + AT_SEQ),
            packet.u32(at + AT_ACK),
            packet.u8(at + AT_LENGTH),
            packet.u8(at + AT_FLAGS),
        ) else {
            return malformed;
        };
        let header = u32::from(length >> 4) * 4;
        if header < FIXED || (seen.fragment == WHOLE && seen.l4 - seen.l3 + header > seen.length) {
            return malformed;
        }
        seen.key.ports = ports;
        seen.header = header;
        seen.flags = u32::from(flags);
        seen.seq = seq;
        seen.ack = ack;
        return Ok(());
    }
    let (Some(_), Some(ports)) = (packet.u16(at + 6), packet.u32(at)) else {
        return malformed;
    };
    seen.key.ports = ports;
    seen.header = UDP_HEADER;
    seen.flags = 0;
    Ok(())
}
