//! Reachability of the server: one feed that gets through wakes all others.
//!
//! Each feed waits separately, up to half a minute. [`watch_reachability`] ends the wait of all feeds sooner, when the
//! server answers again, or when a token or a kubeconfig has been replaced.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::sleep;

use super::connect::Connector;
use super::watch_error::WatchError;
use crate::backoff::Backoff;

/// Time that a server may refuse requests after it has come back: while it starts, it answers 403 and 503.
const STARTING_TIMEOUT: Duration = Duration::from_secs(5);

/// Reachability of the server, shared by its feeds.
pub(super) struct Reachability {
    /// True if the last request succeeded, or was refused for a reason that concerns only that request.
    is_well: AtomicBool,
    /// True if nothing answers at the server's address.
    is_lost: AtomicBool,
    /// Time since which the server answers.
    since: Mutex<Instant>,
    /// Signal for waiting feeds to try again.
    wake: watch::Sender<()>,
    files: Mutex<Vec<PathBuf>>,
    /// True once a list of router pods was read in one of the namespaces where they may be.
    pub(super) routers_found: AtomicBool,
}

impl Default for Reachability {
    fn default() -> Self {
        Self {
            is_well: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            since: Mutex::new(Instant::now()),
            wake: watch::Sender::new(()),
            files: Mutex::default(),
            routers_found: AtomicBool::new(false),
        }
    }
}

impl Reachability {
    /// Records the outcome of a request.
    pub(super) fn record_outcome<T>(&self, outcome: &Result<T, WatchError>) {
        match outcome {
            Err(WatchError::Unreachable(_)) => return self.mark_lost(),
            Err(WatchError::ConfigUnusable(_)) => {
                self.is_well.store(false, Relaxed);
                // The feed waits for files to change, not for the server.
                self.is_lost.store(false, Relaxed);
                return;
            }
            _ => {}
        }
        if self.is_lost.swap(false, Relaxed) {
            *self.since.lock() = Instant::now();
        }
        match outcome {
            Ok(_) if !self.is_well.swap(true, Relaxed) => self.wake(),
            Err(WatchError::Unauthorized(_) | WatchError::Failed(_)) => self.is_well.store(false, Relaxed),
            _ => {}
        }
    }

    /// Records that a connection broke: the server may be gone.
    pub(super) fn mark_lost(&self) {
        self.is_well.store(false, Relaxed);
        self.is_lost.store(true, Relaxed);
    }

    /// Returns whether the server has answered for a moment only.
    pub(super) fn is_starting(&self) -> bool {
        self.since.lock().elapsed() < STARTING_TIMEOUT
    }

    /// Returns a receiver of the signal to try again.
    pub(super) fn wake_signal(&self) -> watch::Receiver<()> {
        self.wake.subscribe()
    }

    fn wake(&self) {
        self.wake.send_replace(());
    }

    /// Sets the files that a connection was made from.
    pub(super) fn set_files(&self, files: Vec<PathBuf>) {
        *self.files.lock() = files;
    }

    /// Returns the files' times and sizes: they differ when a file was replaced.
    fn fingerprint(&self) -> Vec<Option<(SystemTime, u64)>> {
        let files = self.files.lock().clone();
        let state = |path: &PathBuf| {
            let about = std::fs::metadata(path).ok()?;
            Some((about.modified().ok()?, about.len()))
        };
        files.iter().map(state).collect()
    }
}

/// Checks whether feeds should try again, until aborted.
pub(super) async fn watch_reachability(connector: Arc<Connector>, interval: Duration) {
    let reach = &connector.reachability;
    let mut pause = Backoff::new(interval, interval, "reach");
    let mut before = reach.fingerprint();
    loop {
        sleep(pause.pause()).await;
        if reach.is_well.load(Relaxed) {
            before = reach.fingerprint();
            continue;
        }
        let now = reach.fingerprint();
        let is_replaced = now != before && !before.is_empty();
        before = now;
        // A lost server gets one small request per interval, however many feeds wait.
        if is_replaced || (reach.is_lost.load(Relaxed) && connector.answers().await) {
            reach.wake();
        }
    }
}
