//! Meaning of `kubernetes` and `learn`, and their messages when broken.

use std::path::PathBuf;

use signalbox_core::model::kubernetes::{
    AddressType, ApiServerAccess, KubernetesSource, Resource, RouterNames, RouterPods, ShardFilter,
};

use super::{bent, mistakes_of, only_mistake, only_mistakes, right};

const PATH: &str = "clusters[1].kubernetes";

/// Example whose second cluster has these settings instead of hosts.
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
        (&least.access, &least.resources, &least.labels),
        (&ApiServerAccess::InCluster, &None, &None)
    );
    assert!(least.namespaces.is_empty() && !least.wildcards && least.routers.pods.is_none());
    assert_eq!(least.routers.address, AddressType::Internal);
    let most = meaning(
        "{ url: \"https://api.east.test:6443\", token_file: /t, ca_file: /c, resources: [routes, tlsroutes], \
         namespaces: [shop, bank], labels: \"tier in (a, b),!x\", wildcards: true, \
         routers: { namespace: infra, labels: app=router, address: ExternalIP, http: 8080, https: 8443 } }",
    );
    assert_eq!(
        most.access,
        ApiServerAccess::Url {
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
        meaning("{ kubeconfig: /k, context: admin }").access,
        ApiServerAccess::Kubeconfig { path, context }
    );
}

