//! Differences that a new model makes, shown to a person before the model is applied.
//!
//! The serialized models are compared, so a change of a field that is not serialized would not be seen.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::Model;

pub(crate) mod fields;

use fields::FieldTexts;

/// Difference between two models.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ModelChange {
    /// Kind of the changed object: `setting`, `listener`, `service`, `cluster`, `host` or `route`.
    pub kind: Cow<'static, str>,
    /// Name of the changed object.
    pub name: String,
    /// Present state, of a changed object its changed fields; `None`: the object is new.
    pub before: Option<String>,
    /// State in the new model, likewise; `None`: the object is removed.
    pub after: Option<String>,
    /// Fields of an object that is in both models but not the same.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<FieldChange>,
}

/// Difference between two states of a field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FieldChange {
    /// Keys that lead to the field, with dots between them; empty for a setting that is a single value.
    pub field: String,
    /// Present value; `None`: there is none.
    pub before: Option<String>,
    /// Value in the new model; `None`: the field is gone.
    pub after: Option<String>,
}

/// Kinds of objects in lists of the model: kind, key of the list, and key of the name.
const LISTS: [(&str, &str, &str); 4] = [
    ("listener", "listeners", "name"),
    ("service", "services", "name"),
    ("cluster", "clusters", "name"),
    ("route", "routes", "host"),
];

/// Objects of a model in the order in which they are shown: by kind, and by name.
type Objects = BTreeMap<(usize, &'static str, String), FieldTexts>;

/// All differences: settings first, then by kind and name.
///
/// # Errors
/// A model cannot be serialized.
pub fn diff(before: &Model, after: &Model) -> Result<Vec<ModelChange>, serde_json::Error> {
    let (old, new) = (objects(before)?, objects(after)?);
    let all: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    Ok(all
        .into_iter()
        .filter_map(|key| change(key.1, &key.2, old.get(key), new.get(key)))
        .collect())
}

fn change(kind: &'static str, name: &str, old: Option<&FieldTexts>, new: Option<&FieldTexts>) -> Option<ModelChange> {
    if old == new {
        return None;
    }
    let changed = match (old, new) {
        (Some(old), Some(new)) => fields::changed(old, new),
        _ => Vec::new(),
    };
    let text = |side: Option<&FieldTexts>, of: fn(&FieldChange) -> Option<&String>| {
        side.map(|side| {
            if changed.is_empty() {
                return fields::text(side.iter().filter(|(_, value)| !fields::is_nothing(value)));
            }
            let shown = changed.iter().filter_map(|change| Some((&change.field, of(change)?)));
            fields::text(shown)
        })
    };
    Some(ModelChange {
        kind: kind.into(),
        name: name.to_owned(),
        before: text(old, |change| change.before.as_ref()),
        after: text(new, |change| change.after.as_ref()),
        fields: changed,
    })
}

fn objects(model: &Model) -> Result<Objects, serde_json::Error> {
    let mut all = Objects::new();
    let Value::Object(mut tree) = serde_json::to_value(model)? else {
        return Ok(all);
    };
    let names: Vec<&str> = model.clusters.iter().map(|cluster| cluster.name.as_str()).collect();
    for (rank, (kind, list, key)) in (1..).zip(LISTS) {
        let Some(Value::Array(items)) = tree.remove(list) else {
            continue;
        };
        for mut item in items {
            let name = take_name(&mut item, key);
            for list in ["hosts", "named_hosts"] {
                let hosts = item.as_object_mut().and_then(|item| item.remove(list));
                for mut host in hosts.and_then(|hosts| hosts.as_array().cloned()).unwrap_or_default() {
                    let host_name = format!("{name}/{}", take_name(&mut host, "name"));
                    all.insert((rank, "host", host_name), fields::of(&host, &names));
                }
            }
            all.insert((rank, kind, name), fields::of(&item, &names));
        }
    }
    let settings = tree.iter();
    all.extend(settings.map(|(name, value)| ((0, "setting", name.clone()), fields::of(value, &names))));
    Ok(all)
}

fn take_name(item: &mut Value, key: &str) -> String {
    let name = item.as_object_mut().and_then(|item| item.remove(key));
    name.as_ref().and_then(Value::as_str).unwrap_or("?").to_owned()
}

#[cfg(test)]
mod tests;
