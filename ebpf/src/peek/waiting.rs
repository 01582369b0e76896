//! Segments of a client whose first data waits, for a host or for its rest. Repeated segments make the program send the
//! SYN again; a segment that follows is appended.

use aya_ebpf::{
    EbpfContext as _,
    helpers::{bpf_get_smp_processor_id, bpf_skb_load_bytes},
    programs::TcContext,
};
use signalbox_common::{
    Reason,
    cut::{
        PendingFlow,
        flow::{ineligible, state},
    },
    net::header::FIN,
    peek::{
        KernelPeek,
        abi::{MAX_PAYLOAD_BYTES, NO_FLOW, PAYLOAD_ROOM, PEEK_PAYLOADS_PER_CPU, PeekName, PeekPayload, PeekReading},
    },
};

use super::{
    DROP,
    choose::route_of,
    client, exit,
    first::send,
    frame::{self, AFTER_HEAD, payload_sum},
    host,
    keep::keep,
    maps::{CUT_FLOWS, PEEK_CURSOR, PEEK_DONE, PEEK_PAYLOADS, PEEK_PENDING, PEEK_READING, about},
    pass_up::passed_up,
    read::read_name,
    release::{give_up, give_up_waiting, note_failure, set_aside},
    segment::{Checksum, Segment},
    settings::config,
};
use crate::cut::skb::{Family, tick};

/// Not an action: the segment belongs to another connection of the same addresses and ports, or restarts this one.
pub const OF_ANOTHER: i32 = -2;
/// Not an action: the segment was appended to first data that is not whole, which must be read again.
pub const JOINED: i32 = -3;

/// SYNs to a host after which the client's next repetition is passed up.
const MAX_ATTEMPTS: u16 = 3;
/// Ticks between SYNs to a host: some 190 ms, a little less than the shortest time after which Linux repeats
/// (`TCP_RTO_MIN`, include/net/tcp.h). A client that repeats faster makes no host look silent.
const REPETITION_TICKS: u32 = 181;

/// Fates of a segment. Numbers, because a function of a BPF program returns one register.
mod fate {
    /// Dropped: the client repeats what it needs.
    pub const EARLY: u32 = 0;
    pub const OF_ANOTHER: u32 = 1;
    /// The connection was given up.
    pub const GIVEN_UP: u32 = 2;
    /// First data whose SYN is due to be sent again.
    pub const REPEATED: u32 = 3;
    /// Data after it.
    pub const BEHIND: u32 = 4;
}

/// Decides about a segment of a tuple that waits, at a listener of a protocol.
#[inline(never)]
pub fn on_segment<F: Family>(ctx: &TcContext, segment: &Segment, protocol: u32) -> i32 {
    let action = match judge(segment) {
        fate::OF_ANOTHER => Some(OF_ANOTHER),
        fate::GIVEN_UP => Some(exit(Reason::PeekRefused, DROP)),
        fate::REPEATED => ask_again::<F>(ctx, segment, protocol as u8),
        fate::BEHIND => append::<F>(ctx, segment),
        _ => None,
    };
    action.unwrap_or_else(|| exit(Reason::PeekEarly, DROP))
}

/// Whether a flow is about to wait for its host, waits for it, or has just got its answer.
#[inline(always)]
const fn is_begun(state: u32) -> bool {
    state == state::ALLOCATED || state == state::CONNECTING || state == state::PAIRING || state == state::CUT
}

/// Judges a segment, and leaves the connection that waits in `PEEK_READING`.
#[inline(never)]
fn judge(segment: &Segment) -> u32 {
    // The connection may just have got its host's answer, or been given up.
    try_judge(segment).unwrap_or(fate::EARLY)
}

