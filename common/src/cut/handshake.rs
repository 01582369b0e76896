//! The two handshakes: what each side offers, and how leg B is made to offer what leg A has.
//!
//! Leg A is accepted first. Leg B's SYN is then edited to offer no option that leg A lacks. The legs must agree on
//! timestamps and selective acknowledgements, so that their packets can be written in each other's form.

use super::flow::{OFFERED_SACK, OFFERED_SCALE, OFFERED_TIMESTAMPS};
use crate::net::header::{AT_FLAGS, AT_LENGTH, CWR, ECE, TCP_HEADER};
use crate::net::options::{MSS, NOP, OptionVisitor, SACK_PERMITTED, TIMESTAMPS, WINDOW_SCALE, walk};
use crate::net::{Buffer, Diff, Tcp};

/// MSS of a SYN without the option, over IPv4 (RFC 9293, section 3.7.1).
pub const DEFAULT_MSS: u16 = 536;

/// The highest window scale (RFC 7323, section 2.3).
const MAX_SCALE: u32 = 14;

/// Units of the other leg's scale that a host's first window must have: fewer would make a small buffer smaller by
/// rounding.
const MIN_WINDOW_UNITS: u32 = 16;

/// A first window that is large enough for any scale: it says little about a buffer that grows. It has no scale.
const LARGE_WINDOW: u32 = 0x8000;

/// Whether a window of `window` bytes at first, in a scale of `from`, can be expressed in units of `1 << to`.
#[inline(always)]
#[must_use]
pub const fn fits_scale(window: u16, from: u8, to: u8) -> bool {
    let least = MIN_WINDOW_UNITS << (to & 15);
    from >= to || window as u32 >= if least < LARGE_WINDOW { least } else { LARGE_WINDOW }
}

/// Options that a SYN or SYN-ACK offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynOptions {
    /// MSS of the sender.
    pub mss: u16,
    /// Window scale of the sender, 0 without the option.
    pub scale: u8,
    /// `OFFERED_*` bits of the options present.
    pub offered: u8,
    /// TSval of the sender, 0 without the option.
    pub ts_val: u32,
}

/// Offsets of a SYN's or SYN-ACK's options, 0 for one that is absent. If an option is repeated, the last one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynOptionOffsets {
    mss: u32,
    scale: u32,
    sack: u32,
    timestamps: u32,
}

/// Visitor that reads a [`SynOptions`]; numbers of 32 bits, for the verifier's sake.
struct OptionReader {
    mss: u32,
    scale: u32,
    bits: u32,
    stamp: u32,
    offsets: SynOptionOffsets,
}

impl<B: Buffer + ?Sized> OptionVisitor<B> for OptionReader {
    #[inline(always)]
    fn visit(&mut self, packet: &mut B, kind: u8, at: u32, length: u32) -> Option<()> {
        match (kind, length) {
            (MSS, 4) => {
                self.mss = packet.hide_from_verifier(u32::from(packet.u16(at + 2)?));
                self.offsets.mss = packet.hide_from_verifier(at);
            }
            (WINDOW_SCALE, 3) => {
                self.scale = packet.hide_from_verifier(u32::from(packet.u8(at + 2)?));
                self.bits = packet.hide_from_verifier(self.bits | u32::from(OFFERED_SCALE));
                self.offsets.scale = packet.hide_from_verifier(at);
            }
            (SACK_PERMITTED, 2) => {
                self.bits = packet.hide_from_verifier(self.bits | u32::from(OFFERED_SACK));
                self.offsets.sack = packet.hide_from_verifier(at);
            }
            (TIMESTAMPS, 10) => {
                self.stamp = packet.hide_from_verifier(packet.u32(at + 2)?);
                self.bits = packet.hide_from_verifier(self.bits | u32::from(OFFERED_TIMESTAMPS));
                self.offsets.timestamps = packet.hide_from_verifier(at);
            }
            _ => {}
        }
        Some(())
    }
}

