//! Layer-4 services: one thread keeps the kernel's maps as configuration, health of hosts, routes and neighbours
//! demand, and ends flows whose time is up.
//!
//! The thread works from snapshots, as workers do, and never delays one: a failure is logged, shown and tried again.

mod apply;
pub mod drops;
mod guard_view;
pub mod guards;
mod host_numbers;
mod lists;
mod macs;
mod next_hops;
mod services_error;
mod status;
mod sweep;
mod sweeper;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use serde::Serialize;
use signalbox_common::l4::{Key, L4Flow, ServiceStats};
use signalbox_common::{Reason, parts};
use signalbox_core::model::services::Hook;
use signalbox_core::rotation::{Subject, covers};

use crate::kernel::l4::hooks::AttachedHook;
use crate::kernel::l4::{L4Kernel as Kernel, MapSizes};
use crate::state::Shared;

use apply::Tables;
use drops::Drops;
use guard_view::GuardsView;
use guards::Guards;
use host_numbers::HostId;
use macs::Macs;
use next_hops::NextHops;
use services_error::ServicesError;
use sweep::{FlowCounts, ServiceHostPair};
use sweeper::Sweeper;

/// Interval at which routes, neighbours and interfaces are checked.
const REFRESH_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of attempts to load programs that were refused.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// Layer-4 services of a running signalbox.
pub struct Services {
    shared: Arc<Shared>,
    requests: Mutex<ReconcileRequests>,
    wake: Condvar,
    /// Signalled when the maps and hooks have been brought up to date.
    settled: Condvar,
    view: ArcSwap<ServicesView>,
    sweeper: Arc<Sweeper>,
    /// Samples of packets that the shield has dropped.
    pub drops: Drops,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Orders for the thread.
#[derive(Default)]
struct ReconcileRequests {
    changed: bool,
    /// Number of requests to be answered when all is up to date; `answered` is the last that has been fulfilled.
    settle_requested: u64,
    settle_done: u64,
    /// True if another process may have replaced our programs by its own.
    reattach: bool,
    is_ending: bool,
    /// True if the thread removes all services when it ends.
    withdraw: bool,
}

/// State of the thread.
#[derive(Default)]
struct Reconciler {
    kernel: Option<Arc<Kernel>>,
    tables: Tables,
    next_hops: NextHops,
    macs: Macs,
    guards: Guards,
    take_over: bool,
    /// Current error: why there are no programs, or what is not as configured.
    error: Option<String>,
    last_load: Option<Instant>,
    /// Hook and parts for which the kernel has refused the programs for good.
    refused_for: Option<(Hook, u32)>,
    /// True if the whole snapshot is in the maps.
    is_applied: bool,
    /// True if the shield of the loaded programs is in force.
    shield_is_up: bool,
    /// Reason why the shield differs from the snapshot.
    shield_error: Option<String>,
    /// Reason why services differ from the snapshot.
    services_error: Option<String>,
    /// Every service with every host that it may send to.
    service_hosts: HashSet<ServiceHostPair>,
    /// Services and hosts without new flows for a reason other than rotation, with the time that their flows may go
    /// on.
    drain_timeouts: HashMap<ServiceHostPair, Duration>,
    /// Time since which such services and hosts get no new flows.
    out_since: HashMap<ServiceHostPair, Instant>,
}

/// State for readers (API, metrics, jobs), who never wait for the thread.
#[derive(Default)]
struct ServicesView {
    kernel: Option<Arc<Kernel>>,
    services: HashMap<String, u16>,
    hosts: HashMap<HostId, u32>,
    /// Cluster and name of each host of services, with its number.
    named_hosts: Vec<(String, String, u32)>,
    /// Services of each cluster.
    services_by_cluster: HashMap<String, Vec<u16>>,
    /// Share of the table that each host has, in percent, by service.
    shares: HashMap<String, HashMap<u32, f64>>,
    reachable: HashSet<u32>,
    hooks: Vec<AttachedHook>,
    /// Interfaces that could not get a program, with the reason.
    unattached: Vec<String>,
    /// Reason why the programs are not loaded.
    load_error: Option<String>,
    /// Reason why the shield differs from the configuration.
    shield_error: Option<String>,
    /// Reason why services differ from the configuration.
    services_error: Option<String>,
    problems: Vec<String>,
    guards: GuardsView,
}

/// A service as the API shows it.
#[derive(Debug, Serialize)]
pub struct ServiceView {
    pub name: String,
    pub protocol: &'static str,
    pub listen: Vec<String>,
    pub cluster: String,
    /// Application, `NAMESPACE/APP`, whose endpoints the service exposes.
    pub application: Option<String>,
    pub mode: signalbox_core::model::services::Mode,
    pub affinity: signalbox_core::model::services::Affinity,
    /// Number of connections and sessions that both sides have confirmed.
    pub flows: u32,
    pub flows_total: u64,
    pub packets_in: u64,
    pub packets_out: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub hosts: Vec<HostView>,
}

/// A host of a service.
#[derive(Debug, Serialize)]
pub struct HostView {
    pub name: String,
    pub address: std::net::IpAddr,
    /// Port of the host, where it differs from the one listened on.
    pub port: Option<u16>,
    /// Share of the table's slots that lead to the host now, in percent.
    pub share: f64,
    pub flows: u32,
    /// True if the host's Ethernet address is known.
    pub reachable: bool,
}

/// A flow as the API shows it.
#[derive(Debug, Serialize)]
pub struct ServiceFlowView {
    pub service: String,
    pub client: std::net::SocketAddr,
    pub listen: std::net::SocketAddr,
    pub host: std::net::IpAddr,
    pub protocol: &'static str,
    pub packets_in: u32,
    pub bytes_in: u64,
    pub idle_seconds: f64,
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
        services
            .threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(threads);
        Ok(services)
    }

