//! Messages of the rules for routes when broken.

use signalbox_core::model::{Balance, Unmatched};

use super::{bent, only_mistake, only_mistakes};

#[test]
fn a_route_prefers_a_cluster_for_the_listed_clients() {
    let with = |prefer: &str| bent("{ west: 100 }", &format!("{{ west: 100 }}, prefer: {prefer}"));
    only_mistakes(
        &with,
        r"
            [{ cluster: west, clients: [] }]             | routes[1].prefer[0].clients | needs clients, as in
            [{ cluster: north, clients: [10.9.0.0/16] }] | routes[1].prefer[0].cluster | there is no cluster `north`
            [{ cluster: west }]                          | routes[1].prefer[0]         | the key `clients` is missing
        ",
    );
    let parsed = crate::parse(&with("[{ cluster: west, clients: [10.9.0.0/16, \"fd00::/8\"] }]")).unwrap();
    let route = &parsed.model.routes[1];
    let preferred = |client: &str| route.preferred(client.parse().unwrap()).collect::<Vec<_>>();
    assert_eq!((preferred("10.9.1.2").len(), preferred("fd00::1").len()), (1, 1));
    assert!(preferred("10.8.1.2").is_empty());
}

/// A route without clusters leaves them to be discovered.
#[test]
fn a_route_may_say_no_more_than_who_prefers_what() {
    let only = bent(
        "clusters: { west: 100 }",
        "prefer: [{ cluster: west, clients: [10.9.0.0/16] }]",
    );
    let parsed = crate::parse(&only).unwrap();
    assert!(parsed.model.routes[1].is_discovered());
}

#[test]
fn routes() {
    let host = |to: &str| bent("\"*.apps.example.com\"", to);
    only_mistakes(
        &host,
        r#"
            APP1.example.com.      | routes[1].host | `APP1.example.com.` already has a route on line 17
            "a.*.com"              | routes[1].host | a wildcard is written `*.example.com`
            'app1.example.com:443' | routes[1].host | leave the port out
            a..b                   | routes[1].host | a label of the host name is empty
            [a.example]            | routes[1].host | expected a single value, found a list
        "#,
    );
    let path = "routes[1].clusters";
    only_mistake(
        &bent("{ west: 100 }", "{}"),
        path,
        "a route needs at least one cluster, as in { east: 100 }",
    );
    only_mistake(
        &bent("{ west: 100 }", "[west]"),
        path,
        "names with weights from 0 to 100, as in { east: 10, west: 80 }",
    );
    only_mistake(
        &bent("{ west: 100 }", "{ west: 101 }"),
        "routes[1].clusters.west",
        "from 0 to 100",
    );
    only_mistake(
        &bent("{ west: 100 }", "{ wset: 1 }"),
        "routes[1].clusters.wset",
        "no cluster `wset`; did you mean `west`?",
    );
    only_mistake(
        &bent("{ west: 100 }", "{ north: 1 }"),
        "routes[1].clusters.north",
        "there is no cluster `north`",
    );
    only_mistake(
        &bent("{ west: 100 }", "{ 'a b': 1 }"),
        "routes[1].clusters[\"a b\"]",
        "there is no cluster `a b`",
    );
    only_mistake(
        &bent("{ west: 100 }", "{ west: 1, west: 2 }"),
        "routes[1].clusters.west",
        "given twice, first on line 18",
    );
    only_mistake(
        &bent("host: app1.example.com, ", ""),
        "routes[0]",
        "the key `host` is missing",
    );
}

#[test]
fn unmatched() {
    let with = |to: &str| bent("unmatched: reject", &format!("unmatched: {to}"));
    only_mistakes(
        &with,
        r"
            { cluster: weest } | unmatched.cluster | no cluster `weest`; did you mean `west`?
            {}                 | unmatched         | the key `cluster` is missing
            west               | unmatched         | `west` is neither reject, any nor { cluster: NAME }
            [any]              | unmatched         | expected a single value, found a list
        ",
    );
}

