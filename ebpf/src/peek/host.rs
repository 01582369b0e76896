//! Packets of hosts to connections in the making: the SYN-ACK becomes the client's first data.

use aya_ebpf::{
    helpers::{bpf_clone_redirect, bpf_redirect},
    programs::TcContext,
};
use signalbox_common::{
    Reason,
    cut::{
        CutFlow, PendingFlow,
        flow::{
            FIRST_DATA_HELD, IS_PEEKED, OFFERED_TIMESTAMPS, PAIRED, RESET, SOCKETS_CLOSED, SUPERSEDED, TS_DELTA_KNOWN,
            ineligible, state,
        },
        handshake,
    },
    net::{
        atomic,
        header::{ACK, RST},
        seq,
    },
    peek::abi::{PeekPayload, PeekPending},
};

use super::{
    DROP,
    burst::{self, NOT_SENT, window_for_host},
    exit,
    first::send,
    frame::{self, Burst, Frame},
    maps::{
        CUT_CT, CUT_FLOWS, PEEK_DONE, PEEK_PAYLOADS, PEEK_PENDING, PEEK_READING, about, note_asked, notify,
        pending_flow, release_port,
    },
    miss,
    pass_up::swapped_macs,
    proxy::prepend,
    release::{give_up, hold, let_go, note_failure, note_unfit, set_aside},
    segment::{Checksum, Segment, segment_room},
    settings::{config, is_alive, micros},
};
use crate::{
    cut::skb::{Family, PacketView, context_field, monotonic_ms, tick},
    packet_view::hide_from_compiler,
};

/// Sends the first data, if `cut_in` has just completed a flow of ours with this SYN-ACK.
#[inline(always)]
pub fn on_syn_ack<F: Family>(ctx: &TcContext, segment: &Segment) -> i32 {
    // SAFETY: the value is copied at once.
    let Some(entry) = (unsafe { CUT_CT.get(&segment.tuple) }).copied() else {
        return on_unpaired::<F>(ctx, segment);
    };
    let Some(flow) = CUT_FLOWS.get_ptr_mut(entry.index) else {
        return miss();
    };
    // SAFETY: an element of the array, each field of which is read or written whole.
    let flow = unsafe { &mut *flow };
    if entry.dir != 1 || flow.dirs[0].flags & FIRST_DATA_HELD == 0 || flow.state != state::CUT {
        return miss();
    }
    if is_of_successor(flow, entry.index) {
        return miss();
    }
    // SAFETY: aligned, whole.
    let is_paired = unsafe { (&raw const flow.dirs[0].flags).read_volatile() } & PAIRED != 0;
    if !is_paired || !take_first_data(flow) {
        // Another CPU has another copy of the SYN-ACK. It completes the flow and sends the data.
        return exit(Reason::PeekEarly, DROP);
    }
    match deliver::<F>(ctx, segment, flow, entry.index) {
        // Not called from there: the stack would have no room for the frames of both.
        LOST => abandon::<F>(ctx, segment, flow),
        action => action,
    }
}

/// Whether a flow is one of the program after this one: a successor's, whose first data is in its own maps.
#[inline(always)]
fn is_of_successor(flow: &CutFlow, index: u32) -> bool {
    // SAFETY: a number, read at once.
    let waits_here = unsafe { PEEK_PENDING.get(&flow.tuple(0)) }.is_some_and(|pending| pending.flow == index);
    !waits_here && !config().is_some_and(is_alive)
}

/// Claims the first data of a flow for this CPU; false where another CPU has it.
#[inline(always)]
fn take_first_data(flow: &mut CutFlow) -> bool {
    /// Other packets of the flow may change its flags at the same time, but there can be only few yet.
    const MAX_TRIES: u32 = 4;
    let mut tries = 0;
    while tries < MAX_TRIES {
        tries += 1;
        let flags = &mut flow.dirs[0].flags;
        // SAFETY: aligned, whole.
        let held = unsafe { core::ptr::from_ref(flags).read_volatile() };
        if held & FIRST_DATA_HELD == 0 {
            return false;
        }
        if atomic::exchange(flags, held, held & !FIRST_DATA_HELD) {
            return true;
        }
    }
    // The host repeats its SYN-ACK.
    false
}

/// Not an action: the first data is lost.
const LOST: i32 = NOT_SENT - 1;

