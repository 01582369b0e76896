//! Locks against a second supervisor, which would take the addresses of the first one off the node.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use anyhow::{Context as _, bail};
use nix::fcntl::{Flock, FlockArg};

use crate::Directory;

const LOCK_FILE: &str = "lock";

/// Locks of a supervisor. The kernel gives them back when the process ends, however it does.
pub(super) struct Locks {
    _directory: Flock<File>,
    /// Pods of a node have the node's network, but each a runtime directory of its own.
    _network: UnixListener,
}

impl Locks {
    /// Locks the runtime directory, and its path in this network.
    pub(super) fn take(directory: &Directory) -> anyhow::Result<Self> {
        Ok(Self {
            _directory: lock_directory(directory)?,
            _network: lock_network(directory)?,
        })
    }
}

fn lock_directory(directory: &Directory) -> anyhow::Result<Flock<File>> {
    let path = directory.file(LOCK_FILE);
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("opening {}", path.display()))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(lock),
        Err((_, nix::Error::EWOULDBLOCK)) => {
            bail!(
                "another `signalbox ha run` has {}: --runtime-dir names another directory",
                directory.path().display()
            )
        }
        Err((_, error)) => Err(error).with_context(|| format!("locking {}", path.display())),
    }
}

/// Binds an abstract socket (unix(7)), whose names belong to a network namespace.
fn lock_network(directory: &Directory) -> anyhow::Result<UnixListener> {
    let name = format!("signalbox-ha{}", directory.text());
    // A name has room for 107 bytes; the end of a longer path tells more.
    let name = &name.as_bytes()[name.len().saturating_sub(107)..];
    let bind = || UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?);
    match bind() {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == ErrorKind::AddrInUse => bail!(
            "another `signalbox ha run` keeps virtual addresses in this machine's network, perhaps in another pod: this \
             one would take them off the machine. Stop the other one, or, if their groups differ, give one of them \
             another --runtime-dir"
        ),
        Err(error) => Err(error).context("locking this machine's network"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_supervisor_is_refused_by_directory_and_by_network() {
        let base = std::env::temp_dir().join(format!("signalbox-ha-lock-{}", std::process::id()));
        let directory = Directory::new(&base.join("run")).unwrap();
        directory.create().unwrap();
        let first = Locks::take(&directory).unwrap();
        let refusal = |error: anyhow::Error| error.to_string();
        let Err(error) = Locks::take(&directory) else {
            panic!("the directory was locked twice");
        };
        assert!(refusal(error).contains("--runtime-dir names another directory"));
        // A pod has another file system at the same path.
        let error = lock_network(&directory).unwrap_err();
        assert!(refusal(error).contains("perhaps in another pod"));

        let other = Directory::new(&base.join("other")).unwrap();
        other.create().unwrap();
        drop(Locks::take(&other).unwrap());
        drop(first);
        drop(Locks::take(&directory).unwrap());
        std::fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn a_long_path_is_locked_by_its_end() {
        let path = |end: &str| Directory::new(&std::path::Path::new("/").join("x".repeat(200)).join(end)).unwrap();
        let first = lock_network(&path("a")).unwrap();
        assert!(lock_network(&path("a")).is_err());
        drop(lock_network(&path("b")).unwrap());
        drop(first);
    }
}
