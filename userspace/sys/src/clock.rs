//! The wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns milliseconds since 1970 (Unix time).
#[must_use]
pub fn unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as u64)
}
