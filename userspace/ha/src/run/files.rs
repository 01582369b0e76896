//! Files that the supervisor shares: a lock, and changes of the configuration and of the runtime directory.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::fcntl::{Flock, FlockArg};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

use crate::Directory;

/// Time that changes are collected: editors write in several steps, of which the last counts.
const SETTLE_INTERVAL: Duration = Duration::from_millis(50);
const LOCK_FILE: &str = "lock";

/// Locks the runtime directory against a second supervisor.
pub(super) fn lock(directory: &Directory) -> anyhow::Result<Flock<File>> {
    let path = directory.file(LOCK_FILE);
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("opening {}", path.display()))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(lock),
        Err((_, nix::Error::EWOULDBLOCK)) => {
            bail!("another `signalbox ha run` has {}: --runtime-dir names another directory", directory.path().display())
        }
        Err((_, error)) => Err(error).with_context(|| format!("locking {}", path.display())),
    }
}

/// Watches the configuration and the runtime directory.
pub(super) fn watch(
    config: &Path,
    directory: &Directory,
) -> anyhow::Result<(mpsc::UnboundedReceiver<()>, RecommendedWatcher)> {
    let (changed, changes) = mpsc::unbounded_channel();
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let touches = event.as_ref().map_or(true, |event| !event.kind.is_access());
        if touches {
            let _ = changed.send(());
        }
    })?;
    // A rename over the file, and a swap of a ConfigMap's `..data`, happen in its directory.
    let parent = match config.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    for path in [parent, directory.path()] {
        let watched = watcher.watch(path, RecursiveMode::NonRecursive);
        watched.with_context(|| format!("watching {}", path.display()))?;
    }
    Ok((changes, watcher))
}

/// Waits until changes have come to rest.
pub(super) async fn settle(changes: &mut mpsc::UnboundedReceiver<()>) {
    tokio::time::sleep(SETTLE_INTERVAL).await;
    while changes.try_recv().is_ok() {}
}
