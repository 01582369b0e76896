//! First data of a client: read, routed, and turned into the SYN to a host.

use aya_ebpf::{helpers::bpf_get_smp_processor_id, programs::TcContext};
use signalbox_common::{
    Reason,
    cut::{
        CutFlow, PendingFlow,
        flow::{FIRST_DATA_HELD, IS_PEEKED, OFFERED_SACK, OFFERED_SCALE, OFFERED_TIMESTAMPS, state},
    },
    net::{Tuple, header::SYN, tuple::is_v4},
    peek::{
        KernelPeek,
        abi::{
            MAX_PEEK_CHOSEN, NO_FLOW, PeekBinding, PeekChosen, PeekConfig, PeekCursor, PeekHost, PeekName, PeekPayload,
            PeekPending, PeekReading, PeekSourceKey, protocol,
        },
        cookie::{self, CookieCheck},
        proxy::header_length,
    },
};

use super::{
    DROP,
    choose::choose,
    claim::{NOT_CLAIMED, claim_flow, claim_free_port},
    exit,
    frame::{self, Frame},
    hop,
    keep::keep,
    limits::{admit, give_back},
    maps::{
        CUT_FLOWS, PEEK_CHOSEN, PEEK_CURSOR, PEEK_DONE, PEEK_HOSTS, PEEK_PENDING, PEEK_READING, PEEK_SOURCES, about,
        note_asked, release_port,
    },
    miss,
    parts::{goes_on, wait_for_rest},
    pass_up::{pass_up, passed_up, swapped_macs},
    proxy::address_bytes,
    read::read_name,
    segment::{Checksum, Segment},
    settings::{OUR_SCALE, config, is_alive, micros, our_mss, scale_factor},
};
use crate::{
    cut::skb::{Family, PacketView, context_field, monotonic_ms, tick},
    handshakes::CUT_HANDSHAKES,
};

/// Window of a SYN to a host. The program does not know the client's window: this is the smallest usual one.
const SYN_WINDOW: u16 = 64_240;
/// Ticks for which the way to the client counts as known: its packet has just come by it.
const CLIENT_HOP_TICKS: u32 = 950;
const BPF_NOEXIST: u64 = 1;
const BPF_EXIST: u64 = 2;

/// Fates of first data. Numbers, because a function of a BPF program returns one register.
pub mod step {
    pub const MISS: u32 = 0;
    pub const PASS_UP: u32 = 1;
    pub const SEND: u32 = 2;
    /// Another CPU handles the same data.
    pub const DROP: u32 = 3;
    /// The rest of the first data is to come in the next segment.
    pub const KEPT: u32 = 4;
}

/// Decides about first data. Returns the action.
#[inline(always)]
pub fn on_first_data<F: Family>(
    ctx: &TcContext,
    segment: &Segment,
    check: &CookieCheck,
    stamps: &[u32; 2],
    binding: &PeekBinding,
) -> i32 {
    let done = done(segment);
    if done == Some(segment.tcp.seq) {
        return exit(Reason::PeekEarly, DROP);
    }
    if done == Some(passed_up(segment.tcp.seq)) {
        // The kernel has no socket for it: it had no room, or dropped the packet.
        return pass_up::<F>(ctx, segment, check, stamps);
    }
    // Neither calls the other: the stack has no room for the frames of both.
    let mut step = keep_and_read::<F>(ctx, segment, check, stamps, binding);
    if step == step::SEND {
        step = connect::<F>(ctx, segment, check, binding);
    }
    match step {
        step::PASS_UP => pass_up::<F>(ctx, segment, check, stamps),
        step::SEND => send::<F>(ctx),
        step::DROP => exit(Reason::PeekEarly, DROP),
        step::KEPT => exit(Reason::PeekKept, DROP),
        _ => miss(),
    }
}

/// Entry of `PEEK_DONE` for a client.
#[inline(always)]
fn done(segment: &Segment) -> Option<u32> {
    // SAFETY: a number, read at once.
    unsafe { PEEK_DONE.get(&segment.tuple) }.copied()
}

/// Sends the SYN of the connection in `PEEK_READING` to its host.
#[inline(never)]
pub fn send<F: Family>(ctx: &TcContext) -> i32 {
    try_send::<F>(ctx).unwrap_or_else(miss)
}

#[inline(always)]
fn try_send<F: Family>(ctx: &TcContext) -> Option<i32> {
    let reading = PEEK_READING.get_ptr_mut(0)?;
    // SAFETY: this CPU's element.
    let reading = unsafe { &mut *reading };
    let host = PEEK_HOSTS.get_ptr_mut(reading.pending.host)?;
    let flow = CUT_FLOWS.get_ptr_mut(reading.pending.flow)?;
    // SAFETY: elements of arrays; the flow's is this CPU's.
    let (host, flow) = unsafe { (&mut *host, &mut *flow.cast::<PendingFlow>()) };
    hop::look_up::<F>(ctx, host);
    Some(send_syn::<F>(ctx, flow, &reading.pending, host, reading.checksum))
}

