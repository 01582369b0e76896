//! Changes of the configuration, and of the runtime directory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use signalbox_core::availability::ha::keepalived::group_of_file;
use tokio::sync::mpsc;

use crate::Directory;

/// Time that changes are collected: editors write in several steps, of which the last counts.
const SETTLE_INTERVAL: Duration = Duration::from_millis(50);

/// Watches the configuration and, in the runtime directory, the files by which operators release groups. A change is
/// reported once the files have stopped changing.
pub(super) fn watch(
    config: &Path,
    directory: &Directory,
) -> anyhow::Result<(mpsc::UnboundedReceiver<()>, RecommendedWatcher)> {
    let (changed, mut raw) = mpsc::unbounded_channel();
    let runtime = directory.path().to_owned();
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Only files of groups and of the configuration count: keepalived writes into a FIFO beside them.
        let counts = |path: &PathBuf| {
            let is_release = path
                .file_name()
                .and_then(|name| group_of_file(name.to_str()?))
                .is_some();
            is_release || path.parent() != Some(&runtime)
        };
        let touches = |event: &notify::Event| !event.kind.is_access() && event.paths.iter().any(counts);
        if event.as_ref().map_or(true, touches) {
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
    let (settled, changes) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while raw.recv().await.is_some() {
            tokio::time::sleep(SETTLE_INTERVAL).await;
            while raw.try_recv().is_ok() {}
            if settled.send(()).is_err() {
                return;
            }
        }
    });
    Ok((changes, watcher))
}
