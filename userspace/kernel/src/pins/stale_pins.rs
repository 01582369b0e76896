//! Garbage collection of pins whose network namespaces are gone. A cookie is never used again, so no process will ever
//! use them; each such directory holds some 70 MiB of kernel memory.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use super::bpffs::ROOT;
use super::names_in;
use super::namespaces;
use super::pin_info::PinInfo;
use super::removal::{self, RemovedPins};

/// Removes the directories of dead namespaces. A directory stays while a process holds its lock, while a link in it has
/// an interface, or while its namespace can be seen. Where not all namespaces can be seen (a process namespace of our
/// own, or not root), a directory is removed only if it has links, and the interface of each is gone.
pub fn collect() -> io::Result<RemovedPins> {
    let mut cleaned = RemovedPins::default();
    let mut candidates: Vec<_> = directories().into_iter().filter_map(StaleDirectory::new).collect();
    if candidates.is_empty() {
        return Ok(cleaned);
    }
    let seen = namespaces::visible()?;
    candidates.retain(|one| is_dead(seen.cookies.contains(&one.cookie), seen.is_complete, one.links));
    let mut failed = None;
    for candidate in candidates {
        match candidate.remove() {
            Ok(removed) => cleaned.add(removed),
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(cleaned), Err)
}

/// Lists all directories of pins, with the cookies of their namespaces.
fn directories() -> Vec<(PathBuf, u64)> {
    let base = PathBuf::from(ROOT).join("signalbox");
    let versions = names_in(&base)
        .unwrap_or_default()
        .into_iter()
        .map(|version| base.join(version));
    let of_version = |version: PathBuf| {
        let names = names_in(&version).unwrap_or_default().into_iter();
        names.filter_map(move |name| Some((version.join(&name), cookie(&name)?)))
    };
    versions.flat_map(of_version).collect()
}

fn cookie(name: &str) -> Option<u64> {
    let cookie = name.strip_prefix("net-").or_else(|| name.strip_prefix("l4-net-"))?;
    cookie.parse().ok()
}

/// A directory of pins without any link that has an interface.
struct StaleDirectory {
    dir: PathBuf,
    cookie: u64,
    links: usize,
}

impl StaleDirectory {
    fn new((dir, cookie): (PathBuf, u64)) -> Option<Self> {
        let links = defunct_links(&dir)?;
        Some(Self { dir, cookie, links })
    }

    /// Removes the directory, unless a process uses it. It is locked only now: a process that starts in a live
    /// namespace must not find the lock taken.
    fn remove(&self) -> io::Result<RemovedPins> {
        let Ok(dir) = File::open(&self.dir) else {
            return Ok(RemovedPins::default());
        };
        match Flock::lock(dir, FlockArg::LockExclusiveNonblock) {
            Ok(_lock) if defunct_links(&self.dir) == Some(self.links) => removal::remove_pins(&self.dir),
            _ => Ok(RemovedPins::default()),
        }
    }
}

/// Returns the number of links of a directory; `None` if one of them has an interface, or cannot be examined.
fn defunct_links(dir: &Path) -> Option<usize> {
    let mut links = 0;
    for entry in fs::read_dir(dir).ok()? {
        let path = entry.ok()?.path();
        if path.is_dir() {
            continue;
        }
        match PinInfo::open(&path).ok()?.is_defunct_link() {
            Some(true) => links += 1,
            Some(false) => return None,
            None => {}
        }
    }
    Some(links)
}

/// Returns whether a namespace is gone, given that no process uses its directory and no link there has an interface.
const fn is_dead(is_visible: bool, sees_all: bool, defunct_links: usize) -> bool {
    !is_visible && (sees_all || defunct_links > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_surely_gone_is_dead() {
        assert!(is_dead(false, true, 0) && is_dead(false, true, 4) && is_dead(false, false, 4));
        assert!(!is_dead(false, false, 0), "neither seen nor told by its links");
        assert!(
            !is_dead(true, true, 4) && !is_dead(true, false, 4),
            "its interfaces may come back"
        );
    }

    #[test]
    fn only_our_directories_have_cookies() {
        assert_eq!((cookie("net-16533"), cookie("l4-net-7")), (Some(16_533), Some(7)));
        assert_eq!((cookie("net-"), cookie("net-x"), cookie("foreign")), (None, None, None));
    }
}