#[inline(always)]
fn try_judge(segment: &Segment) -> Option<u32> {
    let reading = PEEK_READING.get_ptr_mut(0)?;
    // SAFETY: this CPU's element. The map's is copied at once: a moment later another client's may be there.
    let reading = unsafe {
        (*reading).pending = *PEEK_PENDING.get(&segment.tuple)?;
        &mut *reading
    };
    let pending = &reading.pending;
    if segment.tcp.ack != pending.ack {
        return Some(fate::OF_ANOTHER);
    }
    if pending.flow == NO_FLOW {
        if segment.payload == 0 || segment.tcp.seq != pending.seq {
            return (segment.payload != 0).then_some(fate::BEHIND);
        }
        // Userspace waits for the rest, which is late or lost.
        let _ = PEEK_DONE.insert(&segment.tuple, &passed_up(pending.seq), 0);
        give_up(&segment.tuple, pending);
        return Some(fate::OF_ANOTHER);
    }
    let flow = CUT_FLOWS.get_ptr_mut(pending.flow)?;
    // SAFETY: an element of the array, each field of which is read or written whole.
    let flow = unsafe { &mut *flow.cast::<PendingFlow>() };
    // SAFETY: aligned, whole.
    let state = unsafe { (&raw const flow.state).read_volatile() };
    if flow.tuple(0) != segment.tuple || !is_begun(state) {
        // The next repetition is first data again.
        give_up(&segment.tuple, pending);
        return Some(fate::GIVEN_UP);
    }
    if state != state::CONNECTING {
        // The first data, or the host's answer, is at another CPU.
        return None;
    }
    let is_repeated = segment.payload != 0 && segment.tcp.seq == pending.seq;
    if is_repeated && flow.ineligible == ineligible::REFUSED {
        // Userspace has found no other host: the data is first data again.
        if !note_failure(flow, pending, ineligible::REFUSED) {
            return None;
        }
        give_up(&segment.tuple, pending);
        return Some(fate::OF_ANOTHER);
    }
    let waited = tick().wrapping_sub(flow.started);
    let is_due = waited >= u32::from(pending.attempts) * REPETITION_TICKS;
    if pending.attempts >= MAX_ATTEMPTS && is_due {
        // The next repetition is first data again: another host is chosen, or userspace decides.
        if pending.challenged != pending.attempts {
            if !note_failure(flow, pending, ineligible::SILENT) {
                return None;
            }
            set_aside(pending.host);
        }
        give_up(&segment.tuple, pending);
        return Some(fate::GIVEN_UP);
    }
    if segment.payload == 0 {
        return None;
    }
    if segment.tcp.seq != pending.seq {
        return Some(fate::BEHIND);
    }
    reading.route = flow.route;
    (is_due && pending.attempts < MAX_ATTEMPTS).then_some(fate::REPEATED)
}

/// Keeps the data again, and sends the SYN again. `reading` has the connection.
#[inline(always)]
fn ask_again<F: Family>(ctx: &TcContext, segment: &Segment, protocol: u8) -> Option<i32> {
    let (config, cursor) = (config()?, PEEK_CURSOR.get_ptr_mut(0)?);
    let reading = PEEK_READING.get_ptr_mut(0)?;
    // SAFETY: this CPU's elements.
    let (cursor, reading) = unsafe { (&mut *cursor, &mut *reading) };
    // SAFETY: reads a number.
    if unsafe { bpf_get_smp_processor_id() } >= config.cpus {
        // This CPU has come later, and has no share: the segment is passed up.
        give_up_waiting(&segment.tuple);
        return Some(OF_ANOTHER);
    }
    if is_still_kept::<F>(ctx, segment) == 0 {
        let kept = keep::<F>(ctx, segment, config, cursor, &mut reading.pending);
        cursor.payload = cursor.payload.wrapping_add(1);
        let (payload, checksum) = kept?;
        reading.checksum = checksum as u32;
        // SAFETY: an element of the ring that this CPU has just taken.
        if !asks_for_the_same(unsafe { &mut *payload }, reading, protocol) {
            // Data of another name, or a part of data that was whole before: first data, which is routed again.
            give_up_waiting(&segment.tuple);
            return Some(OF_ANOTHER);
        }
    }
    let pending = &mut reading.pending;
    let mut stamps = [pending.ts_val, pending.ts_ecr];
    client::timestamps::<F>(ctx, segment, &mut stamps);
    // None: the host has answered to another CPU at this moment.
    let entry = PEEK_PENDING.get_ptr_mut(&segment.tuple)?;
    // SAFETY: an entry of the map; numbers are written whole. In place: userspace may be writing that of another host.
    let entry = unsafe { &mut *entry };
    if entry.host != pending.host || entry.flow != pending.flow {
        return None;
    }
    pending.attempts += 1;
    entry.ts_val = stamps[0];
    entry.ts_ecr = stamps[1];
    entry.window = segment.tcp.window;
    entry.attempts = pending.attempts;
    entry.payload = pending.payload;
    entry.generation = pending.generation;
    Some(send::<F>(ctx))
}

