//! SYN cookies: the SYN itself becomes the SYN-ACK, with a cookie for a sequence number.
//!
//! The cookie is the kernel's own (`bpf_tcp_gen_syncookie`, kernel 5.3), so that the client's acknowledgement makes a
//! connection at the listening socket without any stored state (RFC 4987, section 3.6). It holds only the MSS: such a
//! connection has neither window scaling nor timestamps nor selective acknowledgements. The packet keeps its length: in
//! place of the client's options there are one option and the end of the list.

use super::admit::ShieldMaps;
use crate::net::checksum::ChecksumDiffs;
use crate::net::header::{ACK, AT_ACK, AT_SEQ, SYN, TCP_HEADER};
use crate::net::ip::{V4_HEADER, V6_HEADER};
use crate::net::packet::NOT_FRAGMENTED;
use crate::net::{Buffer, Diff, ParsedHeaders, SendInfo};

/// Window of the SYN-ACK: bytes that a client may send before the kernel has made the connection and announces its own
/// window.
const COOKIE_WINDOW: u32 = 64_240;
const HOPS: u8 = 64;
/// The MSS option's kind and length (RFC 9293, section 3.2).
const MSS_OPTION: u32 = 0x0204 << 16;

/// Words of the longest TCP header.
const MAX_TCP_HEADER_WORDS: u32 = 15;

/// Makes the cookie and MSS for a SYN, if its listener's backlog is full. SYNs with data, IPv4 options or extension
/// headers are left to the kernel.
#[inline(always)]
pub fn make_cookie<B: Buffer + ?Sized, K: ShieldMaps>(
    packet: &B,
    kernel: &K,
    seen: &ParsedHeaders,
    headers: &mut [u32; 25],
) -> Option<(u32, u16)> {
    let ip = if seen.version == 4 { V4_HEADER } else { V6_HEADER };
    if seen.fragment != NOT_FRAGMENTED || seen.l4 - seen.l3 != ip || seen.length != ip + seen.header_length {
        return None;
    }
    let mut i = 0;
    while i < V6_HEADER / 4 {
        if i < ip / 4 {
            headers[i as usize] = packet.u32(seen.l3 + 4 * i)?.to_be();
        }
        i += 1;
    }
    i = 0;
    while i < MAX_TCP_HEADER_WORDS {
        // An exit, and not a choice: the verifier tries every combination of choices in a loop.
        if i >= seen.header_length / 4 {
            break;
        }
        headers[10 + i as usize] = packet.u32(seen.l4 + 4 * i)?.to_be();
        i += 1;
    }
    kernel.make_cookie(&seen.key, headers, seen.header_length)
}

/// Turns the SYN into the SYN-ACK with this cookie and MSS.
#[inline(always)]
pub fn write_syn_ack<B: Buffer + ?Sized>(
    packet: &mut B,
    seen: &ParsedHeaders,
    out: &mut SendInfo,
    cookie: u32,
    mss: u16,
) -> Option<()> {
    let hops_at = seen.l3 + if seen.version == 4 { 8 } else { 7 };
    let hops = packet.u8(hops_at)?;
    packet.set_u8(hops_at, HOPS)?;
    if seen.version == 4 {
        let mut diff = Diff::default();
        diff.u16(u16::from(hops) << 8, u16::from(HOPS) << 8);
        let checksum = packet.u16(seen.l3 + 10)?;
        packet.set_u16(seen.l3 + 10, diff.apply_to(checksum))?;
    }
    swap_addresses(packet, seen)?;
    let at = seen.l4;
    let mut diff = Diff::default();
    let mut i = 5;
    while i < MAX_TCP_HEADER_WORDS {
        if i < seen.header_length / 4 {
            let new = if i == 5 { MSS_OPTION | u32::from(mss) } else { 0 };
            diff.u32(packet.u32(at + 4 * i)?, new);
            packet.set_u32(at + 4 * i, new)?;
        }
        i += 1;
    }
    let urgent = packet.u16(at + 18)?;
    diff.u16(urgent, 0);
    packet.set_u16(at + 18, 0)?;
    let fourth = packet.u32(at + 12)?;
    let new = (seen.header_length / 4) << 28 | u32::from(SYN | ACK) << 16 | COOKIE_WINDOW;
    diff.u32(fourth, new);
    packet.set_u32(at + 12, new)?;
    let ack = seen.seq.wrapping_add(1);
    diff.u32(seen.ack, ack);
    packet.set_u32(at + AT_ACK, ack)?;
    diff.u32(seen.seq, cookie);
    packet.set_u32(at + AT_SEQ, cookie)?;
    packet.set_u32(at, seen.key.ports.rotate_left(16))?;
    // Addresses and ports were swapped: sums over them stay the same.
    out.checksum_diffs = ChecksumDiffs {
        addresses: Diff::default(),
        rest: diff,
    };
    out.translated = 1;
    out.old_hop_limit = u32::from(hops);
    out.new_hop_limit = u32::from(HOPS);
    out.checksum_offset = at + 16;
    debug_assert!(seen.header_length >= TCP_HEADER, "the header is whole");
    Some(())
}

/// Swaps source and destination address.
#[inline(always)]
fn swap_addresses<B: Buffer + ?Sized>(packet: &mut B, seen: &ParsedHeaders) -> Option<()> {
    let (source, destination) = (&seen.key.source, &seen.key.destination);
    if seen.version == 4 {
        packet.set_u32(seen.l3 + 16, source[3])?;
        return packet.set_u32(seen.l3 + 12, destination[3]);
    }
    let mut i = 4;
    while i > 0 {
        i -= 1;
        packet.set_u32(seen.l3 + 24 + 4 * i as u32, source[i])?;
        packet.set_u32(seen.l3 + 8 + 4 * i as u32, destination[i])?;
    }
    Some(())
}
