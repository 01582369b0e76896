//! State of the server: objects, the history of their changes, and faults to play.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Value, json};

/// Namespace and name.
pub(crate) type Key = (String, String);

/// Namespace and name of an object.
pub(crate) fn key(object: &Value) -> Key {
    let text = |key| object["metadata"][key].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

/// A change in the history.
#[derive(Clone)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) plural: &'static str,
    pub(crate) before: Option<Value>,
    pub(crate) after: Option<Value>,
}

/// How it misbehaves.
#[derive(Default)]
pub(crate) struct Moods {
    /// Groups, or groups with a resource (`g/v1/tlsroutes`), that it has not.
    pub(crate) missing: BTreeSet<&'static str>,
    /// Resources, perhaps with a namespace (`pods/default`), that no client may see.
    pub(crate) forbidden: BTreeSet<&'static str>,
    /// The bearer token that it wants.
    pub(crate) token: Option<&'static str>,
    /// Number of requests that are refused by a server that starts: it knows no client's rights yet.
    pub(crate) starting: usize,
    /// Resources, perhaps with a namespace (`pods/default`), whose lists do not come.
    pub(crate) held: BTreeSet<&'static str>,
    /// Most objects in one page.
    pub(crate) page: Option<usize>,
    /// True if all but the first page of a list has been forgotten.
    pub(crate) forgets_pages: bool,
    /// True if an expired version is reported within the watch, with status 200.
    pub(crate) gone_in_stream: bool,
    /// Number of events that are cut in the middle, with the connection.
    pub(crate) cuts: usize,
    /// Number of watches that fall silent after an event and do not end, as if the network had swallowed them.
    pub(crate) lost: usize,
    /// Number of watches that are ended in order right after an event.
    pub(crate) ends: usize,
    /// Number of lists that are no JSON.
    pub(crate) garbled_lists: usize,
    /// Number of events that are no JSON.
    pub(crate) garbled_events: usize,
    /// Number of requests that are answered with 500.
    pub(crate) failures: usize,
    /// True for a server that sends no bookmarks.
    pub(crate) old: bool,
}

#[derive(Default)]
pub(crate) struct Store {
    pub(crate) version: u64,
    pub(crate) objects: BTreeMap<&'static str, BTreeMap<Key, Value>>,
    pub(crate) history: Vec<Change>,
    /// Changes up to this version are forgotten.
    pub(crate) horizon: u64,
    pub(crate) moods: Moods,
    pub(crate) lists: HashMap<String, usize>,
    pub(crate) watches: HashMap<String, usize>,
    /// How many pages were promised: no two may have the same token, or one list gets another's pages.
    pub(crate) tokens: u64,
    /// Remaining pages of lists that were begun.
    pub(crate) pages: HashMap<String, Vec<Value>>,
}

impl Store {
    /// Creates an object, or replaces it.
    pub(crate) fn put(&mut self, plural: &'static str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let all = self.objects.entry(plural).or_default();
        let before = all.insert(key(&object), object.clone());
        self.note(plural, before, Some(object));
    }

    /// Deletes an object, if it is there.
    pub(crate) fn delete(&mut self, plural: &'static str, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        if let Some(before) = self.objects.entry(plural).or_default().remove(&key) {
            self.version += 1;
            self.note(plural, Some(before), None);
        }
    }

    /// Forgets the history.
    pub(crate) fn compact(&mut self) {
        // A new version: a client that has seen everything has still seen too little.
        self.version += 1;
        self.horizon = self.version;
        self.history.clear();
        self.pages.clear();
    }

    fn note(&mut self, plural: &'static str, before: Option<Value>, after: Option<Value>) {
        let version = self.version;
        self.history.push(Change {
            version,
            plural,
            before,
            after,
        });
    }

    /// Returns all objects of a resource that a request selects.
    pub(crate) fn select(&self, plural: &str, selection: &Selection) -> Vec<Value> {
        let all = self.objects.get(plural).into_iter().flat_map(BTreeMap::values);
        all.filter(|object| selection.has(object)).cloned().collect()
    }
}

/// Selection of a resource's objects by a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    pub(crate) namespace: Option<String>,
    /// Only `key=value`, joined by commas.
    pub(crate) labels: Vec<(String, String)>,
}

impl Selection {
    pub(crate) fn has(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        let here = self
            .namespace
            .as_deref()
            .is_none_or(|namespace| metadata["namespace"] == namespace);
        here && self
            .labels
            .iter()
            .all(|(key, value)| metadata["labels"][key] == value.as_str())
    }

    /// A change as a watch reports it: an object that leaves the selection is deleted from it.
    pub(crate) fn event(&self, change: &Change) -> Option<Value> {
        let selects = |object: &Option<Value>| object.as_ref().is_some_and(|object| self.has(object));
        let (kind, object) = match (selects(&change.before), selects(&change.after)) {
            (false, true) => ("ADDED", &change.after),
            (true, true) => ("MODIFIED", &change.after),
            (true, false) => ("DELETED", &change.before),
            (false, false) => return None,
        };
        let mut object = object.clone()?;
        object["metadata"]["resourceVersion"] = json!(change.version.to_string());
        Some(json!({"type": kind, "object": object}))
    }
}
