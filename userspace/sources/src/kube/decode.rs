//! Decodes the API's objects into the core's types. Fields that are not used are not examined, and may be anything.

mod certificates;
mod claiming_objects;
mod classes;
mod gateways;
mod pods_and_nodes;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use signalbox_core::discovered::claims::{Gateway, IngressClass, Node, Object, ObjectKind, RouterPod};

pub(super) use certificates::HeldCertificate;
pub use claiming_objects::object;
pub use classes::class;
pub use gateways::gateway;
pub use pods_and_nodes::{namespace, node, pod};

use super::resource_kind::ResourceKind;

/// An object of a feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WatchedObject {
    /// Boxed, because it is by far the largest; with the certificate that the object itself holds.
    Names(Box<Object>, Option<HeldCertificate>),
    /// Certificate of a Secret.
    Certificate(HeldCertificate),
    Pod(RouterPod),
    Node(Node),
    /// Name of a namespace: only its existence matters.
    Namespace(String),
    Class(IngressClass),
    Gateway(Gateway),
}

impl WatchedObject {
    pub(super) fn decode(what: ResourceKind, value: &Value) -> Result<Self, serde_json::Error> {
        match what {
            ResourceKind::Claiming(kind) => object(kind, value).map(|object| Self::Names(Box::new(object), None)),
            ResourceKind::Secrets => certificates::of_secret(value).map(Self::Certificate),
            ResourceKind::Pods => pod(value).map(Self::Pod),
            ResourceKind::Nodes => node(value).map(Self::Node),
            ResourceKind::Namespaces => namespace(value).map(Self::Namespace),
            ResourceKind::Gateways => gateway(value).map(Self::Gateway),
            ResourceKind::IngressClasses => class(value).map(Self::Class),
        }
    }
}

impl WatchedObject {
    /// Adds the certificate that a Route holds, which is left out where it is not needed.
    pub(super) fn with_certificate(self, value: &Value) -> Self {
        match self {
            Self::Names(object, _) if object.kind == ObjectKind::Route => {
                let certificate = certificates::of_route(value);
                Self::Names(object, certificate)
            }
            other => other,
        }
    }
}

/// Metadata that all objects have.
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

/// A condition of a status: `Admitted`, `Accepted`, `Ready`.
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

/// Decodes `null` as the default: Go writes empty lists as `null` now and then.
fn or_null<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Returns an object's key (namespace and name) and version, even if the rest of the object makes no sense.
pub(super) fn object_key(value: &Value) -> Option<(String, Option<String>)> {
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
