//! Takes subjects out of rotation, and back in.

use std::net::IpAddr;
use std::time::Duration;

use signalbox_api::changes::ChangeEvent;
use signalbox_core::routing::rotation::{RotatedOut, Rotation, Subject};
use signalbox_core::routing::view::{Destination, RoutingView};

use super::Store;
use super::publish::eligibility;
use crate::compat::routing_spi::{EndpointRotation, OWNER};
use crate::control::etcd::SharedRecords;
use crate::control::rotation_jobs::{Action, Job, MAX_REASON_CHARS, Progress, RotateError, RotationRequest};
use crate::sys::unix_ms;

/// Maximum number of applications that a refusal lists.
const MAX_NAMED_APPLICATIONS: usize = 5;

impl Store {
    /// Carries out a rotation, or changes nothing. The change is on disk when this returns, and active with the next
    /// snapshot.
    pub(super) fn rotate(&mut self, request: RotationRequest) -> Result<Job, RotateError> {
        if request.names.is_empty() {
            return Err(RotateError::NoNames);
        }
        self.ensure_restored()
            .map_err(|error| RotateError::StateDb(crate::sys::error_chain(&error)))?;
        let named = request.names.iter().map(|name| match request.action {
            Action::Out => Ok(Subject::parse(name, &self.active.model)?),
            Action::In => self.resolve_out(name),
        });
        let named = named.collect::<Result<Vec<_>, RotateError>>()?;
        self.check(&request, &named)?;
        self.rotate_named(&request, named)
    }

    /// Carries out a rotation requested by a routing event. A subject that is out already gets no second job. A subject
    /// that someone else took out is not taken in.
    pub(super) fn rotate_for_source(&mut self, what: EndpointRotation) -> Result<(), RotateError> {
        self.ensure_restored()
            .map_err(|error| RotateError::StateDb(crate::sys::error_chain(&error)))?;
        let out = &self.persistent.rotation.0;
        let (action, subject, timeout, reason) = match what {
            EndpointRotation::Out { subject, .. } if out.contains_key(&subject) => return Ok(()),
            EndpointRotation::Out {
                subject,
                timeout,
                reason,
            } => (Action::Out, subject, timeout, reason),
            EndpointRotation::In(subject) if out.get(&subject).is_some_and(|out| out.by == OWNER) => {
                (Action::In, subject, None, String::new())
            }
            EndpointRotation::In(_) => return Ok(()),
        };
        // Forced, because the publisher decides: the last gear of an application may be taken out too.
        let request = RotationRequest {
            action,
            names: Vec::new(),
            timeout,
            force: true,
            reason,
            by: OWNER.to_owned(),
        };
        self.rotate_named(&request, vec![subject]).map(drop)
    }

