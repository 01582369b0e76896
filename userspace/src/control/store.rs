//! The store: one task that owns the configuration and the state of every host, and publishes snapshots.
//!
//! Every change arrives as a [`StoreEvent`], in order. The results are a new snapshot for the workers, and the
//! listening addresses for the [`ListenerSet`]. A change is applied completely or refused.

mod discovery;
mod exposure;
mod file_problems;
mod heard;
mod hosts;
mod name_ages;
mod named_files;
mod own_listener;
pub mod persistent_state;
mod prefixes;
mod publish;
mod rotation;
mod routes;
mod tls;

pub use file_problems::{FileProblem, file_problems};

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;
use signalbox_api::changes::ChangeEvent;
use signalbox_core::discovered::expose::ExposeResult;
use signalbox_core::discovered::merge::TesterOverrides;
use signalbox_core::limits::stats::Counter;
use signalbox_core::model::{HighAvailability, Model, PathRoute};
use signalbox_core::routing::subset::{HostOrder, host_orders};
use signalbox_core::wire::hostname::HostnamePattern;
use tokio::sync::{mpsc, oneshot};

use crate::control::event::{Applied, Configuration, StoreEvent};
use crate::control::listener_set::{ListenerSet, PreparedSockets};
use crate::control::routing::CurrentSource;
use crate::control::state_db::StateDbError;
use crate::control::watchers::Watchers;
use crate::datapath::accept::StopMode;
use crate::datapath::report::Report;
use crate::kernel::steer::SteerError;
use crate::reconcile::l4::Services;
use crate::source::routing_spi::PendingRotation;
use crate::state::{ClusterState, HostQueue, HostState, ListenerState, RouteState, Shared};

use hosts::{HostEntry, HostKey};
use persistent_state::PersistentState;

/// Time that listeners wait for the shield in front of them while the kernel has neither accepted nor refused its
/// programs. Verifying them takes some 100 ms; on an emulated CPU under load, more than a minute.
const SHIELD_TIMEOUT: Duration = Duration::from_secs(600);

/// Minimum interval at which a new model is made from the sources' reports.
const MERGE_INTERVAL: Duration = Duration::from_millis(20);

pub struct Store {
    shared: Arc<Shared>,
    listener_set: ListenerSet,
    events: mpsc::UnboundedSender<StoreEvent>,
    /// Model of the configuration file alone.
    file: Arc<Model>,
    persistent: PersistentState,
    last_contact: heard::LastContact,
    services: Arc<Services>,
    watchers: Watchers,
    tls: tls::TlsSetup,
    named_files: named_files::NamedFiles,
    /// Answers that sources get when their reports are in the next model.
    discovery_replies: Vec<oneshot::Sender<Result<(), String>>>,
    needs_rebuild: bool,
    rebuilt_at: Instant,
    /// Testers of migrations: of this balancer's own, and of those that it follows.
    testers: Arc<TesterOverrides>,
    /// The active model.
    model: Arc<Model>,
    exposure: Arc<ExposeResult>,
    hosts: HashMap<HostKey, HostEntry>,
    clusters: HashMap<String, Arc<ClusterState>>,
    routes: HashMap<HostnamePattern, Arc<RouteState>, FixedState>,
    /// Counters of choices, for each path of a route.
    path_tickets: HashMap<(HostnamePattern, String), Arc<Counter>>,
    listeners: HashMap<String, Arc<ListenerState>>,
    draining: Vec<Arc<HostState>>,
    subsets: Arc<[Option<HostOrder>]>,
    /// Name of the machine.
    machine: String,
    /// Number of listening addresses, once a configuration is active.
    addresses: usize,
    is_listening: bool,
    needs_publish: bool,
    started: Instant,
}

impl Store {
    pub fn new(
        shared: Arc<Shared>,
        listener_set: ListenerSet,
        memory: PersistentState,
        routing: CurrentSource,
        services: Arc<Services>,
        events: mpsc::UnboundedSender<StoreEvent>,
    ) -> Self {
        let model = Arc::clone(&shared.snapshot.load().model);
        let tls = tls::TlsSetup::new(Arc::clone(&shared));
        let watchers = Watchers::new(Arc::clone(&shared), Arc::clone(&memory.db), routing, events.clone());
        Self {
            shared,
            listener_set,
            events,
            file: Arc::clone(&model),
            persistent: memory,
            last_contact: heard::LastContact::default(),
            services,
            watchers,
            tls,
            named_files: named_files::NamedFiles::default(),
            discovery_replies: Vec::new(),
            needs_rebuild: false,
            rebuilt_at: Instant::now(),
            testers: Arc::default(),
            model,
            exposure: Arc::default(),
            hosts: HashMap::new(),
            clusters: HashMap::new(),
            routes: HashMap::default(),
            path_tickets: HashMap::new(),
            listeners: HashMap::new(),
            draining: Vec::new(),
            subsets: Arc::default(),
            machine: crate::sys::host_name(),
            addresses: 0,
            is_listening: false,
            needs_publish: false,
            started: Instant::now(),
        }
    }

