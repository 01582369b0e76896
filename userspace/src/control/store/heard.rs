//! Times at which each source was last known to be up to date. They are on disk, so that a table read from there shows
//! its age.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::persistent_state::PersistentState;
use crate::state::Shared;

/// Kind of the records: the source's name, and milliseconds since 1970.
const CONTACT_RECORD: &str = "heard";

/// Interval of writes: after a crash, a table may seem older than it is by up to this time.
const SAVE_INTERVAL: Duration = Duration::from_secs(15);

/// Prefix of sources that run elsewhere and are known here only by their reports.
const AGENT: &str = "agent:";

#[derive(Default)]
pub(super) struct LastContact {
    /// Times on disk; `None`: not read yet.
    on_disk: Option<BTreeMap<String, u64>>,
    saved: Option<Instant>,
}

impl LastContact {
    /// Sets the sources' times of an earlier process, and writes those of this process.
    pub(super) fn save_and_restore(&mut self, memory: &PersistentState, shared: &Shared) {
        if self.on_disk.is_none() {
            // Another process may hold the file, so it is read later.
            self.on_disk = memory
                .db
                .all::<u64>(CONTACT_RECORD)
                .ok()
                .map(|all| all.into_iter().collect());
        }
        let Some(on_disk) = &mut self.on_disk else { return };
        for (name, ms) in on_disk.iter() {
            if name.starts_with(AGENT) && memory.discovered.contains_key(name) {
                shared.source(name, "agent").restore_heard_at(*ms);
            }
        }
        for source in shared.sources() {
            if let Some(ms) = on_disk.get(&source.name) {
                source.restore_heard_at(*ms);
            }
        }
        if self.saved.is_some_and(|saved| saved.elapsed() < SAVE_INTERVAL) {
            return;
        }
        self.saved = Some(Instant::now());
        let now: BTreeMap<_, _> = shared
            .sources()
            .iter()
            .filter_map(|source| Some((source.name.clone(), source.heard_ms()?)))
            .collect();
        let is_kept = |name: &String| now.contains_key(name) || memory.discovered.contains_key(name);
        let gone = on_disk.keys().filter(|name| !is_kept(name));
        let mut changes: Vec<_> = gone.map(|name| (CONTACT_RECORD, name.clone(), None)).collect();
        for (name, ms) in &now {
            if on_disk.get(name) != Some(ms) {
                changes.push((CONTACT_RECORD, name.clone(), Some(ms.to_string().into_bytes())));
            }
        }
        if changes.is_empty() {
            return;
        }
        match memory.put(&changes) {
            Ok(()) => {
                on_disk.retain(|name, _| is_kept(name));
                on_disk.extend(now);
            }
            Err(error) => {
                let error = crate::sys::error_chain(&error);
                tracing::debug!(
                    error,
                    "The times at which sources were last heard could not be written; another attempt follows."
                );
            }
        }
    }
}
