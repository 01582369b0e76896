//! What the store remembers beside the configuration: on disk before it is in force.

mod ports;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use signalbox_core::expose::Ports;
use signalbox_core::learned::{Learned, Lore};
use signalbox_core::merge::{Shares, Weights};
use signalbox_core::model::shield::{Prefixes, Told};
use signalbox_core::rotation::{Out, Rotation, Subject};

use crate::durable::{Change, Durable, DurableError};
use crate::etcd::{Etcd, EtcdError, Records};
use crate::rotate::{Job, Jobs};

use super::since::Gone;

// Kinds of records.
const LEARNT: &str = "learnt";
const ROTATION: &str = "rotation";
/// Of versions before: all weights in one record, and the configuration that they were set over.
const WEIGHTS: &str = "weights";
/// One for each name.
const WEIGHT: &str = "weight";
const JOB: &str = "job";
const CONFIGURATION: &str = "configuration";
const PREFIXES: &str = "prefixes";
/// A port of a range of `expose`, by the name of the service that has it.
const PORT: &str = "port";

/// Key of the only record of [`CONFIGURATION`].
const ALL: &str = "all";

/// Between a source's name and a cluster's in a key: neither can hold it.
const SEPARATOR: char = '\0';

/// How often what can be learnt anew is written.
const SAVE_INTERVAL: Duration = Duration::from_secs(5);

/// What is remembered.
pub struct Memory {
    pub durable: Arc<Durable>,
    pub jobs: Arc<Jobs>,
    pub lore: Arc<Lore>,
    pub weights: Arc<Weights>,
    pub rotation: Arc<Rotation>,
    /// Prefixes of the shield. Not shared: a record of a table in etcd has no room for a million of them.
    pub shield: Arc<Told>,
    /// Ports that exposed services have, and those whose records are still to be written.
    pub ports: Arc<Ports>,
    unsaved_ports: BTreeSet<String>,
    ports_saved: Option<Instant>,
    /// The table that other balancers share; what is on disk here is then a copy, for a start without it.
    shared: Option<Arc<Etcd>>,
    /// What an earlier process has left has been read. Before that nothing is written: it would be lost.
    restored: bool,
    /// Of the shared table: what is older is not news.
    revision: u64,
    /// The configuration that the API has put in place of the file's.
    configuration: Option<Instead>,
    /// Since when names that have gone lately were there: who makes his Route anew has not come later than others.
    gone: Gone,
    /// What has been learnt and is not on disk yet: source and cluster.
    unsaved: BTreeSet<(String, String)>,
    saved: Instant,
}

/// Why something could not be remembered.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    #[error(transparent)]
    Durable(#[from] DurableError),
    #[error(transparent)]
    Etcd(#[from] EtcdError),
}

/// What others have changed.
#[derive(Debug, Default)]
pub struct Adopted {
    /// Taken out of rotation, and in.
    pub is_out: Vec<(Subject, Out)>,
    pub is_in: Vec<Subject>,
    /// A new model is to be made.
    pub model: bool,
}

/// When what has been learnt is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Before it is in force.
    Now,
    /// Some seconds later: it can be learnt anew.
    Soon,
    /// By its source.
    Elsewhere,
}

/// A configuration that counts as long as the file says what it said then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instead {
    /// Of the file's text: [`super::fingerprint`].
    pub of: u64,
    pub text: String,
}

/// Weights as versions before wrote them.
#[derive(Deserialize)]
struct WeightsRecord {
    weights: Weights,
}

/// Something that is out.
#[derive(Serialize, Deserialize)]
struct OutRecord {
    subject: Subject,
    out: Out,
}

impl Memory {
    /// Nothing is remembered.
    #[must_use]
    pub fn new(durable: Arc<Durable>, jobs: Arc<Jobs>, shared: Option<Arc<Etcd>>) -> Self {
        Self {
            durable,
            jobs,
            shared,
            restored: false,
            configuration: None,
            revision: 0,
            lore: Arc::default(),
            weights: Arc::default(),
            rotation: Arc::default(),
            shield: Arc::default(),
            ports: Arc::default(),
            unsaved_ports: BTreeSet::new(),
            ports_saved: None,
            gone: Gone::default(),
            unsaved: BTreeSet::new(),
            saved: Instant::now(),
        }
    }