/// Whether the ring still has the bytes that a segment repeats, and perhaps more that followed them. Leaves the state
/// of its checksum in `PEEK_READING`.
#[inline(never)]
fn is_still_kept<F: Family>(ctx: &TcContext, segment: &Segment) -> u32 {
    u32::from(try_is_still_kept::<F>(ctx, segment).is_some())
}

#[inline(always)]
fn try_is_still_kept<F: Family>(ctx: &TcContext, segment: &Segment) -> Option<()> {
    let reading = PEEK_READING.get_ptr_mut(0)?;
    // SAFETY: this CPU's element.
    let reading = unsafe { &mut *reading };
    let pending = &reading.pending;
    // SAFETY: reads a number.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    // Another CPU may have given the element to another client by now, or may do so the next moment.
    if pending.payload / PEEK_PAYLOADS_PER_CPU != cpu {
        return None;
    }
    let payload = PEEK_PAYLOADS.get_ptr_mut(pending.payload)?;
    // SAFETY: an element of this CPU's share: no other CPU gives it to a client.
    let payload = unsafe { &mut *payload };
    let length = segment.payload;
    // Sums are of whole words.
    let is_summable = length == payload.length || length < payload.length && length & 3 == 0;
    if payload.generation != pending.generation || !is_summable {
        return None;
    }
    let sum = payload_sum(payload, AFTER_HEAD, length);
    let checksum = segment.checksum::<F>(ctx, sum)?;
    reading.checksum = checksum as u32;
    // The host gets the kept bytes, whose name was read: a client that repeats other bytes loses these.
    (checksum != Checksum::Wrong).then_some(())
}

/// Whether repeated data has the same name: another may have a route with other rules, and is noted nowhere.
#[inline(always)]
fn asks_for_the_same(payload: &mut PeekPayload, reading: &mut PeekReading, protocol: u8) -> bool {
    reading.name = PeekName::empty(protocol);
    if read_name(payload, reading) != KernelPeek::Found as u32 {
        return false;
    }
    let route = reading.route;
    if !is_noted(reading) {
        return false;
    }
    // SAFETY: a number, read at once.
    route_of(reading).is_some_and(|found| unsafe { (*found).turns != 0 && (*found).number == route })
}

/// Whether the name that was read is the one that is noted of its flow.
#[inline(always)]
fn is_noted(reading: &PeekReading) -> bool {
    let Some(about) = config().and_then(|config| about(config, reading.pending.flow)) else {
        return false;
    };
    const WORDS: usize = size_of::<PeekName>() / 8;
    // SAFETY: both names begin at a word (asserted in `common`).
    let (noted, read) = unsafe {
        let noted = &*(&raw const (*about).name).cast::<[u64; WORDS]>();
        (noted, &*(&raw const reading.name).cast::<[u64; WORDS]>())
    };
    let mut difference = 0;
    let mut i = 0;
    while i < WORDS {
        difference |= noted[i] ^ read[i];
        i += 1;
    }
    difference == 0
}

