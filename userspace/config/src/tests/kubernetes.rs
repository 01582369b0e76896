//! What `kubernetes` and `learn` mean, and what they say when broken.

use std::path::PathBuf;

use signalbox_core::model::kubernetes::{AddressType, Connection, KubernetesSource, Resource, RouterPods};

use super::{bent, mistakes_of, only_mistake, right};

const PATH: &str = "clusters[1].kubernetes";

/// The example's second cluster with these settings instead of hosts.
fn with(settings: &str) -> String {
    let hosts = "    hosts: [ { name: west-1, address: \"fd00:2::4\", http: 80, https: 443 } ]\n";
    bent(hosts, &format!("    kubernetes: {settings}\n"))
}

#[track_caller]
fn meaning(settings: &str) -> KubernetesSource {
    right(&with(settings)).model.clusters[1].kubernetes.clone().unwrap()
}

#[test]
fn the_least_and_the_most_that_can_be_said() {
    let least = meaning("{ in_cluster: true }");
    assert_eq!(
        (&least.connection, &least.resources, &least.labels),
        (&Connection::InCluster, &None, &None)
    );
    assert!(least.namespaces.is_empty() && !least.wildcards && least.routers.pods.is_none());
    assert_eq!(least.routers.address, AddressType::Internal);
    let most = meaning(
        "{ url: \"https://api.east.test:6443\", token_file: /t, ca_file: /c, resources: [routes, tlsroutes], \
         namespaces: [shop, bank], labels: \"tier in (a, b),!x\", wildcards: true, \
         routers: { namespace: infra, labels: app=router, address: ExternalIP, http: 8080, https: 8443 } }",
    );
    assert_eq!(
        most.connection,
        Connection::Url {
            url: "https://api.east.test:6443".into(),
            token: Some("/t".into()),
            ca: Some("/c".into()),
        }
    );
    assert_eq!(most.resources, Some(vec![Resource::Routes, Resource::TlsRoutes]));
    assert_eq!(
        (most.namespaces.len(), most.labels.as_deref(), most.wildcards),
        (2, Some("tier in (a, b),!x"), true)
    );
    let (namespace, labels) = ("infra".to_owned(), "app=router".to_owned());
    assert_eq!(most.routers.pods, Some(RouterPods { namespace, labels }));
    assert_eq!(most.routers.address, AddressType::External);
    assert_eq!((most.routers.http, most.routers.https), (Some(8080), Some(8443)));
    let path = PathBuf::from("/k");
    let context = Some("admin".to_owned());
    assert_eq!(
        meaning("{ kubeconfig: /k, context: admin }").connection,
        Connection::Kubeconfig { path, context }
    );
}

#[test]
fn who_learns_needs_no_hosts() {
    let hosts = "    hosts: [ { name: west-1, address: \"fd00:2::4\", http: 80, https: 443 } ]\n";
    for (settings, learn) in [
        ("    learn: true\n", true),
        ("    learn: true\n    hosts:\n", true),
        ("    learn: true\n    hosts: []\n", true),
        ("    kubernetes: { in_cluster: true }\n", false),
    ] {
        let parsed = right(&bent(hosts, settings));
        let cluster = &parsed.model.clusters[1];
        assert!(cluster.hosts.is_empty() && cluster.learns(), "{settings}");
        assert_eq!(cluster.learn, learn, "{settings}");
        assert_eq!(parsed.warnings, [], "{settings}");
    }
    let both = format!("{hosts}    learn: true\n");
    assert_eq!(right(&bent(hosts, &both)).model.clusters[1].hosts.len(), 1);
    only_mistake(
        &bent(hosts, "    learn: false\n"),
        "clusters[1]",
        "the key `hosts` is missing",
    );
    only_mistake(
        &bent(hosts, "    learn: yes\n"),
        "clusters[1].learn",
        "is not a yes or no (allowed: true or false)",
    );
    only_mistake(
        &bent(hosts, "    kubernets: { in_cluster: true }\n"),
        "clusters[1].kubernets",
        "did you mean",
    );
}

#[test]
fn there_is_one_way_to_the_server() {
    let ways = "exactly one of `in_cluster`, `kubeconfig` and `url`";
    only_mistake(&with("{}"), PATH, &format!("{ways}; none of them is here"));
    only_mistake(&with(""), PATH, &format!("{ways}; none"));
    only_mistake(
        &with("{ in_cluster: true, kubeconfig: /k }"),
        PATH,
        &format!("{ways}; there is more than one"),
    );
    only_mistake(
        &with("{ kubeconfg: /k }"),
        "clusters[1].kubernetes.kubeconfg",
        "did you mean `kubeconfig`?",
    );
    only_mistake(
        &with("{ in_cluster: false }"),
        "clusters[1].kubernetes.in_cluster",
        "only ever true",
    );
    only_mistake(
        &with("{ kubeconfig: }"),
        "clusters[1].kubernetes.kubeconfig",
        "the value is missing",
    );
    only_mistake(&with("here"), PATH, "expected a mapping");
    for (settings, key, way) in [
        ("{ in_cluster: true, context: c }", "context", "kubeconfig"),
        ("{ kubeconfig: /k, token_file: /t }", "token_file", "url"),
        ("{ in_cluster: true, ca_file: /c }", "ca_file", "url"),
    ] {
        let message = format!("`{key}` goes with `{way}`, which is not here");
        only_mistake(&with(settings), &format!("{PATH}.{key}"), &message);
    }
    for bad in [
        "api.east.test:6443",
        "https://",
        "https:///x",
        "https://a b",
        "ftp://a",
        "https://u:p@a",
        "https://a?x",
    ] {
        only_mistake(
            &with(&format!("{{ url: \"{bad}\" }}")),
            "clusters[1].kubernetes.url",
            "is not an API server's address, such as https://",
        );
    }
}

#[test]
fn what_is_read_is_named_as_kubernetes_does() {
    let key = |settings: &str, key: &str, part: &str| {
        only_mistake(
            &with(&format!("{{ in_cluster: true, {settings} }}")),
            &format!("{PATH}.{key}"),
            part,
        );
    };
    key(
        "resources: [route]",
        "resources[0]",
        "`route` is not a resource; did you mean `routes`?",
    );
    key("resources: [routes, routes]", "resources[1]", "given twice");
    key("resources: []", "resources", "leave the key out for all");
    key("resources: routes", "resources", "expected a list");
    key("namespaces: [a, Shop]", "namespaces[1]", "`Shop` is not a namespace");
    key("namespaces: [a, a]", "namespaces[1]", "given twice");
    key("namespaces: []", "namespaces", "leave the key out for all");
    key("labels: \"a b\"", "labels", "`a b` is not a label selector");
    key("wildcards: 1", "wildcards", "is not a yes or no");
    key(
        "routers: { namespace: infra }",
        "routers.namespace",
        "give both, or neither",
    );
    key("routers: { labels: a=b }", "routers.labels", "give both, or neither");
    key(
        "routers: { address: Hostname }",
        "routers.address",
        "(allowed: InternalIP or ExternalIP)",
    );
    key("routers: { http: 0 }", "routers.http", "from 1 to 65535");
    key("routers: { htps: 1 }", "routers.htps", "did you mean `https`?");
}

#[test]
fn all_mistakes_come_at_once() {
    let text = with("{ url: x, resources: [y], namespaces: [\"-\"], labels: \"=\", routers: { http: z } }");
    assert_eq!(mistakes_of(&text).len(), 5, "{:#?}", mistakes_of(&text));
}