    /// Reads what an earlier process has left, if that has not been done. True if it has been done now.
    pub fn restore(&mut self) -> Result<bool, DurableError> {
        if self.restored {
            return Ok(false);
        }
        let learnt = self.durable.all::<Learned>(LEARNT)?;
        let out = self.durable.all::<OutRecord>(ROTATION)?;
        let jobs = self.durable.all::<Job>(JOB)?;
        let mut weights: Weights = self.durable.all(WEIGHT)?.into_iter().collect();
        let mut converted = Vec::new();
        for (key, before) in self.durable.all::<WeightsRecord>(WEIGHTS)? {
            converted.extend(
                before
                    .weights
                    .iter()
                    .map(|(host, set)| (WEIGHT, host.clone(), Some(json(set)))),
            );
            converted.push((WEIGHTS, key, None));
            weights.extend(before.weights);
        }
        let prefixes = self.durable.all::<Prefixes>(PREFIXES)?;
        let prefixes = prefixes.into_iter().map(|(key, prefixes)| {
            (
                key.strip_prefix(SEPARATOR).unwrap_or(&key).to_owned(),
                Arc::new(prefixes),
            )
        });
        self.shield = Arc::new(prefixes.collect());
        // An earlier process had clients come there: what has been given since gives way.
        let ports = self.durable.all::<u16>(PORT)?;
        Arc::make_mut(&mut self.ports).extend(ports);
        self.configuration = self
            .durable
            .all::<Instead>(CONFIGURATION)?
            .pop()
            .map(|(_, record)| record);
        let mut lore = (*self.lore).clone();
        for (key, learned) in learnt {
            if let Some((source, cluster)) = key.split_once(SEPARATOR) {
                // What has been learnt since is newer.
                let of = lore.entry(source.to_owned()).or_default();
                of.entry(cluster.to_owned()).or_insert_with(|| Arc::new(learned));
            }
        }
        let rotation = out.into_iter().map(|(_, record)| (record.subject, record.out));
        let rotation = Rotation(rotation.collect());
        for (_, job) in jobs {
            self.jobs.insert(job);
        }
        // What has been set since is newer.
        weights.extend((*self.weights).clone());
        self.weights = Arc::new(weights);
        (self.lore, self.rotation) = (Arc::new(lore), Arc::new(rotation));
        self.restored = true;
        if !converted.is_empty()
            && let Err(error) = self.put(&converted)
        {
            tracing::warn!(
                error = crate::error_chain(&error),
                "Weights of an earlier version could not be written anew; the next start tries it again."
            );
        }
        Ok(true)
    }

    /// Reads what balancers share, so that the first table is right already.
    pub async fn restore_shared(&mut self) -> Result<(), MemoryError> {
        if let Some(etcd) = self.shared.clone() {
            let records = etcd.all().await?;
            if records.is_new {
                // Nobody has been here: the table begins with what we have.
                self.revision = etcd.put(&self.shareable(), records.revision).await?;
            } else {
                self.adopt(records);
            }
        }
        Ok(())
    }

    /// All that balancers share, as records.
    fn shareable(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        for (source, clusters) in self.lore.iter().filter(|(source, _)| is_shared(source)) {
            for (cluster, what) in clusters {
                changes.push(learnt_record(&(source.clone(), cluster.clone()), Some(what)));
            }
        }
        for (subject, out) in &self.rotation.0 {
            let record = OutRecord {
                subject: subject.clone(),
                out: out.clone(),
            };
            changes.push((ROTATION, subject.to_string(), Some(json(&record))));
        }
        let ports = self.ports.iter();
        changes.extend(ports.map(|(name, port)| (PORT, name.clone(), Some(json(port)))));
        let weights = self.weights.iter();
        changes.extend(weights.map(|(host, set)| (WEIGHT, host.clone(), Some(json(set)))));
        changes
    }

    /// The table that other balancers share.
    #[must_use]
    pub fn shared(&self) -> Option<Arc<Etcd>> {
        self.shared.clone()
    }

