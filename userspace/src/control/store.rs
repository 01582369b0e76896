//! The store: one task that owns the configuration and the state of every host, and publishes snapshots.
//!
//! Every change arrives as a [`StoreEvent`], in order. The results are a new snapshot for the workers, and the
//! listening addresses for the [`ListenerSet`]. A change is applied completely or refused.

mod discovery;
mod exposure;
mod file_problems;
mod heard;
mod hosts;
mod merge_schedule;
mod name_ages;
mod named_files;
mod own_listener;
pub mod persistent_state;
mod prefixes;
mod publish;
mod rotation;
mod states;
mod tls;

pub use file_problems::{FileProblem, file_problems};

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use signalbox_api::changes::ChangeEvent;
use signalbox_core::discovered::expose::ExposeResult;
use signalbox_core::discovered::merge::TesterOverrides;
use signalbox_core::model::{HighAvailability, Model};
use signalbox_core::routing::subset::{HostOrder, host_orders};
use tokio::sync::mpsc;

use crate::compat::routing_spi::PendingRotation;
use crate::control::event::{Applied, Configuration, StoreEvent};
use crate::control::listener_set::{ListenerSet, PreparedSockets};
use crate::control::routing::CurrentSource;
use crate::control::state_db::StateDbError;
use crate::control::watchers::Watchers;
use crate::datapath::accept::StopMode;
use crate::datapath::report::Report;
use crate::kernel::steer::SteerError;
use crate::reconcile::l4::Services;
use crate::state::Shared;

use merge_schedule::MergeSchedule;
use persistent_state::PersistentState;
use states::LastingStates;

/// Time that listeners wait for the shield in front of them while the kernel has neither accepted nor refused its
/// programs. Verifying them takes some 100 ms; on an emulated CPU under load, more than a minute.
const SHIELD_TIMEOUT: Duration = Duration::from_secs(600);

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
    merge: MergeSchedule,
    /// Testers of migrations: of this balancer's own, and of those that it follows.
    testers: Arc<TesterOverrides>,
    active: ActiveModel,
    states: LastingStates,
    /// Name of the machine.
    machine: String,
    /// Number of listening addresses; `None` until the first configuration is active.
    addresses: Option<usize>,
    needs_publish: bool,
    started: Instant,
}

/// The model that is active, and what was made with it.
struct ActiveModel {
    model: Arc<Model>,
    exposure: Arc<ExposeResult>,
    subsets: Arc<[Option<HostOrder>]>,
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
            merge: MergeSchedule::new(),
            testers: Arc::default(),
            active: ActiveModel {
                model,
                exposure: Arc::default(),
                subsets: Arc::default(),
            },
            states: LastingStates::default(),
            machine: crate::sys::host_name(),
            addresses: None,
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
            let due = self.merge.due();
            tokio::select! {
                event = inbox.recv() => match event {
                    Some(event) => self.handle(event).await,
                    None => return,
                },
                Some(report) = reports.recv() => self.reported(report),
                _ = tick.tick() => self.expire(),
                () = tokio::time::sleep_until(due.into()), if self.merge.is_needed() => {}
            }
            // Pending events are handled together: many check results lead to one snapshot.
            while let Ok(event) = inbox.try_recv() {
                self.handle(event).await;
            }
            while let Ok(report) = reports.try_recv() {
                self.reported(report);
            }
            if self.merge.is_needed() {
                self.shared.applied.waiting.begin();
            }
            if self.merge.is_due() {
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
            self.merge.request();
            self.needs_publish = true;
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
                self.states.draining.push(host);
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
        self.needs_publish |= self.states.forget_drained();
    }

    /// Applies a configuration, or changes nothing.
    pub(crate) fn apply(&mut self, model: Model) -> Result<Applied, String> {
        // Sources do not change the addresses, which then need no preparation.
        let prepared = if model.listeners == self.active.model.listeners && self.addresses.is_some() {
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
        if model.admin != self.active.model.admin {
            tracing::warn!(
                "The admin address and socket are read at the start only: restart, or take over, to move them."
            );
        }
        if needs_restart(self.active.model.ha.as_ref(), model.ha.as_ref()) {
            tracing::warn!(
                "`nodes`, `node`, `interface` and `sync` of `ha` are read at the start only: restart, or take over, on one node after the other."
            );
        }
        let before = Arc::clone(&self.active.model);
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
        self.active.model = model;
        let mut applied = Applied {
            routes: self.active.model.routes.len(),
            ..Applied::default()
        };
        self.reconcile_hosts(&mut applied);
        self.active.subsets = host_orders(&self.active.model, &self.machine).into();
        let model = Arc::clone(&self.active.model);
        let shared = Arc::clone(&self.shared);
        let hold = shared.route_labels.lock_changes();
        self.states.keep(&model, &shared);
        self.publish();
        self.shared.log.configure(self.active.model.access_log.as_ref());
        drop(hold);
        let ids: Vec<_> = model
            .listeners
            .iter()
            .map(|l| self.states.listeners.get(&l.name).map_or(0, |state| state.id))
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
            self.addresses = Some(self.listener_set.commit(&self.active.model, &ids, prepared)?);
        }
        applied.addresses = self.addresses.unwrap_or_default();
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