/// An application may be named before events report it: until then it has no hosts.
#[test]
fn applications_are_named_where_clusters_are() {
    let text = |events: &str| {
        let text = super::plus(events);
        let text = text.replace(
            "{ west: 100 }",
            "{ west: 100, shop/web: 10 }, prefer: [{ cluster: bank/app, clients: [10.9.0.0/16] }]",
        );
        text.replace("unmatched: reject", "unmatched: { cluster: shop/web }")
    };
    let events = "routing_events: { applications: [ { match: \"shop/*\", balance: maglev } ], brokers: [\"mq1:61613\"], \
                  destination: /queue/q }";
    let parsed = super::right(&text(events));
    assert_eq!(parsed.warnings, []);
    let model = parsed.model;
    let [.., web, app] = &model.clusters[..] else { panic!() };
    assert_eq!((web.name.as_str(), app.name.as_str()), ("shop/web", "bank/app"));
    assert_eq!((web.balance, app.balance), (Balance::Maglev, Balance::LeastConnections));
    assert!(web.hosts.is_empty() && web.accepts_discovery());
    let at = |name: &str| model.clusters.iter().position(|cluster| cluster.name == name).unwrap();
    assert_eq!(model.routes[1].clusters, [(at("west"), 100), (at("shop/web"), 10)]);
    assert_eq!(model.routes[1].prefer[0].cluster, at("bank/app"));
    assert_eq!(
        model.unmatched,
        Unmatched::Cluster(at("shop/web")),
        "named twice, there once"
    );

    let without = super::mistakes_of(&text(""));
    assert_eq!(without.len(), 3, "{without:?}");
    assert!(
        without[0].contains("`shop/web` is an application's name, and only `routing_events`"),
        "{without:?}"
    );
    let wrong = text(events).replace("cluster: bank/app", "cluster: bank/app/x");
    only_mistake(
        &wrong,
        "routes[1].prefer[0].cluster",
        "`bank/app/x` is not an application: write NAMESPACE/APP",
    );
}

#[test]
fn labels_of_a_route() {
    let with = |labels: &str| bent("{ west: 100 }", &format!("{{ west: 100 }}, labels: {labels}"));
    let route = |text: &str| crate::parse(text).unwrap().model.routes.remove(1);
    let labels = route(&with("{ app: shop, a.test/shard: 1, on: true, none: \"\" }")).labels;
    let expected = [("a.test/shard", "1"), ("app", "shop"), ("none", ""), ("on", "true")];
    assert!(
        labels
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .eq(expected),
        "{labels:?}"
    );
    assert!(route(&with("{ }")).labels.is_empty());
    let only = route(&bent("clusters: { west: 100 }", "labels: { team: blue }"));
    assert!(only.is_discovered() && only.labels.len() == 1);

    only_mistakes(
        &with,
        r"
            [app]            | routes[1].labels      | keys with values, as in { app: shop
            { app: [shop] }  | routes[1].labels.app  | expected
            { -app: shop }   | routes[1].labels.-app | `-app` is not the key of a label
            { app: my shop } | routes[1].labels.app  | `my shop` is not the value of a label
        ",
    );
}

#[test]
fn protocols_that_clients_may_upgrade_to() {
    let with = |upgrades: &str| bent("{ west: 100 }", &format!("{{ west: 100 }}, upgrades: {upgrades}"));
    only_mistakes(
        &with,
        r"
            [SPDY/3.1, 'a b']     | routes[1].upgrades[1] | `a b` is not the name of a protocol, such as websocket
            [H2C]                 | routes[1].upgrades[0] | HTTP/2 to them without TLS is `h2c: true` of their cluster
            [tcp, DERP, TCP]      | routes[1].upgrades[2] | in the list already
        ",
    );
    let parsed = crate::parse(&with("[websocket, SPDY/3.1]")).unwrap();
    let route = &parsed.model.routes[1];
    let allows = |protocol: &str| route.requests.allows_upgrade(protocol.as_bytes());
    assert!(allows("WebSocket") && allows("spdy/3.1") && !allows("SPDY") && !allows("tcp"));
    assert!(
        !route.treats_requests(),
        "a connection that is carried whole may upgrade"
    );
    let default = &parsed.model.routes[0].requests;
    assert!(default.allows_upgrade(b"websocket") && !default.allows_upgrade(b"SPDY/3.1"));
}
