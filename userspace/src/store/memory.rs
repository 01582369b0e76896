//! What the store remembers beside the configuration: on disk before it is in force.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use signalbox_core::learned::{Learned, Lore};
use signalbox_core::merge::Weights;
use signalbox_core::rotation::{Out, Rotation, Subject};

use crate::durable::{Change, Durable, DurableError};
use crate::rotate::{Job, Jobs};

// Kinds of records.
const LEARNT: &str = "learnt";
const ROTATION: &str = "rotation";
const WEIGHTS: &str = "weights";
const JOB: &str = "job";

/// Key of the only record of [`WEIGHTS`].
const ALL: &str = "all";

/// Between a source's name and a cluster's in a key: neither can hold it.
const SEPARATOR: char = '\0';

/// How often what can be learnt anew is written.
const SAVE: Duration = Duration::from_secs(5);

/// What is remembered.
pub struct Memory {
    pub durable: Arc<Durable>,
    pub jobs: Arc<Jobs>,
    pub lore: Arc<Lore>,
    pub weights: Arc<Weights>,
    pub rotation: Arc<Rotation>,
    /// The configuration that the weights were set over.
    over: u64,
    /// What has been learnt and is not on disk yet: source and cluster.
    unsaved: BTreeSet<(String, String)>,
    saved: Instant,
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

/// Weights, and the configuration that they were set over: a new one makes an end of them.
#[derive(Serialize, Deserialize)]
struct WeightsRecord {
    over: u64,
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
    pub fn new(durable: Arc<Durable>, jobs: Arc<Jobs>) -> Self {
        Self {
            durable,
            jobs,
            lore: Arc::default(),
            weights: Arc::default(),
            rotation: Arc::default(),
            over: 0,
            unsaved: BTreeSet::new(),
            saved: Instant::now(),
        }
    }

    /// Reads what an earlier process has left.
    pub fn restore(&mut self) -> Result<(), DurableError> {
        let mut lore = Lore::new();
        for (key, learned) in self.durable.all::<Learned>(LEARNT)? {
            if let Some((source, cluster)) = key.split_once(SEPARATOR) {
                let of = lore.entry(source.to_owned()).or_default();
                of.insert(cluster.to_owned(), Arc::new(learned));
            }
        }
        let records = self.durable.all::<OutRecord>(ROTATION)?;
        let rotation = records.into_iter().map(|(_, record)| (record.subject, record.out));
        let rotation = Rotation(rotation.collect());
        for (_, job) in self.durable.all::<Job>(JOB)? {
            self.jobs.insert(job);
        }
        if let Some((_, record)) = self.durable.all::<WeightsRecord>(WEIGHTS)?.pop() {
            (self.over, self.weights) = (record.over, Arc::new(record.weights));
        }
        (self.lore, self.rotation) = (Arc::new(lore), Arc::new(rotation));
        Ok(())
    }

    /// A configuration is in force: weights that were set over another one are gone. Over the same one, of an earlier
    /// process, they are not.
    pub fn configured(&mut self, fingerprint: u64, is_first: bool) -> Option<Change> {
        let before = std::mem::replace(&mut self.over, fingerprint);
        if self.weights.is_empty() || (is_first && before == fingerprint) {
            return None;
        }
        self.weights = Arc::default();
        Some((WEIGHTS, ALL.to_owned(), None))
    }

    /// The weights are these from now on.
    pub fn set_weights(&mut self, weights: Weights) -> Result<(), DurableError> {
        let record = WeightsRecord {
            over: self.over,
            weights,
        };
        self.put(&[(WEIGHTS, ALL.to_owned(), Some(json(&record)))])?;
        self.weights = Arc::new(record.weights);
        Ok(())
    }

    /// What a source knows of a cluster; whether that is news.
    pub fn learn(
        &mut self,
        source: &str,
        cluster: &str,
        what: Option<Arc<Learned>>,
        keep: Keep,
    ) -> Result<bool, DurableError> {
        let known = self.lore.get(source).and_then(|of| of.get(cluster));
        if known == what.as_ref() {
            return Ok(false);
        }
        let key = (source.to_owned(), cluster.to_owned());
        match keep {
            Keep::Now => {
                self.put(&[learnt_record(&key, what.as_deref())])?;
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
        if self.unsaved.is_empty() || self.saved.elapsed() < SAVE {
            return;
        }
        self.saved = Instant::now();
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
    pub fn rotate(&mut self, rotation: Rotation, job: &Job) -> Result<(), DurableError> {
        let mut changes = vec![job_record(job)];
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
        self.put(&changes)?;
        self.rotation = Arc::new(rotation);
        Ok(())
    }

    /// A job is further than it was.
    pub fn job_changed(&self, id: u64) {
        if let Some(job) = self.jobs.get(id)
            && let Err(error) = self.put(&[job_record(&job)])
        {
            tracing::warn!(
                job = id,
                error = crate::error_chain(&error),
                "How far a job is could not be written."
            );
        }
    }

    /// Writes without holding up the other tasks of the control plane.
    pub fn put(&self, changes: &[Change]) -> Result<(), DurableError> {
        tokio::task::block_in_place(|| self.durable.put(changes))
    }
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
