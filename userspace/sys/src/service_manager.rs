//! Descriptors that the service manager passes to a process (`sd_listen_fds(3)`).

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use nix::sys::socket::{getsockopt, sockopt::AcceptConn};

/// True once a caller has taken the descriptors.
static ARE_TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes the descriptors of this name, and does not touch others. A second call gets none.
pub fn take_descriptors(wanted: &str) -> io::Result<Vec<OwnedFd>> {
    let named = sd_notify::listen_fds_with_names()?;
    if ARE_TAKEN.swap(true, SeqCst) {
        return Ok(Vec::new());
    }
    let ours = named.filter(|(_, name)| name == wanted);
    // SAFETY: the service manager has opened these for this process, and they are taken only once.
    Ok(ours.map(|(fd, _)| unsafe { OwnedFd::from_raw_fd(fd) }).collect())
}

/// Whether a descriptor is a socket that listens (`SO_ACCEPTCONN`).
#[must_use]
pub fn is_listening(fd: &OwnedFd) -> bool {
    getsockopt(fd, AcceptConn).unwrap_or(false)
}
