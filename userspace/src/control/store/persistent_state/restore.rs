//! Reads the state of an earlier process: from disk, and from the table that balancers share.

use std::sync::Arc;

use signalbox_core::availability::migration::Migration;
use signalbox_core::discovered::discovery::ClusterDiscovery;
use signalbox_core::discovered::merge::WeightOverrides;
use signalbox_core::model::shield::Prefixes;
use signalbox_core::routing::rotation::Rotation;

use super::{
    CONFIGURATION_RECORD, ConfigOverride, DISCOVERED_RECORD, JOB_RECORD, MIGRATION_RECORD, OutRecord, PORT_RECORD,
    PREFIXES_RECORD, PersistError, PersistentState, ROTATION_RECORD, SEPARATOR, WEIGHT_RECORD, WEIGHTS_RECORD,
    WeightsRecord, json,
};
use crate::control::rotation_jobs::Job;
use crate::control::state_db::StateDbError;

impl PersistentState {
    /// Reads the records of an earlier process, once. True if this call has read them.
    pub fn restore(&mut self) -> Result<bool, StateDbError> {
        if self.restored {
            return Ok(false);
        }
        let learnt = self.db.all::<ClusterDiscovery>(DISCOVERED_RECORD)?;
        let out = self.db.all::<OutRecord>(ROTATION_RECORD)?;
        let jobs = self.db.all::<Job>(JOB_RECORD)?;
        let migrations = self.db.all::<Migration>(MIGRATION_RECORD)?;
        let mut weights: WeightOverrides = self.db.all(WEIGHT_RECORD)?.into_iter().collect();
        let mut converted = Vec::new();
        for (key, before) in self.db.all::<WeightsRecord>(WEIGHTS_RECORD)? {
            converted.extend(
                before
                    .weights
                    .iter()
                    .map(|(host, set)| (WEIGHT_RECORD, host.clone(), Some(json(set)))),
            );
            converted.push((WEIGHTS_RECORD, key, None));
            weights.extend(before.weights);
        }
        let prefixes = self.db.all::<Prefixes>(PREFIXES_RECORD)?;
        let prefixes = prefixes.into_iter().map(|(key, prefixes)| {
            (
                key.strip_prefix(SEPARATOR).unwrap_or(&key).to_owned(),
                Arc::new(prefixes),
            )
        });
        self.shield = Arc::new(prefixes.collect());
        // Clients of the earlier process use its ports, so they replace ports assigned since then.
        let ports = self.db.all::<u16>(PORT_RECORD)?;
        Arc::make_mut(&mut self.ports).extend(ports);
        self.restore_ticket_secret();
        self.config_override = self
            .db
            .all::<ConfigOverride>(CONFIGURATION_RECORD)?
            .pop()
            .map(|(_, record)| record);
        let mut discovered = (*self.discovered).clone();
        for (key, learned) in learnt {
            if let Some((source, cluster)) = key.split_once(SEPARATOR) {
                // Discoveries since the start are newer than the records.
                let of = discovered.entry(source.to_owned()).or_default();
                of.entry(cluster.to_owned()).or_insert_with(|| Arc::new(learned));
            }
        }
        let rotation = out.into_iter().map(|(_, record)| (record.subject, record.out));
        let rotation = Rotation(rotation.collect());
        for (_, job) in jobs {
            self.jobs.insert(job);
        }
        for (_, migration) in migrations {
            self.migrations.restore(migration);
        }
        // Weights set since the start are newer than the records.
        weights.extend((*self.weights).clone());
        self.weights = Arc::new(weights);
        (self.discovered, self.rotation) = (Arc::new(discovered), Arc::new(rotation));
        self.restored = true;
        if !converted.is_empty()
            && let Err(error) = self.put(&converted)
        {
            tracing::warn!(
                error = crate::sys::error_chain(&error),
                "Weights of an earlier version could not be converted; the next start tries again."
            );
        }
        Ok(true)
    }

    /// Reads the shared table, so that the first model is already correct.
    pub async fn restore_shared(&mut self) -> Result<(), PersistError> {
        if let Some(etcd) = self.shared.clone() {
            let records = etcd.read_all().await?;
            if records.is_new {
                // The shared table is new: it starts with this balancer's records.
                self.revision = etcd.put(&self.shared_records(), records.revision).await?;
            } else {
                self.adopt_shared(records);
            }
        }
        Ok(())
    }
}
