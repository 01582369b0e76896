//! Runs migrations: applies the weights of each step, passes real traffic to the guards, and rolls back.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use signalbox_core::availability::migration::guard::{GuardKind, QualityFigures};
use signalbox_core::availability::migration::{Migration, MigrationPlan, MigrationState, Observation};
use signalbox_core::discovered::merge::{ClusterWeights, WeightOverrides};
use signalbox_core::model::{Protocol, Route};
use tokio::sync::oneshot;

use super::Control;
use super::event::StoreEvent;
use super::migration_step::{PeerReports, StepOrder, forgotten_nodes, plus_peers};
use super::migrations::WatchedMigration;
use crate::state::Snapshot;
use crate::state::route_stats::QualitySum;
use crate::sys::unix_ms;

/// Interval at which guards are evaluated. A failure is rolled back within a few intervals.
const GUARD_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum number of names whose problems an error lists.
const MAX_LISTED_PROBLEMS: usize = 20;

/// Names for a migration to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameChoice {
    /// The given names: each must be suitable.
    Given,
    /// All names of the old cluster that the new one serves too. Unsuitable ones are left out.
    AllFit,
}

/// Change of a migration, ordered by an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationOrder {
    Pause,
    Resume,
    Abort,
}

/// Whether a cluster has a host that accepts connections of any protocol.
pub(super) fn is_usable(snapshot: &Snapshot, cluster: &str) -> bool {
    let index = snapshot.model.clusters.iter().position(|known| known.name == cluster);
    index.is_some_and(|at| {
        let mut protocols = [Protocol::Http, Protocol::Tls, Protocol::Tcp].into_iter();
        protocols.any(|protocol| !snapshot.view.usable(at, protocol).is_empty())
    })
}

/// Returns why a name cannot be moved, or `None`.
fn unfit(snapshot: &Snapshot, plan: &MigrationPlan, name: &str, route: Option<&Route>) -> Option<String> {
    let (from, to) = (&plan.from, &plan.to);
    let Some(route) = route else {
        return Some(format!("there is no route {name}: `signalbox routes` lists them"));
    };
    let clusters = &snapshot.model.clusters;
    let shares = route
        .clusters
        .iter()
        .filter_map(|(at, weight)| Some((&clusters.get(*at)?.name, *weight)));
    let mut weights: BTreeMap<&String, u32> = shares.collect();
    let (old, new) = (weights.remove(from).unwrap_or(0), weights.remove(to));
    if old == 0 {
        return Some(format!(
            "{name}: {from} has no traffic of it (`signalbox explain {name}`)"
        ));
    }
    if let Some((other, weight)) = weights.into_iter().find(|(_, weight)| *weight > 0) {
        return Some(format!(
            "{name}: {other} has weight {weight}; set it to 0 first (`signalbox weight`)"
        ));
    }
    let has_from = |shares: &[(usize, u32)]| {
        shares
            .iter()
            .any(|(at, _)| clusters.get(*at).is_some_and(|c| c.name == *from))
    };
    if route.paths.iter().any(|path| has_from(&path.clusters)) {
        return Some(format!(
            "{name} has paths with weights of their own in {from}: change those in the configuration"
        ));
    }
    if new.is_none() && route.is_discovered() {
        return Some(format!("{name}: {to} does not serve it"));
    }
    let has = new.unwrap_or(0) * 100 / (old + new.unwrap_or(0));
    let first = plan.steps.first().copied().unwrap_or(100);
    (has > first).then(|| format!("{name}: {to} has {has} % already; begin with a step that is not less"))
}

/// Number of the own process in [`PeerCounts`]: its counts do not outlive it.
const OWN_PROCESS: u64 = 0;

/// Sums up the figures of names in a cluster.
pub(super) fn quality<'a>(snapshot: &Snapshot, names: impl Iterator<Item = &'a str>, cluster: &str) -> QualityFigures {
    let names: HashSet<&str> = names.collect();
    let mine = snapshot
        .routes
        .iter()
        .filter(|route| names.contains(route.hostname.as_str()));
    let mut sum = QualitySum::default();
    mine.for_each(|route| sum.add(&route.stats, cluster));
    sum.figures()
}

