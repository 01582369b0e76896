//! Descriptors that the service manager passes to a process (`sd_listen_fds(3)`).

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// True once somebody has taken the descriptors.
static ARE_TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes the descriptors whose name begins with `prefix`, and leaves others alone. Nothing is there the second time.
pub fn take_descriptors(prefix: &str) -> io::Result<Vec<(String, OwnedFd)>> {
    let named = sd_notify::listen_fds_with_names()?;
    if ARE_TAKEN.swap(true, SeqCst) {
        return Ok(Vec::new());
    }
    let ours = named.filter(|(_, name)| name.starts_with(prefix));
    // SAFETY: the service manager has opened these for this process, and nobody takes them twice.
    Ok(ours
        .map(|(fd, name)| (name, unsafe { OwnedFd::from_raw_fd(fd) }))
        .collect())
}
