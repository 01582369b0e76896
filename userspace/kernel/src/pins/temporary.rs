//! A directory of pins while an object is loaded: for maps of maps, which the loader takes from their pins, and for
//! test runs, whose maps are declared as pinned and must not outlive the test.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use aya::EbpfLoader;

use super::{make_root, names_in};
use crate::{map, map_in_map};

/// Names of the maps of maps.
const MAPS_OF_MAPS: [&str; 2] = ["L4_TABLES", "SHIELD_GUARD_PREFIXES"];

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
            let pins = Self {
                dir: root.join(&name),
                created_root: is_new.then_some(root),
            };
            // A killed process may have left a directory under our name.
            pins.remove();
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

    fn remove(&self) {
        for name in names_in(&self.dir).unwrap_or_default() {
            let _ = std::fs::remove_file(self.dir.join(name));
        }
        let _ = std::fs::remove_dir(&self.dir);
    }
}

impl AsRef<Path> for TemporaryPins {
    fn as_ref(&self) -> &Path {
        &self.dir
    }
}

impl Drop for TemporaryPins {
    fn drop(&mut self) {
        self.remove();
        // Fails, which is intended, if something else is in the directory by now.
        if let Some(root) = &self.created_root {
            let _ = std::fs::remove_dir(root);
        }
    }
}
