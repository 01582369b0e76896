//! First data on its way to a host, in one segment or two, with the PROXY header in front of it where the host gets one.

use aya_ebpf::{
    helpers::{bpf_clone_redirect, bpf_redirect, bpf_redirect_neigh},
    programs::TcContext,
};
use signalbox_common::{
    Reason,
    cut::{
        CutFlow,
        flow::{FIRST_DATA_HELD, HEADER_UNACKED, TS_DELTA_KNOWN},
    },
    net::{
        header::{ACK, PSH},
        seq::is_ahead,
    },
    peek::abi::PeekPayload,
};

use super::{
    DROP, exit,
    frame::{self, AFTER_HEAD, Burst, Frame},
    hop::HOP_LIFETIME_TICKS,
    keep::keep,
    maps::{CUT_CT, CUT_FLOWS, PEEK_CURSOR, PEEK_READING},
    proxy::prepend,
    segment::{Segment, segment_room},
    settings::{config, our_mss},
};
use crate::cut::skb::{Family, tick};

/// Not an action: the data was not sent.
pub const NOT_SENT: i32 = -2;

/// Turns the packet into the first data of a flow, and sends it. `frame` has its addresses and its burst. No function of
/// its own: the stack has no room for another frame.
#[inline(always)]
pub fn send<F: Family>(ctx: &TcContext, frame: &mut Frame, flow: &mut CutFlow, payload: &mut PeekPayload) -> i32 {
    try_send::<F>(ctx, frame, flow, payload).unwrap_or(NOT_SENT)
}

#[inline(always)]
fn try_send<F: Family>(
    ctx: &TcContext,
    frame: &mut Frame,
    flow: &mut CutFlow,
    payload: &mut PeekPayload,
) -> Option<i32> {
    let header = flow.handoff_end.wrapping_sub(flow.isn_b) & (AFTER_HEAD - 1);
    let length = header + payload.length;
    let most = frame.burst.most;
    let one = if length > most { most } else { length };
    let flags = if length > one { ACK } else { ACK | PSH };
    segment::<F>(ctx, frame, flow, payload, AFTER_HEAD - header, one, flags)?;
    let ifindex = frame.burst.ifindex;
    if frame.burst.asks_neighbour != 0 {
        // A clone would need the address: the client repeats what is missing.
        // SAFETY: a helper that takes numbers.
        return Some(unsafe { bpf_redirect_neigh(ifindex, core::ptr::null_mut(), 0, 0) } as i32);
    }
    if length > one {
        // SAFETY: the helper clones the packet.
        unsafe { bpf_clone_redirect(ctx.skb.skb, ifindex, 0) };
        let rest = length - one;
        // The client repeats bytes beyond two segments.
        let two = if rest > most { most } else { rest };
        segment::<F>(ctx, frame, flow, payload, AFTER_HEAD - header + one, two, ACK | PSH)?;
    }
    // SAFETY: the helper takes numbers.
    Some(unsafe { bpf_redirect(ifindex, 0) } as i32)
}

/// Makes one segment: `length` bytes of a payload, `from` its head.
#[inline(always)]
fn segment<F: Family>(
    ctx: &TcContext,
    frame: &mut Frame,
    flow: &CutFlow,
    payload: &mut PeekPayload,
    from: u32,
    length: u32,
    flags: u8,
) -> Option<()> {
    let burst = frame.burst;
    frame.words = 5;
    if burst.has_timestamps != 0 {
        frame.timestamps(burst.stamp, burst.echo);
    }
    frame.from = from;
    frame.length = length;
    // The byte at AFTER_HEAD is the client's first one.
    let seq = flow.handoff_end.wrapping_add(from).wrapping_sub(AFTER_HEAD);
    frame.fill(burst.ports, seq, burst.ack, flags, burst.window as u16);
    let is_written = frame::write::<F>(ctx, frame, payload) == 0;
    (is_written && is_ours(payload, burst.generation)).then_some(())
}

/// Whether a payload still belongs to a connection. Another CPU may have given the element to its next client in the
/// meantime, whose bytes must not be sent on this connection.
#[inline(always)]
pub fn is_ours(payload: &PeekPayload, generation: u32) -> bool {
    // SAFETY: aligned, whole; the CPU that has the element changes the number first of all.
    unsafe { (&raw const payload.generation).read_volatile() == generation }
}

/// The client's window in the units of leg B.
#[inline(always)]
pub fn window_for_host(flow: &CutFlow, window: u16) -> u16 {
    let bytes = u32::from(window) << (flow.scale_a & 15);
    let units = bytes >> (flow.scale_b & 15);
    if units > 0xffff { 0xffff } else { units as u16 }
}

/// Sends a client's first data again, with the PROXY header that was lost.
#[inline(never)]
pub fn repeat<F: Family>(ctx: &TcContext, segment: &Segment, stamps: &[u32; 2]) -> i32 {
    try_repeat::<F>(ctx, segment, stamps).unwrap_or_else(|| exit(Reason::PeekEarly, DROP))
}

#[inline(always)]
fn try_repeat<F: Family>(ctx: &TcContext, segment: &Segment, stamps: &[u32; 2]) -> Option<i32> {
    // SAFETY: the value is copied at once.
    let entry = unsafe { CUT_CT.get(&segment.tuple) }.copied()?;
    let flow = CUT_FLOWS.get_ptr_mut(entry.index)?;
    // SAFETY: an element of the array, each field of which is read or written whole.
    let flow = unsafe { &mut *flow };
    // The first data must be on its way already, and the timestamps known.
    let is_unacked = flow.dirs[0].flags & (HEADER_UNACKED | FIRST_DATA_HELD) == HEADER_UNACKED;
    if entry.dir != 0 || !is_unacked || segment.tcp.seq != flow.first_byte() || flow.dirs[0].hop_ifindex == 0 {
        return None;
    }
    let (config, cursor, reading) = (config()?, PEEK_CURSOR.get_ptr_mut(0)?, PEEK_READING.get_ptr_mut(0)?);
    // SAFETY: this CPU's elements.
    let (cursor, reading) = unsafe { (&mut *cursor, &mut *reading) };
    let (payload, checksum) = keep::<F>(ctx, segment, config, cursor, &mut reading.pending)?;
    cursor.payload = cursor.payload.wrapping_add(1);
    // SAFETY: an element of the ring that this CPU has just taken.
    let payload = unsafe { &mut *payload };
    if prepend::<F>(payload, flow, entry.index) == 0 {
        return None;
    }
    let frame = Frame::new(&flow.local, &flow.host_addr, &flow.dirs[0].macs, checksum)?;
    let has_timestamps = flow.dirs[0].flags & TS_DELTA_KNOWN != 0;
    frame.burst = Burst {
        ports: flow.ports_b.rotate_left(16),
        ack: segment.tcp.ack.wrapping_sub(flow.seq_delta_out),
        window: window_for_host(flow, segment.tcp.window).into(),
        stamp: stamps[0].wrapping_add(flow.ts_delta_in),
        echo: stamps[1].wrapping_sub(flow.ts_delta_out),
        has_timestamps: has_timestamps.into(),
        most: segment_room(our_mss::<F>()?, has_timestamps).into(),
        ifindex: flow.dirs[0].hop_ifindex,
        asks_neighbour: (!is_ahead(flow.dirs[0].hop_expires, tick(), HOP_LIFETIME_TICKS + 1)).into(),
        generation: reading.pending.generation,
    };
    match send::<F>(ctx, frame, flow, payload) {
        NOT_SENT => None,
        action => Some(exit(Reason::PeekHeaderRepeated, action)),
    }
}
