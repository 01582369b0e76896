//! State of the store in addition to the configuration: it is on disk before it is active.

mod ports;
mod restore;
mod shared;
mod ticket_secret;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use signalbox_core::discovered::discovery::{ClusterDiscovery, Discovered};
use signalbox_core::discovered::expose::Ports;
use signalbox_core::discovered::merge::{ClusterWeights, WeightOverrides};
use signalbox_core::model::shield::{ApiPrefixes, Prefixes};
use signalbox_core::routing::rotation::{RotatedOut, Rotation, Subject};

use signalbox_tls::tickets::TicketSecret;

use crate::control::etcd::{Etcd, EtcdError};
use crate::control::migrations::Migrations;
use crate::control::rotation_jobs::{Job, Jobs};
use crate::control::state_db::{RecordChange, StateDb, StateDbError};

use super::name_ages::RecentlyGone;

// Kinds of records.
const DISCOVERED_RECORD: &str = "learnt";
const ROTATION_RECORD: &str = "rotation";
/// Kind used by earlier versions: all weights in one record, with the configuration that they were set for.
const WEIGHTS_RECORD: &str = "weights";
/// Kind of a name's weights: one record per name.
const WEIGHT_RECORD: &str = "weight";
const JOB_RECORD: &str = "job";
const MIGRATION_RECORD: &str = "migration";
const CONFIGURATION_RECORD: &str = "configuration";
const PREFIXES_RECORD: &str = "prefixes";
/// Kind of a port from a range of `expose`, by the name of its service.
const PORT_RECORD: &str = "port";
/// Kind of the secrets of session tickets.
const TICKET_SECRET_RECORD: &str = "ticket_secret";

/// Key of the only record of [`CONFIGURATION_RECORD`].
const ONLY_KEY: &str = "all";

/// Separates the names of source and cluster in a key: neither can contain it.
const SEPARATOR: char = '\0';

/// Interval at which discovered records are written. These could be discovered again.
const SAVE_INTERVAL: Duration = Duration::from_secs(5);

/// Persistent state of the store.
pub struct PersistentState {
    pub db: Arc<StateDb>,
    pub jobs: Arc<Jobs>,
    pub migrations: Arc<Migrations>,
    pub discovered: Arc<Discovered>,
    pub weights: Arc<WeightOverrides>,
    pub rotation: Arc<Rotation>,
    /// Prefixes of the shield. Each balancer has its own, because a record in etcd has no room for a million prefixes.
    pub shield: Arc<ApiPrefixes>,
    /// Ports of exposed services, and those whose records are not written yet.
    pub ports: Arc<Ports>,
    unsaved_ports: BTreeSet<String>,
    ports_saved: Option<Instant>,
    /// Table that balancers share. The records on disk are then a copy, for a start without it.
    shared: Option<Arc<Etcd>>,
    /// True once the records of an earlier process have been read. Before that, a write would overwrite them.
    restored: bool,
    /// Known revision of the shared table: older ones are ignored.
    revision: u64,
    /// Configuration set by API that replaces the file's.
    config_override: Option<ConfigOverride>,
    /// Secrets of session tickets: the balancer's own, and that of the shared table.
    own_ticket_secret: Option<TicketSecret>,
    shared_ticket_secret: Option<TicketSecret>,
    /// True if listeners use the shared secret, or wait for it.
    shares_tickets: bool,
    /// Recently removed names, with their age: a Route that is deleted and created again keeps its precedence.
    recently_gone: RecentlyGone,
    /// Discovered records that are not on disk yet: source and cluster.
    unsaved: BTreeSet<(String, String)>,
    saved: Instant,
}

/// Reason why something could not be written.
#[derive(Debug, thiserror::Error)]
pub enum PersistError {
    #[error(transparent)]
    StateDb(#[from] StateDbError),
    #[error(transparent)]
    Etcd(#[from] EtcdError),
}

/// Changes by other balancers.
#[derive(Debug, Default)]
pub struct SharedChanges {
    /// Subjects taken out of rotation, and (`is_in`) those taken back in.
    pub taken_out: Vec<(Subject, RotatedOut)>,
    pub taken_in: Vec<Subject>,
    /// True if a new model must be made.
    pub needs_rebuild: bool,
    /// True if the secret of session tickets has changed, or the table has lost it.
    pub needs_tickets: bool,
}

/// Time at which discovered records are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persist {
    /// Before they are applied.
    Now,
    /// A few seconds later: they can be discovered again.
    Soon,
    /// Never here: the source keeps its own records.
    BySource,
}

/// Configuration that replaces the file's, as long as the file's text does not change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigOverride {
    /// Fingerprint of the file's text: [`crate::control::event::fingerprint`].
    pub of: u64,
    pub text: String,
}

