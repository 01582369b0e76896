//! Layer-4 services. One thread keeps the kernel's maps in line with the configuration, health of hosts, routes and
//! neighbours, and ends flows whose time is over.
//!
//! The thread works from snapshots, as workers do, and never delays one. A failure is logged, shown and retried.

mod apply;
mod client_hops;
pub mod drops;
mod guard_view;
pub mod guards;
mod host_numbers;
pub mod listing;
mod lists;
mod macs;
pub mod members;
mod next_hops;
mod own_ports;
mod ownership;
mod reconciler;
mod replicas;
mod service_hosts;
mod services_error;
mod services_view;
mod status;
mod sweep;
mod sweeper;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use signalbox_api::services::HookView;
use signalbox_api::shield::GuardKind;
use signalbox_common::{Reason, parts};
use signalbox_core::routing::rotation::Subject;

use crate::kernel::l4::L4Kernel as Kernel;
use crate::kernel::l4::hooks::AttachedHook;
use crate::reconcile::wakeups::{CloseOnDrop, Wakeups};
use crate::state::shield::{DeniedSources, ShieldCover};
use crate::state::{Shared, Snapshot};

use drops::Drops;
use guard_view::GuardsView;
use next_hops::SourceSettings;
use ownership::{OwnedSince, Ownership};
use reconciler::{Reconciler, parts_needed};
use services_view::ServicesView;
use sweep::ServiceHostPair;
use sweeper::Sweeper;

/// Interval at which routes, neighbours and interfaces are checked.
const REFRESH_INTERVAL: Duration = Duration::from_millis(500);

/// Layer-4 services of a running signalbox.
pub struct Services {
    shared: Arc<Shared>,
    wakeups: Wakeups,
    /// Whether there is a new snapshot. Set after that is stored, so that a pass which sees the flag sees the snapshot.
    has_changed: AtomicBool,
    /// Whether routes, neighbours and interfaces must be checked now.
    looks_now: AtomicBool,
    /// Whether another process may have replaced our programs with its own.
    reattaches: AtomicBool,
    /// Whether the thread removes all services when it ends.
    withdraws: AtomicBool,
    view: ArcSwap<ServicesView>,
    sweeper: Arc<Sweeper>,
    /// Samples of packets that the shield has dropped.
    pub drops: Drops,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Whether the kernel has accepted some part that the configuration needs.
fn carries_any(kernel: &Kernel, snapshot: &Snapshot) -> bool {
    parts_needed(&snapshot.model) & !kernel.missing != 0
}

impl Services {
    /// Starts the threads. `take_over`: another process still has the maps.
    pub fn start(shared: Arc<Shared>, take_over: bool) -> std::io::Result<Arc<Self>> {
        let services = Arc::new(Self {
            shared,
            wakeups: Wakeups::default(),
            has_changed: AtomicBool::new(false),
            looks_now: AtomicBool::new(false),
            reattaches: AtomicBool::new(false),
            withdraws: AtomicBool::new(false),
            view: ArcSwap::default(),
            sweeper: Arc::default(),
            drops: Drops::default(),
            threads: Mutex::default(),
        });
        let sweeping = Arc::clone(&services.shared);
        let (work, sampling, sweeper) = (
            Arc::clone(&services),
            Arc::clone(&services),
            Arc::clone(&services.sweeper),
        );
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        let threads = [
            thread("services").spawn(move || work.run(take_over))?,
            thread("sweeper").spawn(move || sweeper.run(&sweeping))?,
            thread("samples").spawn(move || sampling.take_samples())?,
        ];
        services.threads.lock().extend(threads);
        Ok(services)
    }

    /// Attaches our programs again, because a failed successor may have attached its own.
    pub fn reattach(&self) {
        self.reattaches.store(true, Release);
        self.looks_now.store(true, Release);
        self.wakeups.wake();
    }

    /// Makes the thread check interfaces, routes and neighbours. Waits until it has, has ended, or `limit` is over.
    pub fn look_now(&self, limit: Duration) {
        self.looks_now.store(true, Release);
        self.wakeups.wake_and_wait(limit);
    }

    /// Wakes the thread for a new snapshot.
    pub fn changed(&self) {
        self.has_changed.store(true, Release);
        self.wakeups.wake();
    }

