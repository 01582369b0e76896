//! Detects changes of the configuration file, including a swap of a ConfigMap's symlink.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{EventKind, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::control::Control;

/// Time in which changes are collected: editors and kubelets write in several steps, and the last one counts.
const SETTLE_INTERVAL: Duration = Duration::from_millis(200);
/// Time after which a file counts as written although its writer still has it open.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Change in the file's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// Bytes of the file changed. More may follow until its writer closes it.
    Written,
    /// A writer of the file closed it.
    Closed,
    /// Any other change, such as another file moved to this name.
    Other,
}

impl Change {
    fn of(event: &notify::Result<notify::Event>, name: Option<&OsStr>) -> Option<Self> {
        let Ok(event) = event else { return Some(Self::Other) };
        let is_file = event.paths.iter().any(|path| path.file_name() == name);
        match event.kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => is_file.then_some(Self::Closed),
            EventKind::Access(_) => None,
            EventKind::Modify(ModifyKind::Data(_)) => is_file.then_some(Self::Written),
            _ => Some(Self::Other),
        }
    }
}

/// Reloads the file when its content has changed and its writer has closed it. Returns only on an error.
pub async fn watch(control: Control, file: &Path) -> Result<(), notify::Error> {
    let (changed, mut changes) = mpsc::unbounded_channel();
    let name = file.file_name().map(OsStr::to_owned);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if let Some(change) = Change::of(&event, name.as_deref()) {
            let _ = changed.send(change);
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
    while let Some(change) = changes.recv().await {
        settle(change, &mut changes).await;
        control.reload_if_changed("file").await;
    }
    Ok(())
}

/// Waits until the file is complete: no writer has it open, and nothing has changed for a moment.
async fn settle(mut last: Change, changes: &mut mpsc::UnboundedReceiver<Change>) {
    let mut until = Instant::now() + last.patience();
    while let Ok(Some(change)) = tokio::time::timeout_at(until, changes.recv()).await {
        last = last.followed_by(change);
        // Other files may change continuously.
        if change != Change::Other {
            until = Instant::now() + last.patience();
        }
    }
}

impl Change {
    /// Time without further changes after which the file is complete.
    const fn patience(self) -> Duration {
        match self {
            Self::Written => OPEN_TIMEOUT,
            Self::Closed | Self::Other => SETTLE_INTERVAL,
        }
    }

    /// The change that counts after another one: other files do not show whether this one is still open.
    fn followed_by(self, next: Self) -> Self {
        if self == Self::Written && next == Self::Other {
            self
        } else {
            next
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_when_its_writer_has_closed_it() {
        use Change::{Closed, Other, Written};
        let patience = |changes: &[Change]| {
            let last = changes.iter().copied().reduce(Change::followed_by);
            last.unwrap().patience()
        };
        assert_eq!(patience(&[Other]), SETTLE_INTERVAL);
        assert_eq!(patience(&[Written, Written]), OPEN_TIMEOUT);
        assert_eq!(patience(&[Written, Closed]), SETTLE_INTERVAL);
        assert_eq!(patience(&[Closed, Written]), OPEN_TIMEOUT);
        // Another file in the directory changes in between.
        assert_eq!(patience(&[Written, Other]), OPEN_TIMEOUT);
        assert_eq!(patience(&[Written, Other, Closed, Other]), SETTLE_INTERVAL);
    }
}
