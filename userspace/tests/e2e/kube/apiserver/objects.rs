//! Objects as clients send them, and where the server has them.

use serde_json::{Value, json};

/// An object as a client sends it: with its version and kind, and without the fields that only the server sets.
pub(super) fn sent(version: &str, kind: &str, mut object: Value) -> Value {
    (object["apiVersion"], object["kind"]) = (version.into(), kind.into());
    let metadata = object["metadata"].as_object_mut().unwrap();
    metadata.retain(|key, _| ["name", "namespace", "labels", "annotations"].contains(&key.as_str()));
    object
}

/// The path of an object's collection.
pub(super) fn collection(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let base = if version.contains('/') { "apis" } else { "api" };
    let namespace = text(&object["metadata"]["namespace"]);
    let place = if namespace.is_empty() {
        String::new()
    } else {
        format!("/namespaces/{namespace}")
    };
    let ending = if kind.ends_with('s') { "es" } else { "s" };
    format!("/{base}/{version}{place}/{}{ending}", kind.to_lowercase())
}

/// The path of an object.
pub(super) fn path(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str().unwrap();
    format!("{}/{name}", collection(object))
}

/// Makes the definition of a resource without a schema, so that the server takes any object of it.
pub(super) fn definition(group: &str, version: &str, kind: &str) -> Value {
    let singular = kind.to_lowercase();
    let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{singular}s.{group}"),
            // Groups of Kubernetes' own domain are refused without it.
            "annotations": { "api-approved.kubernetes.io": "unapproved, for a test" },
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": { "kind": kind, "plural": format!("{singular}s"), "singular": singular },
            "versions": [{ "name": version, "served": true, "storage": true, "schema": { "openAPIV3Schema": any } }],
        },
    })
}

pub(super) fn namespace(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } })
}
