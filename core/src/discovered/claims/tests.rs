//! The rules one by one; `naive` checks them all against a plain reading of them.

mod certificates;
mod choice;
mod gateways;
mod naive;
mod routers;

use super::*;
use crate::discovered::discovery::{Claim, Rejected};
use crate::wire::hostname::WildcardDepth;

/// Route as most are; `age` is its place in time.
pub(crate) fn route(age: u32, origin: &str, host: &str) -> Object {
    let (namespace, name) = origin.split_once('/').unwrap();
    Object {
        kind: ObjectKind::Route,
        namespace: namespace.into(),
        name: name.into(),
        uid: format!("uid-{origin}"),
        created: Some(format!("2026-01-01T00:{:02}:{:02}Z", age / 60, age % 60)),
        hostnames: vec![host.into()],
        path: Some(String::new()),
        subdomain: false,
        passthrough: false,
        certificates: Vec::new(),
        ends_tls: false,
        is_edge: false,
        insecure: None,
        annotations: std::collections::BTreeMap::new(),
        header_actions: HeaderActions::default(),
        labels: crate::model::labels::Labels::new(),
        router_statuses: Vec::new(),
        class: None,
        parents: Vec::new(),
        ingress: None,
    }
}

fn seen(objects: &[Object]) -> ClusterObjects<'_> {
    ClusterObjects {
        objects: objects.iter().collect(),
        ..ClusterObjects::default()
    }
}

/// Status entry of a Route, written by a router.
fn said(router: &str, host: &str, admission: Admission) -> RouterStatus {
    RouterStatus {
        router: router.into(),
        hostname: host.into(),
        admission,
    }
}

fn of_kind(kind: ObjectKind, object: Object) -> Object {
    Object {
        kind,
        path: None,
        ..object
    }
}

fn wildcard(object: Object) -> Object {
    Object {
        subdomain: true,
        ..object
    }
}

fn discovered(objects: &[Object], wildcards: bool) -> ClusterDiscovery {
    let rules = ClaimRules {
        wildcards,
        ..ClaimRules::default()
    };
    discover(seen(objects), &rules)
}

/// Names with their origins.
fn served(learned: &ClusterDiscovery) -> Vec<(String, &str)> {
    let of = |claim: &'_ Claim| claim.hostname.to_string();
    learned
        .routes
        .iter()
        .map(|claim| (of(claim), claim.origin.as_str()))
        .collect()
}

/// Asserts that exactly one name is rejected, and that its fields are these.
#[track_caller]
fn only_rejected(learned: &ClusterDiscovery, host: &str, origin: &str, reason: &str, rival: Option<&str>) {
    let [
        Rejected {
            hostname: h,
            origin: o,
            reason: r,
            rival: v,
        },
    ] = &learned.rejected[..]
    else {
        panic!("{:#?}", learned.rejected);
    };
    assert_eq!((h.as_str(), o.as_str(), v.as_deref()), (host, origin, rival));
    assert!(r.starts_with(reason), "{r}");
}

#[test]
fn the_oldest_claim_has_the_name_whatever_the_order() {
    let objects = [route(2, "bank/b", "App.test"), route(1, "shop/s", "app.test.")];
    let learned = discovered(&objects, false);
    assert_eq!(served(&learned), [("app.test".into(), "Route shop/s")]);
    let reason = "HostAlreadyClaimed: an older object of another namespace";
    only_rejected(&learned, "app.test", "Route bank/b", reason, Some("Route shop/s"));
    let [b, a] = objects;
    assert_eq!(discovered(&[a, b], false), learned);
}

#[test]
fn in_the_same_second_uid_ranks_routes_and_name_ranks_others() {
    let with_uid = |uid: &str, object: Object| Object {
        uid: uid.into(),
        ..object
    };
    let objects = [
        with_uid("3", route(1, "a/b", "x.test")),
        with_uid("1", route(1, "b/a", "x.test")),
        with_uid("2", route(1, "a/c", "x.test")),
    ];
    let learned = discovered(&objects, false);
    assert_eq!(served(&learned), [("x.test".into(), "Route b/a")]);
    assert_eq!(learned.rejected.len(), 2);
    let others = objects.map(|object| of_kind(ObjectKind::HttpRoute, object));
    assert_eq!(
        served(&discovered(&others, false)),
        [("x.test".into(), "HTTPRoute a/b")]
    );
    let undated = Object {
        created: None,
        ..route(0, "a/a", "x.test")
    };
    assert_eq!(
        served(&discovered(&[undated, route(9, "z/z", "x.test")], false))[0].1,
        "Route z/z"
    );
}