/// Keeps first data, and reads it. Returns a constant of [`step`]: `SEND` where its name was found.
#[inline(never)]
fn keep_and_read<F: Family>(
    ctx: &TcContext,
    segment: &Segment,
    check: &CookieCheck,
    stamps: &[u32; 2],
    binding: &PeekBinding,
) -> u32 {
    try_keep_and_read::<F>(ctx, segment, check, stamps, *binding).unwrap_or(step::MISS)
}

#[inline(always)]
fn try_keep_and_read<F: Family>(
    ctx: &TcContext,
    segment: &Segment,
    check: &CookieCheck,
    stamps: &[u32; 2],
    binding: PeekBinding,
) -> Option<u32> {
    let config = config()?;
    let cursor = PEEK_CURSOR.get_ptr_mut(0)?;
    // SAFETY: this CPU's element.
    let cursor = unsafe { &mut *cursor };
    let reading = PEEK_READING.get_ptr_mut(0)?;
    // SAFETY: this CPU's element.
    let reading = unsafe { &mut *reading };
    // SAFETY: reads a number.
    if unsafe { bpf_get_smp_processor_id() } >= config.cpus {
        // This CPU has come later, and has no share.
        return Some(step::PASS_UP);
    }
    let (payload, checksum) = keep::<F>(ctx, segment, config, cursor, &mut reading.pending)?;
    // SAFETY: an element of the ring that this CPU has just taken.
    let payload = unsafe { &mut *payload };
    reading.checksum = checksum as u32;
    let pending = &mut reading.pending;
    pending.flow = 0;
    pending.ts_val = stamps[0];
    pending.ts_ecr = stamps[1];
    pending.window = segment.tcp.window;
    pending.mss = check.options.mss;
    pending.seq = segment.tcp.seq;
    pending.ack = segment.tcp.ack;
    let outcome = read(config, payload, reading, binding.protocol);
    if outcome == KernelPeek::Incomplete as u32 && goes_on::<F>(segment, segment.payload, check) {
        return Some(wait_for_rest(segment, cursor, &mut reading.pending));
    }
    Some(if outcome == KernelPeek::Found as u32 {
        step::SEND
    } else {
        step::PASS_UP
    })
}

/// Reads the name in first data: a number of [`KernelPeek`].
#[inline(always)]
pub fn read(config: &PeekConfig, payload: &PeekPayload, reading: &mut PeekReading, protocol: u8) -> u32 {
    reading.name = PeekName::empty(protocol);
    if is_alive(config) && protocol != protocol::PASS_UP {
        read_name(payload, reading)
    } else {
        KernelPeek::PassUp as u32
    }
}

/// Begins a flow to a host of the name that was read; `PEEK_READING` has the connection. Returns a constant of [`step`].
#[inline(never)]
pub fn connect<F: Family>(ctx: &TcContext, segment: &Segment, check: &CookieCheck, binding: &PeekBinding) -> u32 {
    if let Some(step) = try_connect::<F>(ctx, segment, check, *binding) {
        return step;
    }
    keep_choice(segment);
    step::PASS_UP
}

/// Leaves the chosen host to the worker that gets the connection: its cluster's turn has been taken.
#[inline(never)]
fn keep_choice(segment: &Segment) -> u32 {
    try_keep_choice(&segment.tuple).is_some().into()
}

#[inline(always)]
fn try_keep_choice(client: &Tuple) -> Option<()> {
    let reading = PEEK_READING.get_ptr(0)?;
    // SAFETY: this CPU's element.
    let reading = unsafe { &*reading };
    if reading.has_chosen == 0 {
        return None;
    }
    // SAFETY: an element of the array; numbers are read one by one.
    let host = unsafe { &*PEEK_HOSTS.get_ptr(reading.pending.host)? };
    let (place, check) = PeekChosen::place(client);
    let chosen = PEEK_CHOSEN.get_ptr_mut(place & (MAX_PEEK_CHOSEN - 1))?;
    // SAFETY: an element of the array. The check is written last: it makes the others count.
    unsafe {
        (&raw mut (*chosen).check).write_volatile(0);
        (&raw mut (*chosen).host).write_volatile(host.number);
        (&raw mut (*chosen).is_away).write_volatile(host.is_away(tick()).into());
        (&raw mut (*chosen).tick).write_volatile(tick());
        (&raw mut (*chosen).check).write_volatile(check);
    }
    Some(())
}

