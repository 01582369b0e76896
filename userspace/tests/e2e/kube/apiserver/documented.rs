//! The account and its rights from docs/kubernetes.md, read out of that document.

use serde_json::Value;

const DOCUMENT: &str = include_str!("../../../../../docs/kubernetes.md");

/// Returns all objects of the document's section on rights, in order.
pub(super) fn rights() -> Vec<Value> {
    let section = DOCUMENT.split("\n## Rights\n").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let text = section.split("```yaml\n").nth(1).unwrap();
    let objects: Vec<Value> = serde_saphyr::from_multiple(text.split("```").next().unwrap()).unwrap();
    let kinds: Vec<_> = objects.iter().map(|object| object["kind"].as_str().unwrap()).collect();
    let wanted = [
        "Namespace",
        "ServiceAccount",
        "Secret",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
    ];
    assert_eq!(kinds, wanted);
    objects
}

/// The role for all namespaces.
pub(super) fn cluster_role() -> Value {
    rights()
        .into_iter()
        .find(|object| object["kind"] == "ClusterRole")
        .unwrap()
}
