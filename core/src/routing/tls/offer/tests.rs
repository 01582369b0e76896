use super::*;
use crate::model::tls::{ListenerTls, RouteTls};
use crate::model::{Datapath, Protocol, Routing};
use crate::routing::view::tests::model;
use crate::wire::hostname::WildcardDepth;

fn patterns(names: &[&str]) -> Vec<HostnamePattern> {
    names.iter().map(|name| HostnamePattern::parse(name).unwrap()).collect()
}

/// Rule of a listener with a default, for routes with their settings.
fn offer(
    policy: Http2,
    default: Termination,
    routes: &[(&str, Option<Termination>)],
    unmatched: Unmatched,
) -> Http2Offer {
    let mut model = model();
    model.tls.http2 = policy;
    model.unmatched = unmatched;
    let sample = model.routes[0].clone();
    let route = |(name, termination): &(&str, Option<Termination>)| Route {
        hostname: HostnamePattern::parse(name).unwrap(),
        depth: WildcardDepth::Any,
        tls: Some(RouteTls {
            termination: *termination,
            ..RouteTls::default()
        }),
        ..sample.clone()
    };
    model.routes = routes.iter().map(route).collect();
    let listener = Listener {
        name: "edge".into(),
        protocol: Protocol::Tls,
        listen: Vec::new(),
        cluster: None,
        backup: None,
        trusted_proxies: Vec::new(),
        routing: Routing::default(),
        datapath: Datapath {
            tier: None,
            cut: true,
            cuts_last_requests: true,
            cuts_long_answers: false,
            peek: crate::model::PeekPlace::Userspace,
            serves_orphaned: false,
        },
        shield: None,
        tls: Some(ListenerTls {
            termination: default,
            ..ListenerTls::default()
        }),
        http: crate::model::http::HttpPolicy::default(),
    };
    Http2Offer::new(&model, &listener)
}

const EDGE: Option<Termination> = Some(Termination::Edge);
const PASS: Option<Termination> = Some(Termination::Passthrough);

#[test]
fn a_passthrough_route_withholds_http2_of_covering_certificates() {
    let routes = [("www.a.test", None), ("pass.a.test", PASS), ("b.test", None)];
    let offer = offer(Http2::Auto, Termination::Edge, &routes, Unmatched::Any);
    for (names, is_offered) in [
        (&["www.a.test", "b.test"][..], true),
        (&["www.a.test", "*.a.test"], false),
        (&["b.test", "pass.a.test"], false),
        (&["nobody.test"], true),
    ] {
        assert_eq!(offer.is_offered(&patterns(names)), is_offered, "{names:?}");
    }
}

#[test]
fn names_without_a_route_count_where_they_are_passed_through() {
    let routes = [("a.test", EDGE), ("*.b.test", EDGE), ("c.test", None)];
    let of = |unmatched| offer(Http2::Auto, Termination::Passthrough, &routes, unmatched);
    let (refuses, passes) = (of(Unmatched::Reject), of(Unmatched::Any));
    for (names, with_reject, with_any) in [
        (&["a.test"][..], true, true),
        (&["a.test", "www.a.test"], true, false),
        (&["a.test", "*.a.test"], true, false),
        (&["*.b.test", "b.test"], true, false),
        (&["*.b.test", "x.y.b.test"], true, true),
        (&["a.test", "c.test"], false, false),
    ] {
        assert_eq!(refuses.is_offered(&patterns(names)), with_reject, "{names:?}");
        assert_eq!(passes.is_offered(&patterns(names)), with_any, "{names:?}");
    }
}

#[test]
fn unique_wants_a_certificate_of_one_route() {
    let routes = [
        ("a.test", None),
        ("x.b.test", None),
        ("*.c.test", None),
        ("x.c.test", None),
    ];
    let unique = offer(Http2::Unique, Termination::Edge, &routes, Unmatched::Reject);
    let off = offer(Http2::Off, Termination::Edge, &routes, Unmatched::Reject);
    for (names, is_offered) in [
        (&["a.test", "www.a.test"][..], true),
        (&["a.test", "x.b.test"], false),
        (&["*.b.test"], true),
        (&["*.c.test"], false),
        (&["y.c.test"], true),
        (&["nobody.test"], false),
    ] {
        assert_eq!(unique.is_offered(&patterns(names)), is_offered, "{names:?}");
        assert!(!off.is_offered(&patterns(names)));
    }
}
