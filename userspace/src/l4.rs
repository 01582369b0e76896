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
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::{Condvar, Mutex};
use signalbox_api::services::HookView;
use signalbox_api::shield::GuardKind;
use signalbox_common::{Reason, parts};
use signalbox_core::routing::rotation::Subject;

use crate::kernel::l4::hooks::AttachedHook;
use crate::state::shield::{DeniedSources, ShieldCover};
use crate::state::{Shared, Snapshot};

use drops::Drops;
use guard_view::GuardsView;
use next_hops::SourceSettings;
use ownership::{OwnedSince, Ownership};
use reconciler::{Reconciler, parts_needed};
use services_error::ServicesError;
use services_view::ServicesView;
use sweep::ServiceHostPair;
use sweeper::Sweeper;

/// Interval at which routes, neighbours and interfaces are checked.
const REFRESH_INTERVAL: Duration = Duration::from_millis(500);

/// Layer-4 services of a running signalbox.
pub struct Services {
    shared: Arc<Shared>,
    requests: Mutex<ReconcileRequests>,
    wake: Condvar,
    /// Signalled when the maps and hooks are up to date.
    settled: Condvar,
    view: ArcSwap<ServicesView>,
    sweeper: Arc<Sweeper>,
    /// Samples of packets that the shield has dropped.
    pub drops: Drops,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Requests to the thread.
#[derive(Default)]
struct ReconcileRequests {
    changed: bool,
    /// Number of requests to answer when all is up to date. `answered` is the last one fulfilled.
    settle_requested: u64,
    settle_done: u64,
    /// True if another process may have replaced our programs with its own.
    reattach: bool,
    is_ending: bool,
    /// True if the thread removes all services when it ends.
    withdraw: bool,
}

impl Services {
    /// Starts the threads. `take_over`: another process still has the maps.
    pub fn start(shared: Arc<Shared>, take_over: bool) -> std::io::Result<Arc<Self>> {
        let services = Arc::new(Self {
            shared,
            requests: Mutex::default(),
            wake: Condvar::new(),
            settled: Condvar::new(),
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
        {
            let mut told = self.requests.lock();
            told.reattach = true;
            told.settle_requested += 1;
        }
        self.wake.notify_one();
    }

    /// Makes the thread check interfaces, routes and neighbours. Waits until it has, has ended, or `limit` is over.
    pub fn look_now(&self, limit: Duration) {
        let mut told = self.requests.lock();
        told.settle_requested += 1;
        let number = told.settle_requested;
        self.wake.notify_one();
        let is_pending = |told: &mut ReconcileRequests| told.settle_done < number && !told.is_ending;
        self.settled.wait_while_for(&mut told, is_pending, limit);
    }

    /// Wakes the thread for a new snapshot.
    pub fn changed(&self) {
        self.requests.lock().changed = true;
        self.wake.notify_one();
    }

    fn run(&self, take_over: bool) {
        let mut work = Reconciler {
            take_over,
            ..Reconciler::default()
        };
        let mut looked = None::<Instant>;
        loop {
            let (changed, asked) = {
                let mut told = self.requests.lock();
                let waits = |told: &mut ReconcileRequests| {
                    !told.changed && !told.is_ending && told.settle_requested == told.settle_done
                };
                self.wake.wait_while_for(&mut told, waits, REFRESH_INTERVAL);
                if told.is_ending {
                    if told.withdraw {
                        work.withdraw();
                    }
                    return;
                }
                if std::mem::take(&mut told.reattach)
                    && let Some(kernel) = &work.kernel
                {
                    kernel.hooks().forget_attached();
                }
                let asked = (told.settle_requested != told.settle_done).then_some(told.settle_requested);
                (std::mem::take(&mut told.changed), asked)
            };
            work.is_applied &= !changed;
            let look = asked.is_some() || looked.is_none_or(|then| then.elapsed() >= REFRESH_INTERVAL);
            self.reconcile(&mut work, look);
            if let Some(asked) = asked {
                self.requests.lock().settle_done = asked;
                self.settled.notify_all();
            }
            if look {
                looked = Some(Instant::now());
            }
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
            let before = Some(self.shared.denied_sources.load_full());
            let both = DeniedSources {
                before,
                ..denied.clone()
            };
            self.shared.denied_sources.store(Arc::new(both));
        }
        self.reconcile_programs(work, &snapshot, look);
        if let Some(denied) = denied {
            self.shared.denied_sources.store(Arc::new(denied));
        }
    }

    /// Brings the programs' maps up to date, and the interfaces that they are attached to.
    fn reconcile_programs(&self, work: &mut Reconciler, snapshot: &Arc<Snapshot>, look: bool) {
        let layer4 = &snapshot.model.layer4;
        let sources = SourceSettings {
            layer4,
            floating: &snapshot.floating,
            node: self.shared.node,
        };
        if work.kernel.is_none() && !work.load(snapshot) {
            let troubles: Vec<String> = work.error.iter().cloned().collect();
            self.publish_cover(snapshot, &[], false, !troubles.is_empty());
            self.view.store(Arc::new(ServicesView {
                load_error: troubles.first().cloned(),
                problems: troubles,
                ..ServicesView::default()
            }));
            return;
        }
        let Some(kernel) = work.kernel.clone() else { return };
        let needed = parts_needed(&snapshot.model);
        let carries_nothing = needed & !kernel.missing == 0;
        if carries_nothing && work.load_programs(snapshot, true) {
            // The loaded programs have only the part that an earlier configuration needed.
            return self.reconcile_programs(work, snapshot, look);
        }
        if !kernel.pins.is_locked() {
            kernel.pins.retry_lock();
        }
        let counts = self.sweeper.counts();
        let macs = if look { work.macs.refresh(&kernel) } else { Ok(()) };
        let mut done = Ok(());
        let mut numbered = Ok(None);
        if !work.is_applied {
            // The programs' settings (ports and addresses of mode nat) come before the tables.
            let configured = work.next_hops.write_config(&kernel, sources);
            numbered = configured.and_then(|()| work.tables.number_hosts(&snapshot.model));
        }
        // Next hops come before the tables that lead to them, even if the tables have an error.
        let refreshed = work.next_hops.refresh(&kernel, &mut work.tables, sources, look);
        if !work.is_applied {
            done = numbered.and_then(|trouble| work.tables.apply(&kernel, snapshot, trouble));
            work.services_error = done.as_ref().err().map(|error| crate::sys::error_chain(error));
            // An error of services must not leave any target unguarded.
            let guarded = work.guards.apply(&kernel, snapshot, self.shared.seed);
            if matches!(guarded, Ok(false)) && work.reload_larger(snapshot) {
                return self.reconcile_programs(work, snapshot, look);
            }
            work.shield_is_up |= matches!(guarded, Ok(true));
            work.shield_error = match &guarded {
                Ok(true) => None,
                Ok(false) => Some(ServicesError::NoRoom.to_string()),
                Err(error) => Some(crate::sys::error_chain(error)),
            };
            let guarded = guarded.and_then(|has_room| if has_room { Ok(()) } else { Err(ServicesError::NoRoom) });
            done = done.and(guarded);
            (work.service_hosts, work.drain_timeouts) = work.tables.service_hosts(snapshot);
            work.is_applied = done.is_ok();
        }
        done = done.and(refreshed);
        if look {
            work.guards.recheck_local(&kernel);
            // Only with filled maps: programs with empty maps must not replace others.
            if work.shield_is_up {
                kernel.attach(layer4.hook, !self.shared.is_being_replaced.load(Relaxed));
            }
            work.tables.forget_hosts(&kernel, &counts);
        }
        let hooks = kernel.hooks();
        let (on, refused) = (hooks.attached(), hooks.refused());
        drop(hooks);
        let has_gap = work.shield_error.is_some() || !refused.is_empty() || kernel.missing & parts::SHIELD != 0;
        self.publish_cover(snapshot, &on, work.is_applied, has_gap);
        let closing = work.expired(snapshot, &counts);
        let limited = guard_view::limited_guards(&work.guards, &work.tables, snapshot);
        self.sweeper.set_request(&kernel, closing, limited);
        let writing = |source| ServicesError::Map {
            what: "this machine's Ethernet addresses",
            source,
        };
        let error = done.and_then(|()| macs.map_err(writing)).err();
        let mut error = error.map(|error| crate::sys::error_chain(&error));
        if carries_nothing {
            // The reason why the other part could not be loaded stays as the error.
            error = error.or_else(|| work.error.clone());
        }
        if error != work.error {
            match &error {
                Some(error) => tracing::error!(error, "Layer-4 services or the shield are not active as configured."),
                None => tracing::info!("Layer-4 services and the shield are active as configured."),
            }
            work.error = error;
        }
        let troubles = work
            .error
            .iter()
            .cloned()
            .chain(work.next_hops.errors())
            .chain(refused.clone());
        let troubles = troubles.chain(work.guards.file_errors());
        let full = "direct return has half of the flow table, and gets no more: other flows of it are forwarded by hash \
                    (layer4.flows)";
        let troubles = troubles.chain(counts.is_dsr_full.then(|| full.to_owned()));
        let now = Instant::now();
        work.port_shortage.update(kernel.exit_count(Reason::L4NoPort), now);
        let troubles = troubles.chain(work.port_shortage.problem(now));
        let troubles = troubles.chain(own_ports::problem(&snapshot.model));
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
            hooks: on,
            unattached: refused,
            shield_error: work.shield_error.clone(),
            services_error: work.services_error.clone(),
            load_error: None,
            problems: troubles.collect(),
            guards: GuardsView::new(&work.guards, &snapshot.model),
        }));
    }

    /// Publishes where and for which listeners the shield is active: elsewhere the kernel peek begins no connection.
    fn publish_cover(&self, snapshot: &Snapshot, attached: &[AttachedHook], is_applied: bool, has_gap: bool) {
        let before = self.shared.shield_cover.load();
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
            self.shared.shield_cover.store(Arc::new(cover));
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
        {
            let mut told = self.requests.lock();
            told.withdraw = withdraw && !told.is_ending;
            told.is_ending = true;
        }
        self.wake.notify_one();
        self.settled.notify_all();
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
