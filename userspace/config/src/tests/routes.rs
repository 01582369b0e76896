//! What the rules for routes say when broken.

use super::{bent, only_mistake};

#[test]
fn who_prefers_a_cluster() {
    let with = |prefer: &str| bent("{ west: 100 }", &format!("{{ west: 100 }}, prefer: {prefer}"));
    let path = "routes[1].prefer[0]";
    only_mistake(
        &with("[{ cluster: west, clients: [] }]"),
        "routes[1].prefer[0].clients",
        "needs clients, as in",
    );
    only_mistake(
        &with("[{ cluster: north, clients: [10.9.0.0/16] }]"),
        "routes[1].prefer[0].cluster",
        "there is no cluster `north`",
    );
    only_mistake(&with("[{ cluster: west }]"), path, "the key `clients` is missing");
    let parsed = crate::parse(&with("[{ cluster: west, clients: [10.9.0.0/16, \"fd00::/8\"] }]")).unwrap();
    let route = &parsed.model.routes[1];
    let preferred = |client: &str| route.preferred(client.parse().unwrap()).collect::<Vec<_>>();
    assert_eq!((preferred("10.9.1.2").len(), preferred("fd00::1").len()), (1, 1));
    assert!(preferred("10.8.1.2").is_empty());
}

/// Which clusters have the name is learnt.
#[test]
fn a_route_may_say_no_more_than_who_prefers_what() {
    let only = bent(
        "clusters: { west: 100 }",
        "prefer: [{ cluster: west, clients: [10.9.0.0/16] }]",
    );
    let parsed = crate::parse(&only).unwrap();
    assert!(parsed.model.routes[1].is_learnt());
}

#[test]
fn routes() {
    let path = "routes[1].host";
    let host = |to: &str| bent("\"*.apps.example.com\"", to);
    only_mistake(
        &host("APP1.example.com."),
        path,
        "`APP1.example.com.` already has a route on line 17",
    );
    only_mistake(&host("\"a.*.com\""), path, "a wildcard is written `*.example.com`");
    only_mistake(&host("'app1.example.com:443'"), path, "leave the port out");
    only_mistake(&host("a..b"), path, "a label of the host name is empty");
    only_mistake(&host("[a.example]"), path, "expected a single value, found a list");
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
    only_mistake(
        &with("{ cluster: weest }"),
        "unmatched.cluster",
        "no cluster `weest`; did you mean `west`?",
    );
    only_mistake(&with("{}"), "unmatched", "the key `cluster` is missing");
    only_mistake(
        &with("west"),
        "unmatched",
        "`west` is neither reject, any nor { cluster: NAME }",
    );
    only_mistake(&with("[any]"), "unmatched", "expected a single value, found a list");
}
