//! Jobs that take something out of rotation, or in: the progress of each, and what ends it.
//!
//! The store decides what is out; that is in force, and on disk, when a job exists. From then on a job only waits for
//! flows to end by themselves, until its deadline, and closes what is left. It outlives the process: the next one goes
//! on where it was, with the same deadline.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use signalbox_core::rotation::Subject;
use tokio::sync::oneshot;

use crate::control::Control;
use crate::datapath::worker::WorkerCommand;
use crate::state::{Snapshot, unix_ms};

/// Interval at which a job checks whether its flows have ended.
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Number of ended jobs that are still shown.
const MAX_ENDED_JOBS: usize = 200;

/// Most characters of the reason that an operator gives.
pub const MAX_REASON_CHARS: usize = 200;

/// Number of hosts that a job's progress names.
const MAX_NAMED_HOSTS: usize = 20;

/// Direction of a rotation: out, or in again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    Out,
    In,
}

impl Action {
    /// Returns the action's name in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::In => "in",
        }
    }
}

/// Progress of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Progress {
    /// Established flows continue until the deadline.
    Draining,
    /// The deadline has passed, and the remaining flows are being closed.
    Closing,
    /// No flow is left.
    Done,
    /// An operator has cancelled the job: what it had taken out is in again.
    Cancelled,
}

/// A job that sees a rotation through.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub id: u64,
    pub action: Action,
    pub subjects: Vec<Subject>,
    /// Time of the start, in milliseconds since 1970.
    pub started: u64,
    /// Time at which remaining flows are closed; for `in`, the time of the start.
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
    /// Time to drain; `None` for that of the configuration.
    pub timeout: Option<Duration>,
    /// Permits leaving an application without a host, and naming machines at which no host is known yet.
    pub force: bool,
    /// Reason in the operator's words; empty where none was given.
    pub reason: String,
    /// Name of whoever requests it.
    pub by: String,
}

/// Reason why a rotation was refused.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RotateError {
    #[error(transparent)]
    Name(#[from] signalbox_core::rotation::SubjectError),
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
    /// Jobs that a task sees through.
    claimed: Mutex<HashSet<u64>>,
}

impl Jobs {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Job>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims a job for the calling task; false if another task has it.
    fn claim(&self, id: u64) -> bool {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner).insert(id)
    }

    fn release_claim(&self, id: u64) {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// Returns an id for a new job. Ids grow, also over a restart.
    pub fn next_id(&self) -> u64 {
        let last = self.lock().last_key_value().map_or(0, |(id, _)| *id);
        unix_ms().max(last + 1)
    }

    pub fn insert(&self, job: Job) {
        let mut jobs = self.lock();
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
        self.lock().get(&id).cloned()
    }

    #[must_use]
    pub fn all(&self) -> Vec<Job> {
        self.lock().values().cloned().collect()
    }

    /// Leaves all running jobs to another process.
    pub fn hand_over(&self) {
        self.lock().retain(|_, job| job.ended.is_some());
    }

    /// Changes a job that has not ended, and returns it.
    pub fn change(&self, id: u64, change: impl FnOnce(&mut Job)) -> Option<Job> {
        let mut jobs = self.lock();
        let job = jobs.get_mut(&id).filter(|job| job.ended.is_none())?;
        change(job);
        if matches!(job.progress, Progress::Done | Progress::Cancelled) {
            job.ended = Some(unix_ms());
        }
        Some(job.clone())
    }
}

/// Replaces each machine among the subjects by its hosts: a flow knows its host by name.
fn expand_machines(snapshot: &Snapshot, subjects: &[Subject]) -> Vec<Subject> {
    let known = || snapshot.hosts.iter().flatten().chain(&snapshot.draining);
    let at = |subject: &Subject| -> Vec<Subject> {
        if !matches!(subject, Subject::Machine(_)) {
            return vec![subject.clone()];
        }
        let there = known().filter(|host| subject.takes_out(&host.cluster, &host.name, host.address));
        let host = |host: &Arc<crate::state::HostState>| Subject::Host {
            cluster: host.cluster.clone(),
            host: host.name.clone(),
        };
        there.map(host).collect()
    };
    subjects.iter().flat_map(at).collect()
}

