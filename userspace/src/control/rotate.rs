//! Runs rotations: waits for flows to end normally until a job's deadline, then closes the remaining ones.

use std::sync::Arc;
use std::time::Duration;

use signalbox_api::rotations::JobView;
use signalbox_core::routing::rotation::{Subject, covers};
use tokio::sync::oneshot;

use super::Control;
use super::event::StoreEvent;
use super::rotation_jobs::{Job, Progress, RotateError, RotationRequest};
use crate::datapath::flow::FlowFilter;
use crate::datapath::worker::WorkerCommand;
use crate::state::Snapshot;
use crate::sys::unix_ms;

/// Interval at which a job checks whether its flows have ended.
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Maximum number of hosts that a job's progress lists.
const MAX_NAMED_HOSTS: usize = 20;

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

/// Returns the connections of the hosts that match the subjects, by host.
fn connections_by_host(snapshot: &Snapshot, subjects: &[Subject]) -> Vec<(String, u32)> {
    let configured = snapshot.hosts.iter().flatten();
    let all = configured.chain(&snapshot.draining);
    let busy = all.filter(|host| covers(subjects, &host.cluster, &host.name, None) && host.active.get() > 0);
    busy.map(|host| (format!("{}/{}", host.cluster, host.name), host.active.get()))
        .collect()
}

impl Control {
    /// Takes subjects out of rotation or back in. Returns the job for it.
    pub async fn rotate(&self, request: RotationRequest) -> Result<Job, RotateError> {
        let (reply, outcome) = oneshot::channel();
        let event = StoreEvent::Rotate(request, reply);
        self.events.send(event).map_err(|_| RotateError::ShuttingDown)?;
        let job = outcome.await.map_err(|_| RotateError::ShuttingDown)??;
        if job.ended.is_none() {
            tokio::spawn(self.clone().run_job(job.id));
        }
        Ok(job)
    }

    /// Cancels a job: its subjects are back in rotation.
    pub async fn cancel(&self, id: u64) -> Result<Job, RotateError> {
        let (reply, outcome) = oneshot::channel();
        let event = StoreEvent::CancelRotation(id, reply);
        self.events.send(event).map_err(|_| RotateError::ShuttingDown)?;
        outcome.await.map_err(|_| RotateError::ShuttingDown)?
    }

    /// Runs the jobs of an earlier process, and those that another balancer has begun. Never returns.
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
            // A subject that is back in rotation, for any reason, no longer concerns this job.
            let subjects = self.still_out(&job.subjects);
            if subjects.is_empty() && !std::mem::replace(&mut doubted, true) {
                // The job may have just been read from disk; its rotation takes effect in a moment.
                tokio::time::sleep(DRAIN_CHECK_INTERVAL).await;
                continue;
            }
            doubted = false;
            if subjects.is_empty() {
                self.jobs.change(id, |job| job.progress = Progress::Cancelled);
                let _ = self.events.send(StoreEvent::JobChanged(id));
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
                // Repeated in each round, because connections in the making appear a moment later.
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
                // An error is ignored: at worst the next process finds at once that no flow is left.
                let _ = self.events.send(StoreEvent::JobChanged(id));
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
    /// `since` is Unix time in milliseconds. If flows of services have not been counted since then, each of their hosts
    /// counts as having at least one.
    pub async fn remaining(&self, subjects: &[Subject], since: u64) -> Vec<(String, u32)> {
        let snapshot = self.shared.snapshot.load_full();
        let subjects = &expand_machines(&snapshot, subjects)[..];
        let mut all = connections_by_host(&snapshot, subjects);
        drop(snapshot);
        for (host, flows) in self.kernel.services.flows_by_host(subjects, since) {
            match all.iter_mut().find(|(known, _)| *known == host) {
                Some((_, count)) => *count += flows,
                None => all.push((host, flows)),
            }
        }
        for subject in subjects {
            if let Subject::Application(name) = subject {
                let filter = FlowFilter {
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
        let (flow_gc, services) = (self.kernel.flow_gc.clone(), Arc::clone(&self.kernel.services));
        tokio::task::spawn_blocking(move || {
            if let Some(flow_gc) = flow_gc {
                flow_gc.close(&subjects);
            }
            services.close(&subjects);
        });
    }

    /// Returns a job in the API's form.
    pub async fn job_view(&self, job: &Job) -> JobView {
        let mut remaining = if job.ended.is_none() {
            self.remaining(&job.subjects, job.started).await
        } else {
            Vec::new()
        };
        remaining.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        let left: u64 = remaining.iter().map(|(_, n)| u64::from(*n)).sum();
        remaining.truncate(MAX_NAMED_HOSTS);
        let seconds = |ms: u64| ms as f64 / 1000.0;
        JobView {
            id: job.id,
            action: job.action,
            subjects: job.subjects.iter().map(ToString::to_string).collect(),
            progress: job.progress,
            started: seconds(job.started),
            deadline: seconds(job.deadline),
            ended: job.ended.map(seconds),
            remaining_connections: left,
            waits_for: remaining.into_iter().collect(),
            closed_connections: job.closed,
        }
    }
}
