//! The programs' clocks, read by userspace.

use nix::time::{ClockId, clock_gettime};

/// Ticks, which the ages of flows and next hops are counted in.
pub(crate) fn ticks() -> u32 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).unwrap();
    ((now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64) >> 20) as u32
}

/// The clock that timestamps run by.
pub(crate) fn milliseconds() -> u32 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
    (now.tv_sec() as u64 * 1000 + now.tv_nsec() as u64 / 1_000_000) as u32
}

/// The number of milliseconds is between two readings of the clock.
#[track_caller]
pub(crate) fn assert_within(ms: u32, before: u32) {
    assert!(before <= ms && ms <= milliseconds(), "{before} <= {ms}");
}
