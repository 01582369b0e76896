//! Orders of operators: migrations are begun, paused, resumed and aborted.

use std::collections::BTreeMap;

use signalbox_core::availability::migration::{Migration, MigrationPlan, MigrationState};
use signalbox_core::discovered::merge::WeightOverrides;
use tokio::sync::oneshot;

use super::Control;
use super::event::StoreEvent;
use super::migration_names::{NameChoice, fit_names, is_usable};
use super::migration_step::forgotten_nodes;
use super::migrations::WatchedMigration;
use crate::sys::unix_ms;

/// Change of a migration, ordered by an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationOrder {
    Pause,
    Resume,
    Abort,
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
    pub(super) async fn save_migration(&self, id: u64) -> Result<(), String> {
        let (reply, outcome) = oneshot::channel();
        let ending = || "signalbox is ending".to_owned();
        self.events
            .send(StoreEvent::MigrationChanged(id, reply))
            .map_err(|_| ending())?;
        outcome.await.unwrap_or_else(|_| Err(ending()))
    }
}
