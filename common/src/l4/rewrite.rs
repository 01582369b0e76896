//! Translation of source and destination (mode `nat`).

use super::abi::{L4Flow, state};
use crate::net::addresses::write_addresses;
use crate::net::checksum::ChecksumDiffs;
use crate::net::packet::LATER_FRAGMENT;
use crate::net::{Buffer, Diff, ParsedHeaders};

/// Lets routers fragment an IPv4 packet (RFC 791). A sender that forbids fragments may leave the identification at zero
/// (RFC 6864, section 4.1). It becomes the number of the flow's packet.
#[inline(always)]
fn allow_fragments<B: Buffer + ?Sized>(packet: &mut B, seen: &ParsedHeaders, flow: &L4Flow) -> Option<()> {
    const DONT_FRAGMENT: u32 = 0x4000;
    /// Length above which a packet counts as one that the kernel has merged: the usual MTU.
    const MAX_SINGLE_BYTES: u32 = 1500;
    let old = packet.u32(seen.l3 + 4)?;
    // The kernel drops a merged packet whose parts all have one identification and may be fragmented.
    let is_merged_without_id = old >> 16 == 0 && seen.length > MAX_SINGLE_BYTES;
    if old & DONT_FRAGMENT == 0 || is_merged_without_id {
        return Some(());
    }
    let id = if old >> 16 == 0 {
        flow.packets << 16
    } else {
        old & 0xffff_0000
    };
    let new = id | (old & 0xffff & !DONT_FRAGMENT);
    let mut diff = Diff::default();
    diff.u32(old, new);
    let checksum = packet.u16(seen.l3 + 10)?;
    packet.set_u32(seen.l3 + 4, new)?;
    packet.set_u16(seen.l3 + 10, diff.apply_to(checksum))
}

/// Writes a flow's addresses into an IPv4 header and decrements the hop limit: one read and one write for all of it.
/// `Err` as in [`translate`].
#[inline(always)]
fn translate_v4<B: Buffer + ?Sized>(packet: &mut B, seen: &ParsedHeaders, flow: &L4Flow) -> Result<Option<Diff>, bool> {
    let at = seen.l3 + 8;
    let [first, source, destination] = packet.words(at).ok_or(false)?;
    if first >> 24 <= 1 {
        return Err(true);
    }
    let mut diff = Diff::default();
    diff.u32(source, flow.source[3]);
    diff.u32(destination, flow.destination[3]);
    let mut header = diff;
    header.u16(1 << 8, 0);
    let checksum = header.apply_to(first as u16);
    let first = ((first & 0xffff_0000) - (1 << 24)) | u32::from(checksum);
    Ok(packet
        .set_words(at, [first, flow.source[3], flow.destination[3]])
        .map(|()| diff))
}

/// Writes a flow's addresses and ports, and decrements the hop limit. `Err(true)`: no hop is left; `Err(false)`: the
/// packet ends too early. The checksum of TCP or UDP is left to the caller.
#[inline(always)]
pub fn translate<B: Buffer + ?Sized>(
    packet: &mut B,
    seen: &ParsedHeaders,
    flow: &L4Flow,
) -> Result<ChecksumDiffs, bool> {
    let written = if seen.version == 4 {
        if flow.state & state::MAY_BE_FRAGMENTED != 0 {
            allow_fragments(packet, seen, flow).ok_or(false)?;
        }
        translate_v4(packet, seen, flow)?
    } else {
        let at = seen.l3 + 7;
        let hops = packet.u8(at).ok_or(false)?;
        if hops <= 1 {
            return Err(true);
        }
        let (source, destination) = (&flow.source, &flow.destination);
        packet
            .set_u8(at, hops - 1)
            .and_then(|()| write_addresses(packet, seen.l3, 6, Some(source), destination, 1))
    };
    let Some(addresses) = written else {
        return Err(false);
    };
    let mut rest = Diff::default();
    if seen.fragment != LATER_FRAGMENT {
        rest.u32(seen.key.ports, flow.ports);
        if packet.set_u32(seen.l4, flow.ports).is_none() {
            return Err(false);
        }
    }
    Ok(ChecksumDiffs { addresses, rest })
}
