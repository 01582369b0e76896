//! Where programs and maps are kept so that they outlive the process.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::{Flock, FlockArg};
use signalbox_common::ABI_VERSION;

use super::bpffs::{self, ROOT};
use super::pinned;
use crate::datapath::sys;
use crate::kernel::object::KernelError;

pub use super::bpffs::mount_bpf;
pub use super::removal::{Cleaned, remove_all};

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

/// Says whose the directory is and what helps, where the rights are what is missing.
fn explained(error: io::Error, dir: &Path) -> io::Error {
    if error.kind() == io::ErrorKind::PermissionDenied {
        let why = format!("{}: {error}; {}", dir.display(), bpffs::remedy(dir));
        return io::Error::new(error.kind(), why);
    }
    error
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
        let pins = Self::lock(kind, take_over)?;
        pinned::check(&pins.dir).map_err(|error| explained(error, &pins.dir))?;
        Ok(pins)
    }

    /// The same, whatever is pinned there.
    pub(super) fn lock(kind: Kind, take_over: bool) -> io::Result<Self> {
        mount_bpf()?;
        let dir = directory(kind)?;
        fs::create_dir_all(&dir).map_err(|error| explained(error, &dir))?;
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

pub(super) fn names_in(dir: &Path) -> io::Result<Vec<String>> {
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

/// The directory of all that signalbox pins, made where it is not there; whether it was made now.
pub(in crate::kernel) fn make_root() -> io::Result<(PathBuf, bool)> {
    bpffs::mount_bpf()?;
    let dir = Path::new(ROOT).join("signalbox");
    match fs::create_dir(&dir) {
        Ok(()) => Ok((dir, true)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok((dir, false)),
        Err(error) => Err(explained(error, &dir)),
    }
}

/// A name for this network namespace: its cookie, which is never used again until the next boot (an inode is).
pub(super) fn namespace(kind: Kind) -> io::Result<String> {
    Ok(format!("{}-{}", kind.prefix(), own_cookie()?))
}

/// The cookie of the network namespace that this thread is in.
pub(super) fn own_cookie() -> io::Result<u64> {
    let socket = nix::sys::socket::socket(
        nix::sys::socket::AddressFamily::Inet,
        nix::sys::socket::SockType::Datagram,
        nix::sys::socket::SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    sys::netns_cookie(socket.as_raw_fd())
}

/// Tries whether a start could pin something, and leaves nothing.
pub fn try_out() -> io::Result<()> {
    let dir = directory(Kind::Cut)?;
    bpffs::try_out(&dir).map_err(|error| explained(error, &dir))
}

/// Where something is pinned, whoever has the directory.
pub fn path(kind: Kind, name: &str) -> io::Result<PathBuf> {
    Ok(directory(kind)?.join(name))
}

/// What this version has pinned for this network namespace.
pub fn names(kind: Kind) -> io::Result<Vec<String>> {
    names_in(&directory(kind)?)
}
