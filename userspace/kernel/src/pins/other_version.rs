//! Pins of another version of signalbox, whose maps have another layout, for this network namespace.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use signalbox_common::ABI_VERSION;

use super::bpffs::ROOT;
use super::former_names;
use super::layout::{self, Structures};
use super::removal;
use super::{LINK_PREFIX, PinKind, names_in, namespace};
use crate::map::RawMap;

/// Directory of pins of another version.
pub(crate) struct OtherVersion {
    dir: PathBuf,
    /// Name of the version's directory: `v4`.
    version: String,
    /// Lock of the directory; `None` while a process of that version has it.
    lock: Option<Flock<File>>,
}

impl OtherVersion {
    /// Finds the pins of all other versions, not locked. Those without `map` have no flows, and are not touched.
    pub(crate) fn all(kind: PinKind, map: &str) -> io::Result<Vec<Self>> {
        let namespace = namespace(kind)?;
        let base = Path::new(ROOT).join("signalbox");
        let ours = format!("v{ABI_VERSION}");
        let mut found = Vec::new();
        for version in names_in(&base).unwrap_or_default() {
            let dir = base.join(&version).join(&namespace);
            let is_pinned = |name: &str| dir.join(name).exists();
            if version != ours && former_names::of_map(map).any(is_pinned) {
                let lock = None;
                found.push(Self { dir, version, lock });
            }
        }
        Ok(found)
    }

    /// Finds the pins of all other versions and locks those that are free, for a process that starts. Fails while a
    /// process of another version has flows, unless `take_over` says that it will be replaced.
    pub(crate) fn lock_all(kind: PinKind, map: &str, take_over: bool) -> io::Result<Vec<Self>> {
        let mut all = Self::all(kind, map)?;
        for one in &mut all {
            one.lock();
        }
        match all.iter().find(|one| one.lock.is_none()) {
            Some(used) if !take_over => Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                format!(
                    "another signalbox of this network namespace, of another version, uses {}",
                    used.dir.display()
                ),
            )),
            _ => Ok(all),
        }
    }

    /// Returns the version's name.
    #[must_use]
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    #[must_use]
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Locks the directory if no process of that version has it any more. Returns whether it is locked by us.
    pub(crate) fn lock(&mut self) -> bool {
        if self.lock.is_none()
            && let Ok(dir) = File::open(&self.dir)
        {
            self.lock = Flock::lock(dir, FlockArg::LockExclusiveNonblock).ok();
        }
        self.lock.is_some()
    }

    /// Reads the layout of the version's structures.
    pub(crate) fn structures(&self) -> io::Result<Structures> {
        layout::read(&self.dir).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("{} does not say what its maps look like: {error}", self.dir.display()),
            )
        })
    }

    /// Opens one of the version's maps, by its present name here.
    pub(crate) fn map(&self, name: &str) -> io::Result<RawMap> {
        let mut paths = former_names::of_map(name).map(|name| self.dir.join(name));
        let found = paths.find(|path| path.exists());
        RawMap::open(&found.unwrap_or_else(|| self.dir.join(name)))
    }

    /// Detaches the version's programs from the interfaces, where they are attached by links.
    pub(crate) fn remove_links(&self) -> io::Result<()> {
        for name in names_in(&self.dir)?.iter().filter(|name| name.starts_with(LINK_PREFIX)) {
            fs::remove_file(self.dir.join(name))?;
        }
        Ok(())
    }

    /// Removes all pins of the version.
    pub(crate) fn remove(self) -> io::Result<()> {
        removal::remove_pins(&self.dir).map(drop)
    }
}

/// Moves the pin of a link here, if another version has it: an interface has one XDP program at a time, which must be
/// replaced in one step.
pub(crate) fn take_over_link(kind: PinKind, name: &str, to: &Path) -> io::Result<()> {
    let namespace = namespace(kind)?;
    let base = Path::new(ROOT).join("signalbox");
    for version in names_in(&base).unwrap_or_default() {
        let from = base.join(version).join(&namespace).join(name);
        if from != to && from.exists() {
            return fs::rename(from, to);
        }
    }
    Ok(())
}
