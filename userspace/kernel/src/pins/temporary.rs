//! A directory of pins while an object is loaded: for maps of maps, which the loader takes from their pins, and for
//! test runs, whose maps are declared as pinned and must not outlive the test.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use aya::EbpfLoader;

use super::{make_root, names_in};
use crate::{map, map_in_map};

/// Names of the maps of maps.
const MAPS_OF_MAPS: [&str; 2] = ["L4_TABLES", "SHIELD_GUARD_PREFIXES"];

/// Time for which a directory stays whose process is not seen here: a process of another process namespace is not seen,
/// and a load takes seconds.
const ABANDONED_TTL: Duration = Duration::from_secs(600);

/// Directory of pins, which is removed with its contents.
pub struct TemporaryPins {
    dir: PathBuf,
    /// Directory above, where it was made for this one. One that an administrator has prepared for a user stays.
    created_root: Option<PathBuf>,
}

impl TemporaryPins {
    /// Makes an empty directory.
    pub fn new() -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("load-{}-{number}", std::process::id());
        loop {
            let (root, is_new) = make_root()?;
            remove_abandoned(&root, SystemTime::now());
            let pins = Self {
                dir: root.join(&name),
                created_root: is_new.then_some(root),
            };
            // A killed process may have left a directory under our name.
            remove(&pins.dir);
            match std::fs::create_dir(&pins.dir) {
                Ok(()) => return Ok(pins),
                // A concurrent load has ended in between, and has removed the empty directory above.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes a directory with all maps of maps, empty, for a test run of an object's programs.
    pub fn for_test_run() -> io::Result<Self> {
        MAPS_OF_MAPS.into_iter().try_fold(Self::new()?, Self::with_map_of_maps)
    }

    /// Makes and pins a map of maps, empty.
    pub fn with_map_of_maps(self, name: &str) -> io::Result<Self> {
        map::pin(&map_in_map::create(name)?, &self.path(name))?;
        Ok(self)
    }

    /// Returns the path of a pin.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Tells the loader to pin maps here, and to use those that are here.
    pub fn set_pins<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        loader.default_map_pin_directory(&self.dir);
        for name in MAPS_OF_MAPS.into_iter().filter(|name| self.path(name).exists()) {
            loader.map_pin_path(name, self.path(name));
        }
    }
}

/// Removes a directory with its pins.
fn remove(dir: &Path) {
    for name in names_in(dir).unwrap_or_default() {
        let _ = std::fs::remove_file(dir.join(name));
    }
    let _ = std::fs::remove_dir(dir);
}

/// Removes the directories that killed processes have left. Their pins hold maps in the kernel.
fn remove_abandoned(root: &Path, now: SystemTime) {
    for name in names_in(root).unwrap_or_default() {
        let dir = root.join(&name);
        let is_dead = || owner(&name).is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists());
        let modified = || std::fs::metadata(&dir).and_then(|metadata| metadata.modified()).ok();
        let age = || now.duration_since(modified()?).ok();
        if is_dead() && age().is_some_and(|age| age >= ABANDONED_TTL) {
            remove(&dir);
        }
    }
}

/// Returns the process that has made a directory.
fn owner(name: &str) -> Option<u32> {
    let (pid, number) = name.strip_prefix("load-")?.split_once('-')?;
    number.parse::<u32>().ok()?;
    pid.parse().ok()
}

impl AsRef<Path> for TemporaryPins {
    fn as_ref(&self) -> &Path {
        &self.dir
    }
}

impl Drop for TemporaryPins {
    fn drop(&mut self) {
        remove(&self.dir);
        // Fails, which is intended, if something else is in the directory by now.
        if let Some(root) = &self.created_root {
            let _ = std::fs::remove_dir(root);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_dead_processes_are_removed_after_a_while() {
        let root = std::env::temp_dir().join(format!("signalbox-temporary-{}", std::process::id()));
        let own = format!("load-{}-0", std::process::id());
        // No process has a number above 2^22.
        let names = ["load-4194305-0", own.as_str(), "load-x-0", "v7"];
        for name in names {
            std::fs::create_dir_all(root.join(name)).unwrap();
            std::fs::write(root.join(name).join("L4_TABLES"), "").unwrap();
        }
        let left = || names.map(|name| root.join(name).exists());
        remove_abandoned(&root, SystemTime::now() + ABANDONED_TTL / 2);
        assert_eq!(left(), [true; 4]);
        remove_abandoned(&root, SystemTime::now() + ABANDONED_TTL);
        assert_eq!(left(), [false, true, true, true]);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
