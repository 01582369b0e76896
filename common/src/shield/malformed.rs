//! Malformed packets: contradictory TCP flags, impossible source addresses, lengths that do not fit.

use crate::net::header::{ACK, FIN, RST, SYN, URG};
use crate::net::ip::{TCP, UDP, UDP_HEADER};
use crate::net::packet::{LATER_FRAGMENT, NOT_FRAGMENTED};
use crate::net::tuple::is_v4;
use crate::net::{Buffer, ParsedHeaders};

/// Control bits that must form a valid combination.
const CHECKED_FLAGS: u32 = (FIN | SYN | RST | ACK | URG) as u32;

/// Set of valid combinations of control bits, as in netfilter (`nf_conntrack_proto_tcp.c`, `tcp_valid_flags`).
const VALID_FLAGS: u64 = 1 << SYN
    | 1 << (SYN | URG)
    | 1 << (SYN | ACK)
    | 1 << RST
    | 1 << (RST | ACK)
    | 1 << (FIN | ACK)
    | 1 << (FIN | ACK | URG)
    | 1 << ACK
    | 1 << (ACK | URG);

/// Whether a packet in a frame of `frame` bytes is malformed: longer than the frame, with contradictory control bits,
/// port 0 or an impossible UDP length, from its own destination or an impossible source address.
#[inline(always)]
#[must_use]
pub fn is_malformed<B: Buffer + ?Sized>(packet: &B, seen: &ParsedHeaders, frame: u32) -> bool {
    if seen.l3 + seen.length > frame || is_impossible_source(seen) || is_land_attack(seen) {
        return true;
    }
    if seen.fragment == LATER_FRAGMENT {
        return false;
    }
    let (from, to) = (seen.key.ports >> 16, seen.key.ports & 0xffff);
    if from == 0 || to == 0 {
        return true;
    }
    if seen.key.protocol == TCP {
        return VALID_FLAGS >> (seen.flags & CHECKED_FLAGS) & 1 == 0;
    }
    if seen.key.protocol == UDP {
        let Some(length) = packet.u16(seen.l4 + 4) else {
            return true;
        };
        // 0: the length of a jumbogram, and of several datagrams that the kernel has merged (RFC 2675).
        let room = seen.length.wrapping_sub(seen.l4 - seen.l3);
        let length = u32::from(length);
        return length != 0 && (length < UDP_HEADER || (seen.fragment == NOT_FRAGMENTED && length > room));
    }
    false
}

/// Whether source and destination are the same address (LAND attack).
#[inline(always)]
fn is_land_attack(seen: &ParsedHeaders) -> bool {
    let (source, destination) = (&seen.key.source, &seen.key.destination);
    source[3] == destination[3]
        && (seen.version == 4
            || (source[2] == destination[2] && source[1] == destination[1] && source[0] == destination[0]))
}

/// Whether no packet can come from the source address (RFC 6890): all zero, loopback, multicast, broadcast, or an
/// IPv4-mapped IPv6 address, which would count as IPv4 here.
#[inline(always)]
fn is_impossible_source(seen: &ParsedHeaders) -> bool {
    let [a, b, c, d] = seen.key.source;
    if seen.version == 4 {
        let first = d >> 24;
        return first == 0 || first == 127 || first >= 224;
    }
    a >> 24 == 0xff || is_v4(&seen.key.source) || (a | b | c == 0 && d <= 1)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::net::Key;
    use std::vec;

    fn seen(source: [u32; 4], version: u32, protocol: u32, flags: u8) -> ParsedHeaders {
        ParsedHeaders {
            key: Key {
                source,
                destination: [0, 0, 0xffff, 0x0a01_0001],
                ports: 50_000 << 16 | 80,
                protocol,
            },
            l4: 20,
            length: 40,
            version,
            flags: u32::from(flags),
            ..ParsedHeaders::default()
        }
    }

    const CLIENT: [u32; 4] = [0, 0, 0xffff, 0xc000_0201];

    #[test]
    fn contradictory_control_bits_are_malformed_and_others_are_not() {
        let packet = vec![0u8; 40];
        for (flags, malformed) in [
            (SYN, false),
            (SYN | ACK, false),
            (ACK, false),
            (ACK | 8, false),
            (FIN | ACK | 8, false),
            (RST, false),
            (RST | ACK, false),
            // With ECN's bits (RFC 3168).
            (SYN | 0xc0, false),
            (0, true),
            (FIN, true),
            (8, true),
            (FIN | URG | 8, true),
            (SYN | FIN, true),
            (SYN | RST, true),
            (FIN | RST | ACK, true),
            (0x3f, true),
        ] {
            assert_eq!(
                is_malformed(packet.as_slice(), &seen(CLIENT, 4, TCP, flags), 40),
                malformed,
                "{flags:#x}"
            );
        }
    }

    #[test]
    fn packets_with_an_impossible_source_address_are_malformed() {
        let packet = vec![0u8; 60];
        let v4 = |word| [0, 0, 0xffff, word];
        for (source, version) in [
            (v4(0), 4),
            (v4(0x7f00_0001), 4),
            (v4(0xe000_0001), 4),
            (v4(0xffff_ffff), 4),
            (v4(0x0a01_0001), 4),
            ([0; 4], 6),
            ([0, 0, 0, 1], 6),
            ([0xff02_0000, 0, 0, 1], 6),
            (v4(0xc000_0201), 6),
        ] {
            assert!(
                is_malformed(packet.as_slice(), &seen(source, version, TCP, SYN), 60),
                "{source:x?}"
            );
        }
        let v6 = [0x2001_0db8, 0, 0, 1];
        assert!(!is_malformed(packet.as_slice(), &seen(v6, 6, TCP, SYN), 60));
        assert!(!is_malformed(packet.as_slice(), &seen(CLIENT, 4, TCP, SYN), 60));
    }

    #[test]
    fn a_packet_ends_where_its_headers_say_or_later() {
        let mut packet = vec![0u8; 60];
        let udp = seen(CLIENT, 4, UDP, 0);
        assert!(
            is_malformed(packet.as_slice(), &udp, 39),
            "shorter than its IP header says"
        );
        for (length, malformed) in [(20, false), (8, false), (12, false), (7, true), (21, true), (0, false)] {
            packet[25] = length;
            assert_eq!(
                is_malformed(packet.as_slice(), &udp, 60),
                malformed,
                "UDP length {length}"
            );
        }
        let from_nowhere = ParsedHeaders {
            key: Key { ports: 80, ..udp.key },
            ..udp
        };
        assert!(is_malformed(packet.as_slice(), &from_nowhere, 60));
    }
}
