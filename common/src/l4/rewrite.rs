//! Translation of source and destination (mode `nat`).

use super::abi::L4Flow;
use super::packet::{LATER_FRAGMENT, ParsedHeaders};
use crate::cut::{Buffer, Diff};

/// Differences to the TCP or UDP checksum: by the addresses (the pseudo-header), and by the rest.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChecksumDiffs {
    /// Difference by the addresses.
    pub addresses: Diff,
    /// Difference by the bytes that the checksum covers itself.
    pub rest: Diff,
}

/// Decrements the hop limit (TTL). `None` where no hop is left. Updates the checksum of an IPv4 header.
#[inline(always)]
pub fn decrement_hop_limit<B: Buffer + ?Sized>(packet: &mut B, seen: &ParsedHeaders) -> Option<()> {
    let at = if seen.version == 4 { seen.l3 + 8 } else { seen.l3 + 7 };
    let hops = packet.u8(at)?;
    if hops <= 1 {
        return None;
    }
    packet.set_u8(at, hops - 1)?;
    if seen.version == 4 {
        let mut diff = Diff::default();
        diff.u16(u16::from(hops) << 8, u16::from(hops - 1) << 8);
        let checksum = packet.u16(seen.l3 + 10)?;
        packet.set_u16(seen.l3 + 10, diff.apply_to(checksum))?;
    }
    Some(())
}

/// Writes addresses into the IP header at `l3`; without a `source` that stays. Updates the checksum of an IPv4 header,
/// whose hop limit the caller has changed.
#[inline(always)]
pub fn write_addresses<B: Buffer + ?Sized>(
    packet: &mut B,
    l3: u32,
    version: u32,
    source: Option<&[u32; 4]>,
    destination: &[u32; 4],
    hops: u8,
) -> Option<Diff> {
    let mut diff = Diff::default();
    if version == 4 {
        if let Some(source) = source {
            diff.u32(packet.u32(l3 + 12)?, source[3]);
            packet.set_u32(l3 + 12, source[3])?;
        }
        diff.u32(packet.u32(l3 + 16)?, destination[3]);
        packet.set_u32(l3 + 16, destination[3])?;
        let checksum = packet.u16(l3 + 10)?;
        let mut header = diff;
        header.u16(u16::from(hops) << 8, 0);
        packet.set_u16(l3 + 10, header.apply_to(checksum))?;
    } else {
        let mut i = 0;
        while i < 4 {
            let at = l3 + 8 + 4 * i as u32;
            if let Some(source) = source {
                diff.u32(packet.u32(at)?, source[i]);
                packet.set_u32(at, source[i])?;
            }
            diff.u32(packet.u32(at + 16)?, destination[i]);
            packet.set_u32(at + 16, destination[i])?;
            i += 1;
        }
    }
    Some(diff)
}

/// Writes a flow's addresses into an IPv4 header and takes one hop away: one read and one write for all of it. `Err` as
/// in [`translate`].
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

/// Writes a flow's addresses and ports, and takes one hop away. `Err(true)`: no hop is left; `Err(false)`: the packet
/// ends too early. The checksum of TCP or UDP is left to the caller.
#[inline(always)]
pub fn translate<B: Buffer + ?Sized>(
    packet: &mut B,
    seen: &ParsedHeaders,
    flow: &L4Flow,
) -> Result<ChecksumDiffs, bool> {
    let written = if seen.version == 4 {
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
