//! Settings of Routes in the model, by the role of clusters; clusters of the model are `east` and `west`.

use std::time::Duration;

use super::report::settings_report;
use super::*;
use crate::discovered::discovery::HeaderAction;
use crate::model::Model;
use crate::model::http::AffinityScope;
use crate::model::labels::LabelSets;
use crate::routing::view::tests::model;
use crate::wire::hostname::{HostnamePattern, WildcardDepth};
use crate::wire::http::forwarded::ForwardedPolicy;
use crate::wire::peek::proxy::ProxyTlvs;

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn settings(path: &str) -> RouteSettings {
    RouteSettings {
        origin: format!("Route shop/{path}"),
        path: path.into(),
        ..RouteSettings::default()
    }
}

fn allowing(path: &str, prefixes: &[&str]) -> RouteSettings {
    RouteSettings {
        allow: Some(prefixes.iter().map(|prefix| prefix.parse().unwrap()).collect()),
        ..settings(path)
    }
}

fn claim(settings: Vec<RouteSettings>) -> Claim {
    Claim {
        hostname: HostnamePattern::parse("shop.test").unwrap(),
        depth: WildcardDepth::Any,
        weight: None,
        owner: "shop".into(),
        since: 1,
        origin: "Route shop/web".into(),
        notes: Vec::new(),
        settings,
        labels: LabelSets::default(),
        termination: None,
        is_edge: false,
        insecure: InsecurePolicy::Allow,
        certificate: None,
    }
}

/// Model with a discovered route to both clusters, and the route's settings by the claims of the clusters.
fn applied(model: &Model, claims: &[Claim]) -> Route {
    applied_to(model, model.routes[0].clone(), claims)
}

fn applied_to(model: &Model, mut route: Route, claims: &[Claim]) -> Route {
    let claims: Vec<_> = claims.iter().enumerate().collect();
    apply(&mut route, &claims, &model.clusters, &model.timeouts);
    route
}

fn with_role(role: ClusterRole) -> Model {
    let mut model = model();
    model.clusters.iter_mut().for_each(|cluster| cluster.role = role);
    model
}

fn claimed(route: &Route) -> &ClaimedPolicy {
    route.claimed.as_deref().unwrap()
}

fn list(cluster: usize, prefixes: &[&str]) -> ClusterAllow {
    let prefixes = prefixes.iter().map(|prefix| prefix.parse().unwrap()).collect();
    ClusterAllow { cluster, prefixes }
}

#[test]
fn a_name_without_settings_is_as_it_was() {
    let model = model();
    let route = applied(&model, &[claim(vec![]), claim(vec![])]);
    assert_eq!(route, model.routes[0]);
    let unspecific = applied(&model, &[claim(vec![settings("")])]);
    assert_eq!(unspecific.claimed, None);
    assert!(!unspecific.needs_request_routing());
}

#[test]
fn client_lists_apply_to_their_cluster_and_keep_a_name_cuttable() {
    let mut model = model();
    let claims = [
        claim(vec![allowing("", &["10.0.0.0/8"])]),
        claim(vec![allowing("", &[])]),
    ];
    let route = applied(&model, &claims);
    assert_eq!(claimed(&route).allow, [list(0, &["10.0.0.0/8"]), list(1, &[])]);
    assert!(!route.needs_request_routing(), "it holds for connections");
    // Routers that know the client obey it themselves.
    model.clusters[0].proxy_protocol = Some(ProxyTlvs::DEFAULT);
    assert_eq!(claimed(&applied(&model, &claims)).allow, [list(1, &[])]);
    // Servers do not, even if they know the client.
    model.clusters[0].role = ClusterRole::Servers;
    assert_eq!(claimed(&applied(&model, &claims)).allow.len(), 2);
    // A cluster without a share has no influence.
    let mut unshared = model.routes[0].clone();
    unshared.clusters = vec![(0, 0), (1, 1)];
    assert_eq!(claimed(&applied_to(&model, unshared, &claims)).allow, [list(1, &[])]);
    // The configuration comes first.
    let mut said = model.routes[0].clone();
    said.allow = Some(vec!["192.0.2.0/24".parse().unwrap()]);
    assert_eq!(applied_to(&model, said, &claims).claimed, None);
}