#[test]
fn a_namespace_may_spread_a_name_over_paths() {
    let path = |path: &str, object| Object {
        path: Some(path.into()),
        ..object
    };
    let mut young = path("/api", route(2, "shop/api", "app.test"));
    young.annotations.insert("signalbox.io/weight".into(), "5".into());
    let again = path("/api", route(3, "shop/again", "app.test"));
    let learned = discovered(&[young, again, route(1, "shop/web", "app.test")], false);
    assert_eq!(served(&learned), [("app.test".into(), "Route shop/web")]);
    assert_eq!(learned.routes[0].weight, None);
    assert_eq!(
        learned.routes[0].notes,
        [
            "Route shop/api: path /api: left to the router, which gets all paths of the name",
            "Route shop/api: its weight 5 is ignored: the weight of the oldest object applies",
        ]
    );
    let reason = "HostAlreadyClaimed: an older Route of the namespace has the same name and path";
    only_rejected(&learned, "app.test", "Route shop/again", reason, Some("Route shop/api"));
}

#[test]
fn a_path_in_passthrough_is_no_path() {
    let object = Object {
        passthrough: true,
        path: Some("/x".into()),
        ..route(1, "shop/web", "app.test")
    };
    let notes = &discovered(&[object], false).routes[0].notes;
    assert_eq!(
        notes,
        &["path /x: ignored, because no router can read it in TLS that passes through"]
    );
}

#[test]
fn claims_without_a_valid_hostname_are_rejected() {
    let no_host = "NoHostValue: it has no host";
    only_rejected(
        &discovered(&[route(1, "a/a", "")], false),
        "",
        "Route a/a",
        no_host,
        None,
    );
    let none = Object {
        hostnames: vec![],
        ..of_kind(ObjectKind::HttpRoute, route(1, "a/a", ""))
    };
    only_rejected(
        &discovered(&[none], false),
        "",
        "HTTPRoute a/a",
        "NoHostValue: it serves all names",
        None,
    );
    for bad in ["a b.test", "*.acme.test", "a..test", "ünï.test"] {
        only_rejected(
            &discovered(&[route(1, "a/a", bad)], true),
            bad,
            "Route a/a",
            "InvalidHost: ",
            None,
        );
    }
    let lonely = wildcard(route(1, "a/a", "www"));
    only_rejected(
        &discovered(&[lonely], true),
        "www",
        "Route a/a",
        "InvalidHost: wildcardPolicy",
        None,
    );
}

#[test]
fn a_route_refused_by_its_router_claims_no_hostname() {
    let mut old = route(1, "shop/s", "app.test");
    let refused = Admission::Refused("ExtendedValidationFailed: bad certificate".into());
    old.router_statuses = vec![said("default", "app.test", refused)];
    let mut young = route(2, "bank/b", "app.test");
    young.router_statuses = vec![said("default", "app.test", Admission::Admitted)];
    let learned = discovered(&[old, young], false);
    assert_eq!(served(&learned), [("app.test".into(), "Route bank/b")]);
    let reason = "RouteNotAdmitted: ExtendedValidationFailed: bad certificate";
    only_rejected(&learned, "app.test", "Route shop/s", reason, None);
}

#[test]
fn a_wildcard_is_for_those_who_want_it() {
    let object = wildcard(route(1, "a/a", "www.acme.test"));
    let learned = discovered(std::slice::from_ref(&object), true);
    assert_eq!(served(&learned), [("*.acme.test".into(), "Route a/a")]);
    let learned = discovered(&[object], false);
    assert_eq!(served(&learned), []);
    only_rejected(
        &learned,
        "*.acme.test",
        "Route a/a",
        "RouteNotAdmitted: wildcards are not served",
        None,
    );
}

#[test]
fn a_star_stands_for_as_many_labels_as_its_kind_means() {
    let star = |kind, origin: &str| of_kind(kind, route(1, origin, "*.acme.test"));
    let depth = |objects: &[Object]| discovered(objects, true).routes[0].depth;
    assert_eq!(depth(&[wildcard(route(1, "a/a", "www.acme.test"))]), WildcardDepth::One);
    assert_eq!(depth(&[star(ObjectKind::Ingress, "a/a")]), WildcardDepth::One);
    assert_eq!(depth(&[star(ObjectKind::TlsRoute, "a/a")]), WildcardDepth::Any);
    let both = [star(ObjectKind::Ingress, "a/a"), star(ObjectKind::HttpRoute, "a/b")];
    assert_eq!(depth(&both), WildcardDepth::Any, "the most that one of them means");
    assert_eq!(
        depth(&[route(1, "a/a", "www.acme.test")]),
        WildcardDepth::Any,
        "no star"
    );
}

