//! Addresses and hop limit of an IP header, written with its checksum.

use super::{Buffer, Diff, ParsedHeaders};

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
/// also for the `hops` that the caller has subtracted from its hop limit. Returns the difference to the pseudo-header
/// of TCP, UDP or ICMPv6.
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
