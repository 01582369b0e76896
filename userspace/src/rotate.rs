//! Jobs that take something out of rotation, or in: how far each is, and what ends it.
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
use crate::datapath::worker::Order;
use crate::state::{Snapshot, unix_ms};

/// How often a job looks whether its flows have ended.
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Jobs that have ended and are still shown.
const REMEMBERED: usize = 200;

/// Characters of the reason that an operator gives.
pub const MAX_REASON_CHARS: usize = 200;

/// Hosts that a job's progress names.
const NAMED: usize = 20;

/// Out of rotation, or in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    Out,
    In,
}

impl Action {
    /// Its name in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::In => "in",
        }
    }
}

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Progress {
    /// Established flows go on, until the deadline.
    Draining,
    /// What was left at the deadline is being closed.
    Closing,
    /// Nothing is left.
    Done,
    /// It was called off: what it had taken out is in again.
    Cancelled,
}

/// A job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub id: u64,
    pub action: Action,
    pub subjects: Vec<Subject>,
    /// Milliseconds since 1970.
    pub started: u64,
    /// When what is left is closed; for `in`, when it began.
    pub deadline: u64,
    pub progress: Progress,
    /// Flows that were closed at the deadline.
    pub closed: u64,
    pub ended: Option<u64>,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    pub action: Action,
    pub names: Vec<String>,
    /// `None`: what the configuration says.
    pub timeout: Option<Duration>,
    /// Even if an application is left without a host, and for machines at which no host is known yet.
    pub force: bool,
    /// Why, in the operator's words; empty where none were given.
    pub reason: String,
    /// Who asks.
    pub by: String,
}

/// Why a rotation was refused.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RotateError {
    #[error(transparent)]
    Name(#[from] signalbox_core::rotation::NameError),
    #[error("{0} is not out of rotation")]
    NotOut(String),
    #[error("{name} is out because {by} is: take that in")]
    Covered { name: String, by: Subject },
    #[error("{} would be left without a host that takes connections; --force does it all the same", .0.join(", "))]
    Last(Vec<String>),
    #[error("there is no job {0} that could be cancelled")]
    NoJob(u64),
    #[error("no host is at {0}; --force takes it out all the same, for hosts that are learnt later")]
    NoMachine(std::net::IpAddr),
    #[error("a reason has at most {MAX_REASON_CHARS} characters, all of them printable")]
    Reason,
    #[error("nothing was named")]
    Nothing,
    #[error("{0}")]
    Durable(String),
    #[error("signalbox is ending")]
    Ending,
}

/// All jobs.
#[derive(Default)]
pub struct Jobs {
    all: Mutex<BTreeMap<u64, Job>>,
    /// Those that somebody sees through.
    seen_to: Mutex<HashSet<u64>>,
}

impl Jobs {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Job>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody saw a job through yet; whoever asks does from now on.
    fn claim(&self, id: u64) -> bool {
        self.seen_to.lock().unwrap_or_else(PoisonError::into_inner).insert(id)
    }

