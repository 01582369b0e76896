//! Routers of a cluster: HAProxy on the worker nodes, in the node's network, as OpenShift's routers are.

use anyhow::Result;

use super::{Cluster, eventually};

const ROUTERS: &str = include_str!("routers.yaml");

pub(super) fn apply(cluster: &Cluster) -> Result<()> {
    cluster.kubectl().args(["apply", "-f", "-"]).input(ROUTERS)?;
    eventually("the routers are not ready", || {
        let ready = "jsonpath={.status.numberReady}";
        let output = cluster
            .kubectl()
            .args(["-n", "ingress", "get", "daemonset", "router", "-o", ready])
            .output()?;
        Ok(output.parse().is_ok_and(|ready: u32| ready > 0))
    })
}