    fn rotate_named(&mut self, request: &RotationRequest, named: Vec<Subject>) -> Result<Job, RotateError> {
        let now = unix_ms();
        let mut rotation = (*self.persistent.rotation).clone();
        let id = self.persistent.jobs.next_id();
        let timeout = request.timeout.unwrap_or_else(|| self.drain_timeout(&named));
        let until = now.saturating_add(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        let mut subjects = Vec::new();
        for subject in named {
            match request.action {
                Action::Out => {
                    let out = rotation.0.entry(subject.clone()).or_insert_with(|| RotatedOut {
                        since: now / 1000,
                        job: id,
                        until,
                        reason: String::new(),
                        by: request.by.clone(),
                    });
                    if !request.reason.is_empty() {
                        out.reason.clone_from(&request.reason);
                    }
                }
                Action::In => drop(rotation.0.remove(&subject)),
            }
            if !subjects.contains(&subject) {
                subjects.push(subject);
            }
        }
        if request.action == Action::Out && !request.force {
            let lost = self.left_without_host(&rotation);
            if !lost.is_empty() {
                return Err(RotateError::NoHostLeft(lost));
            }
        }
        let is_out = request.action == Action::Out;
        let job = Job {
            id,
            action: request.action,
            subjects,
            started: now,
            deadline: if is_out { until } else { now },
            progress: if is_out { Progress::Draining } else { Progress::Done },
            closed: 0,
            ended: (!is_out).then_some(now),
        };
        self.rotate_to(rotation, &job)?;
        if !is_out {
            self.stop_draining(&job.subjects, id);
        }
        let subjects: Vec<_> = job.subjects.iter().map(ToString::to_string).collect();
        tracing::info!(
            job = id,
            action = job.action.as_str(),
            subjects = subjects.join(", "),
            timeout_s = timeout.as_secs(),
            by = request.by,
            reason = request.reason,
            "Rotation changed."
        );
        Ok(job)
    }

    /// Refuses rotations that are probably mistakes.
    fn check(&self, request: &RotationRequest, named: &[Subject]) -> Result<(), RotateError> {
        let is_long = request.reason.chars().count() > MAX_REASON_CHARS;
        if is_long || request.reason.chars().any(char::is_control) {
            return Err(RotateError::BadReason);
        }
        if request.action == Action::In || request.force {
            return Ok(());
        }
        let snapshot = self.shared.snapshot.load();
        for subject in named {
            let Subject::Machine(address) = subject else { continue };
            let mut hosts = snapshot.hosts.iter().flatten();
            if !hosts.any(|host| subject.takes_out(&host.cluster, &host.name, host.address)) {
                return Err(RotateError::UnknownMachine(*address));
            }
        }
        Ok(())
    }

    /// Applies a change that another balancer has made in the shared table.
    pub(super) fn adopt_shared(&mut self, records: SharedRecords) {
        let adopted = self.persistent.adopt_shared(records);
        if adopted.needs_rebuild {
            self.merge.request();
        }
        if adopted.needs_tickets {
            self.renew_tickets();
        }
        if adopted.taken_out.is_empty() && adopted.taken_in.is_empty() {
            return;
        }
        self.publish();
        // A subject taken out by another balancer drains here too, until the deadline set there.
        for (subject, out) in adopted.taken_out {
            let mut job = self.persistent.jobs.get(out.job).unwrap_or_else(|| Job {
                id: out.job,
                action: Action::Out,
                subjects: Vec::new(),
                started: out.since.saturating_mul(1000),
                deadline: out.until,
                progress: Progress::Draining,
                closed: 0,
                ended: None,
            });
            if job.ended.is_none() && !job.subjects.contains(&subject) {
                tracing::info!(job = job.id, %subject, "Taken out of rotation by another balancer.");
                job.subjects.push(subject);
                self.persistent.jobs.insert(job.clone());
                self.persistent.job_changed(job.id);
            }
        }
        if !adopted.taken_in.is_empty() {
            self.stop_draining(&adopted.taken_in, 0);
        }
    }

    /// Cancels a job: its subjects are back in rotation.
    pub(super) fn cancel(&mut self, id: u64) -> Result<Job, RotateError> {
        let found = self.persistent.jobs.get(id).filter(|job| job.ended.is_none());
        let mut job = found.ok_or(RotateError::NoJob(id))?;
        let mut rotation = (*self.persistent.rotation).clone();
        rotation.0.retain(|_, out| out.job != id);
        (job.progress, job.ended) = (Progress::Cancelled, Some(unix_ms()));
        self.rotate_to(rotation, &job)?;
        tracing::info!(job = id, "A rotation was cancelled.");
        Ok(job)
    }

    fn rotate_to(&mut self, rotation: Rotation, job: &Job) -> Result<(), RotateError> {
        self.persistent
            .rotate(rotation, job)
            .map_err(|error| RotateError::StateDb(crate::sys::error_chain(&error)))?;
        // Published before the answer, so that later requests see it, and before the job, which reads what is out.
        self.publish();
        self.persistent.jobs.insert(job.clone());
        self.shared.announce(ChangeEvent::Rotation {
            job: job.id,
            action: job.action,
            subjects: job.subjects.iter().map(ToString::to_string).collect(),
            progress: job.progress,
        });
        Ok(())
    }

    /// Ends the draining of jobs for these subjects.
    fn stop_draining(&self, subjects: &[Subject], by: u64) {
        for job in self.persistent.jobs.all() {
            if job.id == by || job.ended.is_some() {
                continue;
            }
            let changed = self.persistent.jobs.change(job.id, |job| {
                job.subjects.retain(|subject| !subjects.contains(subject));
                if job.subjects.is_empty() {
                    job.progress = Progress::Cancelled;
                }
            });
            if changed.is_some() {
                self.persistent.job_changed(job.id);
            }
        }
    }

    /// Finds the subject with this name among those out of rotation.
    fn resolve_out(&self, name: &str) -> Result<Subject, RotateError> {
        let out = &self.persistent.rotation.0;
        // The subject may no longer be configured.
        let by_text = |subject: &&Subject| {
            let text = subject.to_string();
            text == name || text.split_once(':').is_some_and(|(_, rest)| rest == name)
        };
        if let Some(subject) = out.keys().find(by_text) {
            return Ok(subject.clone());
        }
        let subject = Subject::parse(name, &self.active.model)?;
        if out.contains_key(&subject) {
            return Ok(subject);
        }
        if let Subject::Host { cluster, host } = &subject
            && let Some(address) = self.host_address(cluster, host)
            && let Some(by) = self.persistent.rotation.taken_out_by(cluster, host, address)
        {
            return Err(RotateError::CoveredBy {
                name: name.to_owned(),
                by: by.clone(),
            });
        }
        Err(RotateError::NotOut(name.to_owned()))
    }

    fn host_address(&self, cluster: &str, host: &str) -> Option<IpAddr> {
        let cluster = self.active.model.clusters.iter().find(|known| known.name == cluster)?;
        let host = cluster.hosts.iter().find(|known| known.name == host)?;
        Some(host.address)
    }

    /// Returns applications, and listeners' own clusters, that have a usable host now but would have none.
    fn left_without_host(&self, rotation: &Rotation) -> Vec<String> {
        let snapshot = self.shared.snapshot.load();
        let (model, before) = (&snapshot.model, &snapshot.view);
        let after = RoutingView::new(
            model,
            |cluster, host| eligibility(&snapshot.hosts, rotation, cluster, host),
            // Taking out an application means leaving it without hosts.
            |_| false,
        );
        let has = |view: &RoutingView, route| view.cluster(Destination::Route(route), 0).is_some();
        let mut lost: Vec<_> = model
            .routes
            .iter()
            .enumerate()
            .filter(|&(route, _)| has(before, route) && !has(&after, route))
            .map(|(_, route)| route.hostname.to_string())
            .collect();
        for listener in &model.listeners {
            let Some(clusters) = listener.fallback() else { continue };
            let protocol = listener.protocol;
            let has = |view: &RoutingView| !view.usable(view.taking(clusters, protocol), protocol).is_empty();
            if has(before) && !has(&after) {
                lost.push(format!("listener {}", listener.name));
            }
        }
        if lost.len() > MAX_NAMED_APPLICATIONS {
            let more = lost.len() - MAX_NAMED_APPLICATIONS;
            lost.truncate(MAX_NAMED_APPLICATIONS);
            lost.push(format!("{more} more"));
        }
        lost
    }

    /// Returns the time for which flows may continue: the longest that is configured for any of the subjects.
    fn drain_timeout(&self, subjects: &[Subject]) -> Duration {
        let of = |subject: &Subject| match subject {
            Subject::Application(name) => {
                let route = self
                    .active
                    .model
                    .routes
                    .iter()
                    .find(|route| route.hostname.to_string() == *name);
                route.and_then(|route| route.drain)
            }
            subject => {
                let covered = |cluster: &&signalbox_core::model::Cluster| {
                    matches!(subject, Subject::Cluster(name) if *name == cluster.name)
                        || cluster
                            .hosts
                            .iter()
                            .any(|host| subject.takes_out(&cluster.name, &host.name, host.address))
                };
                self.active
                    .model
                    .clusters
                    .iter()
                    .filter(covered)
                    .filter_map(|c| c.drain)
                    .max()
            }
        };
        let default = self.active.model.timeouts.drain;
        subjects
            .iter()
            .map(|s| of(s).unwrap_or(default))
            .max()
            .unwrap_or(default)
    }
}
