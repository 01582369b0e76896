//! Frames of our own, made from the packet at hand: any packet can become such a segment.

use aya_ebpf::{
    EbpfContext as _,
    helpers::{bpf_csum_diff, bpf_csum_update, bpf_skb_change_tail, bpf_skb_load_bytes, bpf_skb_store_bytes},
    programs::TcContext,
};
use signalbox_common::{
    net::header::TCP_HEADER,
    net::{
        Buffer as _,
        bounded_loop::{BoundedLoop as _, Round},
    },
    peek::abi::{HEAD_ROOM, MAX_PAYLOAD_BYTES, PeekPayload},
};

use super::{
    kernel_loop::KernelLoop,
    maps::PEEK_FRAME,
    segment::{Checksum, fold, pseudo_header},
};
use crate::{
    cut::skb::{ETH_HEADER, Family, PacketView, TCP},
    packet_view::{hide_from_compiler, hide_from_verifier},
};

/// Longest TCP header that we write, in words: 20 bytes of options.
pub const HEADER_WORDS: usize = 10;
/// Room for a header, in words: a power of two.
const HEADER_ROOM: usize = 16;
/// Longest TCP header that exists (RFC 9293, section 3.1), in bytes.
const MAX_TCP_HEADER: u32 = 60;
/// Most bytes of options that we write.
const MAX_OPTION_BYTES: u32 = 20;
const HOPS: u32 = 64;
const DONT_FRAGMENT: u32 = 0x4000;
/// Bytes that `bpf_csum_diff` sums at once, before Linux 6.13 (`MAX_BPF_STACK`).
const MAX_SUMMED_BYTES: u32 = 512;

/// First data of a connection, of which a frame is a part: what its segments share.
#[derive(Clone, Copy)]
pub struct Burst {
    pub ports: u32,
    pub ack: u32,
    pub window: u32,
    pub stamp: u32,
    pub echo: u32,
    pub has_timestamps: u32,
    /// Most bytes of a segment.
    pub most: u32,
    /// Interface that leads to the host.
    pub ifindex: u32,
    /// 1: the kernel finds the neighbour's Ethernet address.
    pub asks_neighbour: u32,
    /// Number of the payload's use.
    pub generation: u32,
}

/// A segment to be made.
pub struct Frame {
    pub source: [u32; 4],
    pub destination: [u32; 4],
    /// TCP header, in host order; the checksum is filled in.
    pub header: [u32; HEADER_ROOM],
    /// Words of `header` that count.
    pub words: u32,
    /// Ethernet header: destination, then source.
    pub macs: [u32; 3],
    /// Part of a payload that follows the header, as an offset from the payload's head.
    pub from: u32,
    pub length: u32,
    pub is_partial: u32,
    /// First data, of which the segment is a part.
    pub burst: Burst,
}

impl Frame {
    /// A segment without options and bytes, in this CPU's place for one: the stack has no room for it.
    #[inline(always)]
    pub fn new(
        source: &[u32; 4],
        destination: &[u32; 4],
        macs: &[u32; 3],
        checksum: Checksum,
    ) -> Option<&'static mut Self> {
        let frame = PEEK_FRAME.get_ptr_mut(0)?;
        // SAFETY: this CPU's element.
        let frame = unsafe { &mut *frame };
        frame.source = *source;
        frame.destination = *destination;
        frame.header = [0; HEADER_ROOM];
        frame.words = 5;
        frame.macs = *macs;
        frame.from = AFTER_HEAD;
        frame.length = 0;
        frame.is_partial = u32::from(matches!(checksum, Checksum::Partial));
        Some(frame)
    }

    /// Fills in the fixed part of the header; options must be added before.
    #[inline(always)]
    pub const fn fill(&mut self, ports: u32, seq: u32, ack: u32, flags: u8, window: u16) {
        self.header[0] = ports;
        self.header[1] = seq;
        self.header[2] = ack;
        self.header[3] = self.words << 28 | (flags as u32) << 16 | window as u32;
        self.header[4] = 0;
    }

    /// Adds a word of options.
    #[inline(always)]
    pub fn option(&mut self, word: u32) {
        // Never more than ten words; the mask gives the verifier that bound.
        let at = hide_from_compiler(self.words) as usize & (HEADER_ROOM - 1);
        self.header[at] = word;
        self.words = at as u32 + 1;
    }

    /// Adds timestamps (RFC 7323), in the form that nearly all segments have.
    #[inline(always)]
    pub fn timestamps(&mut self, value: u32, echo: u32) {
        self.option(0x0101_080a);
        self.option(value);
        self.option(echo);
    }
}