#[inline(never)]
fn deliver<F: Family>(ctx: &TcContext, segment: &Segment, flow: &mut CutFlow, index: u32) -> i32 {
    let client = flow.tuple(0);
    // SAFETY: the value is copied at once.
    let pending = unsafe { PEEK_PENDING.get(&client) }.copied();
    // The flow has no sockets: the flow GC may end it, and nothing is handed off.
    flow.handoff_state = SOCKETS_CLOSED;
    release_port(flow.ports_b & 0xffff, index);
    let first = flow.first_byte();
    // Both are compared in one word, hidden from the compiler: it would compare before it knows that one exists.
    let is_of_flow = |pending: &PeekPending| hide_from_compiler(pending.flow ^ index | pending.seq ^ first) == 0;
    let Some(pending) = pending.filter(is_of_flow) else {
        notify(index, 0);
        return LOST;
    };
    let accepted_after = micros().wrapping_sub(pending.asked) | 1;
    notify(index, accepted_after);
    if let Some(about) = config().and_then(|config| about(config, index)) {
        // SAFETY: the element of a flow that this CPU completes.
        unsafe { (*about).accepted_after = accepted_after };
    }
    let action = send_kept::<F>(ctx, segment, flow, index, &pending);
    if action >= 0 {
        // Before it leaves the other map: another CPU may have a copy of the data, and must find it in one of them.
        let _ = PEEK_DONE.insert(&client, &first, 0);
    }
    let _ = PEEK_PENDING.remove(&client);
    match action {
        LOST => LOST,
        NOT_SENT => exit(Reason::PeekFailed, DROP),
        action => exit(Reason::PeekDelivered, action),
    }
}

/// Sends the first data that the ring has of a connection. Besides actions: `LOST`, and `NOT_SENT`, whose flow has ended.
#[inline(always)]
fn send_kept<F: Family>(
    ctx: &TcContext,
    segment: &Segment,
    flow: &mut CutFlow,
    index: u32,
    pending: &PeekPending,
) -> i32 {
    let Some(payload) = PEEK_PAYLOADS.get_ptr_mut(pending.payload) else {
        return LOST;
    };
    // SAFETY: an element of the array.
    let payload = unsafe { &mut *payload };
    if payload.generation != pending.generation {
        return LOST;
    }
    send_data::<F>(ctx, segment, flow, index, pending, payload).unwrap_or_else(|| {
        forget(flow);
        NOT_SENT
    })
}

/// Ends a flow whose first data is lost, and its host's connection. The client repeats its data, and that is read
/// again, because it may name something else.
#[inline(never)]
fn abandon<F: Family>(ctx: &TcContext, segment: &Segment, flow: &mut CutFlow) -> i32 {
    forget(flow);
    match make_reset::<F>(ctx, segment) {
        Some(Checksum::Whole | Checksum::Partial) => {
            let ifindex = context_field(ctx, |skb| unsafe { &raw const (*skb).ifindex });
            // SAFETY: the helper takes numbers.
            exit(Reason::PeekOverwritten, unsafe { bpf_redirect(ifindex, 0) } as i32)
        }
        _ => exit(Reason::PeekFailed, DROP),
    }
}

/// Ends a flow as one that its client has reset, because its host is not to blame, and removes it from the connection
/// table. Its tuples may belong to another flow before the flow GC has freed it.
#[inline(always)]
fn forget(flow: &mut CutFlow) {
    atomic::set(&mut flow.dirs[0].flags, RESET | SUPERSEDED);
    atomic::set(&mut flow.dirs[1].flags, SUPERSEDED);
    let _ = CUT_CT.remove(&flow.tuple(0));
    let _ = CUT_CT.remove(&flow.tuple(1));
}

