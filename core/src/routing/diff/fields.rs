//! Fields of a serialized object: each has the keys that lead to it, and a text.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::FieldChange;

/// Texts of fields, by their keys with dots between them.
pub(super) type FieldTexts = BTreeMap<String, String>;

/// Keys by which the elements of a list are told apart.
const NAMES: [&str; 5] = ["name", "path", "cert", "url", "address"];

/// Fields of an object. Clusters, which the model has by their indices, are shown by their `names`: an index may change
/// where the cluster does not.
pub(super) fn of(value: &Value, names: &[&str]) -> FieldTexts {
    let mut all = FieldTexts::new();
    add(&mut all, "", value, names);
    all
}

/// Differences of two objects' fields.
pub(super) fn changed(old: &FieldTexts, new: &FieldTexts) -> Vec<FieldChange> {
    let all: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    let differs = all.into_iter().filter(|field| old.get(*field) != new.get(*field));
    differs
        .map(|field| FieldChange {
            field: field.clone(),
            before: old.get(field).cloned(),
            after: new.get(field).cloned(),
        })
        .collect()
}

/// Fields as one text.
pub(super) fn text<'f>(fields: impl Iterator<Item = (&'f String, &'f String)>) -> String {
    let shown = fields.map(|(field, value)| match field.as_str() {
        "" => value.clone(),
        field => format!("{field} {value}"),
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// Whether a value says that something is not there: a new object is shown without such fields.
pub(super) fn is_nothing(value: &str) -> bool {
    matches!(value, "false" | "[]" | "{}")
}

fn add(all: &mut FieldTexts, at: &str, value: &Value, names: &[&str]) {
    let key = at.rsplit('.').next().unwrap_or_default();
    let leaf = match value {
        Value::Null => return,
        // A host's `backup` is no number.
        Value::Number(index) if matches!(key, "cluster" | "backup") => cluster(index.as_u64(), names),
        Value::Array(shares) if key == "clusters" => shares_text(shares, names),
        Value::Array(items) if items.iter().any(|item| item.is_object() && short(item).is_none()) => {
            for (n, item) in items.iter().enumerate() {
                let name = NAMES.iter().find_map(|name| item.get(*name)?.as_str());
                let name = name.map_or_else(|| (n + 1).to_string(), str::to_owned);
                add(all, &format!("{at}[{name}]"), item, names);
            }
            return;
        }
        Value::Object(map) if !map.is_empty() && short(value).is_none() => {
            for (key, value) in map {
                let at = if at.is_empty() {
                    key.clone()
                } else {
                    format!("{at}.{key}")
                };
                add(all, &at, value, names);
            }
            return;
        }
        other => plain(other),
    };
    all.insert(at.to_owned(), leaf);
}

/// Name of a cluster, by its index.
pub(crate) fn cluster(index: Option<u64>, names: &[&str]) -> String {
    let name = index.and_then(|index| names.get(usize::try_from(index).ok()?));
    (*name.unwrap_or(&"?")).to_owned()
}

/// Clusters and their weights, such as `east:20 west:80`.
fn shares_text(shares: &[Value], names: &[&str]) -> String {
    let share = |share: &Value| format!("{}:{}", cluster(share[0].as_u64(), names), plain(&share[1]));
    shares.iter().map(share).collect::<Vec<_>>().join(" ")
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(plain).collect();
            format!("[{}]", items.join(", "))
        }
        other => short(other).unwrap_or_else(|| other.to_string()),
    }
}

/// Text of an object that is a single value to a person: a time, a range, a prefix with a port.
pub(crate) fn short(value: &Value) -> Option<String> {
    let map = value.as_object()?;
    let number = |key: &str| map.get(key)?.as_u64();
    let has_only = |keys: &[&str]| map.len() == keys.len() && keys.iter().all(|key| map.contains_key(*key));
    if has_only(&["secs", "nanos"]) {
        return Some(time(number("secs")?, number("nanos")?));
    }
    if has_only(&["start", "end"]) {
        return Some(range(map));
    }
    None
}

fn range(map: &Map<String, Value>) -> String {
    format!("{}-{}", plain(&map["start"]), plain(&map["end"]))
}

/// A time as the configuration writes it.
fn time(secs: u64, nanos: u64) -> String {
    match (secs, nanos / 1_000_000) {
        (secs, 0) if secs > 0 && secs % 3600 == 0 => format!("{}h", secs / 3600),
        (secs, 0) if secs > 0 && secs % 60 == 0 => format!("{}m", secs / 60),
        (secs, 0) => format!("{secs}s"),
        (secs, ms) => format!("{}ms", secs * 1000 + ms),
    }
}
