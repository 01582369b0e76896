//! Counts and token buckets of limits: in memory that the kernel peek's program changes, too, where there is one.

use std::sync::atomic::AtomicU64;

use signalbox_common::peek::abi::COUNT_OF_ALL;
use signalbox_common::sketch::first_cell;
use signalbox_core::limits::limit::Limiter;
use signalbox_core::limits::request_limit::RequestLimiter;
use signalbox_core::limits::stats::{CountWords, WordPool};

/// Memory of the counts that limits are about.
pub struct SharedCounts {
    pub(super) limiter: Limiter,
    pub(super) request_limiter: RequestLimiter,
    /// CountWords of gauges; the first one counts all connections.
    pub(super) words: &'static WordPool,
}

impl SharedCounts {
    /// Counts in the program's memory: its words, and its sketches by their first cell.
    #[must_use]
    pub fn of_program(words: &'static [AtomicU64], sketch_at: impl Fn(u32) -> &'static [AtomicU64]) -> Self {
        let sketch_at = |first| CountWords::Shared(sketch_at(first));
        Self {
            limiter: Limiter::new(sketch_at(first_cell::CONNECTIONS), sketch_at(first_cell::TOKENS)),
            request_limiter: RequestLimiter::new(sketch_at(first_cell::FULL_AT), sketch_at(first_cell::AT_ROUTE)),
            words: WordPool::new(words, COUNT_OF_ALL + 1),
        }
    }
}

/// Counts in memory of this process alone.
impl Default for SharedCounts {
    fn default() -> Self {
        Self {
            limiter: Limiter::default(),
            request_limiter: RequestLimiter::default(),
            words: WordPool::new(&[], 0),
        }
    }
}
