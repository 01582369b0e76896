//! Parser of IP, TCP and UDP headers, fragments and extension headers included.

use super::Buffer;
use super::header::{ACK, RST, SYN, TCP_HEADER};
use super::ip::{ICMPV6, TCP, UDP, UDP_HEADER, V4_HEADER, V6_HEADER};
use super::too_big::TooBig;
use super::tuple::{Key, Tuple};
use crate::Reason;

/// Most IPv6 extension headers that are walked; a packet with more is passed to the kernel.
pub const MAX_EXTENSION_HEADERS: u32 = 6;

/// Headers of a packet, parsed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ParsedHeaders {
    /// Addresses, ports (0 in a later fragment) and protocol.
    pub key: Key,
    /// Offset of the IP header.
    pub l3: u32,
    /// Offset of the header after the IP header.
    pub l4: u32,
    /// Length of the IP packet, as its header says.
    pub length: u32,
    /// IP version, 4 or 6.
    pub version: u32,
    /// Kind of fragment: [`NOT_FRAGMENTED`], [`FIRST_FRAGMENT`] or [`LATER_FRAGMENT`].
    pub fragment: u32,
    /// Identification of the datagram, in a fragment.
    pub fragment_id: u32,
    /// Length of the TCP or UDP header.
    pub header_length: u32,
    /// TCP control bits.
    pub flags: u32,
    /// TCP sequence number.
    pub seq: u32,
    /// TCP acknowledgement number.
    pub ack: u32,
}

impl ParsedHeaders {
    /// Whether the packet is to open a TCP connection.
    #[inline(always)]
    #[must_use]
    pub fn is_syn(&self) -> bool {
        self.key.protocol == TCP && self.flags as u8 & (SYN | ACK | RST) == SYN
    }

    /// Whether the sender can use a message that the packet is too big: an IPv4 packet that may be fragmented is simply
    /// lost, and one with options is rare.
    #[inline(always)]
    pub fn accepts_too_big<B: Buffer + ?Sized>(&self, packet: &B) -> bool {
        if self.version == 4 {
            self.l4 - self.l3 == V4_HEADER && packet.u16(self.l3 + 6).is_some_and(|flags| flags & 0x4000 != 0)
        } else {
            true
        }
    }

    /// Description of the packet for the ICMP message to its sender.
    #[inline(always)]
    #[must_use]
    pub fn too_big(&self, mtu: u32) -> TooBig<'_> {
        TooBig {
            version: self.version,
            source: &self.key.source,
            destination: &self.key.destination,
            mtu,
        }
    }
}

/// Value of [`ParsedHeaders::fragment`]: not a fragment.
pub const NOT_FRAGMENTED: u32 = 0;
/// Value of [`ParsedHeaders::fragment`]: the first fragment of a datagram.
pub const FIRST_FRAGMENT: u32 = 1;
/// Value of [`ParsedHeaders::fragment`]: a fragment after the first one.
pub const LATER_FRAGMENT: u32 = 2;

/// Reads the key of an IPv4 packet without options that is no fragment and carries a whole TCP or UDP header, as nearly
/// all packets are. `None` for others, which [`parse_ip`] and [`parse_ports`] read.
#[inline(always)]
pub fn parse_plain_key<B: Buffer + ?Sized>(packet: &B, l3: u32) -> Option<Key> {
    let [first, second, third, source, destination, ports, _, _, fourth, _] = packet.words(l3)?;
    let protocol = third >> 16 & 0xff;
    let header = match protocol {
        TCP if fourth >> 28 << 2 >= TCP_HEADER => fourth >> 28 << 2,
        UDP => UDP_HEADER,
        _ => return None,
    };
    if first >> 24 != 0x45 || second & 0x3fff != 0 || (first & 0xffff) < V4_HEADER + header {
        return None;
    }
    Some(Key {
        source: Tuple::mapped(source),
        destination: Tuple::mapped(destination),
        ports,
        protocol,
    })
}

/// Reads the headers of a packet that [`parse_plain_key`] has read the key of.
#[inline(always)]
pub fn parse_plain<B: Buffer + ?Sized>(packet: &B, l3: u32, seen: &mut ParsedHeaders) -> Option<()> {
    let [first, _, third, source, destination, ports, seq, ack, fourth, _] = packet.words(l3)?;
    let protocol = third >> 16 & 0xff;
    seen.key.source = Tuple::mapped(source);
    seen.key.destination = Tuple::mapped(destination);
    seen.key.ports = ports;
    seen.key.protocol = protocol;
    seen.l3 = l3;
    seen.l4 = l3 + V4_HEADER;
    seen.length = first & 0xffff;
    seen.version = 4;
    seen.fragment = NOT_FRAGMENTED;
    if protocol == TCP {
        seen.header_length = fourth >> 28 << 2;
        seen.flags = fourth >> 16 & 0xff;
        seen.seq = seq;
        seen.ack = ack;
    } else {
        seen.header_length = UDP_HEADER;
        seen.flags = 0;
    }
    Some(())
}

