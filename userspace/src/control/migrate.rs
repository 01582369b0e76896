//! Runs migrations: applies the weights of each step, passes real traffic to the guards, and rolls back.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use signalbox_core::availability::migration::guard::{GuardKind, QualityFigures};
use signalbox_core::availability::migration::{Migration, MigrationState, Observation};
use signalbox_core::discovered::merge::ClusterWeights;

use super::Control;
use super::migration_names::{MAX_LISTED_PROBLEMS, changed_meanwhile, is_usable};
use super::migration_step::{PeerReports, StepOrder, plus_peers};
use super::migrations::WatchedMigration;
use crate::state::Snapshot;
use crate::state::route_stats::QualitySum;
use crate::sys::unix_ms;

/// Interval at which guards are evaluated. A failure is rolled back within a few intervals.
const GUARD_INTERVAL: Duration = Duration::from_millis(500);

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
