//! Passing up where the kernel makes no socket from a cookie: userspace gets the client's data, and makes a socket in
//! repair mode (`TCP_REPAIR`).

use aya_ebpf::{
    helpers::bpf_get_smp_processor_id,
    macros::socket_filter,
    programs::{SkBuffContext, TcContext},
};
use signalbox_common::{
    Reason,
    cut::flow::{OFFERED_TIMESTAMPS, SYN_ACK_SEEN},
    peek::{
        abi::{MAX_PAYLOAD_BYTES, PEEK_PAYLOADS_PER_CPU, PassedUp, PeekConfig, PeekPayload},
        cookie::CookieCheck,
    },
};

use super::{
    DROP, exit,
    frame::bounded,
    keep::keep,
    maps::{PEEK_CURSOR, PEEK_DONE, PEEK_PASSED_UP, PEEK_PAYLOADS, PEEK_READING},
    pass_up::{handshake_of, passed_up},
    segment::{Checksum, Segment},
    settings::{config, room_for_first_data},
};
use crate::cut::skb::{Family, tick};

/// Whether userspace makes the sockets of a family's connections. While it hangs, the ring keeps them.
#[inline(always)]
pub fn is_needed<F: Family>() -> bool {
    config().is_some_and(|config| config.repairs[usize::from(F::VERSION == 6)] != 0 && !config.is_orphaned(tick()))
}

/// Keeps a client's segment, and describes its connection in `PEEK_READING`, for [`hand_over`]. 0: it cannot be kept, or
/// its checksum is wrong.
#[inline(never)]
pub fn keep_segment<F: Family>(ctx: &TcContext, segment: &Segment) -> u32 {
    u32::from(try_keep_segment::<F>(ctx, segment).is_some())
}

#[inline(always)]
fn try_keep_segment<F: Family>(ctx: &TcContext, segment: &Segment) -> Option<()> {
    let config = config()?;
    let (cursor, reading) = (PEEK_CURSOR.get_ptr_mut(0)?, PEEK_READING.get_ptr_mut(0)?);
    // SAFETY: this CPU's elements.
    let (cursor, reading) = unsafe { (&mut *cursor, &mut *reading) };
    let pending = &mut reading.pending;
    if segment.payload == 0 {
        // A FIN without data.
        (segment.checksum::<F>(ctx, 0)? != Checksum::Wrong).then_some(())?;
        let (index, payload) = element(config, cursor.payload)?;
        payload.generation = payload.generation.wrapping_add(1);
        payload.length = 0;
        pending.payload = index;
    } else {
        keep::<F>(ctx, segment, config, cursor, pending)?;
    }
    pending.seq = segment.tcp.seq;
    pending.ack = segment.tcp.ack;
    pending.window = segment.tcp.window;
    Some(())
}

/// This CPU's next element of the ring of payloads.
#[inline(always)]
fn element(config: &PeekConfig, turn: u32) -> Option<(u32, &'static mut PeekPayload)> {
    // SAFETY: reads a number.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    if cpu >= config.cpus {
        return None;
    }
    let index = cpu * PEEK_PAYLOADS_PER_CPU + turn % PEEK_PAYLOADS_PER_CPU;
    // SAFETY: an element of this CPU's share.
    Some((index, unsafe { &mut *PEEK_PAYLOADS.get_ptr_mut(index)? }))
}

/// Gives the connection in `PEEK_READING` to userspace, with the data that is kept of it.
#[inline(never)]
pub fn hand_over<F: Family>(ctx: &TcContext, segment: &Segment, check: &CookieCheck) -> i32 {
    match try_hand_over::<F>(ctx, segment, check) {
        Some(()) => exit(Reason::PeekPassedUp, DROP),
        // The client repeats its data.
        None => exit(Reason::PeekPassUpFailed, DROP),
    }
}

#[inline(always)]
fn try_hand_over<F: Family>(ctx: &TcContext, segment: &Segment, check: &CookieCheck) -> Option<()> {
    let reading = PEEK_READING.get_ptr(0)?;
    // SAFETY: this CPU's element.
    let pending = unsafe { &(*reading).pending };
    let payload = PEEK_PAYLOADS.get_ptr_mut(pending.payload)?;
    // SAFETY: an element of this CPU's share: no other CPU gives it to a client.
    let payload = unsafe { &mut *payload };
    let mut handshake = handshake_of::<F>(ctx, segment, check)?;
    handshake.isn_client = pending.seq;
    handshake.isn_vip = pending.ack;
    // A FIN with the data is repeated, and `cut_in` sees it then.
    handshake.progress = SYN_ACK_SEEN;
    let room = room_for_first_data::<F>(check.options.offered & OFFERED_TIMESTAMPS != 0)?;
    // SAFETY: the head has room for it, and is aligned for it (asserted in `common`).
    let about = unsafe { &mut *payload.from_head(0).cast::<PassedUp>() };
    about.client = segment.tuple;
    about.handshake = handshake;
    about.window = pending.window.into();
    about.room = room.into();
    let length = PassedUp::BYTES as u32 + bounded(payload.length, 4095, MAX_PAYLOAD_BYTES)?;
    // SAFETY: head and data follow one another, and `length` is within both.
    let record = unsafe { core::slice::from_raw_parts(payload.from_head(0), length as usize) };
    PEEK_PASSED_UP.output::<[u8]>(record, 0).ok()?;
    let _ = PEEK_DONE.insert(&segment.tuple, &passed_up(pending.seq), 0);
    Some(())
}

/// Filter of a socket that is being made: no packet may reach it before its options and the client's bytes are set.
#[socket_filter]
pub fn peek_hold(_: SkBuffContext) -> i64 {
    0
}