/// Returns the weights that differ from those of a migration and must be set. Names without a route are left out,
/// except to remove their weights.
pub(super) fn differing_weights(
    wanted: &BTreeMap<String, Option<ClusterWeights>>,
    snapshot: &Snapshot,
) -> BTreeMap<String, Option<ClusterWeights>> {
    let mut wanted = wanted.clone();
    let is_known = |name: &str| snapshot.routes.iter().any(|route| route.hostname == name);
    wanted.retain(|name, weights| {
        weights.as_ref() != snapshot.weights.get(name) && (weights.is_none() || is_known(name))
    });
    wanted
}

impl Control {
    /// Begins a migration, or with `is_tried` only returns what it would do.
    pub async fn begin_migration(
        &self,
        plan: MigrationPlan,
        names: Vec<String>,
        choice: NameChoice,
        by: String,
        is_tried: bool,
    ) -> Result<Migration, String> {
        plan.check()?;
        let snapshot = self.shared.snapshot.load_full();
        for cluster in [&plan.from, &plan.to] {
            if !snapshot.model.clusters.iter().any(|known| known.name == *cluster) {
                return Err(format!(
                    "there is no cluster {cluster}: `signalbox clusters` lists them"
                ));
            }
        }
        if !is_usable(&snapshot, &plan.to) {
            return Err(format!(
                "{} has no host that takes connections (`signalbox hosts`)",
                plan.to
            ));
        }
        let is_alone = plan.only_here;
        if let Some(why) = forgotten_nodes(&snapshot.model).filter(|_| !is_alone) {
            return Err(why);
        }
        let names = fit_names(&snapshot, &plan, names, choice)?;
        let weights: &WeightOverrides = &snapshot.weights;
        let before: BTreeMap<_, _> = names
            .into_iter()
            .map(|name| (name.clone(), weights.get(&name).cloned()))
            .collect();
        let tried = Migration::new(0, plan.clone(), before.clone(), by.clone(), unix_ms());
        if !is_alone {
            self.check_peers(&tried).await?;
        }
        if is_tried {
            return self.try_probes(tried).await;
        }
        let migration = self.migrations.begin(|id, running| {
            let busy = |name: &String| running.iter().find(|other| other.names.contains_key(name));
            if let Some((name, other)) = before.keys().find_map(|name| Some((name, busy(name)?))) {
                return Err(format!(
                    "{name} is being moved by migration {}: abort that first",
                    other.id
                ));
            }
            Ok(Migration::new(id, plan, before, by, unix_ms()))
        })?;
        if let Err(error) = self.save_migration(migration.id).await {
            self.migrations.forget(migration.id);
            return Err(error);
        }
        tracing::info!(
            migration = migration.id,
            from = migration.plan.from,
            to = migration.plan.to,
            names = migration.names.len(),
            "Migration begun."
        );
        Ok(migration)
    }

    /// Asks for the names of a migration that is only tried.
    async fn try_probes(&self, mut tried: Migration) -> Result<Migration, String> {
        if let Some(round) = self.probe_once(&tried).await? {
            tried.probed(&round, unix_ms());
        }
        if tried.state == MigrationState::Running && !tried.awaits_probes() {
            Ok(tried)
        } else {
            Err(format!("{} (`--no-probe` leaves probes out)", tried.reason))
        }
    }

    /// Carries out an operator's order. `None`: there is no such migration.
    pub async fn order_migration(&self, id: u64, order: MigrationOrder, by: &str) -> Option<Result<Migration, String>> {
        let changed = self.migrations.change(id, |known| {
            let WatchedMigration { migration, watch, .. } = known;
            match order {
                MigrationOrder::Pause => migration.pause(&format!("paused by {by}")),
                MigrationOrder::Resume => migration.resume(watch),
                MigrationOrder::Abort => migration.abort(&format!("aborted by {by}"), unix_ms()),
            }
        })?;
        if let Err(refused) = changed {
            return Some(Err(refused));
        }
        let saved = self.save_migration(id).await;
        let migration = self.migrations.get(id)?;
        if migration.is_unmoved() {
            self.migrations.count(&migration);
        }
        tracing::info!(
            migration = id,
            state = migration.state.as_str(),
            by,
            "Migration paused, resumed or aborted by request."
        );
        Some(saved.map(|()| migration))
    }