    /// Attaches our programs again, because a successor that may have attached its own has failed.
    pub fn reattach(&self) {
        {
            let mut told = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
            told.reattach = true;
            told.settle_requested += 1;
        }
        self.wake.notify_one();
    }

    /// Wakes the thread for a new snapshot.
    pub fn changed(&self) {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).changed = true;
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
                let told = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
                let waits = |told: &mut ReconcileRequests| {
                    !told.changed && !told.is_ending && told.settle_requested == told.settle_done
                };
                let (mut told, _) = self
                    .wake
                    .wait_timeout_while(told, REFRESH_INTERVAL, waits)
                    .unwrap_or_else(PoisonError::into_inner);
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
                self.requests.lock().unwrap_or_else(PoisonError::into_inner).settle_done = asked;
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
        let layer4 = &snapshot.model.layer4;
        if (look || !work.is_applied) && work.guards.refresh_files(&snapshot) {
            work.is_applied = false;
        }
        if work.kernel.is_none() && !work.load(&snapshot) {
            let troubles: Vec<String> = work.error.iter().cloned().collect();
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
        if carries_nothing && work.load_programs(&snapshot, true) {
            // The loaded programs have only the part that an earlier configuration needed.
            return self.reconcile(work, look);
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
            let configured = work.next_hops.write_config(&kernel, layer4);
            numbered = configured.and_then(|()| work.tables.number_hosts(&snapshot.model));
        }
        // Next hops come before the tables that lead to them, and whatever error the tables have.
        let refreshed = work.next_hops.refresh(&kernel, &mut work.tables, layer4, look);
        if !work.is_applied {
            done = numbered.and_then(|trouble| work.tables.apply(&kernel, &snapshot, trouble));
            work.services_error = done.as_ref().err().map(|error| crate::sys::error_chain(error));
            // An error of services must not leave anything unguarded.
            let guarded = work.guards.apply(&kernel, &snapshot, self.shared.seed);
            if matches!(guarded, Ok(false)) && work.reload_larger(&snapshot) {
                return self.reconcile(work, look);
            }
            work.shield_is_up |= matches!(guarded, Ok(true));
            work.shield_error = match &guarded {
                Ok(true) => None,
                Ok(false) => Some(ServicesError::NoRoom.to_string()),
                Err(error) => Some(crate::sys::error_chain(error)),
            };
            let guarded = guarded.and_then(|has_room| if has_room { Ok(()) } else { Err(ServicesError::NoRoom) });
            done = done.and(guarded);
            (work.service_hosts, work.drain_timeouts) = work.tables.service_hosts(&snapshot);
            work.is_applied = done.is_ok();
        }
        done = done.and(refreshed);
        if look {
            work.guards.recheck_local(&kernel);
            // Only with filled maps: programs with empty ones must not replace others.
            if work.shield_is_up {
                kernel.attach(layer4.hook);
            }
            work.tables.forget_hosts(&kernel, &counts);
        }
        let hooks = kernel.hooks();
        let (on, refused) = (hooks.attached(), hooks.refused());
        drop(hooks);
        let closing = work.expired(&snapshot, &counts);
        let limited = guard_view::limited_guards(&work.guards, &work.tables, &snapshot);
        self.sweeper.set_request(&kernel, closing, limited);
        let writing = |source| ServicesError::Map {
            what: "this machine's Ethernet addresses",
            source,
        };
        let error = done.and_then(|()| macs.map_err(writing)).err();
        let mut error = error.map(|error| crate::sys::error_chain(&error));
        if carries_nothing {
            // The reason why the other part could not be loaded remains the error.
            error = error.or_else(|| work.error.clone());
        }
        if error != work.error {
            match &error {
                Some(error) => tracing::error!(error, "Layer-4 services or the shield are not in force as configured."),
                None => tracing::info!("Layer-4 services and the shield are in force as configured."),
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
        let shares =
            |service: &signalbox_core::model::Service| (service.name.clone(), work.tables.shares(&snapshot, service));
        self.view.store(Arc::new(ServicesView {
            kernel: Some(kernel),
            services: work.tables.service_numbers().clone(),
            hosts: work.tables.numbers().collect(),
            named_hosts: work.tables.named_hosts().to_vec(),
            services_by_cluster: work.tables.services_of_clusters(&snapshot),
            shares: snapshot.model.services.iter().map(shares).collect(),
            reachable: work.tables.reachable(),
            hooks: on,
            unattached: refused,
            shield_error: work.shield_error.clone(),
            services_error: work.services_error.clone(),
            load_error: None,
            problems: troubles.collect(),
            guards: GuardsView::new(&work.guards, &snapshot.model),
        }));
    }

    /// Returns the flows of the hosts that the subjects cover, by host. Where flows have not been counted since
    /// `since` (Unix time in milliseconds), a host counts as having at least one.
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

    /// Closes the flows of the hosts that the subjects cover.
    pub fn close(&self, subjects: &[Subject]) {
        let covered = self.view.load().covered_hosts(subjects);
        self.sweeper.close(covered.into_iter().flat_map(|(_, pairs)| pairs));
    }

    /// Ends the threads and leaves the maps to another process.
    pub fn retire(&self) {
        self.end(false);
    }

    fn end(&self, withdraw: bool) {
        {
            let mut told = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
            told.withdraw = withdraw && !told.is_ending;
            told.is_ending = true;
        }
        self.wake.notify_one();
        self.settled.notify_all();
        self.sweeper.end();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let _ = thread.join();
        }
    }

    /// Ends the threads and removes all services. Established flows go on without the process, until `signalbox
    /// detach`.
    pub fn stop(&self) {
        self.end(true);
        let Some(kernel) = self.view.load().kernel.clone() else {
            return;
        };
        let live = sweep::sweep(&kernel, &guard_view::LimitedGuards::default(), |_| false, &|| false)
            .map_or(0, |counts| counts.pairs.values().sum::<u32>());
        if live > 0 {
            tracing::info!(
                flows = live,
                "Flows of services go on without us; `signalbox detach` would end them."
            );
        } else if kernel.pins.is_locked()
            && let Err(error) = kernel.remove_all()
        {
            tracing::warn!(%error, "Pinned programs and maps of services could not be removed.");
        }
    }

    /// Returns the interfaces and hooks that the programs are attached to.
    #[must_use]
    pub fn hooks(&self) -> Vec<AttachedHook> {
        self.view.load().hooks.clone()
    }

    /// Returns what is not as configured, in words.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        self.view.load().problems.clone()
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

    /// Returns all services.
    #[must_use]
    pub fn list(&self) -> Vec<ServiceView> {
        let snapshot = self.shared.snapshot.load_full();
        let (picture, counts) = (self.view.load(), self.sweeper.counts());
        let mut established: HashMap<u16, u32> = HashMap::new();
        for ((service, _), count) in &counts.established {
            *established.entry(*service).or_default() += count;
        }
        let all = snapshot.model.services.iter().map(|service| {
            let number = picture.services.get(&service.name).copied();
            let stats = match (&picture.kernel, number) {
                (Some(kernel), Some(number)) => kernel.service_stats(number),
                _ => ServiceStats::default(),
            };
            let cluster = snapshot.model.clusters.get(service.cluster);
            let shares = picture.shares.get(&service.name);
            let hosts = cluster.into_iter().flat_map(|cluster| &cluster.hosts).map(|host| {
                let at = cluster.and_then(|cluster| picture.hosts.get(&HostId::of(cluster, host)).copied());
                let of = |pair| counts.pairs.get(&pair).copied().unwrap_or(0);
                HostView {
                    name: host.name.clone(),
                    address: host.address,
                    port: host.ports.get(&service.name).copied(),
                    share: at.and_then(|at| shares?.get(&at).copied()).unwrap_or(0.0),
                    flows: number.zip(at).map_or(0, of),
                    reachable: at.is_some_and(|at| picture.reachable.contains(&at)),
                }
            });
            ServiceView {
                name: service.name.clone(),
                protocol: protocol(u32::from(service.protocol.number())),
                listen: service.listen.iter().map(ToString::to_string).collect(),
                cluster: cluster.map(|cluster| cluster.name.clone()).unwrap_or_default(),
                application: cluster.and_then(|cluster| cluster.application_name().map(str::to_owned)),
                mode: service.mode,
                affinity: service.affinity,
                flows: number.and_then(|number| established.get(&number).copied()).unwrap_or(0),
                flows_total: stats.flows,
                packets_in: stats.packets_in,
                packets_out: stats.packets_out,
                bytes_in: stats.bytes_in,
                bytes_out: stats.bytes_out,
                hosts: hosts.collect(),
            }
        });
        all.collect()
    }

    /// Returns some of the established flows, of one service or of all.
    #[must_use]
    pub fn flows(&self, service: Option<&str>, most: usize) -> Vec<ServiceFlowView> {
        let picture = self.view.load_full();
        let Some(kernel) = &picture.kernel else {
            return Vec::new();
        };
        let names: HashMap<u16, &String> = picture.services.iter().map(|(name, number)| (*number, name)).collect();
        let mut all = Vec::new();
        let _ = Kernel::for_each_flow(&kernel.established, |key: &Key, flow: &L4Flow| {
            let name = names.get(&flow.service).map_or("", |name| name.as_str());
            let is_wanted = service.is_none_or(|wanted| wanted == name);
            if all.len() < most && is_wanted && !sweep::is_reply(flow) {
                all.push(sweep::view(key, flow, name.to_owned(), kernel));
            }
        });
        all
    }
}

/// Returns the parts of the programs that a configuration needs: both where it needs neither, for flows of an earlier
/// process.
fn parts_needed(model: &signalbox_core::model::Model) -> u32 {
    match (guards::policies(model).next().is_some(), !model.has_services()) {
        (true, true) => parts::SHIELD,
        (false, false) => parts::SERVICES,
        _ => parts::SHIELD | parts::SERVICES,
    }
}

fn protocol(number: u32) -> &'static str {
    if number == 6 { "tcp" } else { "udp" }
}

