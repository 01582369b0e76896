//! Pins that someone else removes: the maps are ours as long as the process lives, and are pinned again.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use super::bpffs::TRIAL_PREFIX;
use super::{LINK_PREFIX, Pins, names_in};
use crate::map;

/// Descriptors of pinned maps, by name. Links are made again with their programs.
pub(super) type KeptPins = BTreeMap<String, OwnedFd>;

impl Pins {
    /// Notes which maps are pinned, and pins those again that were noted and are not pinned any more, which is logged.
    /// Only for a process that is not about to be replaced; without the lock nothing happens.
    pub(crate) fn restore(&self) {
        match self.try_restore() {
            Ok(names) if names.is_empty() => {}
            Ok(names) => tracing::warn!(
                ?names,
                directory = %self.dir.display(),
                "Pins of maps were removed by another process: they are restored."
            ),
            Err(error) => tracing::warn!(
                %error,
                directory = %self.dir.display(),
                "Pins of maps were removed by another process, and could not be restored."
            ),
        }
    }

    /// As [`Self::restore`]; returns the names that were pinned again.
    fn try_restore(&self) -> io::Result<Vec<String>> {
        if !self.is_locked() {
            return Ok(Vec::new());
        }
        let names = match names_in(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(&self.dir)?;
                // The lock is that of the directory that is gone.
                *self.lock.lock() = None;
                self.retry_lock();
                if !self.is_locked() {
                    return Ok(Vec::new());
                }
                Vec::new()
            }
            other => other?,
        };
        let mut kept = self.kept.lock();
        let lasts = |name: &&String| !name.starts_with(LINK_PREFIX) && !name.starts_with(TRIAL_PREFIX);
        for name in names.iter().filter(lasts) {
            // A pin that cannot be opened is gone by now, or no map.
            if !kept.contains_key(name)
                && let Ok(fd) = map::open_pin(&self.path(name))
            {
                kept.insert(name.clone(), fd);
            }
        }
        let missing = kept.iter().filter(|(name, _)| !names.contains(name));
        let mut restored = Vec::new();
        for (name, fd) in missing {
            map::pin(fd, &self.path(name))?;
            restored.push(name.clone());
        }
        Ok(restored)
    }
}
