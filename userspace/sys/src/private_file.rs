//! Files and directories that only their owner may read.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Makes a directory with mode 0700 if it is not there, and closes it to others if it is.
pub fn private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o700))
}

/// Writes a file with mode 0600 in one step, so that no reader finds half of it; not at all if it is up to date. A
/// caller that needs the file to survive a power failure calls `sync_all` on the directory, too.
pub fn write_private(directory: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let path = directory.join(name);
    let private = |path: &Path| fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o777 == 0o600);
    if private(&path) && fs::read(&path).is_ok_and(|found| found == content) {
        return Ok(());
    }
    let new = directory.join(format!("{name}%new"));
    // A file left over from a crash may have another mode.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, &path)
}

/// Puts a directory's entries on disk, as they are now.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
