//! Counts and token buckets of limits: in memory that the kernel peek's program changes, too, where there is one.

use std::sync::atomic::AtomicU64;

use signalbox_common::peek::abi::COUNT_OF_ALL;
use signalbox_common::sketch::first_cell;
use signalbox_core::limits::limit::Limiter;
use signalbox_core::limits::request_limit::RequestLimiter;
use signalbox_core::limits::stats::{CountWords, WordPool};

use super::OverLimit;

/// Counts that limits are about.
pub struct LimitCounts {
    /// Connections and rates of sources.
    pub sources: Limiter,
    /// Limits of routes' requests, and of their connections.
    pub requests: RequestLimiter,
    /// Words of gauges; the first one counts all connections.
    pub words: &'static WordPool,
    /// Queue of sources that have reached a listener's connection limit, for the shield. Entries lost to a full queue
    /// do not matter.
    pub over: OverLimit,
}

impl LimitCounts {
    /// Counts in the program's memory: its words, and its sketches by their first cell.
    #[must_use]
    pub fn of_program(words: &'static [AtomicU64], sketch_at: impl Fn(u32) -> &'static [AtomicU64]) -> Self {
        let sketch_at = |first| CountWords::Shared(sketch_at(first));
        Self {
            sources: Limiter::new(sketch_at(first_cell::CONNECTIONS), sketch_at(first_cell::TOKENS)),
            requests: RequestLimiter::new(sketch_at(first_cell::FULL_AT), sketch_at(first_cell::AT_ROUTE)),
            words: WordPool::new(words, COUNT_OF_ALL + 1),
            over: OverLimit::default(),
        }
    }
}

/// Counts in memory of this process alone.
impl Default for LimitCounts {
    fn default() -> Self {
        Self {
            sources: Limiter::default(),
            requests: RequestLimiter::default(),
            words: WordPool::new(&[], 0),
            over: OverLimit::default(),
        }
    }
}