    fn run(&self, take_over: bool) {
        let _closed = CloseOnDrop(&self.wakeups);
        let mut work = Reconciler {
            take_over,
            ..Reconciler::default()
        };
        let mut looked = None::<Instant>;
        let mut handled = 0;
        // The first pass comes with the first snapshot, or after an interval.
        while let Some(woken) = self.wakeups.next(handled, REFRESH_INTERVAL) {
            if self.reattaches.swap(false, Acquire)
                && let Some(kernel) = &work.kernel
            {
                kernel.hooks().forget_attached();
            }
            work.is_applied &= !self.has_changed.swap(false, Acquire);
            let is_due = looked.is_none_or(|then| then.elapsed() >= REFRESH_INTERVAL);
            let look = self.looks_now.swap(false, Acquire) || is_due;
            self.reconcile(&mut work, look);
            if look {
                looked = Some(Instant::now());
            }
            handled = woken;
        }
        if self.withdraws.load(Relaxed) {
            work.withdraw();
        }
    }

    /// Brings the kernel's maps up to date, and publishes their state.
    fn reconcile(&self, work: &mut Reconciler, look: bool) {
        let snapshot = self.shared.snapshot.load_full();
        if (look || !work.is_applied) && work.guards.refresh_files(&snapshot) {
            work.is_applied = false;
        }
        let denied = (!work.is_applied)
            .then(|| work.guards.changed_denials(&snapshot))
            .flatten();
        if let Some(denied) = &denied {
            let before = Some(self.shared.kernel.denied_sources.load_full());
            let both = DeniedSources {
                before,
                ..denied.clone()
            };
            self.shared.kernel.denied_sources.store(Arc::new(both));
        }
        self.reconcile_programs(work, &snapshot, look);
        if let Some(denied) = denied {
            self.shared.kernel.denied_sources.store(Arc::new(denied));
        }
    }

    /// Brings the programs' maps up to date, and the interfaces that they are attached to.
    fn reconcile_programs(&self, work: &mut Reconciler, snapshot: &Arc<Snapshot>, look: bool) {
        let sources = SourceSettings {
            layer4: &snapshot.model.layer4,
            floating: &snapshot.floating,
            node: self.shared.node,
        };
        let Some(mut kernel) = self.loaded_programs(work, snapshot) else {
            return;
        };
        let mut written = work.write_maps(&kernel, snapshot, sources, self.shared.seed, look);
        if written.is_too_small
            && work.reload_larger(snapshot)
            && let Some(larger) = work.kernel.clone()
        {
            kernel = larger;
            written = work.write_maps(&kernel, snapshot, sources, self.shared.seed, look);
        }
        let counts = self.sweeper.counts();
        if look {
            work.guards.recheck_local(&kernel);
            // Only with filled maps: programs with empty maps must not replace others.
            if work.shield_is_up {
                kernel.attach(sources.layer4.hook, !self.shared.life.is_being_replaced.load(Relaxed));
            }
            work.tables.forget_hosts(&kernel, &counts);
        }
        let hooks = kernel.hooks();
        let (attached, refused) = (hooks.attached(), hooks.refused());
        drop(hooks);
        let has_gap = work.shield_error.is_some() || !refused.is_empty() || kernel.missing & parts::SHIELD != 0;
        self.publish_cover(snapshot, &attached, work.is_applied, has_gap);
        let closing = work.expired(snapshot, &counts);
        let limited = guard_view::limited_guards(&work.guards, &work.tables, snapshot);
        self.sweeper.set_request(&kernel, closing, limited);
        work.note_error(written.result.err().as_ref(), !carries_any(&kernel, snapshot));
        let problems = work.problems(&kernel, snapshot, &refused, counts.is_dsr_full);
        let shares =
            |service: &signalbox_core::model::Service| (service.name.clone(), work.tables.shares(snapshot, service));
        self.view.store(Arc::new(ServicesView {
            kernel: Some(kernel),
            services: work.tables.service_numbers().clone(),
            hosts: work.tables.numbers().collect(),
            named_hosts: work.tables.named_hosts().to_vec(),
            services_by_cluster: work.tables.services_of_clusters(snapshot),
            shares: snapshot.model.services.iter().map(shares).collect(),
            reachable: work.tables.reachable(),
            service_hosts: work.service_hosts.clone(),
            hooks: attached,
            unattached: refused,
            shield_error: work.shield_error.clone(),
            services_error: work.services_error.clone(),
            load_error: None,
            problems,
            guards: GuardsView::new(&work.guards, &snapshot.model),
        }));
    }

    /// Returns the loaded programs, and loads them first if need be. `None`, shown with the reason: there are none.
    fn loaded_programs(&self, work: &mut Reconciler, snapshot: &Snapshot) -> Option<Arc<Kernel>> {
        if work.kernel.is_none() && !work.load(snapshot) {
            self.publish_cover(snapshot, &[], false, work.error.is_some());
            self.view.store(Arc::new(ServicesView {
                load_error: work.error.clone(),
                problems: work.error.iter().cloned().collect(),
                ..ServicesView::default()
            }));
            return None;
        }
        let loaded = work.kernel.clone()?;
        if !carries_any(&loaded, snapshot) {
            // The loaded programs have only the part that an earlier configuration needed.
            work.load_programs(snapshot, true);
        }
        let kernel = work.kernel.clone()?;
        if !kernel.pins.is_locked() {
            kernel.pins.retry_lock();
        }
        Some(kernel)
    }

