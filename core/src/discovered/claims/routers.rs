//! Router pods as hosts.
//!
//! A host is named after its node, not after its pod: a rollout gives each pod a new name, and with the old name the
//! host's counters, health and flows would be lost. Ports except 80 and 443 are part of the host's name, so that pods
//! of one node do not clash, and a pod that comes or goes never renames another host.

use std::collections::BTreeMap;

use super::{ClaimRules, Node, RouterPod, reason};
use crate::discovered::discovery::Rejected;
use crate::model::Host;
use crate::model::kubernetes::AddressType;

const DEFAULT_HTTP_PORT: u16 = 80;
const DEFAULT_HTTPS_PORT: u16 = 443;

/// Hosts that router pods make, in order of their names.
///
/// Readiness only chooses among pods: where none is ready, all pods that are not ending are used. Health checks test
/// hosts directly, and an API server that has lost sight of its nodes must not take every host away.
pub(super) fn hosts<'a>(
    pods: impl IntoIterator<Item = &'a RouterPod>,
    nodes: impl IntoIterator<Item = &'a Node>,
    rules: &ClaimRules,
    rejected: &mut Vec<Rejected>,
) -> Vec<Host> {
    let nodes: BTreeMap<&str, &Node> = nodes.into_iter().map(|node| (node.name.as_str(), node)).collect();
    let mut placed: Vec<(&RouterPod, &str)> = Vec::new();
    for pod in pods {
        // Pods without a node are still being scheduled, which is no fault.
        if let (false, Some(node)) = (pod.terminating, &pod.node) {
            placed.push((pod, node));
        }
    }
    // Messages name one of the pods with the same ports on a node: sorting makes it always the same pod.
    placed.sort_unstable_by(|(a, _), (b, _)| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    let mut reachable = Vec::new();
    for (pod, node) in placed {
        match host(pod, node, nodes.get(node).copied(), rules) {
            Ok(host) => reachable.extend(host.map(|host| (pod.ready, host))),
            Err(why) => rejected.push(Rejected {
                hostname: String::new(),
                origin: format!("{}{}/{}", reason::POD_ORIGIN_PREFIX, pod.namespace, pod.name),
                reason: format!("{}: {why}", reason::NO_HOST),
                rival: None,
            }),
        }
    }
    let any_ready = reachable.iter().any(|(ready, _)| *ready);
    let mut hosts = BTreeMap::new();
    for (ready, host) in reachable {
        if ready || !any_ready {
            hosts.entry(host.name.clone()).or_insert(host);
        }
    }
    hosts.into_values().collect()
}

/// Host of one pod. `None`: the pod has no address yet.
fn host(pod: &RouterPod, name: &str, node: Option<&Node>, rules: &ClaimRules) -> Result<Option<Host>, String> {
    let address = match rules.address_type {
        AddressType::Internal => node.and_then(|node| node.internal).or(pod.host_ip),
        AddressType::External => match node {
            Some(Node { external: None, .. }) => return Err(format!("its node {name} has no ExternalIP")),
            node => node.and_then(|node| node.external),
        },
    };
    let Some(address) = address else { return Ok(None) };
    let by_default = |port| pod.host_network.then_some(port);
    // A pod that names one of its ports sets its ports explicitly: the other port is not guessed.
    let named = pod.http.or(pod.https).is_some();
    let http = rules
        .http
        .or(pod.http)
        .or_else(|| by_default(DEFAULT_HTTP_PORT).filter(|_| !named));
    let https = rules
        .https
        .or(pod.https)
        .or_else(|| by_default(DEFAULT_HTTPS_PORT).filter(|_| !named));
    let name = match (http, https) {
        (None, None) => {
            return Err(
                "it has no host port named http or https, and does not use the host network: \
                        set `routers.http` and `routers.https` to the node ports that lead to it"
                    .to_owned(),
            );
        }
        (Some(DEFAULT_HTTP_PORT), Some(DEFAULT_HTTPS_PORT)) => name.to_owned(),
        _ => [http, https]
            .iter()
            .flatten()
            .fold(name.to_owned(), |name, port| format!("{name}-{port}")),
    };
    Ok(Some(Host {
        name,
        address,
        http,
        https,
        tcp: None,
        ports: std::collections::BTreeMap::new(),
        weight: 1,
        backup: false,
        health_page: None,
    }))
}
