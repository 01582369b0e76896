//! The API's objects as the core knows them. What is not asked for is not looked at, and may be anything.

mod classes;
mod gateways;
mod names;
mod places;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use signalbox_core::claims::{Gateway, IngressClass, Node, Object, RouterPod};

pub use classes::class;
pub use gateways::gateway;
pub use names::object;
pub use places::{namespace, node, pod};

use super::what::What;

/// What a feed holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// By far the largest.
    Names(Box<Object>),
    Pod(RouterPod),
    Node(Node),
    /// A namespace, by its name: all that is asked of it is whether it is there.
    Namespace(String),
    Class(IngressClass),
    Gateway(Gateway),
}

impl Item {
    pub(super) fn decode(what: What, value: &Value) -> Result<Self, serde_json::Error> {
        match what {
            What::Names(kind) => object(kind, value).map(|object| Self::Names(Box::new(object))),
            What::Pods => pod(value).map(Self::Pod),
            What::Nodes => node(value).map(Self::Node),
            What::Namespaces => namespace(value).map(Self::Namespace),
            What::Gateways => gateway(value).map(Self::Gateway),
            What::IngressClasses => class(value).map(Self::Class),
        }
    }
}

/// What all objects have.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    namespace: String,
    name: String,
    #[serde(default)]
    uid: String,
    creation_timestamp: Option<String>,
    deletion_timestamp: Option<String>,
    #[serde(default, deserialize_with = "or_null")]
    annotations: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "or_null")]
    labels: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "or_null")]
    owner_references: Vec<Owner>,
}

#[derive(Deserialize)]
struct Owner {
    kind: String,
    uid: String,
}

/// A word of a status: `Admitted`, `Accepted`, `Ready`.
#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
}

/// Go writes empty lists as `null` now and then.
fn or_null<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Where an object stands among others of its kind, even if the rest of it makes no sense: namespace and name; and its
/// version.
pub(super) fn place(value: &Value) -> Option<(String, Option<String>)> {
    let metadata = value.get("metadata")?;
    let text = |key| {
        metadata
            .get(key)
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty())
    };
    let key = format!("{}/{}", text("namespace").unwrap_or_default(), text("name")?);
    Some((key, text("resourceVersion").map(str::to_owned)))
}
