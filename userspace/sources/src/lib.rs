//! Sources that discover clusters: API servers, agents, name servers. Those of older systems are in `signalbox-compat`.
//!
//! A source reports its whole knowledge of a cluster to the store ([`DiscoveryUpdate`]), and keeps its own
//! [`SourceStatus`] up to date, which the API and the metrics show. When a source loses touch with the cluster, its
//! last knowledge stays in use.

pub mod agent;
pub mod alias_file;
pub mod backoff;
pub mod body;
pub mod client;
pub mod kube;
pub mod pem;
pub mod resolve;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use signalbox_api::by_label;
use signalbox_api::sources::{SourceContact, SourceView};
use signalbox_core::discovered::discovery::ClusterDiscovery;
use signalbox_core::limits::stats::{Counter, LabelledCounters};
use tokio::sync::oneshot;

use signalbox_sys::unix_ms;

/// Knowledge of a source about a cluster.
pub struct DiscoveryUpdate {
    /// Name of the source, such as `kube:east`.
    pub source: String,
    /// The cluster.
    pub cluster: String,
    /// Whole knowledge of the cluster; `None`: the cluster is gone.
    pub discovery: Option<Arc<ClusterDiscovery>>,
    /// Channel for the outcome: applied (and, if `durable`, on disk), or the reason why not.
    pub done: Option<oneshot::Sender<Result<(), String>>>,
}

/// Status of a source.
#[derive(Debug)]
pub struct SourceStatus {
    /// Name of the source, such as `kube:east`.
    pub name: String,
    /// `kubernetes`, `agent`, `api`, `routing-spi`, `dns`.
    pub kind: &'static str,
    connected: AtomicBool,
    /// Time at which the source was last known to be up to date, in milliseconds since 1970; 0 for never.
    heard_ms: AtomicU64,
    /// Number of times that the source lost touch, or could not get in touch.
    pub failures: Counter,
    /// Messages to the source, by kind and outcome, such as `modified` or `bad_message`.
    pub events: LabelledCounters,
    last_error: Mutex<Option<String>>,
    /// Notes for operators, by subject.
    notes: Mutex<BTreeMap<String, String>>,
    /// Deadline of the next report, and the interval of reports, for a source that reports regularly.
    expected: Mutex<Option<(Instant, Duration)>>,
}

/// Number of intervals without a report after which a source counts as missed.
const MAX_MISSED_REPORTS: u32 = 3;