    fn unclaim(&self, id: u64) {
        self.seen_to.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// Ids grow, also over a restart.
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
        for id in ended.iter().take(ended.len().saturating_sub(REMEMBERED)) {
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

    /// Leaves all jobs to another process.
    pub fn hand_over(&self) {
        self.lock().retain(|_, job| job.ended.is_some());
    }

    /// Changes a job that has not ended; what it is then.
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

/// These subjects with the hosts of each machine in its place: a flow knows its host by name.
fn spelt_out(snapshot: &Snapshot, subjects: &[Subject]) -> Vec<Subject> {
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

/// Whether one of these covers a flow. Machines cover none: [`spelt_out`] puts their hosts in their place.
#[must_use]
pub fn covers(subjects: &[Subject], cluster: &str, host: &str, route: Option<&str>) -> bool {
    subjects.iter().any(|subject| match subject {
        Subject::Application(name) => route == Some(name),
        other => other.covers(cluster, host),
    })
}

/// Connections of the hosts that these cover, by host.
fn on_hosts(snapshot: &Snapshot, subjects: &[Subject]) -> Vec<(String, u32)> {
    let configured = snapshot.hosts.iter().flatten();
    let all = configured.chain(&snapshot.draining);
    let busy = all.filter(|host| covers(subjects, &host.cluster, &host.name, None) && host.active.get() > 0);
    busy.map(|host| (format!("{}/{}", host.cluster, host.name), host.active.get()))
        .collect()
}

impl Control {
    /// Takes something out of rotation or in; the job that sees to the rest.
    pub async fn rotate(&self, request: Request) -> Result<Job, RotateError> {
        let (reply, outcome) = oneshot::channel();
        let event = crate::store::Event::Rotate(request, reply);
        self.events.send(event).map_err(|_| RotateError::Ending)?;
        let job = outcome.await.map_err(|_| RotateError::Ending)??;
        if job.ended.is_none() {
            tokio::spawn(self.clone().see_through(job.id));
        }
        Ok(job)
    }

    /// Calls a job off: what it took out is in again.
    pub async fn cancel(&self, id: u64) -> Result<Job, RotateError> {
        let (reply, outcome) = oneshot::channel();
        let event = crate::store::Event::Cancel(id, reply);
        self.events.send(event).map_err(|_| RotateError::Ending)?;
        outcome.await.map_err(|_| RotateError::Ending)?
    }

    /// Sees through the jobs of an earlier process, and those that another balancer has begun. For ever.
    pub async fn tend_jobs(self) {
        loop {
            for job in self.jobs.all().into_iter().filter(|job| job.ended.is_none()) {
                tokio::spawn(self.clone().see_through(job.id));
            }
            tokio::time::sleep(DRAIN_CHECK_INTERVAL).await;
        }
    }

    async fn see_through(self, id: u64) {
        if !self.jobs.claim(id) {
            return;
        }
        let mut doubted = false;
        loop {
            let Some(job) = self.jobs.get(id).filter(|job| job.ended.is_none()) else {
                self.jobs.unclaim(id);
                return;
            };
            // What has been taken in again meanwhile, by whomever, is no business of this job's.
            let subjects = self.still_out(&job.subjects);
            if subjects.is_empty() && !std::mem::replace(&mut doubted, true) {
                // Or has been read from the disk, and is in force in a moment.
                tokio::time::sleep(DRAIN_CHECK_INTERVAL).await;
                continue;
            }
            doubted = false;
            if subjects.is_empty() {
                self.jobs.change(id, |job| job.progress = Progress::Cancelled);
                let _ = self.events.send(crate::store::Event::JobChanged(id));
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
                // Again and again: a connection that was being made is there a moment later.
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
                        "The time for draining is over: what is left is closed."
                    ),
                    Progress::Done => tracing::info!(
                        job = id,
                        closed = job.closed,
                        "Nothing is left of what was taken out of rotation."
                    ),
                    _ => {}
                }
                // Not worth more than a log line: at worst the next process finds at once that nothing is left.
                let _ = self.events.send(crate::store::Event::JobChanged(id));
            }
            tokio::time::sleep(DRAIN_CHECK_INTERVAL).await;
        }
    }

    /// Those of these that are out of rotation.
    fn still_out(&self, subjects: &[Subject]) -> Vec<Subject> {
        let rotation = Arc::clone(&self.shared.snapshot.load().rotation);
        let is_out = |subject: &&Subject| rotation.0.contains_key(subject);
        subjects.iter().filter(is_out).cloned().collect()
    }

    /// What a job waits for: connections by host, or by route.
    ///
    /// `since`: what has not been counted since then, Unix time in milliseconds, is taken to be there.
    pub async fn remaining(&self, subjects: &[Subject], since: u64) -> Vec<(String, u32)> {
        let snapshot = self.shared.snapshot.load_full();
        let subjects = &spelt_out(&snapshot, subjects)[..];
        let mut all = on_hosts(&snapshot, subjects);
        drop(snapshot);
        for (host, flows) in self.services.on_hosts(subjects, since) {
            match all.iter_mut().find(|(known, _)| *known == host) {
                Some((_, count)) => *count += flows,
                None => all.push((host, flows)),
            }
        }
        for subject in subjects {
            if let Subject::Application(name) = subject {
                let filter = crate::datapath::flow::Filter {
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
        let subjects: Arc<[Subject]> = spelt_out(&self.shared.snapshot.load(), subjects).into();
        for worker in &self.workers {
            worker.send(Order::Close(Arc::clone(&subjects)));
        }
        let (keeper, services) = (self.keeper.clone(), Arc::clone(&self.services));
        tokio::task::spawn_blocking(move || {
            if let Some(keeper) = keeper {
                keeper.close(&subjects);
            }
            services.close(&subjects);
        });
    }

    /// A job as the API shows it.
    pub async fn job_view(&self, job: &Job) -> Value {
        let mut remaining = if job.ended.is_none() {
            self.remaining(&job.subjects, job.started).await
        } else {
            Vec::new()
        };
        remaining.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        let left: u64 = remaining.iter().map(|(_, n)| u64::from(*n)).sum();
        remaining.truncate(NAMED);
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
    use signalbox_core::rotation::Out;

    #[test]
    fn what_an_earlier_version_has_remembered_can_be_read() {
        let out: Out = serde_json::from_str(r#"{"since":7,"job":8,"until":9}"#).unwrap();
        assert_eq!((out.since, out.job, out.until), (7, 8, 9));
        assert_eq!((&*out.reason, &*out.by), ("", ""), "nobody had noted it");
    }
}
