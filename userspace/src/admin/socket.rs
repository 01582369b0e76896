//! The admin API's unix socket. Only its owner may use it, and it never replaces another file.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::{Context as _, bail};
use tokio::net::UnixListener;

/// Checks that a socket can be made at a path that is free or has an old socket. Any other file stays, as an error.
pub fn check(path: &Path) -> anyhow::Result<()> {
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("looking at the admin socket {}", path.display())),
    };
    let kind = meta.file_type();
    if kind.is_socket() {
        return Ok(());
    }
    let found = if kind.is_dir() {
        "a directory"
    } else if kind.is_symlink() {
        "a symbolic link"
    } else if kind.is_file() {
        "a file"
    } else {
        "a device or a pipe"
    };
    bail!(
        "{} is {found}, not a socket, and is left as it is: move it away, or set admin.socket to another path",
        path.display()
    )
}

/// Opens the socket, and replaces the socket of a killed process or of the predecessor.
pub(super) fn listen(path: &Path) -> anyhow::Result<UnixListener> {
    check(path)?;
    open(path).with_context(|| format!("opening the admin socket {}", path.display()))
}

fn open(path: &Path) -> std::io::Result<UnixListener> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // The umask closes the socket to others from the start, including the moment between bind and chmod.
    let mask = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o177));
    let listener = UnixListener::bind(path);
    nix::sys::stat::umask(mask);
    let listener = listener?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Removes a socket; a file that replaced it stays.
pub(super) fn remove(path: &Path) {
    if fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_no_socket_is_refused_and_left_in_place() {
        let dir = std::env::temp_dir().join(format!("sbx-socket-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (file, link) = (dir.join("file"), dir.join("link"));
        fs::write(&file, "precious").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let left = dir.join("left.sock");
        drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
        for (path, kind) in [(&file, "a file"), (&dir, "a directory"), (&link, "a symbolic link")] {
            let error = listen(path).unwrap_err().to_string();
            assert!(error.contains(kind) && error.contains("set admin.socket"), "{error}");
            remove(path);
        }
        assert_eq!(fs::read_to_string(&link).unwrap(), "precious");
        assert!(check(&left).is_ok() && check(&dir.join("none")).is_ok());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let _in = runtime.enter();
        assert!(listen(&left).is_ok());
        fs::remove_dir_all(&dir).unwrap();
    }
}
