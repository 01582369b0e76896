//! First data in several segments, such as a ClientHello with a post-quantum key share. The first segments are kept
//! until it is whole. Data that userspace is to route is then sent to this machine again.

use aya_ebpf::{
    helpers::{bpf_clone_redirect, bpf_redirect},
    programs::TcContext,
};
use signalbox_common::{
    Reason,
    cut::flow::OFFERED_TIMESTAMPS,
    net::{
        Buffer as _,
        header::{ACK, FIN, PSH},
    },
    peek::{
        KernelPeek,
        abi::{NO_FLOW, PeekBinding, PeekCursor, PeekPending},
        cookie::CookieCheck,
    },
};

use super::{
    DROP, exit,
    first::{connect, read, send, step},
    frame::{self, AFTER_HEAD, Frame},
    maps::{PEEK_DONE, PEEK_PAYLOADS, PEEK_PENDING, PEEK_READING},
    pass_up::passed_up,
    repair,
    segment::{Checksum, Segment, segment_room},
    settings::{config, our_mss, room_for_first_data},
};
use crate::cut::skb::{Family, PacketView, context_field};

const BPF_F_INGRESS: u64 = 1;
const BPF_NOEXIST: u64 = 1;

/// Whether first data of `length` bytes goes on in the segment after this one: the client has more to send, and as much
/// again has room. Many clients send no less than that (RFC 9293, section 3.8.6.2.1). A client that waits for an answer
/// sets PSH (section 3.9.1), and gets one.
#[inline(always)]
pub fn goes_on<F: Family>(segment: &Segment, length: u32, check: &CookieCheck) -> bool {
    let has_timestamps = check.options.offered & OFFERED_TIMESTAMPS != 0;
    let room = room_for_first_data::<F>(has_timestamps).unwrap_or(0);
    segment.tcp.flags & (PSH | FIN) == 0 && length + segment.payload <= u32::from(room)
}

/// Remembers a connection whose first data is not whole. Returns a constant of [`step`].
#[inline(always)]
pub fn wait_for_rest(segment: &Segment, cursor: &mut PeekCursor, pending: &mut PeekPending) -> u32 {
    pending.flow = NO_FLOW;
    pending.port = 0;
    pending.attempts = 0;
    pending.challenged = 0;
    if PEEK_PENDING.insert(&segment.tuple, &*pending, BPF_NOEXIST).is_err() {
        return step::DROP;
    }
    cursor.payload = cursor.payload.wrapping_add(1);
    step::KEPT
}

/// Decides about first data to which a segment was appended; `PEEK_READING` has its connection.
#[inline(always)]
pub fn on_joined<F: Family>(
    ctx: &TcContext,
    segment: &Segment,
    check: &CookieCheck,
    stamps: &[u32; 2],
    binding: &PeekBinding,
) -> i32 {
    // Not called from one another: see `first`.
    let mut step = read_joined::<F>(segment, check, stamps, u32::from(binding.protocol));
    if step == step::SEND {
        step = connect::<F>(ctx, segment, check, binding);
    }
    match step {
        step::KEPT => exit(Reason::PeekKept, DROP),
        step::SEND => send::<F>(ctx),
        step::DROP => exit(Reason::PeekEarly, DROP),
        _ if repair::is_needed::<F>() => {
            let _ = PEEK_PENDING.remove(&segment.tuple);
            repair::hand_over::<F>(ctx, segment, check)
        }
        _ => return_data::<F>(ctx, segment, check, stamps),
    }
}

/// Reads first data again. Returns a constant of [`step`]: `SEND` where its name was found.
#[inline(never)]
fn read_joined<F: Family>(segment: &Segment, check: &CookieCheck, stamps: &[u32; 2], protocol: u32) -> u32 {
    try_read::<F>(segment, check, stamps, protocol as u8).unwrap_or(step::PASS_UP)
}