    /// Takes what is in the shared table, if it is not older than what is known; what that changes.
    pub fn adopt(&mut self, records: Records) -> Adopted {
        let mut adopted = Adopted::default();
        if (records.revision < self.revision && !records.went_back) || records.is_new {
            return adopted;
        }
        self.revision = records.revision;
        let mut lore: Lore = (*self.lore).clone();
        lore.retain(|source, _| !is_shared(source));
        let (mut rotation, mut weights) = (Rotation::default(), Weights::new());
        let mut ports = Ports::new();
        let mut copies = Vec::new();
        for (kind, key, value) in &records.all {
            let kind = match kind.as_str() {
                LEARNT => {
                    let learned = serde_json::from_slice::<Learned>(value);
                    if let (Some((source, cluster)), Ok(learned)) = (key.split_once(SEPARATOR), learned) {
                        let of = lore.entry(source.to_owned()).or_default();
                        of.insert(cluster.to_owned(), Arc::new(learned));
                    }
                    LEARNT
                }
                ROTATION => {
                    if let Ok(record) = serde_json::from_slice::<OutRecord>(value) {
                        rotation.0.insert(record.subject, record.out);
                    }
                    ROTATION
                }
                WEIGHT => {
                    if let Ok(set) = serde_json::from_slice(value) {
                        weights.insert(key.clone(), set);
                    }
                    WEIGHT
                }
                PORT => {
                    if let Ok(port) = serde_json::from_slice(value) {
                        ports.insert(key.clone(), port);
                    }
                    PORT
                }
                _ => continue,
            };
            copies.push((kind, key.clone(), Some(value.clone())));
        }
        for subject in self.rotation.0.keys() {
            if !rotation.0.contains_key(subject) {
                adopted.is_in.push(subject.clone());
                copies.push((ROTATION, subject.to_string(), None));
            }
        }
        for (subject, out) in &rotation.0 {
            // In and out again between two looks is another drain.
            if self.rotation.0.get(subject).is_none_or(|known| known.job != out.job) {
                adopted.is_out.push((subject.clone(), out.clone()));
            }
        }
        for (source, clusters) in self.lore.iter() {
            for cluster in clusters.keys() {
                if lore.get(source).is_none_or(|of| !of.contains_key(cluster)) {
                    copies.push((LEARNT, format!("{source}{SEPARATOR}{cluster}"), None));
                }
            }
        }
        for host in self.weights.keys().filter(|host| !weights.contains_key(*host)) {
            copies.push((WEIGHT, host.clone(), None));
        }
        for name in &self.unsaved_ports {
            match self.ports.get(name) {
                Some(port) => drop(ports.insert(name.clone(), *port)),
                None => drop(ports.remove(name)),
            }
        }
        for name in self.ports.keys().filter(|name| !ports.contains_key(*name)) {
            copies.push((PORT, name.clone(), None));
        }
        adopted.model = lore != *self.lore || weights != *self.weights || ports != *self.ports;
        let is_news = adopted.model || rotation != *self.rotation;
        (self.lore, self.rotation, self.weights) = (Arc::new(lore), Arc::new(rotation), Arc::new(weights));
        self.ports = Arc::new(ports);
        if is_news && let Err(error) = self.put(&copies) {
            tracing::warn!(
                error = crate::error_chain(&error),
                "A copy of the shared table could not be written."
            );
        }
        adopted
    }

    /// What the API has put in place of a file that says this.
    #[must_use]
    pub fn instead_of(&self, file: u64) -> Option<&str> {
        let instead = self.configuration.as_ref().filter(|instead| instead.of == file);
        instead.map(|instead| instead.text.as_str())
    }

    /// What stands in place of the file is this from now on; what it was.
    pub fn put_instead(&mut self, instead: Option<Instead>) -> Result<Option<Instead>, DurableError> {
        if instead != self.configuration {
            self.put(&[(CONFIGURATION, ALL.to_owned(), instead.as_ref().map(json))])?;
        }
        Ok(std::mem::replace(&mut self.configuration, instead))
    }