/// Appends a segment to the data that it follows. `None` where that is not possible: the client repeats it.
#[inline(always)]
fn append<F: Family>(ctx: &TcContext, segment: &Segment) -> Option<i32> {
    let reading = PEEK_READING.get_ptr_mut(0)?;
    // SAFETY: this CPU's element.
    let reading = unsafe { &mut *reading };
    let pending = &reading.pending;
    // SAFETY: reads a number.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    // Only this CPU gives elements of its share to others: the element stays this client's during that time.
    let has_fin = segment.tcp.flags & FIN != 0 && pending.flow != NO_FLOW;
    if has_fin || pending.payload / PEEK_PAYLOADS_PER_CPU != cpu {
        return None;
    }
    let payload = PEEK_PAYLOADS.get_ptr_mut(pending.payload)?;
    // SAFETY: an element of the array. A sender on another CPU reads its length first, and sends no more than that. At
    // worst the checksum is wrong then, and the client repeats its data.
    let payload = unsafe { &mut *payload };
    let kept = payload.length;
    if payload.generation != pending.generation || segment.tcp.seq.wrapping_sub(pending.seq) != kept {
        return None;
    }
    // Half of the room each: the verifier knows no bound of their sum.
    let at = frame::bounded(kept, 4095, PAYLOAD_ROOM as u32 / 2 - 1)?;
    let length = 1 + frame::bounded(segment.payload.wrapping_sub(1), 4095, PAYLOAD_ROOM as u32 / 2 - 1)?;
    if at + length > MAX_PAYLOAD_BYTES {
        return None;
    }
    // SAFETY: `at + length` is within the room; the helper checks offsets of the packet.
    let loaded = unsafe {
        let from = F::TCP + segment.tcp.length;
        let to = payload.data.as_mut_ptr().add(at as usize);
        bpf_skb_load_bytes(ctx.as_ptr(), from, to.cast(), length)
    };
    if loaded != 0 {
        return None;
    }
    frame::pad(payload, at + length);
    let sum = payload_sum(payload, AFTER_HEAD + at, length);
    let checksum = segment.checksum::<F>(ctx, sum).unwrap_or(Checksum::Wrong);
    if checksum == Checksum::Wrong {
        frame::pad(payload, at);
        return None;
    }
    reading.checksum = checksum as u32;
    // Last of all: bytes that are not verified must not be sent.
    // SAFETY: aligned, whole.
    unsafe { (&raw mut payload.length).write_volatile(at + length) };
    if reading.pending.flow == NO_FLOW {
        return Some(JOINED);
    }
    Some(exit(Reason::PeekAppended, DROP))
}

/// A host refuses a connection, or a client gives up one that waits for its host.
#[inline(always)]
pub fn on_reset(segment: &Segment) -> i32 {
    if is_given_up(segment).is_some() {
        give_up_waiting(&segment.tuple);
        return exit(Reason::PeekGivenUp, DROP);
    }
    host::on_reset(segment)
}

/// Whether a reset is that of a client whose data waits, in the window that it may be in.
#[inline(always)]
fn is_given_up(segment: &Segment) -> Option<()> {
    // SAFETY: numbers, read at once.
    let (first, flow) = unsafe { PEEK_PENDING.get(&segment.tuple) }.map(|pending| (pending.seq, pending.flow))?;
    if segment.tcp.seq.wrapping_sub(first) > MAX_PAYLOAD_BYTES {
        return None;
    }
    if flow == NO_FLOW {
        // With the same cookie no CPU uses a second element of the ring: userspace gets the repetition.
        let _ = PEEK_DONE.insert(&segment.tuple, &passed_up(first), 0);
    }
    Some(())
}

/// Whether a SYN is that of a connection that waits: late, or duplicated. Another SYN gives that connection up, so that
/// no late answer of its host claims the tuple.
#[inline(never)]
pub fn is_repeated_syn(segment: &Segment) -> u32 {
    match try_is_repeated(segment) {
        Some(false) => {
            give_up_waiting(&segment.tuple);
            0
        }
        Some(true) => 1,
        None => 0,
    }
}

#[inline(always)]
fn try_is_repeated(segment: &Segment) -> Option<bool> {
    // SAFETY: numbers, read at once.
    let (first, index) = unsafe { PEEK_PENDING.get(&segment.tuple) }.map(|pending| (pending.seq, pending.flow))?;
    let flow = CUT_FLOWS.get_ptr(index)?;
    // SAFETY: an element of the array, of which numbers are read. The flow of a client that has fallen silent is gone.
    let is_there = unsafe {
        let state = (*flow).state;
        is_begun(state) && (*flow).tuple(0) == segment.tuple
    };
    Some(is_there && first == segment.tcp.seq.wrapping_add(1))
}