/// Returns whether one of the subjects covers a flow. Machines cover none: [`expand_machines`] replaces them by their
/// hosts.
#[must_use]
pub fn covers(subjects: &[Subject], cluster: &str, host: &str, route: Option<&str>) -> bool {
    subjects.iter().any(|subject| match subject {
        Subject::Application(name) => route == Some(name),
        other => other.covers(cluster, host),
    })
}

/// Returns the connections of the hosts that the subjects cover, by host.
fn connections_by_host(snapshot: &Snapshot, subjects: &[Subject]) -> Vec<(String, u32)> {
    let configured = snapshot.hosts.iter().flatten();
    let all = configured.chain(&snapshot.draining);
    let busy = all.filter(|host| covers(subjects, &host.cluster, &host.name, None) && host.active.get() > 0);
    busy.map(|host| (format!("{}/{}", host.cluster, host.name), host.active.get()))
        .collect()
}

impl Control {
    /// Takes something out of rotation or in. Returns the job that sees it through.
    pub async fn rotate(&self, request: RotationRequest) -> Result<Job, RotateError> {
        let (reply, outcome) = oneshot::channel();
        let event = crate::store::StoreEvent::Rotate(request, reply);
        self.events.send(event).map_err(|_| RotateError::ShuttingDown)?;
        let job = outcome.await.map_err(|_| RotateError::ShuttingDown)??;
        if job.ended.is_none() {
            tokio::spawn(self.clone().run_job(job.id));
        }
        Ok(job)
    }

    /// Cancels a job: what it took out is in again.
    pub async fn cancel(&self, id: u64) -> Result<Job, RotateError> {
        let (reply, outcome) = oneshot::channel();
        let event = crate::store::StoreEvent::CancelRotation(id, reply);
        self.events.send(event).map_err(|_| RotateError::ShuttingDown)?;
        outcome.await.map_err(|_| RotateError::ShuttingDown)?
    }

    /// Sees through the jobs of an earlier process, and those that another balancer has begun. Never returns.
    pub async fn run_jobs(self) {
        loop {
            for job in self.jobs.all().into_iter().filter(|job| job.ended.is_none()) {
                tokio::spawn(self.clone().run_job(job.id));
            }
            tokio::time::sleep(DRAIN_CHECK_INTERVAL).await;
        }
    }

    async fn run_job(self, id: u64) {
        if !self.jobs.claim(id) {
            return;
        }
        let mut doubted = false;
        loop {
            let Some(job) = self.jobs.get(id).filter(|job| job.ended.is_none()) else {
                self.jobs.release_claim(id);
                return;
            };
            // A subject that has been taken in again meanwhile, by whomever, is no business of this job.
            let subjects = self.still_out(&job.subjects);
            if subjects.is_empty() && !std::mem::replace(&mut doubted, true) {
                // The job may have been read from the disk, and its rotation is in force in a moment.
                tokio::time::sleep(DRAIN_CHECK_INTERVAL).await;
                continue;
            }
            doubted = false;
            if subjects.is_empty() {
                self.jobs.change(id, |job| job.progress = Progress::Cancelled);
                let _ = self.events.send(crate::store::StoreEvent::JobChanged(id));
                continue;
            }
            let remaining = self.remaining(&subjects, job.started).await;
            let left: u64 = remaining.iter().map(|(_, n)| u64::from(*n)).sum();
            let progress = if left == 0 {
                Progress::Done
            } else if unix_ms() >= job.deadline {
                Progress::Closing
            } else {
                Progress::Draining
            };
            let is_first = progress == Progress::Closing && job.progress == Progress::Draining;
            if progress == Progress::Closing {
                // Repeated on each round: a connection that was being made is there a moment later.
                self.close(&self.still_out(&subjects));
            }
            if progress != job.progress {
                self.jobs.change(id, |job| {
                    if is_first {
                        job.closed = left;
                    }
                    job.progress = progress;
                });
                match progress {
                    Progress::Closing => tracing::warn!(
                        job = id,
                        flows = left,
                        "The drain timeout is over: remaining flows are closed."
                    ),
                    Progress::Done => tracing::info!(
                        job = id,
                        closed = job.closed,
                        "Draining has finished: no flow is left on what was taken out of rotation."
                    ),
                    _ => {}
                }
                // An error is ignored: at worst the next process finds at once that nothing is left.
                let _ = self.events.send(crate::store::StoreEvent::JobChanged(id));
            }
            tokio::time::sleep(DRAIN_CHECK_INTERVAL).await;
        }
    }