    /// Weights of these names from now on, all or none; of those without any, the file and sources have the word again.
    pub fn set_weights(&mut self, set: &BTreeMap<String, Option<Shares>>) -> Result<(), MemoryError> {
        let record = |(host, shares): (&String, &Option<Shares>)| (WEIGHT, host.clone(), shares.as_ref().map(json));
        let changes: Vec<Change> = set.iter().map(record).collect();
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

    /// Prefixes of a listener or a service, or of all where the name is empty.
    pub fn set_prefixes(&mut self, name: &str, prefixes: &Arc<Prefixes>) -> Result<(), DurableError> {
        let record = (!prefixes.is_empty()).then(|| json(&**prefixes));
        // A key is never empty.
        self.put(&[(PREFIXES, format!("{SEPARATOR}{name}"), record)])?;
        let told = Arc::make_mut(&mut self.shield);
        if prefixes.is_empty() {
            told.remove(name);
        } else {
            told.insert(name.to_owned(), Arc::clone(prefixes));
        }
        Ok(())
    }

    /// What a source knows of a cluster; whether that is news.
    pub fn learn(
        &mut self,
        source: &str,
        cluster: &str,
        what: Option<Arc<Learned>>,
        keep: Keep,
    ) -> Result<bool, MemoryError> {
        let known = self.lore.get(source).and_then(|of| of.get(cluster));
        let what = what.map(|what| self.gone.dated(cluster, known, what));
        if known == what.as_ref() {
            return Ok(false);
        }
        if let Some(known) = known {
            self.gone.note(cluster, known, what.as_deref());
        }
        let key = (source.to_owned(), cluster.to_owned());
        match keep {
            Keep::Now => {
                self.put_shared(&[learnt_record(&key, what.as_deref())])?;
                self.unsaved.remove(&key);
            }
            Keep::Soon => drop(self.unsaved.insert(key)),
            Keep::Elsewhere => {}
        }
        // In place unless a snapshot holds it, as it mostly does: pointers are copied then, not what they lead to.
        let lore = Arc::make_mut(&mut self.lore);
        match what {
            Some(what) => {
                lore.entry(source.to_owned())
                    .or_default()
                    .insert(cluster.to_owned(), what);
            }
            None => {
                let is_empty = lore.get_mut(source).is_some_and(|of| {
                    of.remove(cluster);
                    of.is_empty()
                });
                if is_empty {
                    lore.remove(source);
                }
            }
        }
        Ok(true)
    }

    /// Writes what can be learnt anew: for a start at which what it is learnt from cannot be reached.
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
                learnt_record(
                    key,
                    self.lore.get(&key.0).and_then(|of| of.get(&key.1)).map(|what| &**what),
                )
            })
            .collect();
        if let Err(error) = self.put(&records) {
            tracing::warn!(
                error = crate::error_chain(&error),
                "What has been learnt could not be written; a later start would learn it anew."
            );
        }
    }

    /// What is out is this from now on, and this job sees to it.
    pub fn rotate(&mut self, rotation: Rotation, job: &Job) -> Result<(), MemoryError> {
        let mut changes = Vec::new();
        for subject in self.rotation.0.keys().filter(|s| !rotation.0.contains_key(s)) {
            changes.push((ROTATION, subject.to_string(), None));
        }
        for (subject, out) in &rotation.0 {
            if self.rotation.0.get(subject) != Some(out) {
                let record = OutRecord {
                    subject: subject.clone(),
                    out: out.clone(),
                };
                changes.push((ROTATION, subject.to_string(), Some(json(&record))));
            }
        }
        if self.shared.is_some() {
            self.put_shared(&changes)?;
            self.rotation = Arc::new(rotation);
            // What is out counts; a job that is lost here is made anew of it.
            self.job_written(job);
        } else {
            changes.push(job_record(job));
            self.put(&changes)?;
            self.rotation = Arc::new(rotation);
        }
        Ok(())
    }

    /// A job is further than it was.
    pub fn job_changed(&self, id: u64) {
        if let Some(job) = self.jobs.get(id) {
            self.job_written(&job);
        }
    }

    fn job_written(&self, job: &Job) {
        if let Err(error) = self.put(&[job_record(job)]) {
            tracing::warn!(
                job = job.id,
                error = crate::error_chain(&error),
                "How far a job is could not be written."
            );
        }
    }

    /// Writes what balancers share: where they share a table, there first.
    pub fn put_shared(&mut self, changes: &[Change]) -> Result<(), MemoryError> {
        let Some(etcd) = self.shared.clone() else {
            return Ok(self.put(changes)?);
        };
        if changes.is_empty() {
            return Ok(());
        }
        let known = self.revision;
        let putting = || tokio::runtime::Handle::current().block_on(etcd.put(changes, known));
        let revision = tokio::task::block_in_place(putting)?;
        self.revision = self.revision.max(revision);
        if let Err(error) = self.put(changes) {
            tracing::warn!(
                error = crate::error_chain(&error),
                "A copy of the shared table could not be written."
            );
        }
        Ok(())
    }

    /// Writes without holding up the other tasks of the control plane.
    pub fn put(&self, changes: &[Change]) -> Result<(), DurableError> {
        if !self.restored {
            return Err(self.durable.unread());
        }
        tokio::task::block_in_place(|| self.durable.put(changes))
    }
}

/// Sources that watch for themselves are this balancer's own.
fn is_shared(source: &str) -> bool {
    source.starts_with("api:") || source.starts_with("agent:")
}

fn learnt_record((source, cluster): &(String, String), what: Option<&Learned>) -> Change {
    (LEARNT, format!("{source}{SEPARATOR}{cluster}"), what.map(json))
}

/// Jobs that have ended are of no use to the next process.
fn job_record(job: &Job) -> Change {
    let value = job.ended.is_none().then(|| json(job));
    (JOB, job.id.to_string(), value)
}

fn json(value: &impl Serialize) -> Vec<u8> {
    // Of types of ours, with text for keys: cannot fail.
    serde_json::to_vec(value).unwrap_or_default()
}