/// Turns the SYN-ACK into the client's first data.
#[inline(always)]
fn send_data<F: Family>(
    ctx: &TcContext,
    segment: &Segment,
    flow: &mut CutFlow,
    index: u32,
    pending: &PeekPending,
    payload: &mut PeekPayload,
) -> Option<i32> {
    let mut view = PacketView::current(ctx);
    let offer = handshake::read_options(&mut view, F::TCP, &segment.tcp)?;
    let checksum = segment.checksum::<F>(ctx, 0)?;
    if checksum == Checksum::Wrong {
        return None;
    }
    let has_timestamps = offer.offered & OFFERED_TIMESTAMPS != 0;
    let stamp = flow.dirs[1].ts_val.wrapping_add(monotonic_ms());
    let length = payload.length;
    flow.dirs[0].packets = 1;
    flow.dirs[0].bytes = u64::from(length);
    // A repetition may have been forwarded already: the flow is in the table.
    let first = flow.first_byte();
    flow.dirs[0].snd_max = seq::later(flow.dirs[0].snd_max, first.wrapping_add(length));
    if has_timestamps {
        flow.dirs[0].ts_val = stamp;
        flow.ts_delta_in = stamp.wrapping_sub(pending.ts_val);
        // The client's echoed timestamp becomes that of this SYN-ACK. Otherwise a repetition of its data would echo an older
        // one than the host has sent, which newer kernels refuse (`tcp_check_req`; seen on 6.18).
        flow.ts_delta_out = pending.ts_ecr.wrapping_sub(offer.ts_val);
        atomic::set(&mut flow.dirs[0].flags, TS_DELTA_KNOWN);
    }
    if !burst::is_ours(payload, pending.generation) || prepend::<F>(payload, flow, index) == 0 {
        return None;
    }
    let macs = swapped_macs(&view)?;
    let frame = Frame::new(&flow.local, &flow.host_addr, &macs, checksum)?;
    frame.burst = Burst {
        ports: flow.ports_b.rotate_left(16),
        ack: flow.isn_host,
        window: window_for_host(flow, pending.window).into(),
        stamp,
        echo: offer.ts_val,
        has_timestamps: has_timestamps.into(),
        most: segment_room(offer.mss, has_timestamps).into(),
        ifindex: context_field(ctx, |skb| unsafe { &raw const (*skb).ifindex }),
        asks_neighbour: 0,
        generation: pending.generation,
    };
    match burst::send::<F>(ctx, frame, flow, payload) {
        NOT_SENT => None,
        action => Some(action),
    }
}

/// A SYN-ACK that has completed no flow, perhaps because the host's options do not agree with the client's. The host
/// gets a reset, and the client's repetition is passed up.
#[inline(never)]
fn on_unpaired<F: Family>(ctx: &TcContext, segment: &Segment) -> i32 {
    try_on_unpaired::<F>(ctx, segment).unwrap_or_else(miss)
}

#[inline(always)]
fn try_on_unpaired<F: Family>(ctx: &TcContext, segment: &Segment) -> Option<i32> {
    let (pending, flow) = pending_of(segment)?;
    if flow.state != state::INELIGIBLE {
        return None;
    }
    if is_of_options(flow.ineligible) {
        note_unfit(pending.host);
        notify(pending.flow, 0);
    }
    let client = flow.tuple(0);
    give_up(&client, &pending);
    if make_reset::<F>(ctx, segment)? == Checksum::Wrong {
        return Some(exit(Reason::PeekFailed, DROP));
    }
    let ifindex = context_field(ctx, |skb| unsafe { &raw const (*skb).ifindex });
    // SAFETY: the helper takes numbers.
    let action = unsafe { bpf_redirect(ifindex, 0) };
    Some(exit(Reason::PeekRefused, action as i32))
}

/// Turns a host's packet into the reset of the connection that it refers to. Returns the state of its checksum; `Wrong`
/// where the packet could not be changed.
#[inline(always)]
fn make_reset<F: Family>(ctx: &TcContext, segment: &Segment) -> Option<Checksum> {
    let view = PacketView::current(ctx);
    let checksum = segment.checksum::<F>(ctx, 0)?;
    let macs = swapped_macs(&view)?;
    let frame = Frame::new(&segment.tuple.destination, &segment.tuple.source, &macs, checksum)?;
    frame.fill(segment.tuple.ports.rotate_left(16), segment.tcp.ack, 0, RST, 0);
    let is_written = frame::write::<F>(ctx, frame, core::ptr::null_mut()) == 0;
    Some(if is_written { checksum } else { Checksum::Wrong })
}

/// Decides about an acknowledgement to no listener. If a host has been sent a SYN and acknowledges something else, it
/// has an old connection of the same addresses and ports (RFC 5961, section 4; RFC 6191). Our kernel would reset that,
/// and the client would wait until it repeats its data.
#[inline(never)]
pub fn on_challenge<F: Family>(ctx: &TcContext, segment: &Segment) -> i32 {
    try_on_challenge::<F>(ctx, segment).unwrap_or_else(miss)
}