impl ServicesView {
    /// Returns the hosts that the subjects cover, each with the services that send to it for its cluster: another
    /// cluster may have the same machine.
    fn covered_hosts(&self, subjects: &[Subject]) -> Vec<(String, Vec<ServiceHostPair>)> {
        let all = self.named_hosts.iter();
        let covered = all.filter(|(cluster, host, _)| covers(subjects, cluster, host, None));
        covered
            .map(|(cluster, host, number)| {
                let services = self.services_by_cluster.get(cluster).into_iter().flatten();
                let pairs = services.map(|service| (*service, *number)).collect();
                (format!("{cluster}/{host}"), pairs)
            })
            .collect()
    }
}

impl Reconciler {
    /// Loads the programs, where there are services, or where an earlier process has left some. Returns whether they
    /// are loaded.
    fn load(&mut self, snapshot: &crate::state::Snapshot) -> bool {
        let is_shielded = guards::policies(&snapshot.model).next().is_some();
        if !snapshot.model.has_services() && !is_shielded && !crate::kernel::l4::is_pinned() {
            return false;
        }
        self.load_programs(snapshot, self.take_over)
    }

    /// Replaces the programs by new ones with larger maps; on failure the old ones stay. Returns whether they were
    /// replaced.
    fn reload_larger(&mut self, snapshot: &crate::state::Snapshot) -> bool {
        let made = self.load_programs(snapshot, true);
        if made {
            tracing::info!("There was no room for so many prefixes or sources: the shield's maps are made anew.");
        }
        made
    }

