//! Counters, gauges and histograms that many threads add to without a lock.

mod histogram;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use foldhash::fast::FixedState;

pub use histogram::Histogram;

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
/// connections and flows, the flow GC and the admin API.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU32);

impl Gauge {
    /// Returns the number of things that exist now.
    #[must_use]
    pub fn get(&self) -> u32 {
        self.0.load(Relaxed)
    }

    /// Counts one more.
    pub fn enter(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// Counts one more unless there are as many as a limit allows. Returns whether it did.
    #[must_use]
    pub fn try_enter(&self, limit: u32) -> bool {
        let more = |now: u32| (now < limit).then_some(now + 1);
        self.0.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Counts one less.
    pub fn leave(&self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Counters by label, from a small set that is mostly known at compile time.
#[derive(Debug, Default)]
pub struct LabelledCounters(Mutex<HashMap<&'static str, Arc<Counter>, FixedState>>);

impl LabelledCounters {
    /// Adds one under a label. Takes a lock: for refusals and failures, not for the path of a good connection.
    pub fn inc(&self, label: &'static str) {
        let counter = {
            let mut counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(counters.entry(label).or_default())
        };
        counter.inc();
    }

    /// Returns the counters, sorted by label.
    #[must_use]
    pub fn get(&self) -> Vec<(&'static str, u64)> {
        let counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = counters
            .iter()
            .map(|(label, counter)| (*label, counter.get()))
            .collect();
        all.sort_unstable();
        all
    }
}