#[inline(always)]
fn try_read<F: Family>(segment: &Segment, check: &CookieCheck, stamps: &[u32; 2], protocol: u8) -> Option<u32> {
    let (config, reading) = (config()?, PEEK_READING.get_ptr_mut(0)?);
    // SAFETY: this CPU's element.
    let reading = unsafe { &mut *reading };
    let payload = PEEK_PAYLOADS.get_ptr(reading.pending.payload)?;
    // SAFETY: an element of this CPU's share: no other CPU gives it to a client.
    let payload = unsafe { &*payload };
    reading.pending.ts_val = stamps[0];
    reading.pending.ts_ecr = stamps[1];
    reading.pending.window = segment.tcp.window;
    if segment.tcp.flags & FIN != 0 {
        // As for first data in one segment: userspace passes the FIN on to the host.
        return None;
    }
    let outcome = read(config, payload, reading, protocol);
    if outcome == KernelPeek::Incomplete as u32 && goes_on::<F>(segment, payload.length, check) {
        return Some(step::KEPT);
    }
    (outcome == KernelPeek::Found as u32).then_some(step::SEND)
}

/// Sends first data to this machine again, in one segment or two, to be passed up. The client has sent it a moment ago,
/// and would repeat the first segment only after a wait for an acknowledgement.
#[inline(never)]
fn return_data<F: Family>(ctx: &TcContext, segment: &Segment, check: &CookieCheck, stamps: &[u32; 2]) -> i32 {
    try_return::<F>(ctx, segment, check, stamps).unwrap_or_else(|| exit(Reason::PeekFailed, DROP))
}

#[inline(always)]
fn try_return<F: Family>(ctx: &TcContext, segment: &Segment, check: &CookieCheck, stamps: &[u32; 2]) -> Option<i32> {
    let reading = PEEK_READING.get_ptr(0)?;
    // SAFETY: this CPU's element.
    let reading = unsafe { &*reading };
    let pending = &reading.pending;
    let payload = PEEK_PAYLOADS.get_ptr_mut(pending.payload)?;
    // SAFETY: an element of this CPU's share: no other CPU gives it to a client.
    let payload = unsafe { &mut *payload };
    let _ = PEEK_DONE.insert(&segment.tuple, &passed_up(pending.seq), 0);
    let _ = PEEK_PENDING.remove(&segment.tuple);
    let checksum = if reading.checksum == Checksum::Partial as u32 {
        Checksum::Partial
    } else {
        Checksum::Whole
    };
    let macs = PacketView::current(ctx).words(0)?;
    let has_timestamps = check.options.offered & OFFERED_TIMESTAMPS != 0;
    let frame = Frame::new(&segment.tuple.source, &segment.tuple.destination, &macs, checksum)?;
    if has_timestamps {
        frame.timestamps(stamps[0], stamps[1]);
    }
    let length = payload.length;
    let most = u32::from(segment_room(our_mss::<F>()?, has_timestamps));
    let one = if length > most { most } else { length };
    frame.length = one;
    frame.fill(segment.tuple.ports, pending.seq, pending.ack, ACK, pending.window);
    if frame::write::<F>(ctx, frame, payload) != 0 {
        return None;
    }
    let ifindex = context_field(ctx, |skb| unsafe { &raw const (*skb).ifindex });
    if length > one {
        // SAFETY: the helper clones the packet.
        unsafe { bpf_clone_redirect(ctx.skb.skb, ifindex, BPF_F_INGRESS) };
        frame.from = AFTER_HEAD + one;
        frame.words = 5;
        if has_timestamps {
            frame.timestamps(stamps[0], stamps[1]);
        }
        frame.length = length - one;
        let flags = ACK | PSH | segment.tcp.flags & FIN;
        frame.fill(
            segment.tuple.ports,
            pending.seq.wrapping_add(one),
            pending.ack,
            flags,
            pending.window,
        );
        if frame::write::<F>(ctx, frame, payload) != 0 {
            return None;
        }
    }
    // SAFETY: the helper takes numbers.
    let action = unsafe { bpf_redirect(ifindex, BPF_F_INGRESS) };
    Some(exit(Reason::PeekReturned, action as i32))
}
