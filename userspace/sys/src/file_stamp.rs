//! Stamps of files, by which a change is noticed.

use std::io;
use std::path::Path;

/// Stamp of a file: of the one that a symbolic link leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    /// Time of the last change of content, owner or mode: seconds and nanoseconds.
    changed: (i64, i64),
    /// Length in bytes.
    pub length: u64,
    inode: u64,
}

impl FileStamp {
    /// Returns the stamp of the file that is at `path` now.
    pub fn of(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::MetadataExt as _;
        let data = std::fs::metadata(path)?;
        Ok(Self {
            changed: (data.ctime(), data.ctime_nsec()),
            length: data.len(),
            inode: data.ino(),
        })
    }
}