    /// Writes a migration to disk. Returns when it is on disk.
    async fn save_migration(&self, id: u64) -> Result<(), String> {
        let (reply, outcome) = oneshot::channel();
        let ending = || "signalbox is ending".to_owned();
        self.events
            .send(StoreEvent::MigrationChanged(id, reply))
            .map_err(|_| ending())?;
        outcome.await.unwrap_or_else(|_| Err(ending()))
    }

    /// Runs all migrations, including those of an earlier process. Never returns.
    pub async fn run_migrations(self) {
        loop {
            if let Err(error) = self.update_testers().await {
                tracing::error!(error, "The testers of migrations could not be applied.");
            }
            for known in self.migrations.running() {
                self.tend_migration(known).await;
            }
            tokio::time::sleep(GUARD_INTERVAL).await;
        }
    }

    /// Examines a migration, and takes the action that is due.
    async fn tend_migration(&self, known: WatchedMigration) {
        let id = known.migration.id;
        let snapshot = self.shared.snapshot.load_full();
        let Some(WatchedMigration { migration, watch, .. }) = self.take_probes(known, &snapshot).await else {
            return;
        };
        let missing = differing_weights(&migration.weights(), &snapshot);
        let is_held = migration.state == MigrationState::Running && watch.is_in_force();
        if !missing.is_empty() {
            match migration.state {
                // Weights that another user has set stay until an operator decides.
                MigrationState::Paused => {}
                MigrationState::Running if watch.owns_weights() => {
                    let names: Vec<_> = missing.keys().take(MAX_LISTED_PROBLEMS).map(String::as_str).collect();
                    self.pause_for_weights(id, &names.join(", ")).await;
                }
                _ => self.put_weights(&migration, missing).await,
            }
            return;
        }
        let peers = if migration.plan.only_here {
            PeerReports::default()
        } else {
            let sets = !is_held && migration.state != MigrationState::Paused;
            self.order_peers(&Self::step_order(&migration, sets)).await
        };
        let differing = peers.differing();
        if is_held && !differing.is_empty() {
            return self.pause_for_weights(id, &differing.join(", ")).await;
        }
        if let Some(changed) = self.look(&migration, &snapshot, &peers) {
            self.carry_out(&changed, &snapshot).await;
        }
    }

    /// Passes the results of a round of probes to a migration, and returns it as it is then. `None` while the first round is
    /// still to come, and where it has ended the migration.
    async fn take_probes(&self, known: WatchedMigration, snapshot: &Snapshot) -> Option<WatchedMigration> {
        let id = known.migration.id;
        if let Some(round) = known.probes.take() {
            let changes = changed_meanwhile(snapshot, &known.migration);
            let at_peers = self.changed_at_peers(&known.migration).await;
            let take = |known: &mut WatchedMigration| {
                let migration = &mut known.migration;
                let (is_first, was_ended) = (migration.awaits_probes(), migration.state.is_ended());
                let is_changed = migration.probed(&round, unix_ms());
                if is_first && !migration.awaits_probes() && migration.state == MigrationState::Running {
                    migration.reason.clear();
                    migration.take_changes(&changes, at_peers.as_deref(), unix_ms());
                }
                (is_changed, was_ended, known.clone())
            };
            let (is_changed, was_ended, known) = self.migrations.change(id, take)?;
            if was_ended {
                return None;
            }
            if known.migration.is_unmoved() {
                self.carry_out(&known.migration, snapshot).await;
                return None;
            }
            if is_changed {
                self.save_or_log(id).await;
            }
            return (!known.migration.awaits_probes()).then_some(known);
        }
        if !known.migration.awaits_probes() {
            return Some(known);
        }
        self.migrations.change(id, |known| {
            if known.migration.awaits_probes() && known.migration.state == MigrationState::Running {
                let (done, all) = (known.probes.done(), known.migration.names.len());
                known.migration.reason = format!("asks for names at both clusters: {done} of {all}");
            }
        });
        None
    }

