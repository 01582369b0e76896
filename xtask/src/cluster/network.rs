//! Network of a cluster: a namespace for the control plane, whose bridge joins those of the nodes and of clients.

use std::process::Command;

use anyhow::Result;

use super::{Cluster, pki::SERVICE};
use crate::vm::store::quietly;

/// Address of the API server, and the nodes' gateway.
pub(super) const PLANE: &str = "10.77.0.1";
/// Address of the clients.
const CLIENT: &str = "10.77.0.100";

/// Address of a node.
pub(super) fn address(number: u8) -> String {
    format!("10.77.0.{}", 10 + number)
}

/// Network of a node's pods.
pub(super) fn pods(number: u8) -> String {
    format!("10.88.{number}.0/24")
}

pub(super) fn make(cluster: &Cluster, nodes: u8) -> Result<()> {
    let plane = cluster.namespace("cp");
    add(&plane)?;
    ip(&plane, "link add br0 type bridge")?;
    ip(&plane, &format!("addr add {PLANE}/24 dev br0"))?;
    // Pods find the API server at the Service's address before kube-proxy has read it: the server listens there itself.
    ip(&plane, &format!("addr add {SERVICE}/32 dev lo"))?;
    ip(&plane, "link set br0 up")?;
    join(cluster, "client", CLIENT)?;
    for number in 1..=nodes {
        join(cluster, &format!("n{number}"), &address(number))?;
    }
    for number in 1..=nodes {
        ip(&plane, &format!("route add {} via {}", pods(number), address(number)))?;
        for other in (1..=nodes).filter(|other| *other != number) {
            let route = format!("route add {} via {}", pods(other), address(other));
            ip(&cluster.namespace(&format!("n{number}")), &route)?;
        }
    }
    Ok(())
}

/// Makes a namespace with a link to the bridge.
fn join(cluster: &Cluster, of: &str, address: &str) -> Result<()> {
    let (plane, namespace) = (cluster.namespace("cp"), cluster.namespace(of));
    add(&namespace)?;
    ip(
        &plane,
        &format!("link add {of} type veth peer name eth0 netns {namespace}"),
    )?;
    ip(&plane, &format!("link set {of} master br0 up"))?;
    ip(&namespace, &format!("addr add {address}/24 dev eth0"))?;
    ip(&namespace, "link set eth0 up")?;
    ip(&namespace, &format!("route add default via {PLANE}"))
}

/// Connects a node with the bridge, or takes its link down.
pub(super) fn link(cluster: &Cluster, node: &str, state: &str) -> Result<()> {
    ip(&cluster.namespace("cp"), &format!("link set {node} {state}"))
}

fn add(namespace: &str) -> Result<()> {
    quietly(Command::new("ip").args(["netns", "add", namespace]))?;
    ip(namespace, "link set lo up")?;
    let forward = ["netns", "exec", namespace, "sysctl", "-qw", "net.ipv4.ip_forward=1"];
    quietly(Command::new("ip").args(forward)).map(drop)
}

fn ip(namespace: &str, words: &str) -> Result<()> {
    quietly(Command::new("ip").args(["-n", namespace]).args(words.split(' '))).map(drop)
}

/// Removes all namespaces of a cluster.
pub(super) fn remove(cluster: &Cluster) -> Result<()> {
    let prefix = cluster.namespace("");
    let all = quietly(Command::new("ip").args(["netns", "list"]))?;
    for name in all.lines().filter_map(|line| line.split(' ').next()) {
        if name.starts_with(&prefix) {
            quietly(Command::new("ip").args(["netns", "delete", name]))?;
        }
    }
    Ok(())
}
