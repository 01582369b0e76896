//! Removes pins, and leaves files that are not ours.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::bpffs::ROOT;
use super::{PinKind, names_in, namespace};

/// Result of a removal.
#[derive(Debug, Default)]
pub struct RemovedPins {
    pub removed: Vec<PathBuf>,
    /// Files that were left because signalbox did not make them, and why.
    pub left: Vec<(PathBuf, &'static str)>,
}

impl RemovedPins {
    pub fn add(&mut self, other: Self) {
        self.removed.extend(other.removed);
        self.left.extend(other.left);
    }
}

/// Removes everything that any version has pinned for this network namespace. Returns the paths removed.
pub fn remove_all(kind: PinKind) -> io::Result<Vec<PathBuf>> {
    remove(kind).map(|cleaned| cleaned.removed)
}

/// Removes everything that any version has pinned for this network namespace. Returns the paths removed and those left.
pub(crate) fn remove(kind: PinKind) -> io::Result<RemovedPins> {
    let namespace = namespace(kind)?;
    let base = Path::new(ROOT).join("signalbox");
    let mut cleaned = RemovedPins::default();
    for version in names_in(&base).unwrap_or_default() {
        let dir = base.join(version).join(&namespace);
        if dir.is_dir() {
            cleaned.add(remove_pins(&dir)?);
        }
    }
    Ok(cleaned)
}

/// Removes the pins of a directory: links first, so that no program runs on maps that are gone. Then the directory,
/// unless it holds something that signalbox does not make. Continues after an error, to remove as much as possible.
pub(super) fn remove_pins(dir: &Path) -> io::Result<RemovedPins> {
    let mut cleaned = RemovedPins::default();
    let mut failed = None;
    let mut names = names_in(dir)?;
    names.sort_by_key(|name| !name.starts_with(super::LINK_PREFIX));
    for path in names.iter().map(|name| dir.join(name)) {
        let kind = fs::symlink_metadata(&path).map(|meta| meta.file_type());
        if kind.as_ref().is_ok_and(fs::FileType::is_dir) {
            cleaned.left.push((path, "signalbox makes no directory there"));
        } else if kind.is_ok_and(|kind| kind.is_symlink()) {
            cleaned.left.push((path, "signalbox makes no symbolic link there"));
        } else {
            match fs::remove_file(&path) {
                Ok(()) => cleaned.removed.push(path),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    let why = format!("removing {}: {error}", path.display());
                    failed = Some(io::Error::new(error.kind(), why));
                }
            }
        }
    }
    if let Some(error) = failed {
        return Err(error);
    }
    if cleaned.left.is_empty() {
        fs::remove_dir(dir)?;
        cleaned.removed.push(dir.to_owned());
    }
    Ok(cleaned)
}
