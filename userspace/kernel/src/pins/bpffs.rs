//! The bpf file system: mounted where it is not, tested, and compared with the one that the rest of the machine sees.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::map;

/// Mount point of the bpf file system.
pub(crate) const ROOT: &str = "/sys/fs/bpf";

/// Mounts the bpf file system where it is not mounted.
pub fn mount_bpf() -> io::Result<()> {
    let root = Path::new(ROOT);
    if statfs(root)?.filesystem_type() != BPF_FS_MAGIC {
        mount(Some("bpf"), root, Some("bpf"), MsFlags::empty(), None::<&str>)
            .map_err(|errno| explained(errno.into(), "mounting the bpf file system", &mount_remedy()))?;
    }
    Ok(())
}

fn mount_remedy() -> String {
    format!("as root: mount -t bpf bpf {ROOT}")
}

fn explained(error: io::Error, what: &str, remedy: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}; {remedy}"))
}

/// Returns advice for a user who may not write to `dir`, addressed to an administrator.
#[must_use]
pub fn remedy(dir: &Path) -> String {
    let owner = dir
        .ancestors()
        .take_while(|path| path.starts_with(ROOT))
        .find_map(|path| Some((path, fs::metadata(path).ok()?)));
    let owner = owner.map(|(path, meta)| {
        let mode = meta.permissions().mode() & 0o7777;
        format!("{} is of uid {}, mode {mode:04o}; ", path.display(), meta.uid())
    });
    let uid = nix::unistd::geteuid();
    format!(
        "{}as root: chmod 0711 {ROOT}; mkdir -p {ROOT}/signalbox; chown -R {uid} {ROOT}/signalbox; or give CAP_DAC_OVERRIDE",
        owner.unwrap_or_default()
    )
}

/// Beginning of the names of pins that are made for a moment, to test whether pinning works.
pub(super) const TRIAL_PREFIX: &str = "signalbox-try-";

/// Tests whether pins can be made in a directory such as `dir`, as a start would: makes directories, pins a map, and
/// removes everything again.
pub fn test_pinning(dir: &Path) -> io::Result<()> {
    mount_bpf()?;
    let name = format!("{TRIAL_PREFIX}{}", std::process::id());
    let made = create_dirs(dir)?;
    let pin = dir.join(&name);
    let tried = map::create_array("signalbox_try", 4, 1, 0)
        .and_then(|map| map::pin(&map, &pin))
        .and_then(|()| fs::remove_file(&pin));
    // Removes only empty directories: another signalbox may have begun to use them.
    for dir in made.iter().rev() {
        let _ = fs::remove_dir(dir);
    }
    tried
}

/// Makes a directory with its parents. Returns those that were missing, from the top.
fn create_dirs(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut new: Vec<_> = dir
        .ancestors()
        .take_while(|path| !path.exists())
        .map(Path::to_owned)
        .collect();
    new.reverse();
    fs::create_dir_all(dir)?;
    Ok(new)
}

/// Explains that pins end with this process if its bpf file system is another than that of the machine's first process.
/// `None` where they are the same, or where the first process cannot be examined.
#[must_use]
pub fn private_reason() -> Option<String> {
    let own = fs::metadata(ROOT).ok()?.dev();
    let first = fs::read_to_string("/proc/1/mountinfo").ok()?;
    is_private(own, &first).then(|| {
        format!(
            "the bpf file system at {ROOT} belongs to a mount namespace of this process, not to the machine: what is pinned \
             there, and cut flows with it, ends with this process; enter network namespaces by `nsenter --net=` in place of \
             `ip netns exec`, or mount the machine's {ROOT} into the container"
        )
    })
}

/// Returns whether the first process's bpf file system, by its mount table, is another device than `own`.
fn is_private(own: u64, mountinfo: &str) -> bool {
    let (major, minor) = (nix::sys::stat::major(own), nix::sys::stat::minor(own));
    let own = format!("{major}:{minor}");
    // proc(5): ID, parent, device, root, mount point, ..., a dash, type. The last mount covers those before it.
    let at_root = mountinfo.lines().rev().find_map(|line| {
        let fields: Vec<_> = line.split(' ').collect();
        let kind = fields
            .iter()
            .position(|field| *field == "-")
            .and_then(|at| fields.get(at + 1));
        (fields.get(4) == Some(&ROOT)).then(|| (fields[2] == own, kind == Some(&"bpf")))
    });
    at_root != Some((true, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_process_s_mount_table_decides() {
        let table = |device: &str| {
            format!("23 27 0:22 / /sys rw - sysfs sysfs rw\n42 23 {device} / /sys/fs/bpf rw shared:9 - bpf bpf rw\n")
        };
        let own = nix::sys::stat::makedev(0, 39);
        assert!(!is_private(own, &table("0:39")));
        assert!(is_private(own, &table("0:40")));
        assert!(is_private(own, "23 27 0:22 / /sys rw - sysfs sysfs rw\n"));
        // A second file system is mounted over it.
        assert!(is_private(own, &(table("0:39") + &table("0:41"))));
    }
}
