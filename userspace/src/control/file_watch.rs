//! Notices when the configuration file changes, also when it is a ConfigMap's symlink that is swapped.

use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

use crate::control::Control;

/// Time that changes are collected: editors and kubelets write in several steps, of which the last counts.
const SETTLE_INTERVAL: Duration = Duration::from_millis(200);

/// Reloads the file when its content has changed. Ends only with an error.
pub async fn watch(control: Control, file: PathBuf) -> Result<(), notify::Error> {
    let (changed, mut changes) = mpsc::unbounded_channel();
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let touches = event.as_ref().map_or(true, |event| !event.kind.is_access());
        if touches {
            let _ = changed.send(());
        }
    })?;
    // Watches the directory, not the file: a rename over the file, and a swap of `..data`, happen there.
    let directory = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    watcher.watch(directory, RecursiveMode::NonRecursive)?;
    // The file may have changed since it was read at the start.
    control.reload_if_changed("file").await;
    while changes.recv().await.is_some() {
        tokio::time::sleep(SETTLE_INTERVAL).await;
        while changes.try_recv().is_ok() {}
        control.reload_if_changed("file").await;
    }
    Ok(())
}
