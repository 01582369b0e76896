//! Notices when the configuration file changes, also when it is a ConfigMap's symlink that is swapped.

use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

use crate::control::Control;

/// Editors and kubelets write in several steps: the last of them counts.
const SETTLE_INTERVAL: Duration = Duration::from_millis(200);

/// Reloads when the file's content is no longer what it was. Ends only with an error.
pub async fn watch(control: Control, file: PathBuf) -> Result<(), notify::Error> {
    let (changed, mut changes) = mpsc::unbounded_channel();
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let touches = event.as_ref().map_or(true, |event| !event.kind.is_access());
        if touches {
            let _ = changed.send(());
        }
    })?;
    // The directory, not the file: a rename over the file, and a swap of `..data`, happen there.
    let directory = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    watcher.watch(directory, RecursiveMode::NonRecursive)?;
    // It may have changed since it was read at the start.
    control.reload_news("file").await;
    while changes.recv().await.is_some() {
        tokio::time::sleep(SETTLE_INTERVAL).await;
        while changes.try_recv().is_ok() {}
        control.reload_news("file").await;
    }
    Ok(())
}
