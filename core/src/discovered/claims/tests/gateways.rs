//! Choice of the routes of the Gateway API that the cluster's routers serve, and the names that these have.

use super::*;
use crate::model::kubernetes::{GatewayName, ShardFilter};

fn name(text: &str) -> GatewayName {
    let (namespace, name) = text.split_once('/').unwrap();
    GatewayName {
        namespace: namespace.into(),
        name: name.into(),
    }
}

/// Listeners are written `NAME PROTOCOL PORT HOSTNAME`.
fn gateway(at: &str, class: &str, listeners: &[&str]) -> Gateway {
    let listener = |text: &&str| {
        let mut words = text.split(' ');
        let mut word = || words.next().unwrap_or_default().to_owned();
        GatewayListener {
            name: word(),
            protocol: word(),
            port: word().parse().unwrap(),
            hostname: word(),
        }
    };
    Gateway {
        name: name(at),
        class: class.into(),
        listeners: listeners.iter().map(listener).collect(),
    }
}

fn parent(gateway: &str) -> Parent {
    Parent {
        gateway: name(gateway),
        section_name: None,
        port: None,
        admission: Admission::Admitted,
    }
}

fn attached(kind: ObjectKind, hosts: &[&str], parents: Vec<Parent>) -> Object {
    Object {
        hostnames: hosts.iter().map(|host| (*host).to_owned()).collect(),
        parents,
        ..of_kind(kind, route(1, "shop/web", ""))
    }
}

fn by_name(names: &[&str]) -> ShardFilter {
    ShardFilter {
        gateways: names.iter().map(|text| name(text)).collect(),
        ..ShardFilter::default()
    }
}

/// Names that are served, and the reason against each other name.
fn outcome(object: &Object, gateways: Option<&[Gateway]>, choice: &ShardFilter) -> Vec<String> {
    let rules = ClaimRules {
        shard: choice.clone(),
        wildcards: true,
        ..ClaimRules::default()
    };
    let gateways = gateways.map(|all| all.iter().collect());
    let learned = discover(
        ClusterObjects {
            gateways,
            ..seen(std::slice::from_ref(object))
        },
        &rules,
    );
    let served = learned.routes.iter().map(|claim| claim.hostname.to_string());
    let rejected = learned
        .rejected
        .iter()
        .map(|one| format!("{} {}", one.hostname, one.reason));
    served.chain(rejected).collect()
}

#[test]
fn a_route_counts_if_a_chosen_parent_gateway_has_accepted_it() {
    let all = [
        gateway("infra/public", "istio", &["web HTTP 80"]),
        gateway("infra/internal", "istio", &["web HTTP 80"]),
        gateway("infra/other", "envoy", &["web HTTP 80"]),
    ];
    let refused = |gateway: &str| Parent {
        admission: Admission::Refused("NotAllowedByListeners: no".into()),
        ..parent(gateway)
    };
    let unsaid = |gateway: &str| Parent {
        admission: Admission::Unknown,
        ..parent(gateway)
    };
    let public = by_name(&["infra/public"]);
    for (parents, expected) in [
        (vec![parent("infra/public")], "app.test"),
        (vec![unsaid("infra/public")], "app.test"),
        (vec![refused("infra/internal"), parent("infra/public")], "app.test"),
        (
            vec![refused("infra/public"), parent("infra/internal")],
            "app.test RouteNotAdmitted: NotAllowedByListeners: no",
        ),
        (
            vec![parent("infra/internal"), parent("infra/other")],
            "app.test OtherGateway: its Gateway is infra/internal, infra/other",
        ),
        (vec![], "app.test OtherGateway: it names no Gateway"),
    ] {
        let object = attached(ObjectKind::HttpRoute, &["app.test"], parents);
        assert_eq!(outcome(&object, Some(&all), &public), [expected]);
    }
    // Chosen by class; and without a choice, any parents will do.
    let of_class = ShardFilter {
        gateway_classes: vec!["istio".into()],
        ..ShardFilter::default()
    };
    let at = |gateway: &str| attached(ObjectKind::HttpRoute, &["app.test"], vec![parent(gateway)]);
    assert_eq!(outcome(&at("infra/internal"), Some(&all), &of_class), ["app.test"]);
    let other = ["app.test OtherGateway: its Gateway is infra/other"];
    assert_eq!(outcome(&at("infra/other"), Some(&all), &of_class), other);
    assert_eq!(outcome(&at("infra/none"), None, &ShardFilter::default()), ["app.test"]);
}

