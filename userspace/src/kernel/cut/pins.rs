//! Where programs and maps are kept so that they outlive the process.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use signalbox_common::ABI_VERSION;

use crate::datapath::sys;
use crate::kernel::object::KernelError;

/// The bpf file system.
const ROOT: &str = "/sys/fs/bpf";

/// What is pinned: each outlives the process, and is removed, by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Tier `cut`.
    Cut,
    /// Layer-4 services.
    Layer4,
}

impl Kind {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Cut => "net",
            Self::Layer4 => "l4-net",
        }
    }
}

/// Why the directory of pins could not be opened.
pub(in crate::kernel) fn unusable(source: io::Error) -> KernelError {
    // SO_NETNS_COOKIE came with 5.14.
    if source.raw_os_error() == Some(libc::ENOPROTOOPT) {
        return KernelError::Lacks {
            what: "cookies of network namespaces, by which pinned maps are told apart",
        };
    }
    KernelError::Io {
        what: "opening the directory of pinned maps",
        source,
    }
}

/// The directory of this network namespace, locked while a process uses it.
#[derive(Clone)]
pub struct Pins {
    dir: PathBuf,
    /// None while another process has it.
    lock: Arc<Mutex<Option<Flock<File>>>>,
}

impl Pins {
    /// Opens it, mounting the bpf file system where nobody has. `take_over`: another process holds it, and lets go soon.
    pub fn open(kind: Kind, take_over: bool) -> io::Result<Self> {
        mount_bpf()?;
        let dir = directory(kind)?;
        fs::create_dir_all(&dir)?;
        let lock = match Flock::lock(File::open(&dir)?, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Some(lock),
            Err(_) if take_over => None,
            Err((_, errno)) => {
                return Err(io::Error::new(
                    io::Error::from(errno).kind(),
                    format!("another signalbox of this network namespace uses {}", dir.display()),
                ));
            }
        };
        Ok(Self {
            dir,
            lock: Arc::new(Mutex::new(lock)),
        })
    }

    /// Whether no other process uses it.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Takes it, if the other process has let go by now.
    pub fn lock_again(&self) {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if lock.is_none()
            && let Ok(dir) = File::open(&self.dir)
        {
            *lock = Flock::lock(dir, FlockArg::LockExclusiveNonblock).ok();
        }
    }

    /// Removes what a load that failed has pinned. Only for who knows that nothing was pinned before.
    pub(in crate::kernel) fn clear(&self) {
        for name in names_in(&self.dir).unwrap_or_default() {
            let _ = fs::remove_file(self.dir.join(name));
        }
    }

    /// Where something is pinned.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// Mounts the bpf file system where nobody has.
pub fn mount_bpf() -> io::Result<()> {
    let root = Path::new(ROOT);
    if statfs(root)?.filesystem_type() != BPF_FS_MAGIC {
        mount(Some("bpf"), root, Some("bpf"), MsFlags::empty(), None::<&str>)?;
    }
    Ok(())
}

fn names_in(dir: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(dir)?;
    Ok(entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect())
}

/// The directory of this network namespace and of this version of the maps.
fn directory(kind: Kind) -> io::Result<PathBuf> {
    Ok(Path::new(ROOT)
        .join(format!("signalbox/v{ABI_VERSION}"))
        .join(namespace(kind)?))
}

/// A name for this network namespace: its cookie, which is never used again until the next boot (an inode is).
fn namespace(kind: Kind) -> io::Result<String> {
    let socket = nix::sys::socket::socket(
        nix::sys::socket::AddressFamily::Inet,
        nix::sys::socket::SockType::Datagram,
        nix::sys::socket::SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    Ok(format!("{}-{}", kind.prefix(), sys::netns_cookie(socket.as_raw_fd())?))
}

/// Where something is pinned, whoever has the directory.
pub fn path(kind: Kind, name: &str) -> io::Result<PathBuf> {
    Ok(directory(kind)?.join(name))
}

/// What this version has pinned for this network namespace.
pub fn names(kind: Kind) -> io::Result<Vec<String>> {
    names_in(&directory(kind)?)
}

/// Removes everything that any version has pinned for this network namespace: links first, so that no program runs on
/// maps that are gone. Returns what was removed.
pub fn remove_all(kind: Kind) -> io::Result<Vec<PathBuf>> {
    let namespace = namespace(kind)?;
    let base = Path::new(ROOT).join("signalbox");
    let mut removed = Vec::new();
    let Ok(versions) = names_in(&base) else {
        return Ok(removed);
    };
    for version in versions {
        let dir = base.join(version).join(&namespace);
        let Ok(mut names) = names_in(&dir) else { continue };
        names.sort_by_key(|name| !name.starts_with(super::hooks::LINK));
        for name in names {
            let path = dir.join(name);
            fs::remove_file(&path)?;
            removed.push(path);
        }
        fs::remove_dir(&dir)?;
        removed.push(dir);
    }
    Ok(removed)
}
