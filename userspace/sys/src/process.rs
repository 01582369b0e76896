//! Names of the machine, and children that do not outlive their parent.

use std::io;

use libc::c_int;

/// Name of the machine; empty if it has none.
#[must_use]
pub fn host_name() -> String {
    nix::unistd::gethostname().map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned())
}

/// Name of this node among others: `SIGNALBOX_NODE`, such as that of a node of Kubernetes, or the host name.
#[must_use]
pub fn node_name() -> String {
    let given = std::env::var("SIGNALBOX_NODE").ok().filter(|name| !name.is_empty());
    given.unwrap_or_else(host_name)
}

/// Has the kernel send `signal` to the child that the command starts, when the thread that starts it ends.
pub fn end_with_parent(command: &mut std::process::Command, signal: c_int) {
    let parent = std::process::id();
    let before_exec = move || {
        // SAFETY: the calls use no memory, and are safe between fork and exec.
        let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        // The parent may have ended before the call.
        // SAFETY: as above.
        if unsafe { libc::getppid() }.cast_unsigned() != parent {
            return Err(io::Error::other("the parent has ended"));
        }
        Ok(())
    };
    // SAFETY: the code between fork and exec allocates only for an error, after which the child ends.
    unsafe { std::os::unix::process::CommandExt::pre_exec(command, before_exec) };
}
