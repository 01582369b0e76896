//! First data is kept: copied out of its packet, and checked.

use aya_ebpf::{
    EbpfContext as _,
    helpers::{bpf_get_smp_processor_id, bpf_skb_load_bytes},
    programs::TcContext,
};
use signalbox_common::peek::abi::{
    MAX_PAYLOAD_BYTES, PEEK_PAYLOADS_PER_CPU, PeekConfig, PeekCursor, PeekPayload, PeekPending,
};

use super::{
    frame::{self, AFTER_HEAD, payload_sum},
    maps::PEEK_PAYLOADS,
    segment::{Checksum, Segment},
};
use crate::cut::skb::Family;

/// Copies the data out of the packet, and checks its checksum.
#[inline(always)]
pub fn keep<F: Family>(
    ctx: &TcContext,
    segment: &Segment,
    config: &PeekConfig,
    cursor: &PeekCursor,
    pending: &mut PeekPending,
) -> Option<(*mut PeekPayload, Checksum)> {
    // SAFETY: reads a number.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    if cpu >= config.cpus {
        return None;
    }
    let index = cpu * PEEK_PAYLOADS_PER_CPU + cursor.payload % PEEK_PAYLOADS_PER_CPU;
    let payload = PEEK_PAYLOADS.get_ptr_mut(index)?;
    let length = 1 + frame::bounded(segment.payload.wrapping_sub(1), 4095, MAX_PAYLOAD_BYTES - 1)?;
    // SAFETY: an element of the array; a connection with older data in it finds another generation. The helper checks
    // offsets of the packet, and `length` is within the room.
    let payload = unsafe {
        let payload = &mut *payload;
        payload.generation = payload.generation.wrapping_add(1);
        payload.length = length;
        let at = F::TCP + segment.tcp.length;
        if bpf_skb_load_bytes(ctx.as_ptr(), at, payload.data.as_mut_ptr().cast(), length) != 0 {
            return None;
        }
        pending.payload = index;
        pending.generation = payload.generation;
        payload
    };
    frame::pad(payload, length);
    let sum = payload_sum(payload, AFTER_HEAD, length);
    let checksum = segment.checksum::<F>(ctx, sum)?;
    // The kernel drops it, and counts it.
    (checksum != Checksum::Wrong).then_some((core::ptr::from_mut(payload), checksum))
}
