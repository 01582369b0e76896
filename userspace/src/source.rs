//! Where configuration comes from: the file, on SIGHUP, and when it changes; and what other sources learn of clusters.
//!
//! A source tells the store what it knows of a cluster as a whole ([`Learnt`]), and keeps its own [`Standing`] up to
//! date, which the API and the metrics show. When it loses its way to the cluster, what it told last stays.

pub mod file;
pub mod kube;
pub mod prototype;
pub mod routing;
pub mod routing_spi;
pub mod watchers;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use signalbox_core::learned::Learned;
use tokio::sync::oneshot;

use crate::state::{Counter, Labelled, unix_ms};

/// Something a source has learnt.
pub struct Learnt {
    /// The source's name, such as `kube:east`.
    pub source: String,
    /// The cluster.
    pub cluster: String,
    /// All that it knows of it; `None`: the cluster is gone.
    pub what: Option<Arc<Learned>>,
    /// Told when it is in force (and, if `durable`, survives a crash), or why it is not.
    pub done: Option<oneshot::Sender<Result<(), String>>>,
}

/// How a source is doing.
#[derive(Debug)]
pub struct Standing {
    /// Its name, such as `kube:east`.
    pub name: String,
    /// `kubernetes`, `agent`, `api`, `routing-spi`.
    pub kind: &'static str,
    connected: AtomicBool,
    /// When it last knew that it is up to date; 0 for never. Milliseconds since 1970.
    heard_ms: AtomicU64,
    /// Times that it lost its way, or never found it.
    pub failures: Counter,
    /// What it was told, by kind and outcome, such as `modified` or `bad_message`.
    pub events: Labelled,
    last_error: Mutex<Option<String>>,
    /// What else a person may want to know, by what it is about.
    notes: Mutex<BTreeMap<String, String>>,
    /// Until when its next word is expected, and how often it gives one.
    expected: Mutex<Option<(Instant, Duration)>>,
}

/// A source that gives its word regularly is missed after so many intervals without one.
const MAX_MISSED_WORDS: u32 = 3;

impl Standing {
    #[must_use]
    pub fn new(name: &str, kind: &'static str) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            kind,
            connected: AtomicBool::new(false),
            heard_ms: AtomicU64::new(0),
            failures: Counter::default(),
            events: Labelled::default(),
            last_error: Mutex::default(),
            notes: Mutex::default(),
            expected: Mutex::default(),
        })
    }

    /// It is up to date now.
    pub fn heard(&self) {
        self.heard_at(unix_ms());
    }

    /// It is in touch, and was known to be up to date at this time (milliseconds since 1970).
    pub fn heard_at(&self, ms: u64) {
        self.connected.store(true, Relaxed);
        self.heard_ms.store(ms, Relaxed);
        *self.expected.lock().unwrap_or_else(PoisonError::into_inner) = None;
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// It cannot reach what it learns from.
    pub fn failed(&self, error: impl Into<String>) {
        self.connected.store(false, Relaxed);
        self.failures.inc();
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.into());
    }

    /// It was up to date at this time, as an earlier process has it.
    pub fn was_heard_at(&self, ms: u64) {
        let _ = self.heard_ms.compare_exchange(0, ms, Relaxed, Relaxed);
    }

    /// An agent has given word of itself: when it knew last that it was up to date, and what keeps it from that now.
    pub fn reported(&self, heard_ms: Option<u64>, trouble: Option<String>, interval: Duration) {
        let until = Instant::now() + interval * MAX_MISSED_WORDS;
        *self.expected.lock().unwrap_or_else(PoisonError::into_inner) = Some((until, interval));
        if let Some(ms) = heard_ms {
            self.heard_ms.store(ms, Relaxed);
        }
        match trouble {
            Some(trouble) if self.connected() => self.failed(trouble),
            // The same trouble again is no other failure.
            Some(trouble) => self.complain(&trouble),
            None => {
                self.connected.store(true, Relaxed);
                *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
        }
    }

    /// What is wrong with a source that has not given its word for too long.
    fn missed(&self) -> Option<String> {
        let expected = *self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, interval) = expected?;
        let late = Instant::now().checked_duration_since(until)? + interval * MAX_MISSED_WORDS;
        Some(format!(
            "the agent has told nothing for {} s, though it does so every {} s: see whether it runs and reaches this balancer",
            late.as_secs(),
            interval.as_secs()
        ))
    }

    /// What is wrong with it now, or was last.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        let last = || self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.missed().or_else(last)
    }

    /// When it was known to be up to date, in milliseconds since 1970.
    #[must_use]
    pub fn heard_ms(&self) -> Option<u64> {
        let heard = self.heard_ms.load(Relaxed);
        (heard != 0).then_some(heard)
    }

    /// It was told something that it cannot take; it goes on.
    pub fn complain(&self, error: &str) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_owned());
    }

    /// Something to know about one of the things it is told of, such as one that the server does not have; `None`:
    /// nothing any more.
    pub fn note(&self, about: &str, what: Option<String>) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        match what {
            Some(what) => notes.insert(about.to_owned(), what),
            None => notes.remove(about),
        };
    }

    /// Whether it is in touch.
    #[must_use]
    pub fn connected(&self) -> bool {
        self.connected.load(Relaxed) && self.missed().is_none()
    }

    /// Seconds since it was last known to be up to date; `None` if it never was.
    #[must_use]
    pub fn staleness(&self) -> Option<f64> {
        self.heard_ms()
            .map(|heard| unix_ms().saturating_sub(heard) as f64 / 1000.0)
    }

    /// As the API shows it.
    #[must_use]
    pub fn view(&self) -> Value {
        let events: BTreeMap<_, _> = self.events.get().into_iter().collect();
        json!({
            "name": self.name,
            "kind": self.kind,
            "connected": self.connected(),
            "seconds_since_heard": self.staleness(),
            "failures": self.failures.get(),
            "events": events,
            "notes": *self.notes.lock().unwrap_or_else(PoisonError::into_inner),
            "last_error": self.last_error(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_gives_no_word_is_not_in_touch() {
        let standing = Standing::new("agent:west", "agent");
        standing.reported(Some(unix_ms() - 5_000), None, Duration::from_secs(30));
        assert!(standing.connected() && standing.staleness().unwrap() >= 5.0);
        assert_eq!(standing.last_error(), None);
        // Three intervals of nothing are over at once.
        standing.reported(None, None, Duration::ZERO);
        assert!(!standing.connected());
        assert!(
            standing
                .last_error()
                .unwrap()
                .starts_with("the agent has told nothing for 0 s")
        );
        assert!(standing.staleness().unwrap() >= 5.0, "no word is no news");
    }

    #[test]
    fn a_blind_agent_is_not_in_touch_however_often_it_tells() {
        let standing = Standing::new("agent:west", "agent");
        let heard = unix_ms() - 600_000;
        standing.reported(Some(heard), Some("401".into()), Duration::from_secs(30));
        assert_eq!(
            (standing.connected(), standing.last_error().as_deref()),
            (false, Some("401"))
        );
        assert!(standing.staleness().unwrap() >= 600.0);
    }

    #[test]
    fn what_an_earlier_process_has_heard_counts_until_something_is_heard() {
        let standing = Standing::new("kube:east", "kubernetes");
        standing.was_heard_at(unix_ms() - 60_000);
        assert!(!standing.connected() && standing.staleness().unwrap() >= 60.0);
        standing.heard();
        standing.was_heard_at(1);
        assert!(standing.staleness().unwrap() < 60.0);
    }
}