    /// Publishes where and for which listeners the shield is active: elsewhere the kernel peek begins no connection.
    fn publish_cover(&self, snapshot: &Snapshot, attached: &[AttachedHook], is_applied: bool, has_gap: bool) {
        let before = self.shared.kernel.shield_cover.load();
        let guarded = guards::policies(&snapshot.model);
        let listeners: BTreeSet<String> = guarded
            .filter(|(kind, ..)| *kind == GuardKind::Listener)
            .map(|(_, name, _)| name.clone())
            .collect();
        let cover = ShieldCover {
            interfaces: attached.iter().map(|hook| hook.index).collect(),
            is_partial: !listeners.is_empty() && has_gap,
            listeners: if is_applied {
                listeners
            } else {
                before.listeners.intersection(&listeners).cloned().collect()
            },
        };
        if **before != cover {
            self.shared.kernel.shield_cover.store(Arc::new(cover));
        }
    }

    /// Returns the flows of the hosts that match the subjects, by host. A host counts as having at least one flow if
    /// flows have not been counted since `since` (Unix time in milliseconds).
    #[must_use]
    pub fn flows_by_host(&self, subjects: &[Subject], since: u64) -> Vec<(String, u32)> {
        let (picture, counts) = (self.view.load(), self.sweeper.counts());
        let is_old = counts.started_ms < since;
        let busy = picture.covered_hosts(subjects).into_iter().filter_map(|(name, pairs)| {
            let of = |pair: &ServiceHostPair| counts.pairs.get(pair).copied().unwrap_or(0);
            let flows: u32 = pairs.iter().map(of).sum();
            (flows > 0 || is_old).then_some((name, flows.max(1)))
        });
        busy.collect()
    }

    /// Closes the flows of the hosts that match the subjects.
    pub fn close(&self, subjects: &[Subject]) {
        let covered = self.view.load().covered_hosts(subjects);
        self.sweeper.close(covered.into_iter().flat_map(|(_, pairs)| pairs));
    }

    /// Ends the threads, and leaves the maps to another process.
    pub fn retire(&self) {
        self.end(false);
    }

    fn end(&self, withdraw: bool) {
        // A process that has retired leaves the services to its successor, even if it is told to stop meanwhile.
        if !self.wakeups.is_closed() {
            self.withdraws.store(withdraw, Relaxed);
        }
        self.wakeups.close();
        self.sweeper.end();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            let _ = thread.join();
        }
    }

    /// Ends the threads and removes all services. Established flows continue without the process, until `signalbox
    /// detach`. `is_restart`: listening sockets stay open for the next process, with the shield in front of them.
    pub fn stop(&self, is_restart: bool) {
        self.end(true);
        if is_restart {
            return;
        }
        let Some(kernel) = self.view.load().kernel.clone() else {
            return;
        };
        let limited = guard_view::LimitedGuards::default();
        let ownership = Ownership::new(&self.shared, &mut OwnedSince::new());
        let live = sweep::sweep(&kernel, &limited, &ownership, |_| false, &|| false)
            .map_or(0, |counts| counts.pairs.values().sum::<u32>());
        if live > 0 {
            tracing::info!(
                flows = live,
                "Flows of services continue without this process; `signalbox detach` would end them."
            );
        } else if kernel.pins.is_locked()
            && let Err(error) = kernel.remove_all()
        {
            tracing::warn!(%error, "Pinned programs and maps of services could not be removed.");
        }
    }

    /// Returns the interfaces and hooks that the programs are attached to.
    #[must_use]
    pub fn hooks(&self) -> Vec<HookView> {
        let view = |on: &AttachedHook| HookView {
            interface: on.interface.clone(),
            hook: on.hook.into(),
            why: on.why.clone(),
            index: on.index,
        };
        self.view.load().hooks.iter().map(view).collect()
    }

    /// Returns the differences from the configuration, in words.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        self.view.load().problems.clone()
    }

    /// Returns the number of flows that fit in the table of services, once it exists.
    #[must_use]
    pub fn max_flows(&self) -> Option<u32> {
        self.view.load().kernel.as_ref().map(|kernel| kernel.max_flows())
    }

    /// Returns the number of packets by the reason with which the programs ended.
    #[must_use]
    pub fn exit_counts(&self) -> Vec<(Reason, u64)> {
        let picture = self.view.load();
        picture
            .kernel
            .as_ref()
            .map_or_else(Vec::new, |kernel| kernel.exit_counts())
    }
}