    /// Returns where weights of names differ from those at the order, at other balancers, before anything has moved.
    async fn changed_at_peers(&self, migration: &Migration) -> Option<String> {
        if migration.plan.only_here || !migration.awaits_probes() {
            return None;
        }
        let order = StepOrder {
            weights: migration.names.clone(),
            ..Self::step_order(migration, false)
        };
        self.order_peers(&order).await.differing().into_iter().next()
    }

    /// Passes the current observations to a migration. Returns it if its state or its step has changed.
    fn look(&self, before: &Migration, snapshot: &Snapshot, peers: &PeerReports) -> Option<Migration> {
        let now = unix_ms();
        let own = [&before.plan.from, &before.plan.to]
            .map(|cluster| quality(snapshot, before.names.keys().map(String::as_str), cluster));
        let is_usable_here = is_usable(snapshot, &before.plan.to);
        let waits_for = peers.waits_for();
        let changed = self.migrations.change(before.id, |known| {
            // The migration has received another order in the meantime: the next round handles it.
            if known.migration.state != before.state || known.migration.step != before.step {
                return None;
            }
            for (url, report) in &peers.reports {
                let counts = known.peers.entry(url.clone()).or_default();
                counts.add(report.process, [&report.old, &report.new]);
            }
            let is_in_force = known.watch.is_in_force();
            known.migration.waits_for.clone_from(&waits_for);
            // A step begins, and a rollback ends, when all balancers have its weights.
            if !waits_for.is_empty() && (!is_in_force || known.migration.state.is_going_back()) {
                return None;
            }
            known.own.add(OWN_PROCESS, [&own[0], &own[1]]);
            let [old, new] = plus_peers(&known.own, &known.peers);
            let (probes, rounds_begun) = known.probes.last();
            let seen = Observation {
                now,
                old,
                new,
                is_usable: is_usable_here && peers.unusable().is_none(),
                is_complete: waits_for.is_empty(),
                probes,
                rounds_begun,
            };
            let is_changed = if known.migration.state.is_going_back() {
                known.migration.went_back(now)
            } else {
                known.migration.observe(&mut known.watch, &seen)
            };
            let at = peers.unusable().filter(|_| is_usable_here);
            if let (Some(url), Some(GuardKind::Hosts), true) = (at, known.migration.failed_guard, is_changed) {
                known.migration.reason += &format!(" at {url}");
            }
            is_changed.then(|| known.migration.clone())
        });
        changed.flatten()
    }

    /// Carries out the decision of an examination.
    async fn carry_out(&self, migration: &Migration, snapshot: &Snapshot) {
        let (id, state, percent) = (migration.id, migration.state.as_str(), migration.percent());
        let reason = &migration.reason;
        if migration.state == MigrationState::RolledBack && migration.steps.is_empty() {
            tracing::error!(migration = id, reason, "The migration has ended; nothing has moved.");
        } else if migration.state == MigrationState::RollingBack {
            tracing::error!(
                migration = id,
                reason,
                "A guard has failed: the migration is rolled back."
            );
        } else {
            tracing::info!(migration = id, state, percent, reason, "Migration continues.");
        }
        self.migrations.count(migration);
        // The decision is on disk before the weights: if the process is killed in between, the next one carries it out.
        self.save_or_log(id).await;
        if !migration.state.is_ended() {
            self.put_weights(migration, differing_weights(&migration.weights(), snapshot))
                .await;
        }
        if !migration.state.is_going_back() {
            return;
        }
        if let Err(error) = self.update_testers().await {
            tracing::error!(migration = id, error, "Testers still get the new cluster: retrying.");
        }
        if !migration.plan.only_here {
            // Other balancers roll back in the same round. Those that do not answer are asked again.
            self.order_peers(&Self::step_order(migration, true)).await;
        }
    }