/// Reads the IP header at `l3` of a frame of `frame` bytes. `Err` says why it cannot be any service's packet.
#[inline(always)]
pub fn parse_ip<B: Buffer + ?Sized>(
    packet: &B,
    l3: u32,
    version: u32,
    frame: u32,
    seen: &mut ParsedHeaders,
) -> Result<(), Reason> {
    seen.l3 = l3;
    seen.version = version;
    let read = if version == 4 {
        parse_v4(packet, l3, frame, seen)
    } else {
        parse_v6(packet, l3, frame, seen)
    };
    match read {
        Some(true) => Ok(()),
        Some(false) => Err(Reason::L4Extended),
        None => Err(Reason::L4Malformed),
    }
}

/// Length of an IP packet whose header says `length`, not counting `header`. A packet that the kernel has merged may be
/// longer than a header can say, which is then 0 ("BIG TCP", RFC 2675).
#[inline(always)]
const fn packet_length(length: u32, header: u32, l3: u32, frame: u32) -> u32 {
    if length == 0 && frame > u16::MAX as u32 {
        frame - l3
    } else {
        length + header
    }
}

#[inline(always)]
fn parse_v4<B: Buffer + ?Sized>(packet: &B, l3: u32, frame: u32, seen: &mut ParsedHeaders) -> Option<bool> {
    let [first, second, third, source, destination] = packet.words(l3)?;
    let length = packet_length(first & 0xffff, 0, l3, frame);
    let header = (first >> 24 & 15) * 4;
    if first >> 28 != 4 || header < V4_HEADER || length < header {
        return None;
    }
    seen.key.source = Tuple::mapped(source);
    seen.key.destination = Tuple::mapped(destination);
    seen.key.protocol = third >> 16 & 0xff;
    seen.length = length;
    seen.l4 = l3 + header;
    seen.fragment = NOT_FRAGMENTED;
    if second & 0x3fff != 0 {
        seen.fragment = if second & 0x1fff == 0 {
            FIRST_FRAGMENT
        } else {
            LATER_FRAGMENT
        };
        seen.fragment_id = second >> 16;
    }
    Some(true)
}

#[inline(always)]
fn parse_v6<B: Buffer + ?Sized>(packet: &B, l3: u32, frame: u32, seen: &mut ParsedHeaders) -> Option<bool> {
    let [first, second, s0, s1, s2, s3, d0, d1, d2, d3] = packet.words(l3)?;
    if first >> 28 != 6 {
        return None;
    }
    seen.key.source = [s0, s1, s2, s3];
    seen.key.destination = [d0, d1, d2, d3];
    let mut next = second >> 8 & 0xff;
    seen.length = packet_length(second >> 16, V6_HEADER, l3, frame);
    seen.fragment = NOT_FRAGMENTED;
    let mut l4 = l3 + V6_HEADER;
    if !matches!(next, TCP | UDP | ICMPV6) {
        let mut extensions = 0;
        while extensions < MAX_EXTENSION_HEADERS {
            let at = packet.hide_from_verifier(l4) & 0xff;
            let length = match next {
                // Hop-by-hop, routing and destination options (RFC 8200, section 4).
                0 | 43 | 60 => (u32::from(packet.u8(at + 1)?) + 1) * 8,
                44 => {
                    seen.fragment_id = packet.u32(at + 4)?;
                    let offset = packet.u16(at + 2)?;
                    seen.fragment = if offset & 0xfff8 != 0 {
                        LATER_FRAGMENT
                    } else if offset & 1 != 0 {
                        FIRST_FRAGMENT
                    } else {
                        NOT_FRAGMENTED
                    };
                    8
                }
                _ => break,
            };
            next = packet.hide_from_verifier(u32::from(packet.u8(at)?));
            // Beyond 255 no byte is read.
            l4 = at + length;
            if l4 > 200 {
                return Some(false);
            }
            extensions += 1;
            if seen.fragment == LATER_FRAGMENT {
                break;
            }
        }
        if seen.fragment != LATER_FRAGMENT && matches!(next, 0 | 43 | 44 | 60) {
            return Some(false);
        }
    }
    seen.key.protocol = next;
    seen.l4 = l4;
    Some(true)
}

/// Reads the ports, and of TCP flags and numbers. `Err` where the header is truncated or impossible.
#[inline(always)]
pub fn parse_ports<B: Buffer + ?Sized>(packet: &B, seen: &mut ParsedHeaders) -> Result<(), Reason> {
    let read = if seen.key.protocol == TCP {
        parse_tcp(packet, seen)
    } else {
        parse_udp(packet, seen)
    };
    read.ok_or(Reason::L4Malformed)
}

#[inline(always)]
fn parse_tcp<B: Buffer + ?Sized>(packet: &B, seen: &mut ParsedHeaders) -> Option<()> {
    let at = seen.l4;
    let [ports, seq, ack, fourth, _] = packet.words(at)?;
    let header = (fourth >> 28) * 4;
    seen.flags = fourth >> 16 & 0xff;
    seen.ack = ack;
    seen.seq = seq;
    seen.key.ports = ports;
    seen.header_length = header;
    if header < TCP_HEADER || (seen.fragment == NOT_FRAGMENTED && at - seen.l3 + header > seen.length) {
        return None;
    }
    Some(())
}

#[inline(always)]
fn parse_udp<B: Buffer + ?Sized>(packet: &B, seen: &mut ParsedHeaders) -> Option<()> {
    let [ports, _] = packet.words(seen.l4)?;
    seen.key.ports = ports;
    seen.header_length = UDP_HEADER;
    seen.flags = 0;
    Some(())
}
