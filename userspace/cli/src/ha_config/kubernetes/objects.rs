//! The packaged objects of Kubernetes, as options change them. They are those of the overlays `plain-ha` and
//! `openshift-ha`, without monitoring.

use anyhow::Context as _;
use serde_json::{Value, json};

use super::super::options::HaConfigArgs;

/// Name of the objects in the packaged files, and of their namespace.
pub(super) const NAME: &str = "signalbox";
/// Images of a build that was made for a registry, such as `registry.example.com/${component}:${version}`.
pub(super) const IMAGES: Option<&str> = option_env!("SIGNALBOX_IMAGES");
/// Configuration of a cluster that has none.
pub(super) const CONFIGURATION: &str = include_str!("../../../../../packaging/k8s/base/signalbox.yaml");

/// Key of the configuration in the ConfigMap.
pub(super) const FILE: &str = "signalbox.yaml";

const RIGHTS: &str = include_str!("../../../../../packaging/k8s/rbac/rbac.yaml");
const CONSTRAINTS: &str = include_str!("../../../../../packaging/k8s/components/openshift/scc.yaml");
const ROUTERS: &str = include_str!("../../../../../packaging/k8s/components/routers/routers.yaml");

/// Rights and accounts of a cluster that has none.
pub(super) fn of_new_cluster(args: &HaConfigArgs, openshift: bool) -> anyhow::Result<Vec<Value>> {
    let mut objects = documents(RIGHTS)?;
    if openshift {
        objects.extend(documents(CONSTRAINTS)?);
    }
    objects.extend(routers(args, openshift)?);
    objects.iter_mut().for_each(|object| rename(args, object));
    Ok(objects)
}

pub(super) fn config_map(args: &HaConfigArgs, configuration: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": NAME, "namespace": args.namespace() },
        "data": { FILE: configuration },
    })
}

/// The right to read the router pods, in their namespace.
fn routers(args: &HaConfigArgs, openshift: bool) -> anyhow::Result<Vec<Value>> {
    let named = args.router_pods()?;
    if named.is_none() && !openshift {
        return Ok(Vec::new());
    }
    let mut objects = documents(ROUTERS)?;
    if let Some((namespace, _)) = named {
        for object in &mut objects {
            object["metadata"]["namespace"] = namespace.into();
        }
    }
    Ok(objects)
}

/// Gives an object the namespace and the account of the options.
pub(super) fn rename(args: &HaConfigArgs, object: &mut Value) {
    let (namespace, account) = (args.namespace(), args.account());
    match object["kind"].as_str().unwrap_or_default() {
        "Namespace" => object["metadata"]["name"] = namespace.into(),
        "ServiceAccount" => object["metadata"]["name"] = account.into(),
        _ => {}
    }
    if object["metadata"]["namespace"] == NAME {
        object["metadata"]["namespace"] = namespace.into();
    }
    let Some(subjects) = object.get_mut("subjects").and_then(Value::as_array_mut) else {
        return;
    };
    for subject in subjects {
        subject["name"] = account.into();
        subject["namespace"] = namespace.into();
    }
    // Another set of balancers, which may be in this cluster too, keeps its rights.
    if (namespace, account) != (NAME, NAME) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        object["metadata"]["name"] = format!("{name}-{namespace}-{account}").into();
    }
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn documents(text: &str) -> anyhow::Result<Vec<Value>> {
    text.split("\n---\n").map(document).collect()
}

pub(super) fn document(text: &str) -> anyhow::Result<Value> {
    signalbox_core::wire::yaml::read_json(text).context("reading a packaged manifest")
}

/// The objects as documents of YAML.
pub(super) fn yaml(objects: &[Value]) -> anyhow::Result<String> {
    let texts: Result<Vec<String>, _> = objects.iter().map(serde_saphyr::to_string).collect();
    Ok(texts.context("writing the manifests")?.join("---\n"))
}