#[inline(always)]
fn try_connect<F: Family>(
    ctx: &TcContext,
    segment: &Segment,
    check: &CookieCheck,
    binding: PeekBinding,
) -> Option<u32> {
    let config = config()?;
    let (cursor, reading) = (PEEK_CURSOR.get_ptr_mut(0)?, PEEK_READING.get_ptr_mut(0)?);
    // SAFETY: this CPU's elements.
    let (cursor, reading) = unsafe { (&mut *cursor, &mut *reading) };
    reading.has_chosen = 0;
    if choose(reading, &segment.tuple.source, binding.clients.into()) != 0 {
        return None;
    }
    reading.has_chosen = 1;
    let host = PEEK_HOSTS.get_ptr_mut(reading.pending.host)?;
    // SAFETY: an element of the array. Userspace and other CPUs write single numbers of it.
    let host = unsafe { &mut *host };
    let same_family = is_v4(&host.address) == (F::VERSION == 4);
    let now = tick();
    if !same_family || !host.is_fit(now) || host.is_away(now) {
        return None;
    }
    let (flow_index, flow, port) = begin::<F>(ctx, segment, check, config, cursor, host, binding, reading)?;
    let count = host.count;
    if admit(reading, &segment.tuple.source, binding.listener.into(), count) == 0 {
        // SAFETY: an element of the array that this CPU has just claimed.
        unsafe { (&raw mut (*flow).state).write_volatile(state::FREE) };
        release_port(port, flow_index);
        return None;
    }
    // Not on the stack, which has no room left for it.
    let pending = &mut reading.pending;
    let has_waited = pending.flow == NO_FLOW;
    pending.flow = flow_index;
    pending.port = port;
    pending.attempts = 1;
    pending.challenged = 0;
    pending.asked = micros();
    // SAFETY: an element of the array that this CPU has just claimed.
    let flow = unsafe { &mut *flow };
    let flags = if has_waited { BPF_EXIST } else { BPF_NOEXIST };
    let is_taken = PEEK_PENDING.insert(&segment.tuple, &*pending, flags).is_err();
    // Another CPU may have had a copy of the data, and its host's answer, since this CPU looked into that map.
    let is_done = done(segment).is_some_and(|first| first == segment.tcp.seq || first == passed_up(segment.tcp.seq));
    if is_taken || is_done {
        if !is_taken {
            let _ = PEEK_PENDING.remove(&segment.tuple);
        }
        give_back(reading, count);
        flow.state = state::FREE;
        release_port(port, flow_index);
        return Some(step::DROP);
    }
    describe(config, flow_index, reading, count);
    if !has_waited {
        // The element of the ring is in use. Data that is not kept rewrites one element, and no other client's.
        cursor.payload = cursor.payload.wrapping_add(1);
    }
    // `cut_in` may have seen the client's packets, such as a FIN after missing data: the client repeats them.
    let _ = CUT_HANDSHAKES.remove(&segment.tuple);
    // SAFETY: aligned, whole: from here on `cut_in` takes the host's answer.
    unsafe { (&raw mut flow.state).write_volatile(state::CONNECTING) };
    note_asked(flow_index, flow.started);
    Some(step::SEND)
}

