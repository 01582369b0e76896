//! Counters, gauges and histograms that many threads add to without a lock.

mod histogram;
mod words;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use foldhash::fast::FixedState;
use parking_lot::Mutex;

pub use histogram::Histogram;
pub use words::{CountWords, PooledWord, WordPool};

/// A counter that only goes up.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Returns the count.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Adds one and returns the value before: a ticket.
    pub fn ticket(&self) -> u64 {
        self.0.fetch_add(1, Relaxed)
    }
}

/// A number of things that exist now. Changed only by pairs of `enter` and `leave`, so that it cannot drift: by guards of
/// connections and flows, the flow GC and the admin API. Its word may be one that programs of the kernel change, too.
#[derive(Debug, Default)]
pub struct Gauge {
    own: AtomicU64,
    shared: Option<PooledWord>,
}

impl Gauge {
    const fn with_word(shared: Option<PooledWord>) -> Self {
        Self {
            own: AtomicU64::new(0),
            shared,
        }
    }

    fn number(&self) -> &AtomicU64 {
        self.shared.as_ref().and_then(PooledWord::word).unwrap_or(&self.own)
    }

    /// Index of its word, if programs of the kernel share it.
    #[must_use]
    pub fn word(&self) -> Option<u32> {
        self.shared.as_ref().map(PooledWord::index)
    }

    /// Returns the number of things that exist now.
    #[must_use]
    pub fn get(&self) -> u32 {
        self.number().load(Relaxed) as u32
    }

    /// Counts one more.
    pub fn enter(&self) {
        self.number().fetch_add(1, Relaxed);
    }

    /// Counts one more unless there are as many as a limit allows. Returns whether it did.
    #[must_use]
    pub fn try_enter(&self, limit: u32) -> bool {
        let more = |now: u64| (now < u64::from(limit)).then_some(now + 1);
        self.number().fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Counts one less.
    pub fn leave(&self) {
        self.number().fetch_sub(1, Relaxed);
    }
}

/// Counters by label, from a small set that is mostly known at compile time.
#[derive(Debug, Default)]
pub struct LabelledCounters(Mutex<HashMap<&'static str, Arc<Counter>, FixedState>>);

impl LabelledCounters {
    /// Adds one under a label. Takes a lock: for refusals and failures, not for the path of a good connection.
    pub fn inc(&self, label: &'static str) {
        let counter = {
            let mut counters = self.0.lock();
            Arc::clone(counters.entry(label).or_default())
        };
        counter.inc();
    }

    /// Returns the counters, sorted by label.
    #[must_use]
    pub fn get(&self) -> Vec<(&'static str, u64)> {
        let counters = self.0.lock();
        let mut all: Vec<_> = counters
            .iter()
            .map(|(label, counter)| (*label, counter.get()))
            .collect();
        all.sort_unstable();
        all
    }
}
