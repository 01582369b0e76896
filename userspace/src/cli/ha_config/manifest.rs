//! Definitions that run the supervisor: a systemd unit, and a Kubernetes DaemonSet.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde_json::json;
use signalbox_core::model::HighAvailability;

use super::options::HaConfigArgs;

/// Unit beside that of `signalbox run`, on which it does not depend: it must outlive it to remove the addresses.
pub(super) const SYSTEMD_UNIT: &str = include_str!("../../../../packaging/systemd/signalbox-ha.service");

/// Image without --images.
const DEFAULT_IMAGE: &str = "signalbox/${component}:${version}";
const COMPONENT: &str = "keepalived-ha-config";

/// DaemonSet beside signalbox's own, on the nodes that match the selector.
pub(super) fn kubernetes(args: &HaConfigArgs, ha: &HighAvailability) -> anyhow::Result<String> {
    let selector = args.node_selector();
    let node_labels: BTreeMap<_, _> = selector.split(',').filter_map(|label| label.split_once('=')).collect();
    let labels = json!({ "app": "signalbox-ha", "ipfailover": ha.name });
    let version = if args.latest_images {
        "latest"
    } else {
        concat!("v", env!("CARGO_PKG_VERSION"))
    };
    let image = args.images.as_deref().unwrap_or(DEFAULT_IMAGE);
    let image = image.replace("${component}", COMPONENT).replace("${version}", version);
    let container = json!({
        "name": "ha",
        "image": image,
        "command": ["signalbox", "ha", "run", "--config", "/etc/signalbox/signalbox.yaml"],
        "securityContext": { "capabilities": { "add": capabilities() } },
        "volumeMounts": [
            { "name": "config", "mountPath": "/etc/signalbox", "readOnly": true },
            { "name": "admin", "mountPath": "/run/signalbox" },
        ],
    });
    let manifest = json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": { "name": ha.name, "labels": labels },
        "spec": {
            "selector": { "matchLabels": labels },
            // Only one node at a time gives its addresses up.
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 1 } },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "hostNetwork": true,
                    "nodeSelector": node_labels,
                    "serviceAccountName": args.service_account.as_deref().unwrap_or("ipfailover"),
                    "terminationGracePeriodSeconds": 20,
                    "containers": [container],
                    "volumes": [
                        { "name": "config", "configMap": { "name": "signalbox" } },
                        { "name": "admin", "hostPath": { "path": "/run/signalbox", "type": "DirectoryOrCreate" } },
                    ],
                },
            },
        },
    });
    if args.replicas.is_some() {
        eprintln!("note: a DaemonSet has no --replicas: it runs on each node with the labels {selector}");
    }
    serde_saphyr::to_string(&manifest).context("writing the manifest")
}

/// Capabilities of the unit, with their Kubernetes names.
fn capabilities() -> Vec<&'static str> {
    let mut lines = SYSTEMD_UNIT.lines();
    let names = lines.find_map(|line| line.strip_prefix("AmbientCapabilities="));
    let names = names.unwrap_or_default().split_ascii_whitespace();
    names.filter_map(|name| name.strip_prefix("CAP_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    #[test]
    fn the_daemon_set_runs_on_the_nodes_that_are_selected() {
        let (ha, _) = config::ha::parse("{ name: router-west, vips: 10.1.1.5 }").unwrap();
        let args = HaConfigArgs {
            selector: Some("ha-router=primary,region=infra".to_owned()),
            images: Some("registry.test/${component}:${version}".to_owned()),
            latest_images: true,
            ..HaConfigArgs::default()
        };
        let text = kubernetes(&args, &ha).unwrap();
        let parsed = signalbox_core::yaml::read_json(&text).unwrap();
        let pod = &parsed["spec"]["template"]["spec"];
        assert_eq!(
            pod["nodeSelector"],
            json!({ "ha-router": "primary", "region": "infra" })
        );
        assert_eq!(
            pod["containers"][0]["image"],
            "registry.test/keepalived-ha-config:latest"
        );
        assert_eq!(
            pod["containers"][0]["securityContext"]["capabilities"]["add"],
            json!(["NET_ADMIN", "NET_RAW"])
        );
        assert_eq!(
            (&parsed["metadata"]["name"], &pod["hostNetwork"]),
            (&json!("router-west"), &json!(true))
        );
    }
}
