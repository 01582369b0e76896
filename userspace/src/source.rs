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
}

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
        })
    }

    /// It is up to date now.
    pub fn heard(&self) {
        self.connected.store(true, Relaxed);
        self.heard_ms.store(unix_ms(), Relaxed);
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// It cannot reach what it learns from.
    pub fn failed(&self, error: impl Into<String>) {
        self.connected.store(false, Relaxed);
        self.failures.inc();
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.into());
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
        self.connected.load(Relaxed)
    }

    /// Seconds since it was last known to be up to date; `None` if it never was.
    #[must_use]
    pub fn staleness(&self) -> Option<f64> {
        let heard = self.heard_ms.load(Relaxed);
        (heard != 0).then(|| unix_ms().saturating_sub(heard) as f64 / 1000.0)
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
            "last_error": *self.last_error.lock().unwrap_or_else(PoisonError::into_inner),
        })
    }
}
