//! Thread that sweeps over the flows. It is separate from the thread that writes tables, which must not wait.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use signalbox_core::availability::sync::ServiceRecord;

use super::client_hops;
use super::guard_view::{self, LimitedGuards};
use super::ownership::{OwnedSince, Ownership};
use super::sweep::{self, FlowCounts, ServiceHostPair, ticks};
use crate::kernel::address::from_words;
use crate::kernel::cut::table::tick;
use crate::kernel::l4::L4Kernel as Kernel;
use crate::reconcile::wakeups::Wakeups;
use crate::state::Shared;

/// Interval of sweeps. A sweep may use only a part of the time.
const SWEEP_INTERVAL: Duration = Duration::from_secs(2);
/// Interval if connections are replicated: a part of the time until another node knows one.
const REPLICATION_INTERVAL: Duration = Duration::from_millis(200);
const MIN_PAUSE_FACTOR: u32 = 20;
/// Interval at which known connections are reported to other nodes again. The nodes learn how long the connection has
/// been idle, and store it if they could not before.
const TELL_AGAIN_INTERVAL: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct Sweeper {
    request: Mutex<SweepRequest>,
    wakeups: Wakeups,
    counts: ArcSwap<FlowCounts>,
}

#[derive(Default)]
struct SweepRequest {
    kernel: Option<Arc<Kernel>>,
    /// Guards that limit concurrent connections.
    limited: LimitedGuards,
    /// Services and hosts whose flows have used up their time.
    expired: HashSet<ServiceHostPair>,
    /// Services and hosts whose flows must be closed now.
    close: HashSet<ServiceHostPair>,
}

impl Sweeper {
    /// Returns the counts of the last sweep.
    pub(super) fn counts(&self) -> Arc<FlowCounts> {
        self.counts.load_full()
    }

    /// Sets the maps to sweep, the flows to close, and the limits to count for.
    pub(super) fn set_request(&self, kernel: &Arc<Kernel>, up: HashSet<ServiceHostPair>, limited: LimitedGuards) {
        let mut orders = self.request.lock();
        orders.kernel = Some(Arc::clone(kernel));
        orders.expired = up;
        orders.limited = limited;
    }

    /// Closes the flows of these services and hosts at once.
    pub(super) fn close(&self, pairs: impl IntoIterator<Item = ServiceHostPair>) {
        let mut orders = self.request.lock();
        orders.close.extend(pairs);
        let has_some = !orders.close.is_empty();
        drop(orders);
        if has_some {
            self.wakeups.wake();
        }
    }

    /// Begins the next sweep at once.
    pub(super) fn sweep_now(&self) {
        self.wakeups.wake();
    }

    pub(super) fn end(&self) {
        self.wakeups.close();
    }

    pub(super) fn run(&self, shared: &Shared) {
        // The thread runs at lower priority: sweeping must not delay a worker's connections.
        crate::sys::set_nice(5);
        let mut pause = SWEEP_INTERVAL;
        let mut since = OwnedSince::new();
        let mut handled = 0;
        while let Some(woken) = self.wakeups.next(handled, pause) {
            handled = woken;
            let mut orders = self.request.lock();
            let close = std::mem::take(&mut orders.close);
            let (kernel, up, limited) = (orders.kernel.clone(), orders.expired.clone(), orders.limited.clone());
            drop(orders);
            let interval = if shared.sync.services.is_wanted() {
                REPLICATION_INTERVAL
            } else {
                SWEEP_INTERVAL
            };
            let ownership = Ownership::new(shared, &mut since);
            let Some(kernel) = kernel else {
                // If there are services, the programs are still being loaded.
                if !shared.snapshot.load().model.has_services() {
                    tell(shared, &ownership, Vec::new());
                }
                pause = interval;
                continue;
            };
            kernel.flush_log();
            let began = Instant::now();
            let is_doomed = |pair: &ServiceHostPair| close.contains(pair) || up.contains(pair);
            let is_ending = || self.wakeups.is_closed();
            match sweep::sweep(&kernel, &limited, &ownership, is_doomed, &is_ending) {
                Ok(mut counts) => {
                    tell(shared, &ownership, std::mem::take(&mut counts.moving));
                    if let Err(error) = client_hops::find(&kernel, &std::mem::take(&mut counts.without_client)) {
                        tracing::warn!(%error, "The ways to clients of other nodes' connections could not be looked up.");
                    }
                    if counts.closed > 0 {
                        tracing::warn!(
                            flows = counts.closed,
                            "Flows of hosts that have long been out of rotation are closed."
                        );
                    }
                    let listener = |name: &str, source| shared.connections_of(name, from_words(source));
                    if let Err(error) = guard_view::write_conn_counts(&kernel, &limited, &counts.conn_counts, listener)
                    {
                        tracing::warn!(%error, "Connections per source address could not be counted.");
                    }
                    let before = self.counts.load_full();
                    self.counts.store(Arc::new(counts.with_previous(&before)));
                }
                Err(error) => tracing::warn!(%error, "The flows of services could not be listed."),
            }
            pause = interval.max(began.elapsed() * MIN_PAUSE_FACTOR);
        }
    }
}

/// Hands the connections that other nodes must know to the thread that reports them.
fn tell(shared: &Shared, ownership: &Ownership, moving: Vec<ServiceRecord>) {
    let services = &shared.sync.services;
    if services.is_wanted() {
        services.update(ownership.own_groups(), moving, tick(), ticks(TELL_AGAIN_INTERVAL));
    }
}
