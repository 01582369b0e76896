//! The wall clock, and the clock of programs of the kernel.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns milliseconds since 1970 (Unix time).
#[must_use]
pub fn unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as u64)
}

/// Returns the time of `CLOCK_MONOTONIC`, as programs of the kernel read it. Zero if the clock cannot be read, which
/// Linux never reports.
#[must_use]
pub fn monotonic() -> Duration {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    now.map(Duration::from).unwrap_or_default()
}