#[test]
fn path_lists_apply_to_requests_and_their_union_to_connections() {
    let model = model();
    let claims = [claim(vec![
        allowing("", &["10.0.0.0/8"]),
        allowing("/admin", &["10.9.0.0/16"]),
    ])];
    let route = applied(&model, &claims);
    let policy = claimed(&route);
    assert_eq!(policy.allow, [list(0, &["10.0.0.0/8", "10.9.0.0/16"])]);
    let paths: Vec<_> = policy
        .paths
        .iter()
        .map(|path| (path.path.as_str(), path.allow.clone()))
        .collect();
    assert_eq!(
        paths,
        [
            ("/admin", vec![list(0, &["10.9.0.0/16"])]),
            ("", vec![list(0, &["10.0.0.0/8"])]),
        ]
    );
    assert!(route.needs_request_routing(), "only requests have paths");
    // Where one path admits every client, so do connections.
    let route = applied(&model, &[claim(vec![settings(""), allowing("/admin", &[])])]);
    assert_eq!(claimed(&route).allow, []);
    assert_eq!(claimed(&route).paths[0].allow, [list(0, &[])]);
    // Equal lists need no paths.
    let route = applied(
        &model,
        &[claim(vec![allowing("", &["::/0"]), allowing("/admin", &["::/0"])])],
    );
    assert!(claimed(&route).paths.is_empty() && !route.needs_request_routing());
}

#[test]
fn limits_are_the_strictest_of_clusters() {
    let limited = |concurrent, connections, requests| RouteSettings {
        concurrent_connections: concurrent,
        connection_rate: connections,
        request_rate: requests,
        ..settings("")
    };
    let model = model();
    let route = applied(
        &model,
        &[
            claim(vec![limited(Some(5), Some(60), None)]),
            claim(vec![limited(Some(3), None, None)]),
        ],
    );
    let rate = rate_in(60, seconds(3));
    assert_eq!(
        claimed(&route).connections,
        ConnectionLimits {
            concurrent: 3,
            rate: Some(rate)
        }
    );
    assert!(!route.needs_request_routing(), "connections are counted as they are");
    let route = applied(&model, &[claim(vec![limited(None, None, Some(100))])]);
    let limits = route.requests.limits.unwrap();
    assert_eq!(
        (limits.requests, limits.concurrent),
        (Some(rate_in(100, seconds(10))), 0)
    );
    assert!(route.needs_request_routing(), "only requests can be counted");
    // Limits of the configuration come first.
    let mut said = model.routes[0].clone();
    let own = RequestLimits {
        requests: None,
        concurrent: 7,
    };
    said.requests.limits = Some(own);
    let route = applied_to(&model, said, &[claim(vec![limited(None, None, Some(100))])]);
    assert_eq!(route.requests.limits, Some(own));
}

#[test]
fn times_are_the_longest_and_do_not_stop_cutting() {
    let timed = |passes_tls, timeout_ms, tunnel_timeout_ms| RouteSettings {
        passes_tls,
        timeout_ms,
        tunnel_timeout_ms,
        ..settings("")
    };
    let model = model();
    let idle = |claims: &[Claim]| {
        let route = applied(&model, claims);
        assert!(!route.needs_request_routing());
        route.idle_timeout(model.timeouts.idle)
    };
    let of = |settings| claim(vec![settings]);
    assert_eq!(idle(&[of(timed(true, Some(5000), None))]), seconds(5));
    assert_eq!(
        idle(&[of(timed(true, Some(5000), Some(9000)))]),
        seconds(9),
        "a tunnel's time comes first"
    );
    assert_eq!(
        idle(&[of(timed(true, Some(5000), None)), of(timed(true, Some(7000), None))]),
        seconds(7)
    );
    let other = [of(timed(true, Some(5000), None)), claim(vec![])];
    assert_eq!(
        idle(&other),
        model.timeouts.idle,
        "the other cluster has the common time"
    );
    // A connection with requests may be a tunnel that is idle for longer than an answer may take.
    assert_eq!(idle(&[of(timed(false, Some(5000), None))]), model.timeouts.idle);
    assert_eq!(idle(&[of(timed(false, Some(7_200_000), None))]), seconds(7200));
    assert_eq!(idle(&[of(timed(false, None, Some(1000)))]), model.timeouts.http.answer);
    assert_eq!(idle(&[of(timed(false, None, Some(86_400_000)))]), seconds(86_400));
    let route = applied(&model, &[of(timed(false, Some(60_000), Some(90_000)))]);
    let times = route.requests.timeouts(model.timeouts.http);
    assert_eq!(
        (times.answer, times.body, times.tunnel),
        (seconds(60), seconds(60), seconds(90))
    );
    let route = applied(&model, &[of(timed(false, Some(5000), None))]);
    let times = route.requests.timeouts(model.timeouts.http);
    assert_eq!(
        (times.answer, times.body),
        (seconds(5), model.timeouts.http.body),
        "a slow client is no slow server"
    );
    let mut said = model.routes[0].clone();
    said.requests.timeouts.answer = Some(seconds(1));
    let route = applied_to(&model, said, &[of(timed(false, Some(60_000), None))]);
    assert_eq!(
        route.requests.timeouts(model.timeouts.http).answer,
        seconds(1),
        "the configuration comes first"
    );
}

