//! Mappings and lists: keys are taken by name, and a key that no decoder takes is an error.

use std::collections::HashMap;
use std::iter::{Enumerate, Take};
use std::slice;

use super::node::{MapEntry, NodeKind, NodePath, NodeRef, Position, YamlNode};
use super::report::{Report, alternatives, did_you_mean, quote};

/// Mapping being decoded: every known key is taken, then `finish` reports the rest. All keys must be taken before the
/// first is decoded, so that no early return leaves `finish` out.
#[must_use = "unknown and missing keys are reported by `finish`"]
pub(super) struct MapDecoder<'a> {
    spot: Position,
    path: &'a NodePath<'a>,
    entries: &'a [MapEntry],
    known: Vec<&'static str>,
    missing: Vec<&'static str>,
}

impl<'a> MapDecoder<'a> {
    /// Opens a mapping; a null value (`admin:`) is an empty one. `None`: the value is something else, and is reported.
    pub(super) fn open(place: &'a NodeRef<'a>, report: &mut Report) -> Option<Self> {
        let entries = place.entries(report)?;
        Some(Self {
            spot: place.position(),
            path: &place.path,
            entries,
            known: Vec::new(),
            missing: Vec::new(),
        })
    }

    /// Takes the value of a key that may be left out.
    pub(super) fn take(&mut self, key: &'static str) -> Option<NodeRef<'a>> {
        self.known.push(key);
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        Some(NodeRef {
            node: &entry.value,
            path: self.path.key(key),
        })
    }

    /// Takes the value of a key that must be given.
    pub(super) fn require(&mut self, key: &'static str) -> Option<NodeRef<'a>> {
        let value = self.take(key);
        if value.is_none() {
            self.missing.push(key);
        }
        value
    }

    /// Reports unknown keys, and missing ones unless an unknown one clearly is a misspelling of it: one mistake, one
    /// error. Returns whether all keys were known, so that an absent key really was left out.
    pub(super) fn finish(mut self, report: &mut Report) -> bool {
        let mut known = true;
        let absent: Vec<&'static str> = self
            .known
            .iter()
            .copied()
            .filter(|key| !self.entries.iter().any(|entry| entry.key == *key))
            .collect();
        for entry in self.entries {
            if self.known.contains(&entry.key.as_str()) {
                continue;
            }
            known = false;
            let path = self.path.key(&entry.key);
            if entry.key == "<<" {
                let message = "merge keys (`<<`) are not supported: write the keys out, or alias the whole mapping";
                report.error(entry.position, &path, message);
                continue;
            }
            let glued = entry.key.split_once(':').filter(|(key, _)| absent.contains(key));
            if let Some((key, value)) = glued {
                self.missing.retain(|missing| *missing != key);
                let message = format!("there is no space after the colon: write `{key}: {}`", value.trim());
                report.error(entry.position, &path, message);
                continue;
            }
            let suggestion = report.suggest(&entry.key, absent.iter().copied());
            self.missing.retain(|key| Some(*key) != suggestion);
            let key = quote(&entry.key);
            let guess = did_you_mean(suggestion);
            let allowed = alternatives(self.known.iter().copied());
            report.error(
                entry.position,
                &path,
                format!("unknown key {key}{guess} (known here: {allowed})"),
            );
        }
        for key in self.missing {
            report.error(self.spot, self.path, format!("the key `{key}` is missing"));
        }
        known
    }
}

impl<'a> NodeRef<'a> {
    /// Notes a warning at this place: a setting is allowed but probably a mistake.
    pub(super) fn warn(&self, report: &mut Report, message: impl Into<String>) {
        report.warning(self.position(), &self.path, message);
    }

    /// Notes a mistake at this place.
    pub(super) fn error(&self, report: &mut Report, message: impl Into<String>) {
        report.error(self.position(), &self.path, message);
    }

    /// Entries of a mapping, each key once: a repeated key is reported. (Linear, as routes may name many clusters.)
    pub(super) fn entries(&self, report: &mut Report) -> Option<&'a [MapEntry]> {
        let entries: &'a [MapEntry] = match &self.node.kind {
            NodeKind::Map(entries) => entries,
            NodeKind::Null => &[],
            other => {
                let found = other.type_name();
                self.error(report, format!("expected a mapping (`key: value`), found {found}"));
                return None;
            }
        };
        let mut seen: HashMap<&str, Position> = HashMap::with_capacity(entries.len());
        for entry in entries {
            match seen.get(entry.key.as_str()) {
                Some(first) => {
                    let message = format!(
                        "the key {} is given twice, first on line {}",
                        quote(&entry.key),
                        first.line
                    );
                    report.error(entry.position, &self.path.key(&entry.key), message);
                }
                None => {
                    seen.insert(&entry.key, entry.position);
                }
            }
        }
        Some(entries)
    }

    /// Items of a list of at most `most`; null (`routes:`) is an empty list. `what`: the items' name in the plural.
    pub(super) fn items(&'a self, what: &str, most: usize, report: &mut Report) -> Option<Items<'a>> {
        let items: &'a [YamlNode] = match &self.node.kind {
            NodeKind::List(items) => items,
            NodeKind::Null => &[],
            other => {
                let found = other.type_name();
                self.error(
                    report,
                    format!("expected a list (`[a, b]`, or lines with `- `), found {found}"),
                );
                return None;
            }
        };
        let cut = items.get(most);
        if let Some(excess) = cut {
            let message = format!("there are {} {what}; at most {most} are allowed", items.len());
            report.error(excess.position, &self.path.index(most), message);
        }
        Some(Items {
            path: &self.path,
            items: items.iter().take(most).enumerate(),
            cut: cut.is_some(),
        })
    }
}

/// Items of a list.
pub(super) struct Items<'a> {
    path: &'a NodePath<'a>,
    items: Enumerate<Take<slice::Iter<'a, YamlNode>>>,
    /// Whether there are more items than allowed; further ones are left out.
    pub(super) cut: bool,
}

impl<'a> Iterator for Items<'a> {
    type Item = NodeRef<'a>;

    fn next(&mut self) -> Option<NodeRef<'a>> {
        let (index, node) = self.items.next()?;
        Some(NodeRef {
            node,
            path: self.path.index(index),
        })
    }
}
