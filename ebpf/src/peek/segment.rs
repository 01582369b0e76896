//! A TCP segment that has arrived, and whether its checksum is right.

use aya_ebpf::programs::TcContext;
use signalbox_common::net::{Tcp, Tuple};

use super::frame;
use crate::cut::skb::{Family, TCP};

/// A segment without IP options or extension headers.
pub struct Segment {
    pub tuple: Tuple,
    pub tcp: Tcp,
    /// Number of bytes after the TCP header.
    pub payload: u32,
}

/// Content of a segment's checksum field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Checksum {
    /// The sum over the segment.
    Whole,
    /// The sum over the pseudo-header alone: the segment comes from this machine, and hardware was to complete it
    /// (`CHECKSUM_PARTIAL`, include/linux/skbuff.h).
    Partial,
    Wrong,
}

/// Sum of the words of an address.
#[inline(always)]
fn sum_of(address: &[u32; 4], words: usize) -> u64 {
    if words == 1 {
        return u64::from(address[3]);
    }
    u64::from(address[0]) + u64::from(address[1]) + u64::from(address[2]) + u64::from(address[3])
}

/// Sum of a pseudo-header.
#[inline(always)]
pub fn pseudo_header<F: Family>(source: &[u32; 4], destination: &[u32; 4], length: u32) -> u64 {
    sum_of(source, F::ADDRESS_WORDS) + sum_of(destination, F::ADDRESS_WORDS) + u64::from(TCP) + u64::from(length)
}

/// Folds a sum of 32-bit or 16-bit words to 16 bits.
#[inline(always)]
pub const fn fold(mut sum: u64) -> u16 {
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

impl Segment {
    /// Checks the checksum; `payload_sum` is the sum of the bytes after the header.
    #[inline(always)]
    pub fn checksum<F: Family>(&self, ctx: &TcContext, payload_sum: u16) -> Option<Checksum> {
        match check::<F>(ctx, self, payload_sum.into()) {
            0 => Some(Checksum::Whole),
            1 => Some(Checksum::Partial),
            2 => Some(Checksum::Wrong),
            _ => None,
        }
    }
}

/// Checks a checksum. Returns a [`Checksum`] as a number, or an invalid one where the header cannot be read. A function
/// of its own: its callers' stack has no room for its variables.
#[inline(never)]
fn check<F: Family>(ctx: &TcContext, segment: &Segment, payload_sum: u32) -> u32 {
    let length = segment.tcp.length;
    let Some((header_sum, field)) = frame::header_sum(ctx, F::TCP, length) else {
        return u32::MAX;
    };
    let tuple = &segment.tuple;
    let pseudo = pseudo_header::<F>(&tuple.source, &tuple.destination, length + segment.payload);
    let sum = fold(pseudo + u64::from(payload_sum) + u64::from(header_sum));
    let checksum = if sum == 0xffff || sum == 0 {
        Checksum::Whole
    } else if field == fold(pseudo) {
        Checksum::Partial
    } else {
        Checksum::Wrong
    };
    checksum as u32
}

/// Bytes of first data that a segment to a host has: a multiple of four, so that the sum of the next one begins at a whole
/// word.
#[inline(always)]
pub const fn segment_room(mss: u16, has_timestamps: bool) -> u16 {
    /// Options of timestamps, and those with two fillers before them.
    const TIMESTAMPS: u16 = 12;
    const MOST: u16 = 1460;
    let room = (mss - if has_timestamps { TIMESTAMPS } else { 0 }) & !3;
    if room < MOST { room } else { MOST }
}