/// Settings of a router's work.
fn of_servers(path: &str) -> RouteSettings {
    let header = HeaderAction {
        name: "X-Env".into(),
        value: Some("prod".into()),
    };
    RouteSettings {
        ends_tls: true,
        cookie_name: Some("c".into()),
        hsts: Some("max-age=1".into()),
        rewrite: Some("/v1".into()),
        request_headers: vec![header],
        forwarded: Some(ForwardedPolicy::Replace),
        balance: Some(Balance::Maglev),
        server_connections: Some(5),
        router_only: vec!["router.openshift.io/pool-size".into()],
        ..settings(path)
    }
}

#[test]
fn route_settings_apply_only_to_clusters_without_routers() {
    let claims = [claim(vec![of_servers("/app")])];
    let routers = applied(&with_role(ClusterRole::Routers), &claims);
    assert!(!routers.needs_request_routing() && routers.claimed.is_none() && routers.tls.is_none());
    assert_eq!(routers.requests.passive.forwarded, Some(ForwardedPolicy::Replace));
    let model = with_role(ClusterRole::Servers);
    let servers = applied(&model, &claims);
    assert!(servers.needs_request_routing());
    assert_eq!(
        servers.tls.as_ref().and_then(|tls| tls.hsts.as_deref()),
        Some("max-age=1")
    );
    assert_eq!(claimed(&servers).balance, Some(Balance::Maglev));
    assert_eq!(servers.max_host_connections(), Some(5));
    let [PathPolicy { path, requests, .. }] = &claimed(&servers).paths[..] else {
        panic!("{servers:?}")
    };
    assert_eq!((path.as_str(), requests.rewrite.as_deref()), ("/app", Some("/v1")));
    let affinity = requests.affinity.as_ref().unwrap();
    assert_eq!((affinity.cookie.name(), affinity.scope), ("c", AffinityScope::Host));
    assert_eq!(requests.headers.as_ref().map(|headers| headers.request.len()), Some(1));
    assert_eq!(requests.passive.max_host_connections, Some(5));
    assert!(!servers.requests.needs_requests(), "other paths are nobody's");
    // A cluster with routers beside it would do it again.
    let mut mixed = model.clone();
    mixed.clusters[1].role = ClusterRole::Routers;
    let both = applied(&mixed, &[claim(vec![of_servers("")]), claim(vec![])]);
    assert!(!both.needs_request_routing() && both.tls.is_none());
    // TLS that passes through hides all requests.
    let hidden = RouteSettings {
        passes_tls: true,
        ends_tls: false,
        ..of_servers("")
    };
    let passed = applied(&model, &[claim(vec![hidden])]);
    assert!(!passed.needs_request_routing() && passed.tls.is_none());
    assert_eq!(
        claimed(&passed).balance,
        Some(Balance::Maglev),
        "connections have it, too"
    );
    assert_eq!(passed.max_host_connections(), Some(5));
}

fn of_plain_http(path: &str, insecure: InsecurePolicy) -> RouteSettings {
    RouteSettings {
        insecure,
        ..settings(path)
    }
}

#[test]
fn plain_http_follows_the_routes_where_there_is_no_router() {
    use InsecurePolicy::{Allow, None as Nothing, Redirect};
    let agreed = |insecure| Claim {
        insecure,
        ..claim(vec![])
    };
    let model = with_role(ClusterRole::Servers);
    let redirected = applied(&model, &[agreed(Redirect)]);
    assert_eq!(redirected.insecure(b"/x"), Redirect);
    assert!(redirected.needs_request_routing() && !redirected.treats_requests());
    let routers = applied(&with_role(ClusterRole::Routers), &[agreed(Redirect)]);
    assert_eq!((routers.insecure(b"/x"), &routers), (Allow, &model.routes[0]));
    let mut mixed = model.clone();
    mixed.clusters[1].role = ClusterRole::Routers;
    let mixed = applied(&mixed, &[agreed(Redirect), agreed(Nothing)]);
    assert_eq!(mixed.insecure(b"/x"), Allow, "a cluster with routers has a share");
    // The configuration comes first, also with `allow`.
    for said in [Allow, Nothing] {
        let mut route = model.routes[0].clone();
        route.tls = Some(RouteTls {
            insecure: Some(said),
            ..RouteTls::default()
        });
        let route = applied_to(&model, route, &[agreed(Redirect)]);
        assert_eq!(route.insecure(b"/x"), said);
        assert_eq!(route.needs_request_routing(), said == Nothing);
    }
    // Each path has its own; one that no Route has is treated as the loosest.
    let paths = Claim {
        insecure: Redirect,
        ..claim(vec![of_plain_http("/a", Redirect), of_plain_http("/b", Nothing)])
    };
    let paths = applied(&model, &[paths]);
    let found = ["/a/x", "/b", "/c"].map(|path| paths.insecure(path.as_bytes()));
    assert_eq!(found, [Redirect, Nothing, Redirect]);
    assert!(paths.needs_request_routing());
}

