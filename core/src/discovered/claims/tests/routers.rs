//! Hosts that router pods become.

use super::super::*;

fn pod(name: &str, node: &str) -> RouterPod {
    RouterPod {
        namespace: "openshift-ingress".into(),
        name: name.into(),
        node: Some(node.into()),
        host_ip: Some([10, 0, 0, node.len() as u8].into()),
        host_network: true,
        http: None,
        https: None,
        ready: true,
        terminating: false,
    }
}

fn hosts(pods: &[RouterPod], nodes: &[Node], rules: &ClaimRules) -> (Vec<String>, Vec<String>) {
    let learned = discover(
        ClusterObjects {
            pods: pods.iter().collect(),
            nodes: nodes.iter().collect(),
            ..ClusterObjects::default()
        },
        rules,
    );
    let shown = |port: Option<u16>| port.map_or_else(|| "-".to_owned(), |port| port.to_string());
    let host = |host: &crate::model::Host| {
        format!(
            "{} {} {} {}",
            host.name,
            host.address,
            shown(host.http),
            shown(host.https)
        )
    };
    let rejected = learned
        .rejected
        .iter()
        .map(|pod| format!("{}: {}", pod.origin, pod.reason));
    (learned.hosts.iter().map(host).collect(), rejected.collect())
}

#[test]
fn a_host_keeps_its_name_when_its_pod_is_replaced() {
    let rules = ClaimRules::default();
    let before = hosts(&[pod("router-1-abc", "n1"), pod("router-1-def", "nn2")], &[], &rules);
    assert_eq!(before.0, ["n1 10.0.0.2 80 443", "nn2 10.0.0.3 80 443"]);
    let during = hosts(
        &[
            pod("router-2-xyz", "n1"),
            pod("router-1-abc", "n1"),
            pod("router-1-def", "nn2"),
        ],
        &[],
        &rules,
    );
    assert_eq!(during, before);
    assert_eq!(
        hosts(&[pod("router-2-xyz", "n1"), pod("router-1-def", "nn2")], &[], &rules),
        before
    );
}

#[test]
fn pods_of_one_node_do_not_clash() {
    let shard = RouterPod {
        http: Some(8080),
        https: Some(8443),
        ..pod("shard", "n1")
    };
    let tls_only = RouterPod {
        https: Some(9443),
        ..pod("tls", "n1")
    };
    let (hosts, _) = hosts(&[shard, tls_only, pod("router", "n1")], &[], &ClaimRules::default());
    assert_eq!(
        hosts,
        [
            "n1 10.0.0.2 80 443",
            "n1-8080-8443 10.0.0.2 8080 8443",
            "n1-9443 10.0.0.2 - 9443"
        ]
    );
}

#[test]
fn unusable_pods_are_left_out_but_readiness_keeps_the_last_one() {
    let ending = RouterPod {
        terminating: true,
        ..pod("a", "n1")
    };
    let homeless = RouterPod {
        node: None,
        ..pod("b", "nn2")
    };
    let unready = RouterPod {
        ready: false,
        ..pod("c", "nnn3")
    };
    let nowhere = RouterPod {
        host_ip: None,
        ..pod("d", "nnnn4")
    };
    let useless = [ending, homeless, unready.clone(), nowhere];
    assert_eq!(hosts(&useless, &[], &ClaimRules::default()).0, ["nnn3 10.0.0.4 80 443"]);
    let with_ready = [unready, pod("e", "nnnnn5")];
    assert_eq!(
        hosts(&with_ready, &[], &ClaimRules::default()).0,
        ["nnnnn5 10.0.0.6 80 443"]
    );
}

#[test]
fn addresses_and_ports_can_be_chosen() {
    let node = |name: &str, external: Option<[u8; 4]>| Node {
        name: name.into(),
        internal: Some([10, 9, 9, 9].into()),
        external: external.map(Into::into),
    };
    let nodes = [node("n1", Some([192, 0, 2, 1])), node("nn2", None)];
    let pods = [pod("a", "n1"), pod("b", "nn2")];
    let external = ClaimRules {
        address_type: AddressType::External,
        http: Some(30080),
        ..ClaimRules::default()
    };
    let (found, rejected) = hosts(&pods, &nodes, &external);
    assert_eq!(found, ["n1-30080-443 192.0.2.1 30080 443"]);
    assert_eq!(
        rejected,
        ["Pod openshift-ingress/b: NoHostValue: its node nn2 has no ExternalIP"]
    );
    assert_eq!(
        hosts(&pods[..1], &nodes, &ClaimRules::default()).0,
        ["n1 10.9.9.9 80 443"]
    );
}

#[test]
fn a_pod_behind_a_cloud_balancer_says_what_it_needs() {
    let inner = RouterPod {
        host_network: false,
        ..pod("a", "n1")
    };
    let (found, rejected) = hosts(std::slice::from_ref(&inner), &[], &ClaimRules::default());
    assert_eq!(found, Vec::<String>::new());
    assert!(
        rejected[0].contains("set `routers.http` and `routers.https`"),
        "{rejected:?}"
    );
    let node_ports = ClaimRules {
        http: Some(30080),
        https: Some(30443),
        ..ClaimRules::default()
    };
    assert_eq!(
        hosts(&[inner], &[], &node_ports).0,
        ["n1-30080-30443 10.0.0.2 30080 30443"]
    );
}
