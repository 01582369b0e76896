//! Decodes pods and nodes, on which routers run, and namespaces.

use std::net::IpAddr;

use serde::Deserialize;
use serde_json::Value;
use signalbox_core::discovered::claims::{Node, RouterPod};

use super::{Condition, Metadata, or_null};

#[derive(Deserialize)]
struct RawPod {
    metadata: Metadata,
    spec: PodSpec,
    #[serde(default, deserialize_with = "or_null")]
    status: PodStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    node_name: Option<String>,
    #[serde(default, deserialize_with = "or_null")]
    host_network: bool,
    #[serde(default, deserialize_with = "or_null")]
    containers: Vec<Container>,
}

#[derive(Deserialize)]
struct Container {
    #[serde(default, deserialize_with = "or_null")]
    ports: Vec<Port>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Port {
    #[serde(default)]
    name: String,
    container_port: Option<u16>,
    host_port: Option<u16>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    phase: String,
    #[serde(rename = "hostIP")]
    host_ip: Option<String>,
    #[serde(deserialize_with = "or_null")]
    conditions: Vec<Condition>,
}

#[derive(Deserialize)]
struct RawNode {
    metadata: Metadata,
    #[serde(default, deserialize_with = "or_null")]
    status: NodeStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeStatus {
    #[serde(deserialize_with = "or_null")]
    addresses: Vec<Address>,
}

#[derive(Deserialize)]
struct Address {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

/// Decodes a router's pod.
///
/// # Errors
///
/// The object has no name, or a field that is used has not the type of the API.
pub fn pod(value: &Value) -> Result<RouterPod, serde_json::Error> {
    let RawPod { metadata, spec, status } = RawPod::deserialize(value)?;
    let port = |name: &str| {
        let mut ports = spec.containers.iter().flat_map(|container| &container.ports);
        let port = ports.find(|port| port.name == name)?;
        let shared = port.container_port.filter(|_| spec.host_network);
        port.host_port.filter(|port| *port > 0).or(shared)
    };
    let ready = status
        .conditions
        .iter()
        .any(|condition| condition.kind == "Ready" && condition.status == "True");
    Ok(RouterPod {
        http: port("http"),
        https: port("https"),
        namespace: metadata.namespace,
        name: metadata.name,
        node: spec.node_name.filter(|name| !name.is_empty()),
        host_ip: status.host_ip.and_then(|text| address(&text)),
        host_network: spec.host_network,
        ready,
        terminating: metadata.deletion_timestamp.is_some() || matches!(status.phase.as_str(), "Succeeded" | "Failed"),
    })
}

/// Decodes a node.
///
/// # Errors
///
/// The object has no name, or a field that is used has not the type of the API.
pub fn node(value: &Value) -> Result<Node, serde_json::Error> {
    let RawNode { metadata, status } = RawNode::deserialize(value)?;
    let first = |kind: &str| {
        let mut all = status.addresses.iter().filter(|address| address.kind == kind);
        all.find_map(|found| address(&found.address))
    };
    Ok(Node {
        internal: first("InternalIP"),
        external: first("ExternalIP"),
        name: metadata.name,
    })
}

#[derive(Deserialize)]
struct RawNamespace {
    metadata: Metadata,
}

/// Decodes a namespace to its name.
///
/// # Errors
///
/// The object has no name.
pub fn namespace(value: &Value) -> Result<String, serde_json::Error> {
    RawNamespace::deserialize(value).map(|whole| whole.metadata.name)
}

/// Parses an address that can be connected to.
fn address(text: &str) -> Option<IpAddr> {
    let address: IpAddr = text.parse().ok()?;
    let address = address.to_canonical();
    (!address.is_unspecified() && !address.is_multicast()).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_router_pod_as_openshift_writes_it() {
        let ports = json!([
            {"name": "http", "containerPort": 80, "hostPort": 80, "protocol": "TCP"},
            {"name": "https", "containerPort": 443, "protocol": "TCP"},
            {"name": "metrics", "containerPort": 1936}
        ]);
        let mut value = json!({
            "metadata": {"name": "router-default-abc", "namespace": "openshift-ingress"},
            "spec": {"nodeName": "n1", "hostNetwork": true, "containers": [{"name": "logs"}, {"ports": ports}]},
            "status": {"phase": "Running", "hostIP": "10.0.0.1", "podIP": "10.0.0.1",
                "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": null}]},
        });
        let router = pod(&value).unwrap();
        assert_eq!(
            (router.http, router.https, router.node.as_deref()),
            (Some(80), Some(443), Some("n1"))
        );
        assert_eq!(router.host_ip, Some([10, 0, 0, 1].into()));
        assert!(router.ready && !router.terminating && router.host_network);
        value["spec"]["hostNetwork"] = json!(false);
        value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let router = pod(&value).unwrap();
        assert_eq!(
            (router.http, router.https, router.terminating),
            (Some(80), None, true),
            "443 is the pod's own"
        );
    }

    #[test]
    fn a_pod_on_its_way_has_no_place_yet() {
        let router = pod(&json!({"metadata": {"name": "a"}, "spec": {"containers": null}})).unwrap();
        assert_eq!(
            (router.node, router.host_ip, router.ready, router.terminating),
            (None, None, false, false)
        );
        assert!(pod(&json!({"metadata": {"name": "a"}, "spec": {"nodeName": 5}})).is_err());
    }

    #[test]
    fn a_node_has_its_first_address_of_each_type() {
        let addresses = json!([
            {"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "10.0.0.1"},
            {"type": "InternalIP", "address": "fd00::1"}, {"type": "ExternalIP", "address": "0.0.0.0"},
            {"type": "ExternalIP", "address": "192.0.2.1"}
        ]);
        let found = node(&json!({"metadata": {"name": "n1"}, "status": {"addresses": addresses}})).unwrap();
        assert_eq!(found.internal, Some([10, 0, 0, 1].into()));
        assert_eq!(found.external, Some([192, 0, 2, 1].into()));
    }
}