/// Claims a flow and a source port, and fills in the flow.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "each is a fact of the connection")]
fn begin<F: Family>(
    ctx: &TcContext,
    segment: &Segment,
    check: &CookieCheck,
    config: &PeekConfig,
    cursor: &mut PeekCursor,
    host: &PeekHost,
    binding: PeekBinding,
    reading: &mut PeekReading,
) -> Option<(u32, *mut PendingFlow, u32)> {
    let index = claim_flow(config, cursor);
    let flow = CUT_FLOWS.get_ptr_mut(index)?;
    let arriving = &mut reading.arriving;
    arriving.source = host.address;
    arriving.destination = host.local;
    arriving.ports = host.port << 16;
    cursor.nodes = if host.is_moving == 0 { 1 } else { config.nodes };
    if binding.moving != 0 {
        let key = PeekSourceKey {
            moving: binding.moving.into(),
            host: reading.pending.host,
        };
        // SAFETY: the value is copied at once.
        if let Some(source) = unsafe { PEEK_SOURCES.get(&key) } {
            arriving.destination = *source;
            cursor.nodes = config.nodes;
        }
    }
    let port = claim_free_port::<F>(ctx, config, cursor, arriving, index);
    if port == NOT_CLAIMED {
        // SAFETY: aligned, whole; the entry is this CPU's.
        unsafe { (&raw mut (*flow).state).write_volatile(state::FREE) };
        return None;
    };
    // SAFETY: reads a clock.
    let now_ns = unsafe { aya_ebpf::helpers::bpf_ktime_get_ns() };
    let now = tick();
    let options = &check.options;
    let view = PacketView::current(ctx);
    // SAFETY: as above.
    let carried = unsafe { &mut *flow };
    *carried = CutFlow {
        state: state::ALLOCATED,
        ..CutFlow::default()
    };
    carried.dirs[0].flags = FIRST_DATA_HELD;
    carried.dirs[0].hop_ifindex = hop::interface(host);
    carried.dirs[0].macs = host.macs;
    // Until it is known, it has expired now: a tick of zero would lie ahead half of the time.
    carried.dirs[0].hop_expires = if hop::is_known(host) { host.hop_expires } else { now };
    carried.dirs[1].hop_ifindex = context_field(ctx, |skb| unsafe { &raw const (*skb).ifindex });
    carried.dirs[1].macs = swapped_macs(&view)?;
    carried.dirs[1].hop_expires = now.wrapping_add(CLIENT_HOP_TICKS);
    // SAFETY: both phases have the same size and alignment, and every bit pattern is a value of both.
    let pending = unsafe { &mut *flow.cast::<PendingFlow>() };
    pending.marks = IS_PEEKED;
    pending.scale_a = (options.scale | OUR_SCALE << 4) * scale_factor(options.offered);
    pending.scale_b = options.scale;
    pending.ports_a = segment.tuple.ports;
    pending.ports_b = host.port << 16 | port;
    pending.injected = header_length(reading.parts, address_bytes::<F>(), reading.name.length.into());
    pending.consumed = 0;
    pending.ts_clock_a = check.clock;
    pending.ts_clock_b = cookie::hash(&config.key, arriving, 0, true).clock();
    pending.host = host.number;
    pending.route = reading.route;
    pending.listener = binding.listener;
    pending.mss_vip = our_mss::<F>()?;
    pending.started = now;
    pending.isn_client = reading.pending.seq;
    pending.isn_vip = reading.pending.ack;
    pending.isn_b = cookie::initial_number(&config.key, arriving, now_ns);
    pending.agreed = u32::from(options.offered);
    pending.client = segment.tuple.source;
    pending.vip = segment.tuple.destination;
    pending.local = arriving.destination;
    pending.host_addr = host.address;
    Some((index, flow.cast(), port))
}

/// Notes the name that a flow's client has asked for, and the counts that the flow is in. `count`: its host's word.
#[inline(always)]
fn describe(config: &PeekConfig, index: u32, reading: &PeekReading, count: u32) {
    let (Some(about), Some(flow)) = (about(config, index), CUT_FLOWS.get_ptr(index)) else {
        return;
    };
    // SAFETY: the element of a flow that this CPU has just claimed. Both names begin at a word (asserted in `common`), and
    // are copied by words.
    unsafe {
        let from = (&raw const reading.name).cast::<u64>();
        core::ptr::copy_nonoverlapping(from, (&raw mut (*about).name).cast::<u64>(), size_of::<PeekName>() / 8);
        (*about).started = (*flow).started;
        (*about).accepted_after = 0;
        (*about).counted = reading.counted;
        (*about).count = count;
        (*about).parts = reading.parts;
    }
}

/// Turns the packet into the SYN to a flow's host.
#[inline(never)]
fn send_syn<F: Family>(
    ctx: &TcContext,
    flow: &PendingFlow,
    pending: &PeekPending,
    host: &PeekHost,
    checksum: u32,
) -> i32 {
    let checksum = if checksum == Checksum::Partial as u32 {
        Checksum::Partial
    } else {
        Checksum::Whole
    };
    let Some(frame) = Frame::new(&flow.local, &flow.host_addr, &host.macs, checksum) else {
        return exit(Reason::PeekFailed, DROP);
    };
    let ours = our_mss::<F>().unwrap_or(0);
    let mss = if pending.mss < ours { pending.mss } else { ours };
    frame.option(0x0204_0000 | u32::from(mss));
    let has_sack = flow.agreed & u32::from(OFFERED_SACK) != 0;
    if flow.agreed & u32::from(OFFERED_TIMESTAMPS) != 0 {
        frame.option(if has_sack { 0x0402_080a } else { 0x0101_080a });
        frame.option(flow.ts_clock_b.wrapping_add(monotonic_ms()));
        frame.option(0);
    } else if has_sack {
        frame.option(0x0101_0402);
    }
    if flow.agreed & u32::from(OFFERED_SCALE) != 0 {
        frame.option(0x0103_0300 | u32::from(flow.scale_b & 15));
    }
    frame.fill(
        flow.ports_b.rotate_left(16),
        flow.isn_b.wrapping_sub(1),
        0,
        SYN,
        SYN_WINDOW,
    );
    if frame::write::<F>(ctx, frame, core::ptr::null_mut()) != 0 {
        return exit(Reason::PeekFailed, DROP);
    }
    let reason = if pending.challenged == pending.attempts {
        Reason::PeekChallenged
    } else if pending.attempts == 1 {
        Reason::PeekRouted
    } else {
        Reason::PeekSynRepeated
    };
    exit(reason, hop::send(host))
}
