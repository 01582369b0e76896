//! Objects of a feed that cannot be decoded: each is logged once, and named in the source's notes while it is there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::SourceStatus;

/// Most objects that the notes name; the rest are counted.
const MAX_NAMED: usize = 20;

/// Most objects that are kept as logged: beyond, an object may be logged again.
const MAX_REMEMBERED: usize = 1000;

pub(super) struct MalformedObjects {
    /// The feed's name.
    feed: String,
    status: Arc<SourceStatus>,
    /// Errors by key (namespace and name).
    present: BTreeMap<String, String>,
    /// Errors that have been logged.
    logged: BTreeSet<(String, String)>,
    changed: bool,
}

impl MalformedObjects {
    pub(super) fn new(feed: String, status: Arc<SourceStatus>) -> Self {
        Self {
            feed,
            status,
            present: BTreeMap::new(),
            logged: BTreeSet::new(),
            changed: false,
        }
    }

    /// Forgets all objects, because everything is read again.
    pub(super) fn clear(&mut self) {
        self.changed |= !self.present.is_empty();
        self.present.clear();
    }

    /// Adds an object that is left out.
    pub(super) fn add(&mut self, key: Option<String>, error: &str) {
        self.status.events.inc("undecodable");
        let key = key.unwrap_or_else(|| "an object without a name".to_owned());
        if self.logged.len() >= MAX_REMEMBERED {
            self.logged.clear();
        }
        if self.logged.insert((key.clone(), error.to_owned())) {
            tracing::warn!(
                feed = self.feed,
                object = key,
                error,
                "An object is left out: it is not valid."
            );
        }
        if self.present.len() < MAX_REMEMBERED || self.present.contains_key(&key) {
            self.present.insert(key, error.to_owned());
            self.changed = true;
        }
    }

    /// Removes an object that is gone or can be decoded again.
    pub(super) fn remove(&mut self, key: &str) {
        self.changed |= self.present.remove(key).is_some();
    }

    /// Brings the source's notes up to date.
    pub(super) fn publish(&mut self) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let named = self.present.iter().take(MAX_NAMED);
        let mut text = named
            .map(|(key, error)| format!("{key} ({error})"))
            .collect::<Vec<_>>()
            .join("; ");
        if let Some(more) = self.present.len().checked_sub(MAX_NAMED).filter(|more| *more > 0) {
            text += &format!("; and {more} more");
        }
        let about = format!("left out of {}", self.feed);
        self.status.note(&about, (!text.is_empty()).then_some(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notes_name_what_is_left_out_as_long_as_it_is_there() {
        let standing = SourceStatus::new("kube:east", "kubernetes");
        let mut odd = MalformedObjects::new("routes".into(), Arc::clone(&standing));
        let note = || standing.view().contact?.notes.remove("left out of routes");
        for at in 0..MAX_NAMED + 3 {
            odd.add(Some(format!("shop/odd{at:02}")), "wrong");
        }
        odd.publish();
        let text = note().unwrap();
        assert!(
            text.starts_with("shop/odd00 (wrong); ") && text.ends_with("; and 3 more"),
            "{text}"
        );
        odd.clear();
        odd.add(Some("shop/odd01".into()), "worse");
        odd.publish();
        assert_eq!(note().as_deref(), Some("shop/odd01 (worse)"));
        odd.remove("shop/odd01");
        odd.publish();
        assert_eq!(note(), None);
    }
}
