//! Whether the server is reached, and the end of waiting: one feed that gets through wakes all others.
//!
//! Each feed waits by itself, up to half a minute. What all of them wait for is seen sooner by [`tend`]: a server that
//! answers again, a token or a kubeconfig that is replaced.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;
use tokio::time::sleep;

use super::connect::Connector;
use super::trouble::Trouble;
use crate::backoff::Backoff;

/// How long a server that was just reached may refuse what it will grant: one that starts says 403 and 503 at first.
const STARTING_TIMEOUT: Duration = Duration::from_secs(5);

/// What is known of the way to the server.
pub(super) struct Reach {
    /// The last request got what it asked for, or was refused for a reason of its own.
    well: AtomicBool,
    /// Nothing answers at the server's address.
    lost: AtomicBool,
    /// Since when the server answers.
    since: Mutex<Instant>,
    /// Changes when those who wait should try again.
    wake: watch::Sender<()>,
    files: Mutex<Vec<PathBuf>>,
    /// A list of router pods was read in one of the places where they may be.
    pub(super) routers_found: AtomicBool,
}

impl Default for Reach {
    fn default() -> Self {
        Self {
            well: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            since: Mutex::new(Instant::now()),
            wake: watch::Sender::new(()),
            files: Mutex::default(),
            routers_found: AtomicBool::new(false),
        }
    }
}

impl Reach {
    /// A request has had this outcome.
    pub(super) fn learn<T>(&self, outcome: &Result<T, Trouble>) {
        match outcome {
            Err(Trouble::Unreachable(_)) => return self.lose(),
            Err(Trouble::Unprepared(_)) => {
                self.well.store(false, Relaxed);
                // The files are what is waited for.
                self.lost.store(false, Relaxed);
                return;
            }
            _ => {}
        }
        if self.lost.swap(false, Relaxed) {
            *self.since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
        match outcome {
            Ok(_) if !self.well.swap(true, Relaxed) => self.wake(),
            Err(Trouble::Unauthorized(_) | Trouble::Failed(_)) => self.well.store(false, Relaxed),
            _ => {}
        }
    }

    /// A connection broke: the server may be gone.
    pub(super) fn lose(&self) {
        self.well.store(false, Relaxed);
        self.lost.store(true, Relaxed);
    }

    /// Whether the server answers only since a moment ago.
    pub(super) fn is_starting(&self) -> bool {
        self.since.lock().unwrap_or_else(PoisonError::into_inner).elapsed() < STARTING_TIMEOUT
    }

    /// Told when waiting has an end.
    pub(super) fn woken(&self) -> watch::Receiver<()> {
        self.wake.subscribe()
    }

    fn wake(&self) {
        self.wake.send_replace(());
    }

    /// A connection is made of what these files say.
    pub(super) fn depends_on(&self, files: Vec<PathBuf>) {
        *self.files.lock().unwrap_or_else(PoisonError::into_inner) = files;
    }

    /// Differs when one of the files was replaced.
    fn fingerprint(&self) -> Vec<Option<(SystemTime, u64)>> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let state = |path: &PathBuf| {
            let about = std::fs::metadata(path).ok()?;
            Some((about.modified().ok()?, about.len()))
        };
        files.iter().map(state).collect()
    }
}

/// Looks out for the end of waiting, until aborted.
pub(super) async fn tend(connector: Arc<Connector>, interval: Duration) {
    let reach = &connector.reach;
    let mut pause = Backoff::new(interval, interval, "reach");
    let mut before = reach.fingerprint();
    loop {
        sleep(pause.pause()).await;
        if reach.well.load(Relaxed) {
            before = reach.fingerprint();
            continue;
        }
        let now = reach.fingerprint();
        let is_replaced = now != before && !before.is_empty();
        before = now;
        // One small request a second at most, whoever else waits.
        if is_replaced || (reach.lost.load(Relaxed) && connector.answers().await) {
            reach.wake();
        }
    }
}