#[test]
fn a_missing_gateway_serves_nothing_unless_gateways_are_hidden() {
    let object = attached(ObjectKind::TlsRoute, &["app.test"], vec![parent("infra/public")]);
    let public = by_name(&["infra/public"]);
    assert_eq!(
        outcome(&object, Some(&[]), &public),
        ["app.test OtherGateway: there is no Gateway infra/public"]
    );
    assert_eq!(outcome(&object, None, &public), ["app.test"]);
}

#[test]
fn names_are_those_that_a_listener_takes() {
    let all = [gateway(
        "infra/public",
        "istio",
        &[
            "apps HTTPS 443 *.apps.test",
            "one HTTP 80 one.test",
            "tls TLS 8443 *.tls.test",
            "raw TCP 9000",
        ],
    )];
    let public = by_name(&["infra/public"]);
    let http = |hosts: &[&str]| attached(ObjectKind::HttpRoute, hosts, vec![parent("infra/public")]);
    let none = |host: &str| format!("{host} NoMatchingListenerHostname: no listener of its Gateway accepts this name");
    assert_eq!(
        outcome(
            &http(&["a.apps.test", "one.test", "x.tls.test", "two.test"]),
            Some(&all),
            &public
        ),
        [
            "a.apps.test".to_owned(),
            "one.test".to_owned(),
            none("two.test"),
            none("x.tls.test")
        ]
    );
    assert_eq!(
        outcome(&http(&["*.test"]), Some(&all), &public),
        ["one.test", "*.apps.test"]
    );
    assert_eq!(
        outcome(&http(&[]), Some(&all), &public),
        ["one.test", "*.apps.test"],
        "inherited"
    );
    let tls = |hosts: &[&str]| attached(ObjectKind::TlsRoute, hosts, vec![parent("infra/public")]);
    assert_eq!(outcome(&tls(&["a.tls.test"]), Some(&all), &public), ["a.tls.test"]);
    assert_eq!(
        outcome(&tls(&["a.apps.test"]), Some(&all), &public),
        [none("a.apps.test")]
    );
}

#[test]
fn a_parent_may_mean_one_listener_or_one_port() {
    let all = [gateway(
        "infra/public",
        "istio",
        &[
            "a HTTP 80 *.a.test",
            "b HTTP 8080 *.b.test",
            "c example.com/own 80 *.c.test",
        ],
    )];
    let public = by_name(&["infra/public"]);
    let inherits = |section: Option<&str>, port| {
        let parent = Parent {
            section_name: section.map(str::to_owned),
            port,
            ..parent("infra/public")
        };
        outcome(&attached(ObjectKind::HttpRoute, &[], vec![parent]), Some(&all), &public)
    };
    assert_eq!(inherits(None, None), ["*.a.test", "*.b.test", "*.c.test"]);
    assert_eq!(inherits(Some("b"), None), ["*.b.test"]);
    assert_eq!(inherits(None, Some(80)), ["*.a.test", "*.c.test"]);
    let [nothing] = &inherits(Some("a"), Some(8080))[..] else {
        panic!()
    };
    assert!(nothing.starts_with(" NoHostValue: "), "{nothing}");
}

#[test]
fn a_route_and_a_listener_for_all_names_have_none() {
    let all = [gateway("infra/public", "istio", &["web HTTP 80"])];
    let object = attached(ObjectKind::HttpRoute, &[], vec![parent("infra/public")]);
    let [why] = &outcome(&object, Some(&all), &by_name(&["infra/public"]))[..] else {
        panic!()
    };
    assert!(
        why.starts_with(" NoHostValue: it serves all names of its Gateway"),
        "{why}"
    );
}