    /// Pauses a migration because another user has set weights of its names.
    async fn pause_for_weights(&self, id: u64, names: &str) {
        let why = format!(
            "the weights of {names} were changed meanwhile: resume sets the step's again, abort those from before"
        );
        tracing::warn!(migration = id, why, "Migration paused.");
        self.migrations.change(id, |known| known.migration.pause(&why));
        self.save_or_log(id).await;
    }

    async fn put_weights(&self, migration: &Migration, missing: BTreeMap<String, Option<ClusterWeights>>) {
        if missing.is_empty() {
            return;
        }
        if let Err(refused) = self.set_weights(missing).await {
            tracing::error!(
                migration = migration.id,
                error = refused.error,
                "The weights of a migration could not be set: retrying."
            );
            return;
        }
        self.migrations.change(migration.id, |known| {
            if known.migration.state == migration.state && known.migration.step == migration.step {
                known.watch.note_set_weights();
            }
        });
    }

    async fn save_or_log(&self, id: u64) {
        if let Err(error) = self.save_migration(id).await {
            tracing::error!(
                migration = id,
                error,
                "The progress of a migration could not be written."
            );
        }
    }
}

/// Returns the names that cannot be moved any more, with the reasons: time has passed since the order, while names were
/// asked for. Names without a route do no harm.
fn changed_meanwhile(snapshot: &Snapshot, migration: &Migration) -> BTreeMap<String, String> {
    if !migration.awaits_probes() {
        return BTreeMap::new();
    }
    let routes = snapshot.model.routes.iter();
    let routes: HashMap<String, &Route> = routes.map(|route| (route.hostname.to_string(), route)).collect();
    let problem = |(name, before): (&String, &Option<ClusterWeights>)| {
        let route = routes.get(name)?;
        if snapshot.weights.get(name) != before.as_ref() {
            return Some((
                name.clone(),
                format!("the weights of {name} were changed in the meantime"),
            ));
        }
        Some((name.clone(), unfit(snapshot, &migration.plan, name, Some(route))?))
    };
    migration.names.iter().filter_map(problem).collect()
}

/// Returns the names to move, or why some of them cannot be moved.
fn fit_names(
    snapshot: &Arc<Snapshot>,
    plan: &MigrationPlan,
    mut names: Vec<String>,
    choice: NameChoice,
) -> Result<Vec<String>, String> {
    let routes: HashMap<String, &Route> = snapshot
        .model
        .routes
        .iter()
        .map(|route| (route.hostname.to_string(), route))
        .collect();
    if choice == NameChoice::AllFit {
        let serves = |route: &Route| {
            let mut clusters = route
                .clusters
                .iter()
                .filter_map(|(at, _)| snapshot.model.clusters.get(*at));
            clusters.any(|cluster| cluster.name == plan.to)
        };
        let fit = routes
            .iter()
            .filter(|(name, route)| serves(route) && unfit(snapshot, plan, name, Some(route)).is_none());
        names = fit.map(|(name, _)| name.clone()).collect();
        if names.is_empty() {
            return Err(format!("no name of {} can be moved to {}", plan.from, plan.to));
        }
        return Ok(names);
    }
    names.sort();
    names.dedup();
    if names.is_empty() {
        return Err("no name is given: name some, a selector, or all".into());
    }
    let problems: Vec<_> = names
        .iter()
        .filter_map(|name| unfit(snapshot, plan, name, routes.get(name).copied()))
        .collect();
    if problems.is_empty() {
        return Ok(names);
    }
    let more = problems.len().saturating_sub(MAX_LISTED_PROBLEMS);
    let mut text = problems[..problems.len() - more].join("; ");
    if more > 0 {
        text += &format!("; and {more} more");
    }
    Err(text)
}