#[inline(always)]
fn try_on_challenge<F: Family>(ctx: &TcContext, segment: &Segment) -> Option<i32> {
    let fate = note_challenge(segment);
    if fate == challenge::NONE {
        return None;
    }
    let checksum = make_reset::<F>(ctx, segment)?;
    if checksum == Checksum::Wrong {
        return Some(exit(Reason::PeekFailed, DROP));
    }
    let ifindex = context_field(ctx, |skb| unsafe { &raw const (*skb).ifindex });
    if fate == challenge::AGAIN {
        // SAFETY: the helper takes numbers.
        return Some(exit(Reason::PeekEarly, unsafe { bpf_redirect(ifindex, 0) } as i32));
    }
    // SAFETY: the helper clones the packet.
    unsafe { bpf_clone_redirect(ctx.skb.skb, ifindex, 0) };
    let reading = PEEK_READING.get_ptr_mut(0)?;
    // SAFETY: this CPU's element.
    unsafe { (*reading).checksum = checksum as u32 };
    Some(send::<F>(ctx))
}

/// Kinds of an acknowledgement of a host. Numbers, because a function of a BPF program returns one register.
mod challenge {
    /// No challenge.
    pub const NONE: u32 = 0;
    /// The first one since the host was asked.
    pub const FIRST: u32 = 1;
    /// A repeated challenge: the SYN is sent again when the client repeats its data.
    pub const AGAIN: u32 = 2;
}

/// Returns whether an acknowledgement is a challenge, and records it; the connection is left in `PEEK_READING`.
#[inline(never)]
fn note_challenge(segment: &Segment) -> u32 {
    let Some((pending, flow)) = pending_of(segment) else {
        return challenge::NONE;
    };
    if flow.state != state::CONNECTING || segment.tcp.ack == flow.isn_b || segment.payload != 0 {
        return challenge::NONE;
    }
    let Some(reading) = PEEK_READING.get_ptr_mut(0) else {
        return challenge::NONE;
    };
    // SAFETY: this CPU's element.
    let reading = unsafe { &mut *reading };
    reading.pending = pending;
    reading.pending.challenged = pending.attempts;
    let Some(entry) = PEEK_PENDING.get_ptr_mut(&flow.tuple(0)) else {
        return challenge::AGAIN;
    };
    // In place: userspace may be writing the element of another host.
    // SAFETY: an entry of the map; numbers are written whole.
    unsafe { (*entry).challenged = pending.attempts };
    if pending.challenged == pending.attempts {
        challenge::AGAIN
    } else {
        challenge::FIRST
    }
}

/// Whether a flow was not cut because of the host's options, and not because a table is full.
#[inline(always)]
const fn is_of_options(why: u8) -> bool {
    why == ineligible::TIMESTAMPS
        || why == ineligible::SACK
        || why == ineligible::MSS
        || why == ineligible::WINDOW_SCALE
        || why == ineligible::FRAGMENTS
        || why == ineligible::MALFORMED
}

/// Handles a host's refusal: the client's data goes to another host. Its repetition is passed up if there is none.
#[inline(never)]
pub fn on_reset(segment: &Segment) -> i32 {
    try_on_reset(segment).unwrap_or_else(miss)
}

#[inline(always)]
fn try_on_reset(segment: &Segment) -> Option<i32> {
    let (pending, flow) = pending_of(segment)?;
    if segment.tcp.flags & ACK == 0 || segment.tcp.ack != flow.isn_b {
        return None;
    }
    let is_alone = config().is_none_or(|config| config.is_orphaned(tick()));
    if is_alone {
        if note_failure(flow, &pending, ineligible::REFUSED) {
            set_aside(pending.host);
            give_up(&flow.tuple(0), &pending);
        }
    } else if hold(flow, &pending) {
        // Userspace asks another host, or gives the flow up.
        set_aside(pending.host);
        flow.ineligible = ineligible::REFUSED;
        let_go(flow, state::CONNECTING);
        notify(pending.flow, 0);
        note_asked(pending.flow, flow.started);
    }
    Some(exit(Reason::PeekRefused, DROP))
}

/// Connection in the making that a host's packet belongs to.
#[inline(always)]
fn pending_of(segment: &Segment) -> Option<(PeekPending, &'static mut PendingFlow)> {
    let (index, flow) = pending_flow(segment.tuple.ports)?;
    // SAFETY: an element of the array.
    let flow = unsafe { &mut *flow };
    if flow.marks & IS_PEEKED == 0 || flow.tuple(1) != segment.tuple {
        return None;
    }
    // SAFETY: the value is copied at once.
    let pending = unsafe { PEEK_PENDING.get(&flow.tuple(0)) }.copied()?;
    (pending.flow == index).then_some((pending, flow))
}
