//! Jobs that take subjects out of rotation or back in: their progress, and their end.
//!
//! The store decides what is out of rotation. This is active, and on disk, before a job exists. The job then only waits
//! for flows to end normally, until its deadline, and closes the rest. It outlives the process: the next one continues
//! it with the same deadline.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
pub use signalbox_api::rotations::{Action, Progress};
use signalbox_core::routing::rotation::Subject;

use crate::sys::unix_ms;

/// Number of ended jobs to keep.
const MAX_ENDED_JOBS: usize = 200;

/// Maximum number of characters of an operator's reason.
pub const MAX_REASON_CHARS: usize = 200;

/// A job that carries out a rotation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub id: u64,
    pub action: Action,
    pub subjects: Vec<Subject>,
    /// Start time, in milliseconds since 1970.
    pub started: u64,
    /// Time at which the remaining flows are closed; for `in`, the start time.
    pub deadline: u64,
    pub progress: Progress,
    /// Number of flows that were left at the deadline.
    pub closed: u64,
    pub ended: Option<u64>,
}

/// Request for a rotation.
#[derive(Clone, Debug)]
pub struct RotationRequest {
    pub action: Action,
    pub names: Vec<String>,
    /// Time to drain; `None` for the configured time.
    pub timeout: Option<Duration>,
    /// Allows leaving an application without a host, and machines that have no known host yet.
    pub force: bool,
    /// Reason in the operator's words; empty if none was given.
    pub reason: String,
    /// Name of the user who requests it.
    pub by: String,
}

/// Reason why a rotation was refused.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RotateError {
    #[error(transparent)]
    Name(#[from] signalbox_core::routing::rotation::SubjectError),
    #[error("{0} is not out of rotation")]
    NotOut(String),
    #[error("{name} is out because {by} is: take that in")]
    CoveredBy { name: String, by: Subject },
    #[error("{} would be left without a host that takes connections; --force does it all the same", .0.join(", "))]
    NoHostLeft(Vec<String>),
    #[error("there is no job {0} that could be cancelled")]
    NoJob(u64),
    #[error("no host is at {0}; --force takes it out all the same, for hosts that are discovered later")]
    UnknownMachine(std::net::IpAddr),
    #[error("a reason has at most {MAX_REASON_CHARS} characters, all of them printable")]
    BadReason,
    #[error("nothing was named")]
    NoNames,
    #[error("{0}")]
    StateDb(String),
    #[error("signalbox is ending")]
    ShuttingDown,
}

/// Jobs, running and ended.
#[derive(Default)]
pub struct Jobs {
    all: Mutex<BTreeMap<u64, Job>>,
    /// Jobs that a task is running.
    claimed: Mutex<HashSet<u64>>,
}

impl Jobs {
    /// Claims a job for the calling task; false if another task has it.
    pub(super) fn claim(&self, id: u64) -> bool {
        self.claimed.lock().insert(id)
    }

    pub(super) fn release_claim(&self, id: u64) {
        self.claimed.lock().remove(&id);
    }

    /// Returns an id for a new job. Ids grow, even over a restart.
    pub fn next_id(&self) -> u64 {
        let last = self.all.lock().last_key_value().map_or(0, |(id, _)| *id);
        unix_ms().max(last + 1)
    }

    pub fn insert(&self, job: Job) {
        let mut jobs = self.all.lock();
        jobs.insert(job.id, job);
        let ended: Vec<_> = jobs
            .values()
            .filter(|job| job.ended.is_some())
            .map(|job| job.id)
            .collect();
        for id in ended.iter().take(ended.len().saturating_sub(MAX_ENDED_JOBS)) {
            jobs.remove(id);
        }
    }

    #[must_use]
    pub fn get(&self, id: u64) -> Option<Job> {
        self.all.lock().get(&id).cloned()
    }

    #[must_use]
    pub fn all(&self) -> Vec<Job> {
        self.all.lock().values().cloned().collect()
    }

    /// Leaves all running jobs to another process.
    pub fn hand_over(&self) {
        self.all.lock().retain(|_, job| job.ended.is_some());
    }

    /// Changes a job that has not ended, and returns it.
    pub fn change(&self, id: u64, change: impl FnOnce(&mut Job)) -> Option<Job> {
        let mut jobs = self.all.lock();
        let job = jobs.get_mut(&id).filter(|job| job.ended.is_none())?;
        change(job);
        if matches!(job.progress, Progress::Done | Progress::Cancelled) {
            job.ended = Some(unix_ms());
        }
        Some(job.clone())
    }
}

#[cfg(test)]
mod tests {
    use signalbox_core::routing::rotation::RotatedOut;

    #[test]
    fn a_rotation_record_of_an_earlier_version_can_be_read() {
        let out: RotatedOut = serde_json::from_str(r#"{"since":7,"job":8,"until":9}"#).unwrap();
        assert_eq!((out.since, out.job, out.until), (7, 8, 9));
        assert_eq!((&*out.reason, &*out.by), ("", ""), "nobody had noted it");
    }
}