#[test]
fn the_report_says_what_becomes_of_plain_http() {
    let reported = |model: &Model, route: &Route| {
        let claim = Claim {
            insecure: InsecurePolicy::Redirect,
            ..claim(vec![])
        };
        settings_report(model, route, &[(0, &claim)], 0, &claim)
    };
    let field = "spec.tls.insecureEdgeTerminationPolicy";
    let (routers, servers) = (with_role(ClusterRole::Routers), with_role(ClusterRole::Servers));
    let mut route = servers.routes[0].clone();
    assert_eq!(reported(&servers, &route), [format!("obeyed here: {field}")]);
    assert_eq!(reported(&routers, &route), [format!("left to the router: {field}")]);
    route.tls = Some(RouteTls {
        insecure: Some(InsecurePolicy::Allow),
        ..RouteTls::default()
    });
    let expected = format!("not obeyed: {field} (`tls.insecure` of the configuration comes first)");
    assert_eq!(reported(&servers, &route), [expected]);
}

fn report(model: &Model, settings: Vec<RouteSettings>) -> Vec<String> {
    let claim = claim(settings);
    let route = applied(model, std::slice::from_ref(&claim));
    settings_report(model, &route, &[(0, &claim)], 0, &claim)
}

#[test]
fn the_report_says_who_obeys() {
    let asked = || RouteSettings {
        allow: Some(Vec::new()),
        timeout_ms: Some(5000),
        request_rate: Some(5),
        ..of_servers("")
    };
    let keys = |line: &str| {
        let words = line.split([' ', ',']).filter_map(|word| word.rsplit_once('/'));
        words.map(|(_, key)| key.to_owned()).collect::<Vec<_>>().join(" ")
    };
    let lines = report(&model(), vec![asked()]);
    assert!(
        lines[0].starts_with("obeyed here: ") && lines[0].contains("it allows no client"),
        "{lines:?}"
    );
    assert_eq!(
        keys(&lines[0]),
        "ip_allowlist rate-limit-connections.rate-http timeout set-forwarded-headers"
    );
    assert!(lines[1].starts_with("left to the router: "), "{lines:?}");
    assert_eq!(
        keys(&lines[1]),
        "cookie_name hsts_header rewrite-target balance pod-concurrent-connections pool-size"
    );
    assert!(lines[1].contains("spec.httpHeaders.actions"), "{lines:?}");
    let mut knowing = model();
    knowing.clusters[0].proxy_protocol = Some(ProxyTlvs::DEFAULT);
    let lines = report(&knowing, vec![asked()]);
    assert_eq!(keys(&lines[0]), "timeout");
    assert!(
        lines[2].contains("by `proxy_protocol: v2`: haproxy.router.openshift.io/ip_allowlist"),
        "{lines:?}"
    );
    let lines = report(&with_role(ClusterRole::Servers), vec![asked()]);
    let expected = "ip_allowlist rate-limit-connections.rate-http timeout set-forwarded-headers cookie_name hsts_header \
                    rewrite-target balance pod-concurrent-connections";
    assert_eq!(keys(&lines[0]), expected);
    assert_eq!(keys(&lines[1]), "pool-size");
    assert!(
        lines[1].starts_with("not obeyed: ") && lines[1].contains("no such pool"),
        "{lines:?}"
    );
    let hidden = RouteSettings {
        passes_tls: true,
        ends_tls: false,
        ..asked()
    };
    let lines = report(&with_role(ClusterRole::Servers), vec![hidden, settings("/x")]);
    assert!(lines.iter().all(|line| line.starts_with("Route shop/: ")), "{lines:?}");
    assert_eq!(
        keys(&lines[0]),
        ": ip_allowlist timeout balance pod-concurrent-connections"
    );
    assert!(lines[1].contains("no request can be counted"), "{lines:?}");
    let lines = report(&model(), vec![settings(""), allowing("/admin", &["10.0.0.0/8"])]);
    assert!(
        lines[0].starts_with("Route shop//admin: ") && lines[0].contains("not cut for its sake"),
        "{lines:?}"
    );
}