    /// Handles events until no sender is left.
    pub async fn run(
        mut self,
        mut inbox: mpsc::UnboundedReceiver<StoreEvent>,
        mut reports: mpsc::UnboundedReceiver<Report>,
    ) {
        let mut tick = tokio::time::interval(Duration::from_millis(500));
        loop {
            let due = self.rebuilt_at + MERGE_INTERVAL;
            tokio::select! {
                event = inbox.recv() => match event {
                    Some(event) => self.handle(event).await,
                    None => return,
                },
                Some(report) = reports.recv() => self.reported(report),
                _ = tick.tick() => self.expire(),
                () = tokio::time::sleep_until(due.into()), if self.needs_rebuild => {}
            }
            // Pending events are handled together: many check results lead to one snapshot.
            while let Ok(event) = inbox.try_recv() {
                self.handle(event).await;
            }
            while let Ok(report) = reports.try_recv() {
                self.reported(report);
            }
            if self.needs_rebuild {
                self.shared.applied.waiting.begin();
            }
            if self.needs_rebuild && Instant::now() >= self.rebuilt_at + MERGE_INTERVAL {
                self.rebuild_and_reply();
            }
            if std::mem::take(&mut self.needs_publish) {
                self.publish();
            }
        }
    }

    /// Reads the state that could not be read at the start, as soon as that is possible.
    fn ensure_restored(&mut self) -> Result<(), StateDbError> {
        if tokio::task::block_in_place(|| self.persistent.restore())? {
            tracing::info!("The state of an earlier process has been read now.");
            (self.needs_rebuild, self.needs_publish) = (true, true);
        }
        Ok(())
    }

    /// Handles a report of the datapath.
    fn reported(&mut self, report: Report) {
        match report {
            Report::Connected(host) => {
                host.set_tls_fault(None);
                if let Some(entry) = self.entry(&host) {
                    entry.ejection_record.record_success();
                }
            }
            Report::ConnectFailed(host, error) => self.connect_failed(&host, &error),
            Report::TlsFailed(host, fault) => self.tls_failed(&host, fault),
            Report::Silent(host) => self.recheck(&host),
            Report::HostAdopted(host) => {
                self.draining.push(host);
                self.needs_publish = true;
            }
        }
    }