#[test]
fn a_wildcard_and_the_names_below_it_belong_to_one_namespace() {
    let star = |age, origin| wildcard(route(age, origin, "www.acme.test"));
    // Here the name is older.
    let learned = discovered(&[star(2, "b/star"), route(1, "a/name", "x.acme.test")], true);
    assert_eq!(served(&learned), [("x.acme.test".into(), "Route a/name")]);
    only_rejected(
        &learned,
        "*.acme.test",
        "Route b/star",
        "HostAlreadyClaimed",
        Some("Route a/name"),
    );
    // Here the wildcard is older; its namespace may have names below it, and anyone the name above and deeper ones.
    let objects = [
        star(1, "b/star"),
        route(2, "a/name", "x.acme.test"),
        route(3, "b/name", "y.acme.test"),
        route(3, "a/above", "acme.test"),
        route(3, "a/deep", "z.y.acme.test"),
    ];
    let learned = discovered(&objects, true);
    assert_eq!(served(&learned).len(), 4, "{:?}", served(&learned));
    only_rejected(
        &learned,
        "x.acme.test",
        "Route a/name",
        "HostAlreadyClaimed",
        Some("Route b/star"),
    );
    // Gateway API routes of several namespaces may share a domain.
    let shared = of_kind(ObjectKind::HttpRoute, route(1, "infra/star", "*.acme.test"));
    let learned = discovered(&[shared, route(2, "a/name", "x.acme.test")], true);
    assert_eq!((served(&learned).len(), learned.rejected.len()), (2, 0));
}

#[test]
fn ingresses_share_a_name_and_their_routes_speak_for_them() {
    let ingress = |age, origin, hosts: &[&str]| Object {
        hostnames: hosts.iter().map(|host| (*host).to_owned()).collect(),
        ..of_kind(ObjectKind::Ingress, route(age, origin, ""))
    };
    let mut made = route(3, "shop/web-x7k2p", "app.test");
    made.ingress = Some("uid-shop/web".into());
    let objects = [
        ingress(1, "shop/web", &["app.test", "app.test", "other.test"]),
        ingress(2, "shop/more", &["other.test"]),
        made,
    ];
    let learned = discovered(&objects, false);
    assert_eq!(learned.rejected, []);
    assert_eq!(
        served(&learned),
        [
            ("app.test".into(), "Route shop/web-x7k2p"),
            ("other.test".into(), "Ingress shop/web")
        ]
    );
}

#[test]
fn a_claim_has_the_labels_of_each_of_its_objects() {
    let labelled = |labels: &[(&str, &str)], path: &str, object: Object| Object {
        labels: labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
        path: Some(path.to_owned()),
        ..object
    };
    let web = &[("app", "shop"), ("tier", "web")][..];
    let objects = [
        labelled(web, "", route(1, "shop/web", "app.test")),
        labelled(web, "/same", route(2, "shop/same", "app.test")),
        labelled(&[("tier", "batch")], "/batch", route(3, "shop/batch", "app.test")),
        labelled(&[("app", "bank")], "/bank", route(4, "bank/web", "app.test")),
        labelled(&[], "", route(5, "shop/bare", "bare.test")),
    ];
    let learned = discover(seen(&objects), &ClaimRules::default());
    let labels = |at: usize| serde_json::to_string(&learned.routes[at].labels).unwrap();
    assert_eq!(
        labels(0),
        r#"[{"app":"shop","tier":"web"},{"tier":"batch"}]"#,
        "not those of who lost"
    );
    assert_eq!(labels(1), "{}");
}

#[test]
fn routes_that_differ_in_plain_http_are_told_one_by_one() {
    use crate::model::tls::InsecurePolicy::{None as Nothing, Redirect};
    let of_path = |age: u32, path: &str, insecure: &str| Object {
        path: Some(path.into()),
        ends_tls: true,
        insecure: Some(insecure.into()),
        ..route(age, &format!("shop/web{age}"), "app.test")
    };
    let claim = |first: &str, second: &str| {
        let objects = [of_path(1, "/a", first), of_path(2, "/b", second)];
        discovered(&objects, false).routes.remove(0)
    };
    let alike = claim("Redirect", "Redirect");
    assert_eq!((alike.insecure, alike.settings.len()), (Redirect, 0));
    let differing = claim("None", "Redirect");
    assert_eq!(differing.insecure, Redirect, "the loosest");
    let policies: Vec<_> = differing.settings.iter().map(|settings| settings.insecure).collect();
    assert_eq!(policies, [Nothing, Redirect]);
}
