//! Overlays on an empty cluster: what they make, serve, ask the API server for, and leave.

use aya::programs::{SchedClassifier, TcAttachType};
use serde_json::Value;

use super::{Cluster, POD_TIMEOUT, ingress};
use crate::lab::{SOON, eventually};

const ACCOUNT: &str = "system:serviceaccount:signalbox:signalbox";

/// A Service of the routers, and one without endpoints.
const SERVICES: &str = "
apiVersion: v1
kind: List
items:
  - apiVersion: v1
    kind: Service
    metadata: { name: routers, namespace: ingress }
    spec: { type: NodePort, selector: { app: router }, ports: [{ port: 80, targetPort: 80, nodePort: 30080 }] }
  - apiVersion: v1
    kind: Service
    metadata: { name: nobody, namespace: ingress }
    spec: { selector: { app: nobody }, ports: [{ port: 80 }] }
";

mod share_12 {
    use super::*;

    #[test]
    fn plain_serves_an_ingress_is_applied_twice_and_leaves_nothing() {
        const NAME: &str = "plain_serves_an_ingress_is_applied_twice_and_leaves_nothing";
        let Some(cluster) = Cluster::start(NAME, "plain", 3) else {
            return;
        };
        cluster.must(&["apply", "plain"]);
        cluster.await_rollout("daemonset/signalbox");
        cluster.kubectl(&["create", "namespace", "shop"]);
        cluster.apply_text(&ingress("web", "web.test"));
        for node in ["10.77.0.11", "10.77.0.12"] {
            cluster.serves(node, "web.test");
        }
        let pods = cluster.pods();
        assert_eq!(pods.len(), 2);
        write_rules_of_services(&cluster);
        for pod in &pods {
            // Beside the rules that kubelet and kube-proxy make on every node.
            let explained = cluster.signalbox(pod, &["explain", "web.test"]);
            assert!(
                explained.contains("routed in the kernel, without a socket"),
                "{explained}"
            );
        }

        let again = cluster.must(&["apply", "plain"]);
        let changed: Vec<&str> = again.lines().filter(|line| !line.ends_with(" unchanged")).collect();
        assert!(changed.is_empty(), "{changed:?}");
        assert_eq!(cluster.pods(), pods);

        let answered = |code: u32| requests(&cluster, |event| event["responseStatus"]["code"] == code);
        assert!(!answered(200).is_empty());
        assert_eq!(answered(403), Vec::<String>::new());

        assert!(["n1", "n2"].iter().all(|node| !left_on(&cluster, node).is_empty()));
        cluster.must(&["delete", "plain"]);
        for node in ["n1", "n2"] {
            // A filter or a link would send packets to a program without a balancer.
            let gone = eventually(SOON, || left_on(&cluster, node).is_empty());
            assert!(gone, "{node}: {:?}", left_on(&cluster, node));
        }
        cluster.end();
    }
}

/// Has kube-proxy make its rules of every kind: for a Service with endpoints, of a node's port, and without endpoints.
#[track_caller]
fn write_rules_of_services(cluster: &Cluster) {
    cluster.apply_text(SERVICES);
    for (node, address) in [("n1", "10.77.0.11"), ("n2", "10.77.0.12")] {
        let rules = || {
            let saved = cluster.ns(node).output(&["iptables-save"]);
            String::from_utf8_lossy(&saved.stdout).into_owned()
        };
        let kinds = [
            ["ingress/routers", "-j KUBE-SEP-"],
            ["ingress/routers", "--dport 30080"],
            ["ingress/nobody", "has no endpoints"],
        ];
        let has = |words: &[&str; 2]| rules().lines().any(|rule| words.iter().all(|word| rule.contains(word)));
        let made = eventually(POD_TIMEOUT, || kinds.iter().all(has));
        assert!(made, "{node}: {}", rules());
        cluster.serves(&format!("{address}:30080"), "web.test");
    }
}

/// Programs that are attached to a node's interface.
fn left_on(cluster: &Cluster, node: &str) -> Vec<String> {
    let sides = [TcAttachType::Ingress, TcAttachType::Egress];
    let attached = cluster
        .ns(node)
        .run(|| sides.map(|side| SchedClassifier::query_tcx("eth0", side).unwrap().1));
    let programs = attached.iter().flatten();
    programs
        .map(|program| program.name_as_str().unwrap_or_default().to_owned())
        .collect()
}

/// Requests of signalbox's account to the API server, as the server's audit log has them.
fn requests(cluster: &Cluster, is_meant: impl Fn(&Value) -> bool) -> Vec<String> {
    let log = std::fs::read_to_string(cluster.files().join("audit.log")).unwrap();
    // The last line may not be whole yet.
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ours = events.filter(|event| event["user"]["username"] == ACCOUNT && is_meant(event));
    ours.map(|event| format!("{} {}", event["verb"], event["requestURI"]))
        .collect()
}
