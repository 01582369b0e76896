//! `COUNTERS`: one per-CPU counter for each [`Reason`].

use aya_ebpf::{macros::map, maps::PerCpuArray};
use signalbox_common::reason::{REASON_COUNT, Reason};

/// Exits of programs by reason.
///
/// - Entry: number of a `Reason` -> count
/// - Writer: all programs at their exits (ebpf/src/count.rs); l4_decap only where it decapsulates
/// - Reader: kernel/counters.rs for the admin API and /metrics
/// - Size: one per `Reason`, per CPU; pinned by tier cut, and as `L4_COUNTERS` by layer 4: counts go on through a
///   restart. Steering's copy is not pinned
#[map]
pub static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(REASON_COUNT, 0);

/// Counts one exit of a program.
#[inline(always)]
pub fn count(reason: Reason) {
    bump(&COUNTERS, reason as u32);
}

/// Adds one to slot `index`; a slot that does not exist is ignored.
#[inline(always)]
pub fn bump(counters: &PerCpuArray<u64>, index: u32) {
    if let Some(counter) = counters.get_ptr_mut(index) {
        // SAFETY: the pointer is this CPU's element, checked against null; BPF programs of one CPU do not race on it.
        unsafe { *counter += 1 };
    }
}