impl SourceStatus {
    #[must_use]
    pub fn new(name: &str, kind: &'static str) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            kind,
            connected: AtomicBool::new(false),
            heard_ms: AtomicU64::new(0),
            failures: Counter::default(),
            events: LabelledCounters::default(),
            last_error: Mutex::default(),
            notes: Mutex::default(),
            expected: Mutex::default(),
        })
    }

    /// Records that the source is up to date now.
    pub fn mark_heard(&self) {
        self.mark_heard_at(unix_ms());
    }

    /// Records that the source is in touch, and was up to date at this time (milliseconds since 1970).
    pub fn mark_heard_at(&self, ms: u64) {
        self.connected.store(true, Relaxed);
        self.heard_ms.store(ms, Relaxed);
        *self.expected.lock() = None;
        *self.last_error.lock() = None;
    }

    /// Records that the source cannot reach the cluster or broker that it watches.
    pub fn mark_failed(&self, error: impl Into<String>) {
        self.connected.store(false, Relaxed);
        self.failures.inc();
        *self.last_error.lock() = Some(error.into());
    }

    /// Records when the source was up to date, as an earlier process knew it.
    pub fn restore_heard_at(&self, ms: u64) {
        let _ = self.heard_ms.compare_exchange(0, ms, Relaxed, Relaxed);
    }

    /// Records an agent's report: when it was last up to date, and the error that keeps it from being so now.
    pub fn record_report(&self, heard_ms: Option<u64>, error: Option<String>, interval: Duration) {
        let until = Instant::now() + interval * MAX_MISSED_REPORTS;
        *self.expected.lock() = Some((until, interval));
        if let Some(ms) = heard_ms {
            self.heard_ms.store(ms, Relaxed);
        }
        match error {
            Some(trouble) if self.connected() => self.mark_failed(trouble),
            // An error that repeats is no new failure.
            Some(trouble) => self.record_error(&trouble),
            None => {
                self.connected.store(true, Relaxed);
                *self.last_error.lock() = None;
            }
        }
    }

    /// Returns the error of a source whose reports have stopped.
    fn missed_report(&self) -> Option<String> {
        let expected = *self.expected.lock();
        let (until, interval) = expected?;
        let late = Instant::now().checked_duration_since(until)? + interval * MAX_MISSED_REPORTS;
        Some(format!(
            "the agent has reported nothing for {} s, though it does so every {} s: see whether it runs and reaches this balancer",
            late.as_secs(),
            interval.as_secs()
        ))
    }

    /// Returns the current error, or the last one.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        let last = || self.last_error.lock().clone();
        self.missed_report().or_else(last)
    }

    /// Returns when the source was last known to be up to date, in milliseconds since 1970.
    #[must_use]
    pub fn heard_ms(&self) -> Option<u64> {
        let heard = self.heard_ms.load(Relaxed);
        (heard != 0).then_some(heard)
    }

    /// Records a message that the source cannot use; the source continues.
    pub fn record_error(&self, error: &str) {
        *self.last_error.lock() = Some(error.to_owned());
    }

    /// Sets a note about a subject, such as a resource that the server does not have; `None` removes the note.
    pub fn note(&self, about: &str, what: Option<String>) {
        let mut notes = self.notes.lock();
        match what {
            Some(what) => notes.insert(about.to_owned(), what),
            None => notes.remove(about),
        };
    }

    /// Returns whether the source is in touch with the cluster or broker that it watches.
    #[must_use]
    pub fn connected(&self) -> bool {
        self.connected.load(Relaxed) && self.missed_report().is_none()
    }

    /// Returns the seconds since the source was last known to be up to date; `None` if it never was.
    #[must_use]
    pub fn staleness(&self) -> Option<f64> {
        self.heard_ms()
            .map(|heard| unix_ms().saturating_sub(heard) as f64 / 1000.0)
    }

    /// Returns the status as the API shows it.
    #[must_use]
    pub fn view(&self) -> SourceView {
        SourceView {
            name: self.name.clone(),
            connected: self.connected(),
            contact: Some(SourceContact {
                kind: self.kind.into(),
                seconds_since_heard: self.staleness(),
                failures: self.failures.get(),
                events: by_label(self.events.get()),
                notes: self.notes.lock().clone(),
                last_error: self.last_error(),
            }),
            clusters: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_gives_no_word_is_not_in_touch() {
        let standing = SourceStatus::new("agent:west", "agent");
        standing.record_report(Some(unix_ms() - 5_000), None, Duration::from_secs(30));
        assert!(standing.connected() && standing.staleness().unwrap() >= 5.0);
        assert_eq!(standing.last_error(), None);
        // With an interval of zero, the deadline is over at once.
        standing.record_report(None, None, Duration::ZERO);
        assert!(!standing.connected());
        assert!(
            standing
                .last_error()
                .unwrap()
                .starts_with("the agent has reported nothing for 0 s")
        );
        assert!(standing.staleness().unwrap() >= 5.0, "no word is no news");
    }

    #[test]
    fn a_blind_agent_is_not_in_touch_however_often_it_tells() {
        let standing = SourceStatus::new("agent:west", "agent");
        let heard = unix_ms() - 600_000;
        standing.record_report(Some(heard), Some("401".into()), Duration::from_secs(30));
        assert_eq!(
            (standing.connected(), standing.last_error().as_deref()),
            (false, Some("401"))
        );
        assert!(standing.staleness().unwrap() >= 600.0);
    }

    #[test]
    fn the_predecessors_last_contact_counts_until_a_newer_one() {
        let standing = SourceStatus::new("kube:east", "kubernetes");
        standing.restore_heard_at(unix_ms() - 60_000);
        assert!(!standing.connected() && standing.staleness().unwrap() >= 60.0);
        standing.mark_heard();
        standing.restore_heard_at(1);
        assert!(standing.staleness().unwrap() < 60.0);
    }
}
