//! Whether what the configuration names of layer 4 is in force: the shield, and services.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use signalbox_common::parts;

use super::guards::policies;
use super::{Picture, Services};

impl Services {
    /// Why the configured shield is not in force. Nothing where it is, or where none is configured.
    #[must_use]
    pub fn why_no_shield(&self) -> Option<String> {
        let (snapshot, picture) = (self.shared.snapshot.load_full(), self.picture.load());
        let mut wanted = policies(&snapshot.model).peekable();
        wanted.peek()?;
        let unwritten = |(kind, name, _): (_, &String, _)| {
            let is_missing = !picture.guarded.has(kind, name);
            is_missing.then(|| format!("the guard of {name} is not in the kernel yet"))
        };
        picture
            .why_not_carried(parts::SHIELD)
            .or_else(|| picture.unguarded.clone())
            .or_else(|| wanted.find_map(unwritten))
    }

    /// Why the configured services are not in force. Nothing where they are, or where none is configured.
    #[must_use]
    pub fn why_no_services(&self) -> Option<String> {
        if self.shared.snapshot.load().model.services.is_empty() {
            return None;
        }
        self.picture.load().why_not_carried(parts::SERVICES)
    }

    /// Waits until maps and hooks are what the snapshot in force says, or until that has failed; no longer than `limit`.
    pub fn settle(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.changed = true;
        told.asked += 1;
        let mine = told.asked;
        self.wake.notify_one();
        while told.answered < mine && !told.ended {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.settled.wait_timeout(told, left);
            told = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Picture {
    /// Why packets do not meet this part of the programs.
    fn why_not_carried(&self, part: u32) -> Option<String> {
        let Some(kernel) = &self.kernel else {
            let loading = || "the programs are being loaded".to_owned();
            return Some(self.not_loaded.clone().unwrap_or_else(loading));
        };
        if kernel.missing & part != 0 {
            return Some("the kernel refuses this part of the programs: `signalbox doctor` says why".to_owned());
        }
        if let Some(why) = self.unhooked.first() {
            return Some(why.clone());
        }
        let nowhere =
            "no program is on an interface yet: none that routes go by is an Ethernet one, or it is too early";
        self.hooks.is_empty().then(|| nowhere.to_owned())
    }
}
