//! Network namespaces of this machine that can be seen: those of every thread, and those that are mounted somewhere.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};

use super::own_cookie;

/// Inode of the machine's first process namespace (`PROC_PID_INIT_INO`, `include/linux/proc_ns.h`).
const FIRST_PID_NAMESPACE_INODE: u64 = 0xefff_fffc;

/// Cookies of the network namespaces that were found.
pub(super) struct VisibleNamespaces {
    pub(super) cookies: HashSet<u64>,
    /// True if every process could be examined. A namespace without threads and mounts may still live by a descriptor:
    /// then its links show it.
    pub(super) is_complete: bool,
}

/// Searches all processes for network namespaces.
pub(super) fn visible() -> io::Result<VisibleNamespaces> {
    let pid_namespace = fs::metadata("/proc/self/ns/pid").map(|meta| meta.ino());
    let mut search = NamespaceSearch {
        found: HashMap::new(),
        tables: HashSet::new(),
        is_complete: pid_namespace.is_ok_and(|inode| inode == FIRST_PID_NAMESPACE_INODE),
    };
    for process in fs::read_dir("/proc")?.flatten() {
        let is_process = process
            .file_name()
            .to_str()
            .is_some_and(|name| name.parse::<u32>().is_ok());
        if is_process {
            search.process(&process.path());
        }
    }
    // Runs in a separate thread, which does not return to our namespace.
    std::thread::spawn(move || search.cookies())
        .join()
        .map_err(|_| io::Error::other("a thread ended early"))
}

struct NamespaceSearch {
    /// Open namespaces by inode. The open descriptor keeps the inode's number from being reused.
    found: HashMap<u64, File>,
    /// Inodes of mount namespaces whose tables have been read.
    tables: HashSet<u64>,
    is_complete: bool,
}

impl NamespaceSearch {
    fn process(&mut self, process: &Path) {
        let threads = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
        for thread in threads {
            self.add(&thread.path().join("ns/net"));
        }
        match fs::metadata(process.join("ns/mnt")) {
            Ok(meta) if self.tables.insert(meta.ino()) => self.mounted(process),
            Ok(_) => {}
            Err(error) => self.failed(&error),
        }
    }

    /// Adds namespaces that are mounted, as `ip netns add` does.
    fn mounted(&mut self, process: &Path) {
        match fs::read_to_string(process.join("mountinfo")) {
            Ok(table) => {
                for mount in nsfs_mounts(&table) {
                    self.add(&process.join("root").join(mount.strip_prefix("/").unwrap_or(&mount)));
                }
            }
            Err(error) => self.failed(&error),
        }
    }

    fn add(&mut self, path: &Path) {
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?.ino(), file)));
        match opened {
            Ok((inode, file)) => {
                self.found.entry(inode).or_insert(file);
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Records an error. A process that has already ended hides nothing.
    fn failed(&mut self, error: &io::Error) {
        let is_gone = error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH);
        self.is_complete &= is_gone;
    }

    fn cookies(mut self) -> VisibleNamespaces {
        let mut cookies = HashSet::new();
        for file in std::mem::take(&mut self.found).into_values() {
            let entered = setns(file, CloneFlags::CLONE_NEWNET).map_err(io::Error::from);
            match entered.and_then(|()| own_cookie()) {
                Ok(cookie) => {
                    cookies.insert(cookie);
                }
                Err(_) => self.is_complete = false,
            }
        }
        VisibleNamespaces {
            cookies,
            is_complete: self.is_complete,
        }
    }
}

/// Extracts the mount points of network namespaces from a mount table (proc(5)).
fn nsfs_mounts(table: &str) -> Vec<PathBuf> {
    let of_line = |line: &str| {
        let fields: Vec<_> = line.split(' ').collect();
        let kind = fields
            .iter()
            .position(|field| *field == "-")
            .and_then(|at| fields.get(at + 1));
        let is_net = kind == Some(&"nsfs") && fields.get(3)?.starts_with("net:");
        is_net.then(|| PathBuf::from(fields[4].replace("\\040", " ")))
    };
    table.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_network_namespaces_are_found_among_others() {
        let table = "23 27 0:22 / /sys rw - sysfs sysfs rw\n\
                     51 30 0:4 net:[4026532321] /run/netns/a rw shared:5 - nsfs nsfs rw\n\
                     52 30 0:4 mnt:[4026532322] /run/mnt rw - nsfs nsfs rw\n";
        assert_eq!(nsfs_mounts(table), [PathBuf::from("/run/netns/a")]);
    }
}