/// A number that is at most `most`, in a form that verifiers can follow: one comparison. Those before 6.18 do not
/// follow the comparison that the compiler makes of two. `mask` is a power of two less one.
#[inline(always)]
pub fn bounded(number: u32, mask: u32, most: u32) -> Option<u32> {
    let number = hide_from_compiler(number) & mask;
    if number > most {
        return None;
    }
    Some(hide_from_compiler(number))
}

/// Sum of the packet's TCP header, which is at `at`, and its checksum field. Helpers compute it: the verifier would
/// walk each word of a loop, at each of the places that check a checksum.
#[inline(always)]
pub fn header_sum(ctx: &TcContext, at: u32, length: u32) -> Option<(u16, u16)> {
    let frame = PEEK_FRAME.get_ptr_mut(0)?;
    // SAFETY: this CPU's element; the next frame is made in it after this.
    let header = unsafe { &mut (*frame).header };
    *header = [0; HEADER_ROOM];
    let length = TCP_HEADER + bounded(length - TCP_HEADER, 63, MAX_TCP_HEADER - TCP_HEADER)?;
    // SAFETY: `length` is within the header's room; the helper checks offsets of the packet.
    let sum = unsafe {
        if bpf_skb_load_bytes(ctx.as_ptr(), at, header.as_mut_ptr().cast(), length) != 0 {
            return None;
        }
        bpf_csum_diff(
            core::ptr::null_mut(),
            0,
            header.as_mut_ptr(),
            size_of_val(header) as u32,
            0,
        )
    };
    let field = (u32::from_be(header[4]) >> 16) as u16;
    // The kernel sums words in memory order.
    Some((u16::from_be(fold(u64::from(sum as u32))), field))
}

/// Clears the bytes after a payload's end: sums are of whole words.
#[inline(always)]
pub fn pad(payload: &mut PeekPayload, end: u32) {
    let end = hide_from_compiler(end);
    let mut i = 0;
    while i < 3 {
        payload.data[((end + i) & 4095) as usize] = 0;
        i += 1;
    }
}

/// Offset of a payload's bytes from its head: a header may precede them.
pub const AFTER_HEAD: u32 = HEAD_ROOM as u32;

/// Sum of the bytes of a payload between `from` and `from + length`, as offsets from its head. `length` is a multiple of
/// four, or ends at the payload's end.
#[inline(always)]
pub fn payload_sum(payload: &mut PeekPayload, from: u32, length: u32) -> u16 {
    let mut parts = SumRounds {
        payload,
        from,
        length,
        done: hide_from_verifier(0, length) & 4095,
        sum: 0,
    };
    KernelLoop::repeat((AFTER_HEAD + MAX_PAYLOAD_BYTES).div_ceil(MAX_SUMMED_BYTES), &mut parts);
    // The kernel sums words in memory order.
    u16::from_be(fold(u64::from(parts.sum)))
}

struct SumRounds<'a> {
    payload: &'a mut PeekPayload,
    from: u32,
    length: u32,
    done: u32,
    sum: u32,
}

