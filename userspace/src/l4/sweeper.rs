//! Thread that sweeps over the flows, apart from the thread that writes tables, which must not wait.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use super::guard_view::{self, LimitedGuards};
use super::sweep::{self, FlowCounts, ServiceHostPair};
use crate::kernel::address::from_words;
use crate::kernel::l4::L4Kernel as Kernel;
use crate::state::Shared;

/// Interval of sweeps; a sweep may take only a part of the time.
const SWEEP_INTERVAL: Duration = Duration::from_secs(2);
const MIN_PAUSE_FACTOR: u32 = 20;

#[derive(Default)]
pub(super) struct Sweeper {
    request: Mutex<SweepRequest>,
    wake: Condvar,
    counts: ArcSwap<FlowCounts>,
}

#[derive(Default)]
struct SweepRequest {
    kernel: Option<Arc<Kernel>>,
    /// Guards that limit concurrent connections.
    limited: LimitedGuards,
    /// Services and hosts whose flows have had their time.
    expired: HashSet<ServiceHostPair>,
    /// Services and hosts whose flows are to be closed now.
    close: HashSet<ServiceHostPair>,
    is_ending: bool,
}

impl Sweeper {
    fn request(&self) -> std::sync::MutexGuard<'_, SweepRequest> {
        self.request.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counts of the last sweep.
    pub(super) fn counts(&self) -> Arc<FlowCounts> {
        self.counts.load_full()
    }

    /// Sets the maps to sweep, the flows to close, and the limits to count for.
    pub(super) fn set_request(&self, kernel: &Arc<Kernel>, up: HashSet<ServiceHostPair>, limited: LimitedGuards) {
        let mut orders = self.request();
        orders.kernel = Some(Arc::clone(kernel));
        orders.expired = up;
        orders.limited = limited;
    }

    /// Closes the flows of these services and hosts at once.
    pub(super) fn close(&self, pairs: impl IntoIterator<Item = ServiceHostPair>) {
        self.request().close.extend(pairs);
        self.wake.notify_one();
    }

    pub(super) fn end(&self) {
        self.request().is_ending = true;
        self.wake.notify_one();
    }

    pub(super) fn run(&self, shared: &Shared) {
        // The thread is niced: sweeping must not keep a worker from its connections.
        crate::sys::set_nice(5);
        let mut pause = SWEEP_INTERVAL;
        loop {
            let waits = |orders: &mut SweepRequest| orders.close.is_empty() && !orders.is_ending;
            let (mut orders, _) = self
                .wake
                .wait_timeout_while(self.request(), pause, waits)
                .unwrap_or_else(PoisonError::into_inner);
            if orders.is_ending {
                return;
            }
            let close = std::mem::take(&mut orders.close);
            let (kernel, up, limited) = (orders.kernel.clone(), orders.expired.clone(), orders.limited.clone());
            drop(orders);
            let Some(kernel) = kernel else { continue };
            kernel.flush_log();
            let began = Instant::now();
            let is_doomed = |pair: &ServiceHostPair| close.contains(pair) || up.contains(pair);
            match sweep::sweep(&kernel, &limited, is_doomed, &|| self.request().is_ending) {
                Ok(counts) => {
                    if counts.closed > 0 {
                        tracing::warn!(
                            flows = counts.closed,
                            "Flows of hosts that have been out for long are closed."
                        );
                    }
                    let listener = |name: &str, source| shared.connections_of(name, from_words(source));
                    if let Err(error) = guard_view::write_conn_counts(&kernel, &limited, &counts.conn_counts, listener)
                    {
                        tracing::warn!(%error, "Connections of sources could not be counted.");
                    }
                    let before = self.counts.load_full();
                    self.counts.store(Arc::new(counts.with_previous(&before)));
                }
                Err(error) => tracing::warn!(%error, "The flows of services could not be gone through."),
            }
            pause = SWEEP_INTERVAL.max(began.elapsed() * MIN_PAUSE_FACTOR);
        }
    }
}