    /// Returns those of the subjects that are out of rotation.
    fn still_out(&self, subjects: &[Subject]) -> Vec<Subject> {
        let rotation = Arc::clone(&self.shared.snapshot.load().rotation);
        let is_out = |subject: &&Subject| rotation.0.contains_key(subject);
        subjects.iter().filter(is_out).cloned().collect()
    }

    /// Returns the connections that a job waits for, by host or by route.
    ///
    /// `since` is Unix time in milliseconds: where flows of services have not been counted since then, each of their
    /// hosts counts as having at least one.
    pub async fn remaining(&self, subjects: &[Subject], since: u64) -> Vec<(String, u32)> {
        let snapshot = self.shared.snapshot.load_full();
        let subjects = &expand_machines(&snapshot, subjects)[..];
        let mut all = connections_by_host(&snapshot, subjects);
        drop(snapshot);
        for (host, flows) in self.services.flows_by_host(subjects, since) {
            match all.iter_mut().find(|(known, _)| *known == host) {
                Some((_, count)) => *count += flows,
                None => all.push((host, flows)),
            }
        }
        for subject in subjects {
            if let Subject::Application(name) = subject {
                let filter = crate::datapath::flow::FlowFilter {
                    limit: 0,
                    route: Some(name.clone()),
                    ..Default::default()
                };
                let (total, _) = self.flows(&filter).await;
                if total > 0 {
                    all.push((name.clone(), total as u32));
                }
            }
        }
        all
    }

    fn close(&self, subjects: &[Subject]) {
        let subjects: Arc<[Subject]> = expand_machines(&self.shared.snapshot.load(), subjects).into();
        for worker in &self.workers {
            worker.send(WorkerCommand::Close(Arc::clone(&subjects)));
        }
        let (flow_gc, services) = (self.flow_gc.clone(), Arc::clone(&self.services));
        tokio::task::spawn_blocking(move || {
            if let Some(flow_gc) = flow_gc {
                flow_gc.close(&subjects);
            }
            services.close(&subjects);
        });
    }

    /// Returns a job as the API shows it.
    pub async fn job_view(&self, job: &Job) -> Value {
        let mut remaining = if job.ended.is_none() {
            self.remaining(&job.subjects, job.started).await
        } else {
            Vec::new()
        };
        remaining.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        let left: u64 = remaining.iter().map(|(_, n)| u64::from(*n)).sum();
        remaining.truncate(MAX_NAMED_HOSTS);
        let waits: BTreeMap<_, _> = remaining.into_iter().collect();
        let seconds = |ms: u64| ms as f64 / 1000.0;
        json!({
            "id": job.id,
            "action": job.action,
            "subjects": job.subjects.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "progress": job.progress,
            "started": seconds(job.started),
            "deadline": seconds(job.deadline),
            "ended": job.ended.map(seconds),
            "remaining_connections": left,
            "waits_for": waits,
            "closed_connections": job.closed,
        })
    }
}

#[cfg(test)]
mod tests {
    use signalbox_core::rotation::RotatedOut;

    #[test]
    fn what_an_earlier_version_has_remembered_can_be_read() {
        let out: RotatedOut = serde_json::from_str(r#"{"since":7,"job":8,"until":9}"#).unwrap();
        assert_eq!((out.since, out.job, out.until), (7, 8, 9));
        assert_eq!((&*out.reason, &*out.by), ("", ""), "nobody had noted it");
    }
}