    async fn handle(&mut self, event: StoreEvent) {
        match event {
            StoreEvent::Checked(host, result) => self.checked(&host, result),
            StoreEvent::Apply(configuration, reply) => {
                let Configuration {
                    model,
                    origin: source,
                    config_override: instead,
                } = *configuration;
                let outcome = self.configure(model, instead);
                self.shared
                    .applied
                    .reloads
                    .record(&source, outcome.as_ref().err().cloned());
                match &outcome {
                    Ok(applied) => tracing::info!(
                        source,
                        hosts_added = applied.hosts_added,
                        hosts_removed = applied.hosts_removed,
                        routes = applied.routes,
                        addresses = applied.addresses,
                        "Configuration applied."
                    ),
                    Err(error) => {
                        tracing::error!(source, error, "Configuration refused: the current one stays active.");
                    }
                }
                self.shared.announce(ChangeEvent::Configuration {
                    source,
                    ok: outcome.is_ok(),
                    error: outcome.as_ref().err().cloned(),
                });
                let _ = reply.send(outcome);
            }
            StoreEvent::SetWeights(set, reply) => {
                let outcome = self.set_weights(&set);
                if outcome.is_ok() {
                    for (host, weights) in &set {
                        self.shared.announce(ChangeEvent::Weights {
                            route: host.clone(),
                            weights: weights.clone(),
                        });
                        let all: Vec<_> = weights
                            .iter()
                            .flatten()
                            .map(|(name, weight)| format!("{name}={weight}"))
                            .collect();
                        tracing::info!(route = host, weights = all.join(" "), "Weights changed.");
                    }
                }
                let _ = reply.send(outcome);
            }
            StoreEvent::SetTesters(testers, reply) => {
                let _ = reply.send(self.set_testers(testers));
            }
            StoreEvent::SetPrefixes(name, change, reply) => {
                let outcome = self.set_prefixes(&name, change);
                if let Ok(prefixes) = &outcome {
                    let (denied, allowed) = (prefixes.deny.len(), prefixes.allow.len());
                    tracing::info!(name, denied, allowed, "Prefixes of the shield changed.");
                    self.shared.announce(ChangeEvent::Prefixes { name, denied, allowed });
                    // Published before the answer, so that the caller can rely on it.
                    self.publish();
                }
                let _ = reply.send(outcome);
            }
            StoreEvent::Discovery(learnt) => self.apply_discovery(learnt),
            StoreEvent::SharedRecords(records) => self.adopt_shared(records),
            StoreEvent::Rotate(request, reply) => {
                let _ = reply.send(self.rotate(request));
            }
            StoreEvent::SourceRotation(PendingRotation { request: what, done }) => {
                let outcome = self.rotate_for_source(what).map_err(|error| error.to_string());
                // A caller that has stopped waiting is no error: the broker delivers the event again.
                let _ = done.send(outcome);
            }
            StoreEvent::CancelRotation(id, reply) => {
                let _ = reply.send(self.cancel(id));
            }
            StoreEvent::JobChanged(id) => {
                self.persistent.job_changed(id);
                if let Some(job) = self.persistent.jobs.get(id) {
                    self.shared.announce(ChangeEvent::Job {
                        id,
                        progress: job.progress,
                        closed_connections: job.closed,
                    });
                }
            }
            StoreEvent::MigrationChanged(id, reply) => {
                let outcome = self
                    .ensure_restored()
                    .and_then(|()| self.persistent.migration_changed(id));
                if let Some(migration) = self.persistent.migrations.get(id) {
                    self.shared.announce(ChangeEvent::Migration {
                        id,
                        state: migration.state,
                        percent: migration.percent(),
                        reason: migration.reason.clone(),
                    });
                }
                let _ = reply.send(outcome.map_err(|error| crate::sys::error_chain(&error)));
            }
            StoreEvent::StopListening(how, done) => {
                self.listener_set.stop(how).await;
                let _ = done.send(());
            }
            StoreEvent::DuplicateSockets(reply) => {
                let _ = reply.send(self.listener_set.duplicates());
            }
            StoreEvent::HandOver(reply) => {
                self.shared.life.is_being_replaced.store(true, Relaxed);
                // Closed first: the successor reads the database before it serves.
                self.watchers.release_ledger();
                self.persistent.db.release();
                let _ = reply.send(self.listener_set.offer());
            }
            StoreEvent::HandOverFailed => {
                self.shared.life.is_being_replaced.store(false, Relaxed);
                self.services.reattach();
            }
            StoreEvent::HandedOver(done) => {
                // Sources, records and jobs now belong to the successor. The flows of this process end with the process
                // at the latest.
                self.watchers.stop();
                self.persistent.db.give_up();
                self.persistent.jobs.hand_over();
                self.persistent.migrations.hand_over();
                let services = Arc::clone(&self.services);
                tokio::task::block_in_place(|| services.retire());
                self.listener_set.stop(StopMode::HandOver).await;
                let _ = done.send(());
            }
        }
    }

    /// Performs the timed work: ends ejections, retries and saves.
    fn expire(&mut self) {
        self.end_ejections();
        self.follow_named_files();
        // The error is ignored here: it is logged at the start, and every change reports it.
        let _ = self.ensure_restored();
        self.persistent.save();
        tokio::task::block_in_place(|| self.last_contact.save_and_restore(&self.persistent, &self.shared));
        tokio::task::block_in_place(|| self.watchers.retry());
        let before = self.draining.len();
        self.draining.retain(|host| host.active.get() > 0);
        self.needs_publish |= self.draining.len() != before;
    }

