//! Keeps the certificates in force in line with their files.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use crate::directory::{CertificateLoader, LoadReport};
use crate::store::SharedCertificates;

/// Time that changes are collected: certificate and key are written one after the other.
const SETTLE_INTERVAL: Duration = Duration::from_millis(200);

/// Time between looks at files without a notice: some file systems give none, a directory may come later, and a
/// certificate's time may come.
const RESCAN_INTERVAL: Duration = Duration::from_secs(30);

/// Seconds since 1970.
#[must_use]
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Reads the files again when they change, within a second, and puts the certificates in force. `report` is called for
/// each look that found something else than the one before, the first included, and when the time of a certificate has
/// come or is over. Ends only with an error.
pub async fn watch(
    mut loader: CertificateLoader,
    certificates: SharedCertificates,
    mut report: impl FnMut(&LoadReport),
) -> Result<(), notify::Error> {
    let (changed, mut changes) = mpsc::unbounded_channel();
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if event.as_ref().map_or(true, |event| !event.kind.is_access()) {
            let _ = changed.send(());
        }
    })?;
    let mut is_first = true;
    loop {
        // Before the files are read, so that no change goes unnoticed between; again and again, since a directory may
        // have been removed and made anew.
        observe(&mut watcher, loader.watched());
        let loaded = spawn_blocking(move || {
            let found = loader.load(now());
            (loader, found)
        });
        let found;
        (loader, found) = loaded
            .await
            .map_err(|error| notify::Error::generic(&error.to_string()))?;
        let times_up = certificates.load().next_change().is_some_and(|time| time <= now());
        if found.is_changed || is_first || times_up {
            certificates.store(Arc::new(found.store.clone()));
        }
        if found.is_changed || is_first || times_up {
            report(&found);
        }
        is_first = false;
        if let Ok(None) = tokio::time::timeout(RESCAN_INTERVAL, changes.recv()).await {
            return Err(notify::Error::generic("the watcher of certificate files has ended"));
        }
        tokio::time::sleep(SETTLE_INTERVAL).await;
        while changes.try_recv().is_ok() {}
    }
}

fn observe(watcher: &mut RecommendedWatcher, paths: Vec<(PathBuf, bool)>) {
    for (path, is_deep) in paths {
        let mode = if is_deep {
            RecursiveMode::Recursive
        } else {
            RecursiveMode::NonRecursive
        };
        if let Err(error) = watcher.watch(&path, mode) {
            // The loader reports what is missing.
            tracing::debug!(%error, path = %path.display(), "Certificate files cannot be watched yet.");
        }
    }
}