    fn load_programs(&mut self, snapshot: &crate::state::Snapshot, take_over: bool) -> bool {
        let hook = snapshot.model.layer4.hook;
        let is_shielded = guards::policies(&snapshot.model).next().is_some();
        let needed = parts_needed(&snapshot.model);
        let is_too_early = self.last_load.is_some_and(|then| then.elapsed() < RELOAD_INTERVAL);
        if is_too_early || self.refused_for == Some((hook, needed)) {
            return false;
        }
        self.last_load = Some(Instant::now());
        let size = MapSizes {
            flows: snapshot.model.layer4.flows,
            sources: if is_shielded { snapshot.model.shield.sources } else { 4 },
            nodes: self.guards.nodes_needed(snapshot),
        };
        tracing::debug!("Loading the programs of layer 4.");
        match Kernel::load(size, hook, needed, take_over) {
            Ok(kernel) => {
                self.last_load = None;
                for (part, what) in [(parts::SERVICES, "services"), (parts::SHIELD, "shield")] {
                    if kernel.missing & part != 0 {
                        tracing::error!(
                            what,
                            "The kernel refuses a part of the layer-4 programs; the rest is in force."
                        );
                    }
                }
                self.tables = Tables::of(&kernel);
                self.next_hops = NextHops::of(&kernel);
                self.macs = Macs::default();
                self.guards.reset();
                self.shield_is_up = false;
                self.kernel = Some(Arc::new(kernel));
                self.error = None;
                self.is_applied = false;
                true
            }
            Err(error) => {
                // A permanent refusal is not tried again: only another hook or part makes another program.
                self.refused_for = error.is_permanent().then_some((hook, needed));
                let error = crate::sys::error_chain(&error);
                if self.error.as_ref() != Some(&error) {
                    tracing::error!(error, "Neither layer-4 services nor the shield could be loaded.");
                    self.error = Some(error);
                }
                false
            }
        }
    }