/// Weights in the format of earlier versions.
#[derive(Deserialize)]
struct WeightsRecord {
    weights: WeightOverrides,
}

/// A subject that is out of rotation.
#[derive(Serialize, Deserialize)]
struct OutRecord {
    subject: Subject,
    out: RotatedOut,
}

impl PersistentState {
    /// Makes an empty state.
    #[must_use]
    pub fn new(durable: Arc<StateDb>, jobs: Arc<Jobs>, migrations: Arc<Migrations>, shared: Option<Arc<Etcd>>) -> Self {
        Self {
            db: durable,
            jobs,
            migrations,
            shared,
            restored: false,
            config_override: None,
            revision: 0,
            discovered: Arc::default(),
            weights: Arc::default(),
            rotation: Arc::default(),
            shield: Arc::default(),
            ports: Arc::default(),
            unsaved_ports: BTreeSet::new(),
            ports_saved: None,
            own_ticket_secret: None,
            shared_ticket_secret: None,
            shares_tickets: false,
            recently_gone: RecentlyGone::default(),
            unsaved: BTreeSet::new(),
            saved: Instant::now(),
        }
    }

    /// Returns the configuration set by API that replaces a file with this fingerprint.
    #[must_use]
    pub fn override_of(&self, file: u64) -> Option<&str> {
        let instead = self.config_override.as_ref().filter(|instead| instead.of == file);
        instead.map(|instead| instead.text.as_str())
    }

    /// Sets or removes the configuration that replaces the file's. Returns the previous one.
    pub fn set_override(&mut self, instead: Option<ConfigOverride>) -> Result<Option<ConfigOverride>, StateDbError> {
        if instead != self.config_override {
            self.put(&[(CONFIGURATION_RECORD, ONLY_KEY.to_owned(), instead.as_ref().map(json))])?;
        }
        Ok(std::mem::replace(&mut self.config_override, instead))
    }

    /// Sets the weights of all given names, or none. Names without weights get those of the file and sources.
    pub fn set_weights(&mut self, set: &BTreeMap<String, Option<ClusterWeights>>) -> Result<(), PersistError> {
        let record = |(host, shares): (&String, &Option<ClusterWeights>)| {
            (WEIGHT_RECORD, host.clone(), shares.as_ref().map(json))
        };
        let changes: Vec<RecordChange> = set.iter().map(record).collect();
        self.put_shared(&changes)?;
        let weights = Arc::make_mut(&mut self.weights);
        for (host, shares) in set {
            match shares {
                Some(shares) => drop(weights.insert(host.clone(), shares.clone())),
                None => drop(weights.remove(host)),
            }
        }
        Ok(())
    }

    /// Sets the prefixes of a listener or a service, or of all if the name is empty.
    pub fn set_prefixes(&mut self, name: &str, prefixes: &Arc<Prefixes>) -> Result<(), StateDbError> {
        let record = (!prefixes.is_empty()).then(|| json(&**prefixes));
        // The separator makes the key non-empty even if the name is empty.
        self.put(&[(PREFIXES_RECORD, format!("{SEPARATOR}{name}"), record)])?;
        let told = Arc::make_mut(&mut self.shield);
        if prefixes.is_empty() {
            told.remove(name);
        } else {
            told.insert(name.to_owned(), Arc::clone(prefixes));
        }
        Ok(())
    }

    /// Stores a source's report about a cluster. Returns whether it is new.
    pub fn set_discovered(
        &mut self,
        source: &str,
        cluster: &str,
        what: Option<Arc<ClusterDiscovery>>,
        keep: Persist,
    ) -> Result<bool, PersistError> {
        let known = self.discovered.get(source).and_then(|of| of.get(cluster));
        let what = what.map(|what| self.recently_gone.with_since(cluster, known, what));
        if known == what.as_ref() {
            return Ok(false);
        }
        if let Some(known) = known {
            self.recently_gone.remember_gone(cluster, known, what.as_deref());
        }
        let key = (source.to_owned(), cluster.to_owned());
        match keep {
            Persist::Now => {
                self.put_shared(&[discovered_record(&key, what.as_deref())])?;
                self.unsaved.remove(&key);
            }
            Persist::Soon => drop(self.unsaved.insert(key)),
            Persist::BySource => {}
        }
        // Only pointers are copied: usually a snapshot shares the table, and `make_mut` clones it.
        let discovered = Arc::make_mut(&mut self.discovered);
        match what {
            Some(what) => {
                discovered
                    .entry(source.to_owned())
                    .or_default()
                    .insert(cluster.to_owned(), what);
            }
            None => {
                let is_empty = discovered.get_mut(source).is_some_and(|of| {
                    of.remove(cluster);
                    of.is_empty()
                });
                if is_empty {
                    discovered.remove(source);
                }
            }
        }
        Ok(true)
    }