    /// Applies a configuration, or changes nothing.
    pub(crate) fn apply(&mut self, model: Model) -> Result<Applied, String> {
        // Sources do not change the addresses, which then need no preparation.
        let prepared = if model.listeners == self.model.listeners && self.is_listening {
            None
        } else {
            Some(self.listener_set.prepare(&model).map_err(|errors| {
                errors
                    .iter()
                    .map(|error| crate::sys::error_chain(error))
                    .collect::<Vec<_>>()
                    .join("\n")
            })?)
        };
        if model.admin != self.model.admin {
            tracing::warn!(
                "The admin address and socket are read at the start only: restart, or take over, to move them."
            );
        }
        if needs_restart(self.model.ha.as_ref(), model.ha.as_ref()) {
            tracing::warn!(
                "`nodes`, `node`, `interface` and `sync` of `ha` are read at the start only: restart, or take over, on one node after the other."
            );
        }
        let before = Arc::clone(&self.model);
        self.install_model(Arc::new(model), prepared).map_err(|error| {
            // The kernel did not accept everything: restore the previous model, whose addresses are still open.
            if let Err(again) = self.install_model(before, Some(PreparedSockets::default())) {
                tracing::error!(
                    error = crate::sys::error_chain(&again),
                    "The previous configuration could not be restored whole."
                );
            }
            crate::sys::error_chain(&error)
        })
    }

    fn install_model(&mut self, model: Arc<Model>, prepared: Option<PreparedSockets>) -> Result<Applied, SteerError> {
        self.model = model;
        let mut applied = Applied {
            routes: self.model.routes.len(),
            ..Applied::default()
        };
        self.reconcile_hosts(&mut applied);
        self.subsets = host_orders(&self.model, &self.machine).into();
        let (model, counts) = (Arc::clone(&self.model), self.shared.limits.words);
        retain_states(
            &mut self.clusters,
            model.clusters.iter().map(|c| c.name.clone()),
            |name| ClusterState {
                name: name.to_owned(),
                queue: HostQueue::counted_by(counts.gauge()),
                ..ClusterState::default()
            },
        );
        let shared = Arc::clone(&self.shared);
        let hold = shared.route_labels.lock_changes();
        self.keep_routes();
        let paths = model.routes.iter().flat_map(|route| {
            let path = |path: &PathRoute| (route.hostname.clone(), path.path.clone());
            route.paths.iter().map(path)
        });
        retain_states(&mut self.path_tickets, paths, |_| Counter::default());
        let taken: Vec<u32> = self.listeners.values().map(|listener| listener.id).collect();
        let mut free = (0..).filter(|id| !taken.contains(id));
        retain_states(
            &mut self.listeners,
            model.listeners.iter().map(|l| l.name.clone()),
            |name| ListenerState {
                name: name.to_owned(),
                id: free.next().unwrap_or_default(),
                ..ListenerState::default()
            },
        );
        self.publish();
        self.shared.log.configure(self.model.connection_log.as_ref());
        drop(hold);
        let ids: Vec<_> = model
            .listeners
            .iter()
            .map(|l| self.listeners.get(&l.name).map_or(0, |state| state.id))
            .collect();
        if let Some(prepared) = prepared {
            // The shield comes first, even at the start: a denied client must not find an unguarded listener.
            if model.listeners.iter().any(|listener| listener.shield.is_some()) {
                let is_settled = tokio::task::block_in_place(|| self.services.wait_until_settled(SHIELD_TIMEOUT));
                if !is_settled {
                    tracing::error!(
                        waited_s = SHIELD_TIMEOUT.as_secs(),
                        "The shield is neither active nor refused: listeners open without it."
                    );
                }
            }
            self.addresses = self.listener_set.commit(&self.model, &ids, prepared)?;
            self.is_listening = true;
        }
        applied.addresses = self.addresses;
        Ok(applied)
    }
}

/// Whether the settings that replication and the division of ports read at the start have changed.
fn needs_restart(before: Option<&HighAvailability>, now: Option<&HighAvailability>) -> bool {
    match (before, now) {
        (Some(before), Some(now)) => {
            (&before.nodes, &before.node, &before.interface, &before.sync)
                != (&now.nodes, &now.node, &now.interface, &now.sync)
        }
        (before, now) => before.is_some() != now.is_some(),
    }
}

/// Keeps the states of names that stay, makes those of new names, and forgets the rest.
fn retain_states<K: Eq + Hash, T, S: BuildHasher + Default>(
    states: &mut HashMap<K, Arc<T>, S>,
    names: impl Iterator<Item = K>,
    mut make: impl FnMut(&K) -> T,
) {
    let mut before = std::mem::take(states);
    for name in names {
        let state = before.remove(&name).unwrap_or_else(|| Arc::new(make(&name)));
        states.insert(name, state);
    }
}
