//! The model as a person reads it: names in place of indices, times as the configuration writes them, no secrets.

use serde_json::Value;

use crate::model::Model;
use crate::routing::diff::fields::{cluster, short};

/// Text in place of a secret.
const MASK: &str = "***";

/// Parts of the names of fields whose values are secrets.
const SECRET_FIELDS: [&str; 6] = ["authorization", "cookie", "token", "secret", "password", "key"];

/// Serializes a model for a person. Absent values are left out; values of headers that are secrets and queries of paths
/// are masked. Other secrets are in files; the model has only their names.
///
/// # Errors
/// The model cannot be serialized.
pub fn shown(model: &Model) -> Result<Value, serde_json::Error> {
    let names: Vec<&str> = model.clusters.iter().map(|cluster| cluster.name.as_str()).collect();
    let mut tree = serde_json::to_value(model)?;
    rewrite(&mut tree, "", &names);
    Ok(tree)
}

fn rewrite(value: &mut Value, key: &str, names: &[&str]) {
    if let Some(text) = short(value) {
        *value = text.into();
        return;
    }
    match value {
        Value::Number(index) if matches!(key, "cluster" | "backup") => *value = cluster(index.as_u64(), names).into(),
        Value::Array(shares) if key == "clusters" && shares.iter().all(Value::is_array) => {
            let share = |share: &Value| (cluster(share[0].as_u64(), names), share[1].clone());
            *value = Value::Object(shares.iter().map(share).collect());
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rewrite(item, key, names)),
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            for (key, value) in map.iter_mut() {
                rewrite(value, key, names);
            }
        }
        Value::String(path) if key == "path" => *path = without_query(path),
        Value::String(text) => {
            if let Some(masked) = masked_edit(text) {
                *text = masked;
            }
        }
        _ => {}
    }
}

/// Path of a health check for a person. Its query may have a secret, such as a token.
#[must_use]
pub fn without_query(path: &str) -> String {
    match path.split_once('?') {
        Some((path, _)) => format!("{path}?..."),
        None => path.to_owned(),
    }
}

/// Returns an edit of a header, such as `set Authorization: Basic ...`, without its value if that is a secret.
fn masked_edit(text: &str) -> Option<String> {
    let (edit, _) = text.split_once(": ")?;
    let (verb, name) = edit.split_once(' ')?;
    let name = name.to_ascii_lowercase();
    let is_secret = matches!(verb, "add" | "replace" | "set") && SECRET_FIELDS.iter().any(|part| name.contains(part));
    is_secret.then(|| format!("{edit}: {MASK}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_headers_that_are_secrets_are_masked() {
        assert_eq!(
            masked_edit("set Authorization: Basic dTpw").as_deref(),
            Some("set Authorization: ***")
        );
        assert_eq!(
            masked_edit("add X-Api-Key: abc: d").as_deref(),
            Some("add X-Api-Key: ***")
        );
        assert_eq!(masked_edit("set X-Team: blue"), None);
        assert_eq!(masked_edit("remove Authorization"), None);
    }

    #[test]
    fn queries_of_checks_are_masked() {
        let mut value = serde_json::json!({ "probe": { "http": { "path": "/healthz?token=abc", "port": 80 } } });
        rewrite(&mut value, "", &[]);
        let expected = serde_json::json!({ "probe": { "http": { "path": "/healthz?...", "port": 80 } } });
        assert_eq!(value, expected);
        assert_eq!(without_query("/healthz"), "/healthz");
    }

    #[test]
    fn indices_become_names_and_times_texts() {
        let mut value = serde_json::json!({
            "routes": [{ "host": "a.test", "clusters": [[1, 20], [0, 80]], "drain": null }],
            "unmatched": { "cluster": 1 },
            "services": [{ "cluster": 0, "backup": 1 }],
            "timeouts": { "drain": { "secs": 120, "nanos": 0 } },
            "shares": { "clusters": [] },
        });
        rewrite(&mut value, "", &["east", "west"]);
        let expected = serde_json::json!({
            "routes": [{ "host": "a.test", "clusters": { "west": 20, "east": 80 } }],
            "unmatched": { "cluster": "west" },
            "services": [{ "cluster": "east", "backup": "west" }],
            "timeouts": { "drain": "2m" },
            "shares": { "clusters": {} },
        });
        assert_eq!(value, expected);
    }
}
