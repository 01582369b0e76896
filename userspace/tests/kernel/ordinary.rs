//! Tests as an ordinary user with the documented capabilities and no others: root's preparations are made before, as on
//! a machine whose administrator follows docs/install.md.

use std::io::{Error, Result};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use signalbox::kernel::capabilities;

/// `nobody`.
pub(crate) const UID: libc::uid_t = 65_534;
const NONE: Option<&str> = None;
/// `_LINUX_CAPABILITY_VERSION_3`: two words each of effective, permitted and inheritable ones.
const VERSION_3: u32 = 0x2008_0522;

/// Whether all tests must run as an ordinary user.
pub(crate) fn is_asked_for() -> bool {
    std::env::var("SIGNALBOX_TEST_RIGHTS").is_ok_and(|rights| rights == "documented")
}

/// The documented capabilities.
pub(crate) fn mask() -> u64 {
    capabilities::ALL.iter().fold(0, |mask, right| mask | 1 << right.bit)
}

/// Prepares for the user as root does: a bpf file system, here one that goes with the thread, and a directory in it.
pub(crate) fn prepare() -> std::result::Result<(), String> {
    let say = |what: &'static str| move |error| format!("{what}: {error}");
    unshare(CloneFlags::CLONE_NEWNS).map_err(say("no mount namespaces"))?;
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).map_err(say("mounts stay shared"))?;
    mount(Some("bpf"), "/sys/fs/bpf", Some("bpf"), MsFlags::empty(), NONE).map_err(say("no bpf file system"))?;
    let made = || {
        std::fs::set_permissions("/sys/fs/bpf", std::os::unix::fs::PermissionsExt::from_mode(0o711))?;
        std::fs::create_dir("/sys/fs/bpf/signalbox")?;
        std::os::unix::fs::chown("/sys/fs/bpf/signalbox", Some(UID), Some(UID))
    };
    made().map_err(|error| format!("no directory for pins: {error}"))
}

/// From here on this thread, and the processes that it starts, is the user. The C library would change all threads of
/// the process, so these are raw system calls.
pub(crate) fn become_one() -> Result<()> {
    let last: u64 = std::fs::read_to_string("/proc/sys/kernel/cap_last_cap")?
        .trim()
        .parse()
        .map_err(Error::other)?;
    control(libc::PR_SET_KEEPCAPS, 1, 0)?;
    for bit in (0..=last).filter(|bit| mask() & (1 << bit) == 0) {
        control(libc::PR_CAPBSET_DROP, bit, 0)?;
    }
    // SAFETY: no pointer but that to an empty list is passed.
    unsafe {
        done(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()))?;
        done(libc::syscall(libc::SYS_setresgid, UID, UID, UID))?;
        done(libc::syscall(libc::SYS_setresuid, UID, UID, UID))?;
    }
    let (low, high) = (mask() as u32, (mask() >> 32) as u32);
    // Pid 0 means the calling thread.
    let header = [VERSION_3, 0];
    let data = [low, low, low, high, high, high];
    // SAFETY: both are as long as the kernel reads for this version, and live until it has.
    done(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) })?;
    // Ambient capabilities are for the programs that tests run, such as `ip`.
    for right in capabilities::ALL {
        control(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_RAISE as u64,
            right.bit.into(),
        )?;
    }
    Ok(())
}

fn control(what: i32, first: u64, second: u64) -> Result<()> {
    // SAFETY: none of the options used here takes a pointer.
    done(unsafe { libc::syscall(libc::SYS_prctl, what, first, second, 0, 0) })
}

fn done(result: libc::c_long) -> Result<()> {
    if result < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(())
    }
}