/// Reads the options of the header `tcp` at `at`.
#[inline(always)]
pub fn read_options<B: Buffer + ?Sized>(packet: &mut B, at: u32, tcp: &Tcp) -> Option<SynOptions> {
    find_options(packet, at, tcp).map(|(options, _)| options)
}

/// Reads the options of the header `tcp` at `at`, and where they are.
#[inline(always)]
pub fn find_options<B: Buffer + ?Sized>(packet: &mut B, at: u32, tcp: &Tcp) -> Option<(SynOptions, SynOptionOffsets)> {
    // Separately: copies of one number are linked to the verifier.
    let mut reading = OptionReader {
        mss: packet.hide_from_verifier(u32::from(DEFAULT_MSS)),
        scale: packet.hide_from_verifier(0),
        bits: packet.hide_from_verifier(0),
        stamp: packet.hide_from_verifier(0),
        offsets: SynOptionOffsets {
            mss: packet.hide_from_verifier(0),
            scale: packet.hide_from_verifier(0),
            sack: packet.hide_from_verifier(0),
            timestamps: packet.hide_from_verifier(0),
        },
    };
    walk(packet, at + TCP_HEADER, tcp.length - TCP_HEADER, &mut reading)?;
    let scale = if reading.scale > MAX_SCALE {
        MAX_SCALE
    } else {
        reading.scale
    };
    let options = SynOptions {
        mss: reading.mss as u16,
        scale: scale as u8,
        offered: reading.bits as u8,
        ts_val: reading.stamp,
    };
    Some((options, reading.offsets))
}

/// Edits the options of a SYN or SYN-ACK: those beyond `keep` (`OFFERED_*`) become padding, and the MSS is `mss` at most.
/// Returns the difference to the checksum.
#[inline(always)]
pub fn limit_options<B: Buffer + ?Sized>(
    packet: &mut B,
    offsets: &SynOptionOffsets,
    keep: u8,
    mss: u16,
) -> Option<Diff> {
    let mut diff = Diff::unknown_zero(packet);
    if offsets.mss != 0 {
        let old = packet.u16(offsets.mss + 2)?;
        let new = if old > mss { mss } else { old };
        packet.set_u16(offsets.mss + 2, new)?;
        // May be at an odd offset: counted as the lower half of a number there.
        diff.u32_at(offsets.mss, u32::from(old), u32::from(new));
    }
    if offsets.scale != 0 && keep & OFFERED_SCALE == 0 {
        pad_option::<3, B>(packet, offsets.scale, &mut diff)?;
    }
    if offsets.sack != 0 && keep & OFFERED_SACK == 0 {
        pad_option::<2, B>(packet, offsets.sack, &mut diff)?;
    }
    if offsets.timestamps != 0 && keep & OFFERED_TIMESTAMPS == 0 {
        pad_option::<10, B>(packet, offsets.timestamps, &mut diff)?;
    }
    Some(diff)
}

/// Replaces the option of `LENGTH` bytes at `option` by padding.
#[inline(always)]
fn pad_option<const LENGTH: u32, B: Buffer + ?Sized>(packet: &mut B, option: u32, diff: &mut Diff) -> Option<()> {
    let mut i = 0;
    while i < LENGTH {
        let old = packet.u8(option + i)?;
        packet.set_u8(option + i, NOP)?;
        diff.u8_at(option + i, old, NOP);
        i += 1;
    }
    Some(())
}

/// Removes the request for ECN from a SYN (RFC 3168, section 6.1.1): only one leg would agree on it.
#[inline(always)]
pub fn clear_ecn<B: Buffer + ?Sized>(packet: &mut B, at: u32, tcp: &Tcp) -> Option<Diff> {
    let mut diff = Diff::default();
    if tcp.flags & (ECE | CWR) != 0 {
        let old = packet.u16(at + AT_LENGTH)?;
        packet.set_u8(at + AT_FLAGS, tcp.flags & !(ECE | CWR))?;
        diff.u16(old, old & !u16::from(ECE | CWR));
    }
    Some(diff)
}