impl Round for SumRounds<'_> {
    #[inline(always)]
    fn round(&mut self) -> bool {
        if self.done >= self.length {
            return false;
        }
        let mut part = (self.length - self.done + 3) & !3;
        if part > MAX_SUMMED_BYTES {
            part = MAX_SUMMED_BYTES;
        }
        let part = hide_from_compiler(part) & 1023;
        let at = hide_from_compiler(self.from + self.done) & 4095;
        if part > MAX_SUMMED_BYTES || at > AFTER_HEAD + MAX_PAYLOAD_BYTES {
            return false;
        }
        // SAFETY: `at + part` is within the head and the room after it.
        let sum = unsafe {
            let start = self.payload.from_head(at);
            bpf_csum_diff(core::ptr::null_mut(), 0, start.cast(), part, self.sum)
        };
        self.sum = sum as u32;
        // The mask gives the verifier a bound in each round.
        self.done = hide_from_verifier(self.done + MAX_SUMMED_BYTES, self.sum) & 4095;
        true
    }
}

/// Turns the packet into the frame. `payload` is where `frame.from` and `frame.length` point into.
#[inline(never)]
pub fn write<F: Family>(ctx: &TcContext, frame: &mut Frame, payload: *mut PeekPayload) -> i32 {
    match try_write::<F>(ctx, frame, payload) {
        Some(()) => 0,
        None => -1,
    }
}

#[inline(always)]
fn try_write<F: Family>(ctx: &TcContext, frame: &mut Frame, payload: *mut PeekPayload) -> Option<()> {
    let skb = ctx.as_ptr().cast();
    let header = TCP_HEADER + bounded(frame.words * 4 - TCP_HEADER, 31, MAX_OPTION_BYTES)?;
    let length = frame.length;
    let pseudo = pseudo_header::<F>(&frame.source, &frame.destination, header + length);
    let mut sum = pseudo;
    if frame.is_partial != 0 {
        frame.header[4] = u32::from(fold(pseudo)) << 16;
    } else {
        let mut i = 0;
        while i < HEADER_WORDS {
            sum += u64::from(frame.header[i]);
            i += 1;
        }
        if length > 0 && !payload.is_null() {
            // SAFETY: an element of the array, not null.
            sum += u64::from(payload_sum(unsafe { &mut *payload }, frame.from, length));
        }
        frame.header[4] = u32::from(!fold(sum)) << 16;
    }
    // SAFETY: helpers on the context's own packet, which read as much as given and check offsets.
    unsafe {
        // A sum that a network card has left with the packet covers other bytes: growing the packet discards it.
        if bpf_csum_update(skb, 0) as i64 >= 0 {
            bpf_skb_change_tail(skb, ctx.len() + 1, 0);
        }
        if bpf_skb_change_tail(skb, F::TCP + header + length, 0) != 0 {
            return None;
        }
        let mut i = 0;
        while i < HEADER_WORDS {
            frame.header[i] = frame.header[i].to_be();
            i += 1;
        }
        if bpf_skb_store_bytes(skb, F::TCP, frame.header.as_ptr().cast(), header, 0) != 0 {
            return None;
        }
        if length > 0 && !payload.is_null() {
            let at = hide_from_compiler(frame.from) & 4095;
            if at > AFTER_HEAD + 1536 {
                return None;
            }
            let length = 1 + bounded(length - 1, 4095, 2559)?;
            let from = (*payload).from_head(at);
            if bpf_skb_store_bytes(skb, F::TCP + header, from.cast(), length, 0) != 0 {
                return None;
            }
        }
    }
    let mut view = PacketView::current(ctx);
    view.set_words(0, frame.macs)?;
    if F::VERSION == 4 {
        let first = 0x4500_0000 | (20 + header + length);
        let third = HOPS << 24 | u32::from(TCP) << 16;
        let (source, destination) = (frame.source[3], frame.destination[3]);
        let sum =
            u64::from(first) + u64::from(DONT_FRAGMENT) + u64::from(third) + u64::from(source) + u64::from(destination);
        view.set_words(
            ETH_HEADER,
            [first, DONT_FRAGMENT, third | u32::from(!fold(sum)), source, destination],
        )
    } else {
        view.set_words(
            ETH_HEADER,
            [0x6000_0000, (header + length) << 16 | u32::from(TCP) << 8 | HOPS],
        )?;
        view.set_words(ETH_HEADER + 8, frame.source)?;
        view.set_words(ETH_HEADER + 24, frame.destination)
    }
}