#[test]
fn a_cluster_with_discovery_needs_no_configured_hosts() {
    let hosts = "    hosts: [ { name: west-1, address: \"fd00:2::4\", http: 80, https: 443 } ]\n";
    for (settings, learn) in [
        ("    learn: true\n", true),
        ("    learn: true\n    hosts:\n", true),
        ("    learn: true\n    hosts: []\n", true),
        ("    kubernetes: { in_cluster: true }\n", false),
    ] {
        let parsed = right(&bent(hosts, settings));
        let cluster = &parsed.model.clusters[1];
        assert!(cluster.hosts.is_empty() && cluster.accepts_discovery(), "{settings}");
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
        "is not a boolean (allowed: true or false)",
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
    only_mistake(&with("{}"), PATH, &format!("{ways}; none of them is given"));
    only_mistake(&with(""), PATH, &format!("{ways}; none"));
    only_mistake(
        &with("{ in_cluster: true, kubeconfig: /k }"),
        PATH,
        &format!("{ways}; more than one is given"),
    );
    only_mistakes(
        &with,
        r"
            { kubeconfg: /k }     | clusters[1].kubernetes.kubeconfg  | did you mean `kubeconfig`?
            { in_cluster: false } | clusters[1].kubernetes.in_cluster | can only be true
            { kubeconfig: }       | clusters[1].kubernetes.kubeconfig | the value is missing
        ",
    );
    only_mistake(&with("here"), PATH, "expected a mapping");
    for (settings, key, way) in [
        ("{ in_cluster: true, context: c }", "context", "kubeconfig"),
        ("{ kubeconfig: /k, token_file: /t }", "token_file", "url"),
        ("{ in_cluster: true, ca_file: /c }", "ca_file", "url"),
    ] {
        let message = format!("`{key}` needs `{way}`, which is missing");
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
fn mistakes_in_kubernetes_source_settings_name_their_key() {
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
    key("resources: []", "resources", "leave the key out for all of them");
    key("resources: routes", "resources", "expected a list");
    key("namespaces: [a, Shop]", "namespaces[1]", "`Shop` is not a namespace");
    key("namespaces: [a, a]", "namespaces[1]", "given twice");
    key("namespaces: []", "namespaces", "leave the key out for all");
    key("labels: \"a b\"", "labels", "`a b` is not a label selector");
    key("wildcards: 1", "wildcards", "is not a boolean");
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
fn the_objects_of_a_set_of_routers_are_chosen() {
    let none = meaning("{ in_cluster: true }");
    assert_eq!(none.shard, ShardFilter::default());
    let places = |source: &KubernetesSource| -> Vec<(String, String)> {
        let pods = source.router_pods().into_iter();
        pods.map(|pods| (pods.namespace, pods.labels)).collect()
    };
    let of_4 = "ingresscontroller.operator.openshift.io/deployment-ingresscontroller";
    let at = |of_4_is: &str, of_3: &str| {
        [
            ("openshift-ingress".to_owned(), format!("{of_4}{of_4_is}")),
            ("default".to_owned(), format!("deploymentconfig{of_3}")),
        ]
    };
    assert_eq!(places(&none), at("=default", "=router"));
    let one = meaning("{ in_cluster: true, router_name: internal, namespace_labels: \"shard=a,!x\" }");
    assert_eq!(one.shard.routers.named(), ["internal"]);
    assert_eq!(one.shard.namespace_labels.as_deref(), Some("shard=a,!x"));
    assert_eq!(places(&one), at("=internal", "=internal"));
    let two = meaning("{ in_cluster: true, router_name: [default, internal], resources: [routes] }");
    assert_eq!(two.shard.routers.named(), ["default", "internal"]);
    assert_eq!(places(&two), at(" in (default, internal)", " in (default, internal)"));
    let class = meaning("{ in_cluster: true, ingress_class: [public, openshift-default] }");
    assert_eq!(class.shard.ingress_classes, ["public", "openshift-default"]);
    let gateways = meaning("{ in_cluster: true, gateways: [infra/public, shop/own.1], resources: [tlsroutes] }");
    let names: Vec<_> = gateways.shard.gateways.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["infra/public", "shop/own.1"]);
    let class = meaning("{ in_cluster: true, gateway_class: istio }");
    assert_eq!(
        (class.shard.gateway_classes.len(), class.shard.filters_gateways()),
        (1, true)
    );
    let said = meaning("{ in_cluster: true, router_name: a, routers: { namespace: infra, labels: app=router } }");
    assert_eq!(places(&said), [("infra".to_owned(), "app=router".to_owned())]);
    assert_eq!(none.shard.routers, RouterNames::Default);
    let own_pods = meaning("{ in_cluster: true, routers: { namespace: infra, labels: app=router } }");
    let any = meaning("{ in_cluster: true, router_name: any }");
    assert_eq!(
        [own_pods.shard.routers, any.shard.routers],
        [RouterNames::Any, RouterNames::Any]
    );
    assert_eq!(
        places(&meaning("{ in_cluster: true, router_name: any }")),
        places(&none)
    );
}

#[test]
fn a_choice_that_cannot_be_meant_is_a_mistake() {
    let key = |settings: &str, key: &str, part: &str| {
        only_mistake(
            &with(&format!("{{ in_cluster: true, {settings} }}")),
            &format!("{PATH}.{key}"),
            part,
        );
    };
    key(
        "router_name: Default",
        "router_name",
        "`Default` is not a router's name",
    );
    key("router_name: [a, a]", "router_name[1]", "given twice");
    key("router_name: []", "router_name", "leave the key out for all of them");
    key("router_name: { a: b }", "router_name", "expected a single value");
    key("router_name:", "router_name", "the value is missing");
    key(
        "router_name: a, resources: [ingresses]",
        "router_name",
        "`router_name` selects Routes, which are missing in `resources`",
    );
    key(
        "namespace_labels: \"a b\"",
        "namespace_labels",
        "`a b` is not a label selector",
    );
    key(
        "ingress_class: [a/b]",
        "ingress_class[0]",
        "`a/b` is not a class of Ingresses",
    );
    key(
        "ingress_class: a, resources: [routes, httproutes]",
        "ingress_class",
        "`ingress_class` selects Ingresses, which are missing in `resources`",
    );
    key(
        "gateways: [public]",
        "gateways[0]",
        "`public` is not a Gateway: NAMESPACE/NAME",
    );
    key("gateways: [a/b, a/b/c]", "gateways[1]", "`a/b/c` is not a Gateway");
    key("gateways: [a/b, a/b]", "gateways[1]", "given twice");
    key("gateways: []", "gateways", "the list of Gateways is empty");
    key("gateways: a/b", "gateways", "expected a list");
    key("gateways: [a/b], gateway_class: c", "gateway_class", "give one of them");
    key(
        "gateways: [a/b], resources: [routes]",
        "gateways",
        "`gateways` selects HTTPRoutes and TLSRoutes, which are missing in `resources`",
    );
    key("gateway_class: A", "gateway_class", "`A` is not a class of Gateways");
    key("routername: a", "routername", "did you mean `router_name`?");
}

#[test]
fn all_mistakes_come_at_once() {
    let text = with("{ url: x, resources: [y], namespaces: [\"-\"], labels: \"=\", routers: { http: z } }");
    assert_eq!(mistakes_of(&text).len(), 5, "{:#?}", mistakes_of(&text));
}

/// Sets of routers in docs/kubernetes.md are decoded as the text there says.
#[test]
fn the_documented_sets_of_routers_are_understood() {
    let text = include_str!("../../../../docs/kubernetes.md");
    let examples = text.split("```yaml\nclusters:\n").skip(2);
    let mut sets = Vec::new();
    for example in examples {
        let example = example.split("```").next().unwrap();
        let listeners =
            "version: 1\nlisteners: [ { name: web, protocol: http, listen: [\"10.1.0.1:80\"] } ]\nclusters:\n";
        for cluster in right(&format!("{listeners}{example}")).model.clusters {
            let source = cluster.kubernetes.unwrap();
            let places = source.router_pods().into_iter().map(|pods| pods.labels);
            sets.push((cluster.name, places.collect::<Vec<_>>()));
        }
    }
    let of_4_and_3 = |name: &str, of_3: &str| {
        let of_4 = "ingresscontroller.operator.openshift.io/deployment-ingresscontroller";
        vec![format!("{of_4}={name}"), format!("deploymentconfig={of_3}")]
    };
    let at = |labels: &str| vec![labels.to_owned()];
    let kinds = [
        ("routes", of_4_and_3("default", "router")),
        ("ingresses", at("app.kubernetes.io/name=ingress-nginx")),
        ("gateway", at("gateway.networking.k8s.io/gateway-name=public")),
    ];
    let shards = ["default", "internal"].map(|name| of_4_and_3(name, name));
    let shards = ["public", "internal"].into_iter().zip(shards);
    let expected = shards.chain(kinds).map(|(name, labels)| (name.to_owned(), labels));
    assert_eq!(sets, expected.collect::<Vec<_>>());
}

#[test]
fn the_packaged_files_are_right() {
    let parsed = right(include_str!("../../../../packaging/k8s/base/signalbox.yaml"));
    assert_eq!(parsed.warnings, []);
    let agent = include_str!("../../../../packaging/k8s/overlays/agent/agent.yaml");
    assert!(crate::agent::parse(agent).is_ok());
}

#[test]
fn own_router_pods_need_a_name_where_routes_are_read() {
    let warnings = |settings: &str| right(&with(settings)).warnings;
    only_mistake(
        &with("{ in_cluster: true, router_name: [default, any] }"),
        &format!("{PATH}.router_name"),
        "`any` stands alone",
    );
    let pods = "routers: { namespace: infra, labels: app=router }";
    let warned = warnings(&format!(
        "{{ in_cluster: true, resources: [routes, ingresses], {pods} }}"
    ));
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(warned[0].to_string().contains("`router_name: any`"), "{warned:?}");
    for right in [
        format!("{{ in_cluster: true, resources: [ingresses], {pods} }}"),
        format!("{{ in_cluster: true, {pods} }}"),
        format!("{{ in_cluster: true, resources: [routes], router_name: any, {pods} }}"),
        "{ in_cluster: true, resources: [routes] }".to_owned(),
    ] {
        assert_eq!(warnings(&right), [], "{right}");
    }
}
