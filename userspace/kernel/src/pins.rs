//! Directories in the bpf file system where programs and maps are pinned, so that they outlive the process.

pub mod bpffs;
mod former_names;
mod kept;
pub(crate) mod layout;
mod namespaces;
pub(crate) mod other_version;
mod pin_info;
pub(crate) mod removal;
pub mod stale_pins;
pub mod temporary;

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::{Flock, FlockArg};
use parking_lot::Mutex;
use signalbox_common::ABI_VERSION;

use bpffs::ROOT;
use kept::KeptPins;

use crate::error::KernelError;
use signalbox_sys as sys;

pub use bpffs::mount_bpf;
pub use removal::{RemovedPins, remove_all};

/// Prefix of the names of pinned links.
pub(crate) const LINK_PREFIX: &str = "link-";

/// Kind of pinned objects. Each kind outlives the process, and is removed, separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinKind {
    /// Tier `cut`.
    Cut,
    /// Layer-4 services.
    Layer4,
}

impl PinKind {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Cut => "net",
            Self::Layer4 => "l4-net",
        }
    }
}

/// Converts an error of opening the directory of pins.
pub(crate) fn unusable(source: io::Error) -> KernelError {
    // SO_NETNS_COOKIE came with 5.14.
    if source.raw_os_error() == Some(libc::ENOPROTOOPT) {
        return KernelError::Unsupported {
            what: "cookies of network namespaces, by which pinned maps are told apart",
        };
    }
    KernelError::Io {
        what: "opening the directory of pinned maps",
        source,
    }
}

/// Adds the directory's owner and a fix to an error of missing rights.
fn explained(error: io::Error, dir: &Path) -> io::Error {
    if error.kind() == io::ErrorKind::PermissionDenied {
        let why = format!("{}: {error}; {}", dir.display(), bpffs::remedy(dir));
        return io::Error::new(error.kind(), why);
    }
    error
}

/// Directory of pins of this network namespace, locked while a process uses it.
#[derive(Clone)]
pub struct Pins {
    dir: PathBuf,
    /// Lock of the directory; `None` while another process has it.
    lock: Arc<Mutex<Option<Flock<File>>>>,
    kept: Arc<Mutex<KeptPins>>,
}

impl Pins {
    /// Opens the directory for the maps of an object, and mounts the bpf file system where it is not mounted.
    /// `take_over`: another process holds the lock, and will release it soon.
    pub fn open(kind: PinKind, object: &[u8], take_over: bool) -> io::Result<Self> {
        let pins = Self::lock(kind, take_over)?;
        pin_info::check_shapes(&pins.dir, object).map_err(|error| explained(error, &pins.dir))?;
        Ok(pins)
    }

    /// Opens the directory as [`Self::open`], without a check of its pins.
    pub(crate) fn lock(kind: PinKind, take_over: bool) -> io::Result<Self> {
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
            kept: Arc::default(),
        })
    }

    /// Returns whether this process has the lock.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.lock.lock().is_some()
    }

    /// Locks the directory, if the other process has released it by now.
    pub fn retry_lock(&self) {
        let mut lock = self.lock.lock();
        if lock.is_none()
            && let Ok(dir) = File::open(&self.dir)
        {
            *lock = Flock::lock(dir, FlockArg::LockExclusiveNonblock).ok();
        }
    }

    /// Removes the pins of a failed load. Only for callers that know that nothing was pinned before.
    pub(crate) fn clear(&self) {
        for name in names_in(&self.dir).unwrap_or_default() {
            let _ = fs::remove_file(self.dir.join(name));
        }
    }

    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of a pin.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

pub(crate) fn names_in(dir: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(dir)?;
    Ok(entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect())
}

/// Returns the directory for this network namespace and this version of the maps.
fn directory(kind: PinKind) -> io::Result<PathBuf> {
    Ok(Path::new(ROOT)
        .join(format!("signalbox/v{ABI_VERSION}"))
        .join(namespace(kind)?))
}

/// Makes the directory of all pins of signalbox where it is missing. Returns it, and whether it was made now.
pub(crate) fn make_root() -> io::Result<(PathBuf, bool)> {
    bpffs::mount_bpf()?;
    let dir = Path::new(ROOT).join("signalbox");
    match fs::create_dir(&dir) {
        Ok(()) => Ok((dir, true)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok((dir, false)),
        Err(error) => Err(explained(error, &dir)),
    }
}

/// Names this network namespace: by its cookie, which is never used again until the next boot (an inode is).
pub(crate) fn namespace(kind: PinKind) -> io::Result<String> {
    Ok(format!("{}-{}", kind.prefix(), own_cookie()?))
}

/// Returns the cookie of the network namespace that this thread is in.
pub(super) fn own_cookie() -> io::Result<u64> {
    let socket = nix::sys::socket::socket(
        nix::sys::socket::AddressFamily::Inet,
        nix::sys::socket::SockType::Datagram,
        nix::sys::socket::SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    sys::netns_cookie(socket.as_raw_fd())
}

/// Tests whether a start could pin something, and leaves nothing behind.
pub fn test_pinning() -> io::Result<()> {
    let dir = directory(PinKind::Cut)?;
    bpffs::test_pinning(&dir).map_err(|error| explained(error, &dir))
}

/// Returns the path of a pin, whichever process has the directory.
pub fn path(kind: PinKind, name: &str) -> io::Result<PathBuf> {
    Ok(directory(kind)?.join(name))
}

/// Lists the pins of this version for this network namespace.
pub fn names(kind: PinKind) -> io::Result<Vec<String>> {
    names_in(&directory(kind)?)
}