    fn withdraw(&mut self) {
        if let Some(kernel) = &self.kernel
            && let Err(error) = self.tables.withdraw(kernel)
        {
            tracing::warn!(
                error = crate::sys::error_chain(&error),
                "Services could not be withdrawn."
            );
        }
    }

    /// Returns services and hosts whose flows are to be closed: hosts that have been unhealthy, or no longer
    /// configured, for long enough. Flows of hosts out of rotation are left to the rotation's job.
    fn expired(&mut self, snapshot: &crate::state::Snapshot, counts: &FlowCounts) -> HashSet<ServiceHostPair> {
        let longest = snapshot.model.clusters.iter().filter_map(|cluster| cluster.drain).max();
        let longest = longest.unwrap_or_default().max(snapshot.model.timeouts.drain);
        let known = &self.service_hosts;
        let gone = counts
            .pairs
            .keys()
            .filter(|pair| !known.contains(*pair))
            .map(|pair| (*pair, longest));
        let limits = self.drain_timeouts.iter().map(|(pair, limit)| (*pair, *limit));
        let out: HashMap<ServiceHostPair, Duration> = limits.chain(gone).collect();
        self.out_since.retain(|pair, _| out.contains_key(pair));
        let is_over = |(pair, limit): (&ServiceHostPair, &Duration)| {
            let since = self.out_since.entry(*pair).or_insert_with(Instant::now);
            (since.elapsed() >= *limit).then_some(*pair)
        };
        out.iter().filter_map(is_over).collect()
    }
}
