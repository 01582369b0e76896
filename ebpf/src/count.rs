//! `COUNTERS`: one per-CPU counter for each [`signalbox_common::Reason`].

use aya_ebpf::{macros::map, maps::PerCpuArray};
use signalbox_common::reason::REASON_COUNT;

/// Exits of programs by reason.
///
/// - Entry: number of a `Reason` -> count
/// - Writer: all programs at their exits (ebpf/src/count.rs); l4_decap only where it decapsulates
/// - Reader: kernel/src/counters.rs for the admin API and /metrics
/// - Size: one per `Reason`, per CPU, in each object; pinned by cut_through and by layer4: counts go on through a
///   restart. Not pinned by steering and decap
#[map]
pub static COUNTERS: PerCpuArray<u64> = if crate::OUTLIVES_PROCESS {
    PerCpuArray::pinned(REASON_COUNT, 0)
} else {
    PerCpuArray::with_max_entries(REASON_COUNT, 0)
};

/// Counts one exit of a program, by the number of a `Reason`.
#[inline(always)]
pub fn count(reason: u32) {
    bump(&COUNTERS, reason);
}

/// Adds one to slot `index`; a slot that does not exist is ignored.
#[inline(always)]
pub fn bump(counters: &PerCpuArray<u64>, index: u32) {
    if let Some(counter) = counters.get_ptr_mut(index) {
        // SAFETY: the pointer is this CPU's element, checked against null; BPF programs of one CPU do not race on it.
        unsafe { *counter += 1 };
    }
}
