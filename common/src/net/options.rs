//! TCP options, one after the other (RFC 9293, section 3.2).

use super::{
    Buffer,
    bounded_loop::{BoundedLoop as _, Round},
};

/// Maximum segment size; SYN only.
pub const MSS: u8 = 2;
/// Window scale; SYN only (RFC 7323).
pub const WINDOW_SCALE: u8 = 3;
/// Selective acknowledgement permitted; SYN only (RFC 2018).
pub const SACK_PERMITTED: u8 = 4;
/// Selective acknowledgement.
pub const SACK: u8 = 5;
/// Timestamps (RFC 7323).
pub const TIMESTAMPS: u8 = 8;
/// No-operation: padding before an option.
pub const NOP: u8 = 1;
/// End of the option list.
pub const END: u8 = 0;

/// Most options in one header, padding included; a header with more counts as malformed. Linux, Windows, macOS and the
/// BSDs send eight at most.
pub const MAX_OPTIONS: u32 = 12;

/// Visitor of TCP options. Not a closure: the compiler would make a function of that, and the stack of a BPF program is
/// 512 bytes for all its functions.
pub trait OptionVisitor<B: Buffer + ?Sized> {
    /// Visits the option of this kind and length at offset `at`. `None` stops the walk.
    fn visit(&mut self, packet: &mut B, kind: u8, at: u32, length: u32) -> Option<()>;
}

/// Offset after the end of the list.
const OVER: u32 = u32::MAX;
/// Offset after an option that the visitor stopped at, or that is malformed.
const STOPPED: u32 = OVER - 1;

/// Walks the `len` bytes of options at `start`. `None` where `visitor` stopped the walk, or the list is malformed.
#[inline(always)]
pub fn walk<B: Buffer + ?Sized, V: OptionVisitor<B>>(
    packet: &mut B,
    start: u32,
    len: u32,
    visitor: &mut V,
) -> Option<()> {
    let mut options = WalkRounds {
        offset: packet.hide_from_verifier(0),
        packet,
        visitor,
        start,
        len,
    };
    B::Loop::repeat(MAX_OPTIONS, &mut options);
    (options.offset != STOPPED && options.offset >= len).then_some(())
}

struct WalkRounds<'a, B: ?Sized, V> {
    packet: &'a mut B,
    visitor: &'a mut V,
    start: u32,
    offset: u32,
    len: u32,
}

impl<B: Buffer + ?Sized, V: OptionVisitor<B>> Round for WalkRounds<'_, B, V> {
    #[inline(always)]
    fn round(&mut self) -> bool {
        // 40 at most.
        let offset = self.packet.hide_from_verifier(self.offset) & 63;
        let len = self.packet.hide_from_verifier(self.len);
        self.offset = step(self.packet, self.start, offset, len, self.visitor).unwrap_or(STOPPED);
        self.offset < STOPPED
    }
}

/// Visits the option at `offset`. Returns the offset of the next one, or [`OVER`].
#[inline(always)]
fn step<B: Buffer + ?Sized, V: OptionVisitor<B>>(
    packet: &mut B,
    start: u32,
    offset: u32,
    len: u32,
    visitor: &mut V,
) -> Option<u32> {
    if offset >= len {
        return Some(OVER);
    }
    let at = start + offset;
    let kind = packet.u8(at)?;
    if kind == END {
        return Some(OVER);
    }
    if kind == NOP {
        return Some(offset + 1);
    }
    let length = u32::from(packet.u8(at + 1)?);
    if length < 2 || offset + length > len {
        return None;
    }
    visitor.visit(packet, kind, at, length)?;
    Some(offset + length)
}

/// Offsets of the options of an established connection's packet, 0 for an option that is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OptionOffsets {
    /// Offset of the timestamps.
    pub timestamps: u32,
    /// Offset of the selective acknowledgement.
    pub sack: u32,
    /// Length of the selective acknowledgement.
    pub sack_length: u32,
}

/// The first four bytes of options in most packets that have any: NOP, NOP, timestamps of length 10.
const TIMESTAMPS_ONLY: u32 = 0x0101_080a;

/// Finds timestamps and selective acknowledgement among the `len` bytes of options at `start`.
#[inline(always)]
pub fn find_options<B: Buffer + ?Sized>(packet: &mut B, start: u32, len: u32) -> Option<OptionOffsets> {
    // Separately: copies of one number are linked to the verifier.
    let mut found = OptionOffsets {
        timestamps: packet.hide_from_verifier(0),
        sack: packet.hide_from_verifier(0),
        sack_length: packet.hide_from_verifier(0),
    };
    if len == 12 && packet.u32(start)? == TIMESTAMPS_ONLY {
        found.timestamps = start + 2;
        return Some(found);
    }
    walk(packet, start, len, &mut found)?;
    Some(found)
}

impl<B: Buffer + ?Sized> OptionVisitor<B> for OptionOffsets {
    #[inline(always)]
    fn visit(&mut self, packet: &mut B, kind: u8, at: u32, length: u32) -> Option<()> {
        if kind == TIMESTAMPS && length == 10 {
            self.timestamps = packet.hide_from_verifier(at);
        } else if kind == SACK {
            self.sack = packet.hide_from_verifier(at);
            self.sack_length = packet.hide_from_verifier(length);
        }
        Some(())
    }
}
