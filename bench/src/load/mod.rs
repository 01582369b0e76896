//! The load: a client of our own, because none of the usual ones makes unique connections from several addresses
//! without becoming the bottleneck, and because every byte of an answer must be counted.

pub(crate) mod anatomy;
pub(crate) mod bulk;
pub(crate) mod connection;
pub(crate) mod echo;
pub(crate) mod flood;
pub(crate) mod h2load;
pub(crate) mod http;
mod http2;
pub(crate) mod idle;
pub(crate) mod openings;
pub(crate) mod paced;
pub(crate) mod response;
mod schedule;
pub(crate) mod slots;
pub(crate) mod source;
mod tickets;
pub(crate) mod tls;
pub(crate) mod tunnels;
mod wire;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use signalbox_lab::Ns;

/// Window of a measurement. Anything before it is warm-up.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    /// Begin of the window.
    pub(crate) start: Instant,
    /// End of the window.
    pub(crate) end: Instant,
}

impl Window {
    /// A window that begins after a warm-up.
    pub(crate) fn after(warm_up: Duration, length: Duration) -> Self {
        let start = Instant::now() + warm_up;
        Self {
            start,
            end: start + length,
        }
    }

    /// Whether a moment is in the window.
    pub(crate) fn has(&self, moment: Instant) -> bool {
        (self.start..self.end).contains(&moment)
    }
}

/// Runs `worker` with its number on each of `threads` threads in `ns`, and `meanwhile` here beside them.
fn on_threads<R: Send, T>(
    ns: &Ns,
    threads: usize,
    worker: impl Fn(usize) -> Result<R> + Sync,
    meanwhile: impl FnOnce() -> T,
) -> Result<(Vec<R>, T)> {
    let worker = &worker;
    std::thread::scope(|scope| {
        let start = |thread| scope.spawn(move || ns.enter().and_then(|()| worker(thread)));
        let workers: Vec<_> = (0..threads).map(start).collect();
        let meanwhile = meanwhile();
        let join = |worker: std::thread::ScopedJoinHandle<'_, Result<R>>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let results: Result<Vec<_>> = workers.into_iter().map(join).collect();
        Ok((results?, meanwhile))
    })
}

/// Errors, counted by kind. Those of the warm-up count, too: a balancer has no excuse for them.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub(crate) struct Errors(BTreeMap<String, u64>);

impl Errors {
    /// Counts one more error of a kind.
    pub(crate) fn add(&mut self, what: impl Into<String>) {
        *self.0.entry(what.into()).or_default() += 1;
    }

    /// Adds all errors of another count.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(what.clone()).or_default() += count;
        }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Total number of errors.
    pub(crate) fn total(&self) -> u64 {
        self.0.values().sum()
    }
}

impl std::fmt::Display for Errors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kinds: Vec<_> = self.0.iter().map(|(what, count)| format!("{count} x {what}")).collect();
        f.write_str(&kinds.join(", "))
    }
}
