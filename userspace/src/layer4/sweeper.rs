//! Thread that sweeps over the flows, apart from the thread that writes tables, which must not wait.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use super::guarded::{self, Limited};
use super::sweep::{self, Counts, Pair};
use crate::datapath::cut::from_words;
use crate::kernel::l4::Layer4 as Kernel;
use crate::state::Shared;

/// Interval of sweeps; a sweep may take only a part of the time.
const SWEEP_INTERVAL: Duration = Duration::from_secs(2);
const SHARE: u32 = 20;

#[derive(Default)]
pub(super) struct Sweeper {
    orders: Mutex<Orders>,
    wake: Condvar,
    counts: ArcSwap<Counts>,
}

#[derive(Default)]
struct Orders {
    kernel: Option<Arc<Kernel>>,
    /// Guards that limit concurrent connections.
    limited: Limited,
    /// Services and hosts whose flows have had their time.
    up: HashSet<Pair>,
    /// Services and hosts whose flows are to be closed now.
    close: HashSet<Pair>,
    ended: bool,
}

impl Sweeper {
    fn orders(&self) -> std::sync::MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counts of the last sweep.
    pub(super) fn counts(&self) -> Arc<Counts> {
        self.counts.load_full()
    }

    /// Sets the maps to sweep, the flows to close, and the limits to count for.
    pub(super) fn work_on(&self, kernel: &Arc<Kernel>, up: HashSet<Pair>, limited: Limited) {
        let mut orders = self.orders();
        orders.kernel = Some(Arc::clone(kernel));
        orders.up = up;
        orders.limited = limited;
    }

    /// Closes the flows of these services and hosts at once.
    pub(super) fn close(&self, pairs: impl IntoIterator<Item = Pair>) {
        self.orders().close.extend(pairs);
        self.wake.notify_one();
    }

    pub(super) fn end(&self) {
        self.orders().ended = true;
        self.wake.notify_one();
    }

    pub(super) fn run(&self, shared: &Shared) {
        // The thread is niced: sweeping must not keep a worker from its connections.
        crate::datapath::sys::yield_to_others(5);
        let mut pause = SWEEP_INTERVAL;
        loop {
            let waits = |orders: &mut Orders| orders.close.is_empty() && !orders.ended;
            let (mut orders, _) = self
                .wake
                .wait_timeout_while(self.orders(), pause, waits)
                .unwrap_or_else(PoisonError::into_inner);
            if orders.ended {
                return;
            }
            let close = std::mem::take(&mut orders.close);
            let (kernel, up, limited) = (orders.kernel.clone(), orders.up.clone(), orders.limited.clone());
            drop(orders);
            let Some(kernel) = kernel else { continue };
            let began = Instant::now();
            let is_doomed = |pair: &Pair| close.contains(pair) || up.contains(pair);
            match sweep::sweep(&kernel, &limited, is_doomed, &|| self.orders().ended) {
                Ok(counts) => {
                    if counts.closed > 0 {
                        tracing::warn!(
                            flows = counts.closed,
                            "Flows of hosts that have been out for long are closed."
                        );
                    }
                    let listener = |name: &str, source| shared.connections_of(name, from_words(source));
                    if let Err(error) = guarded::count(&kernel, &limited, &counts.crowd, listener) {
                        tracing::warn!(%error, "Connections of sources could not be counted.");
                    }
                    let before = self.counts.load_full();
                    self.counts.store(Arc::new(counts.after(&before)));
                }
                Err(error) => tracing::warn!(%error, "The flows of services could not be gone through."),
            }
            pause = SWEEP_INTERVAL.max(began.elapsed() * SHARE);
        }
    }
}