    /// Writes discovered records, for a start without access to the sources.
    pub fn save(&mut self) {
        if (self.unsaved.is_empty() && self.unsaved_ports.is_empty()) || self.saved.elapsed() < SAVE_INTERVAL {
            return;
        }
        self.saved = Instant::now();
        if !self.unsaved_ports.is_empty() {
            self.save_ports();
        }
        if self.unsaved.is_empty() {
            return;
        }
        let records: Vec<_> = std::mem::take(&mut self.unsaved)
            .iter()
            .map(|key| {
                discovered_record(
                    key,
                    self.discovered
                        .get(&key.0)
                        .and_then(|of| of.get(&key.1))
                        .map(|what| &**what),
                )
            })
            .collect();
        if let Err(error) = self.put(&records) {
            tracing::warn!(
                error = crate::sys::error_chain(&error),
                "Discovered hosts and routes could not be written; the next start has to discover them again."
            );
        }
    }

    /// Sets what is out of rotation, and the job for it.
    pub fn rotate(&mut self, rotation: Rotation, job: &Job) -> Result<(), PersistError> {
        let mut changes = Vec::new();
        for subject in self.rotation.0.keys().filter(|s| !rotation.0.contains_key(s)) {
            changes.push((ROTATION_RECORD, subject.to_string(), None));
        }
        for (subject, out) in &rotation.0 {
            if self.rotation.0.get(subject) != Some(out) {
                let record = OutRecord {
                    subject: subject.clone(),
                    out: out.clone(),
                };
                changes.push((ROTATION_RECORD, subject.to_string(), Some(json(&record))));
            }
        }
        if self.shared.is_some() {
            self.put_shared(&changes)?;
            self.rotation = Arc::new(rotation);
            // A lost job record does no harm: the job is created again from the rotation.
            self.job_written(job);
        } else {
            changes.push(job_record(job));
            self.put(&changes)?;
            self.rotation = Arc::new(rotation);
        }
        Ok(())
    }

    /// Writes the progress of a job.
    pub fn job_changed(&self, id: u64) {
        if let Some(job) = self.jobs.get(id) {
            self.job_written(&job);
        }
    }

    /// Writes a migration, and forgets the oldest ended ones.
    pub fn migration_changed(&self, id: u64) -> Result<(), StateDbError> {
        let record = |id: u64, value| (MIGRATION_RECORD, id.to_string(), value);
        let mut changes: Vec<_> = self
            .migrations
            .forget_old()
            .into_iter()
            .map(|old| record(old, None))
            .collect();
        changes.push(record(id, self.migrations.get(id).as_ref().map(json)));
        self.put(&changes)
    }

    fn job_written(&self, job: &Job) {
        if let Err(error) = self.put(&[job_record(job)]) {
            tracing::warn!(
                job = job.id,
                error = crate::sys::error_chain(&error),
                "The progress of a job could not be written."
            );
        }
    }

    /// Writes to disk without delaying the other tasks of the control plane.
    pub fn put(&self, changes: &[RecordChange]) -> Result<(), StateDbError> {
        if !self.restored {
            return Err(self.db.not_yet_read());
        }
        tokio::task::block_in_place(|| self.db.put(changes))
    }
}

/// Returns whether a source's records are shared. Those of watches are not, because each balancer has them.
fn is_shared(source: &str) -> bool {
    source.starts_with("api:") || source.starts_with("agent:")
}

fn discovered_record((source, cluster): &(String, String), what: Option<&ClusterDiscovery>) -> RecordChange {
    (
        DISCOVERED_RECORD,
        format!("{source}{SEPARATOR}{cluster}"),
        what.map(json),
    )
}

/// Returns the record of a job. An ended job is removed, because the next process does not need it.
fn job_record(job: &Job) -> RecordChange {
    let value = job.ended.is_none().then(|| json(job));
    (JOB_RECORD, job.id.to_string(), value)
}

fn json(value: &impl Serialize) -> Vec<u8> {
    // Cannot fail: all types are ours, with strings as keys.
    serde_json::to_vec(value).unwrap_or_default()
}
