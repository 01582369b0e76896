//! The monotonic clock, as fine as the kernel's tick. It is read once for each tick, because a call of a helper costs
//! as much as reading a packet's headers.

use aya_ebpf::{
    helpers::{bpf_jiffies64, bpf_ktime_get_coarse_ns},
    macros::map,
    maps::PerCpuArray,
};

/// Cached time of the clock.
#[repr(C)]
struct CachedClock {
    /// The kernel's tick count (jiffies) at that time. The verifier replaces the helper that reads it by a load (64-bit
    /// machines).
    jiffies: u64,
    /// `CLOCK_MONOTONIC`, in ns.
    time: u64,
    /// Second of the last log message.
    logged: u64,
}

/// Clock of this CPU, read once a tick of the kernel.
///
/// - Entry: 0 -> jiffies and `CLOCK_MONOTONIC`; second of the last log message
/// - Writer: all programs that need the time (ebpf/src/clock.rs)
/// - Reader: the same
/// - Size: 1, per CPU; not pinned: stale after a tick of the kernel
#[map]
static CLOCK_CACHE: PerCpuArray<CachedClock> = PerCpuArray::with_max_entries(1, 0);

/// `CLOCK_MONOTONIC` in ns, up to two of the kernel's ticks late.
#[inline(always)]
pub fn coarse_ns() -> u64 {
    let Some(heard) = CLOCK_CACHE.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: this CPU's element; programs of one CPU at different hooks write the same numbers. The helpers read a counter
    // and a clock (kernel 5.6+, 5.11+).
    unsafe {
        let jiffies = bpf_jiffies64();
        if (*heard).jiffies != jiffies {
            (*heard).time = bpf_ktime_get_coarse_ns();
            (*heard).jiffies = jiffies;
        }
        (*heard).time
    }
}

/// Whether a message may be logged now: one a second on each CPU, so that a flood does not fill the log. The message
/// then counts as logged.
#[inline(always)]
pub fn may_log() -> bool {
    let second = coarse_ns() / 1_000_000_000;
    let Some(cached) = CLOCK_CACHE.get_ptr_mut(0) else {
        return false;
    };
    // SAFETY: this CPU's element.
    unsafe {
        let is_new = (*cached).logged != second;
        (*cached).logged = second;
        is_new
    }
}

/// Current time, in ticks of 2^20 ns.
#[inline(always)]
pub fn tick() -> u32 {
    (coarse_ns() >> 20) as u32
}
