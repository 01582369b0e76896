//! Choice of the objects that the cluster's routers serve.

use super::*;
use crate::model::kubernetes::{RouterNames, ShardFilter};

/// Names that are served, and the first word of the reason against each other name.
fn outcome(objects: &[Object], namespaces: Option<Vec<&str>>, labelled: bool, choice: &ShardFilter) -> Vec<String> {
    let rules = ClaimRules {
        shard: choice.clone(),
        filtered_by_label: labelled,
        wildcards: true,
        ..ClaimRules::default()
    };
    let learned = discover(
        ClusterObjects {
            namespaces,
            ..seen(objects)
        },
        &rules,
    );
    let served = learned.routes.iter().map(|claim| claim.hostname.to_string());
    let rejected = learned.rejected.iter().map(|one| {
        let (word, why) = one.reason.split_once(": ").unwrap();
        assert!(!why.is_empty());
        format!("{} {word}", one.hostname)
    });
    served.chain(rejected).collect()
}

fn of_routers(names: &[&str]) -> ShardFilter {
    ShardFilter {
        routers: RouterNames::Named(names.iter().map(|name| (*name).to_owned()).collect()),
        ..ShardFilter::default()
    }
}

fn with_said(said: &[(&str, Admission)], object: Object) -> Object {
    let said = said
        .iter()
        .map(|(router, admission)| super::said(router, &object.hostnames[0], admission.clone()));
    Object {
        router_statuses: said.collect(),
        ..object
    }
}

#[test]
fn without_names_default_routers_and_silent_routes_count() {
    use Admission::{Admitted, Refused, Unknown};
    let by_default = ShardFilter::default();
    let of_any = ShardFilter {
        routers: RouterNames::Any,
        ..ShardFilter::default()
    };
    let refused = || Refused("HostAlreadyClaimed: taken".into());
    for (said, expected, with_any) in [
        (vec![("default", Admitted)], "app.test", "app.test"),
        (vec![("router", Admitted)], "app.test", "app.test"),
        (
            vec![("internal", Admitted), ("default", Admitted)],
            "app.test",
            "app.test",
        ),
        // The hosts are those of the default routers, which do not serve it.
        (vec![("internal", Admitted)], "app.test OtherRouter", "app.test"),
        (
            vec![("internal", refused())],
            "app.test OtherRouter",
            "app.test RouteNotAdmitted",
        ),
        (
            vec![("internal", Admitted), ("default", refused())],
            "app.test RouteNotAdmitted",
            "app.test",
        ),
        (vec![("default", Unknown)], "app.test", "app.test"),
        (Vec::new(), "app.test", "app.test"),
    ] {
        let object = || with_said(&said, route(1, "shop/app", "app.test"));
        assert_eq!(outcome(&[object()], None, false, &by_default), [expected], "{said:?}");
        assert_eq!(outcome(&[object()], None, false, &of_any), [with_any], "{said:?}");
    }
}

#[test]
fn a_route_counts_where_one_of_the_named_routers_admits_it() {
    use Admission::{Admitted, Refused, Unknown};
    let refused = || Refused("HostAlreadyClaimed: taken".into());
    let mine = of_routers(&["default", "spare"]);
    for (said, expected) in [
        (vec![("default", Admitted)], "app.test"),
        (vec![("internal", Admitted), ("spare", Admitted)], "app.test"),
        (vec![("default", refused()), ("spare", Admitted)], "app.test"),
        (vec![("internal", Admitted)], "app.test OtherRouter"),
        (
            vec![("default", refused()), ("internal", Admitted)],
            "app.test RouteNotAdmitted",
        ),
        (vec![("internal", refused())], "app.test OtherRouter"),
        (vec![("default", Unknown)], "app.test OtherRouter"),
        (vec![], "app.test OtherRouter"),
    ] {
        let objects = [with_said(&said, route(1, "shop/web", "app.test"))];
        assert_eq!(outcome(&objects, None, false, &mine), [expected], "{said:?}");
    }
}

#[test]
fn a_rejection_names_the_expected_and_the_reporting_routers() {
    let objects = [with_said(
        &[("internal", Admission::Admitted)],
        route(1, "shop/web", "app.test"),
    )];
    let rules = ClaimRules {
        shard: of_routers(&["default", "spare"]),
        ..ClaimRules::default()
    };
    let why = "OtherRouter: not admitted by router default or spare; reported by router internal";
    only_rejected(
        &discover(seen(&objects), &rules),
        "app.test",
        "Route shop/web",
        why,
        None,
    );
}

#[test]
fn labels_say_whose_a_route_is_that_no_router_has_spoken_of() {
    let mine = of_routers(&["default"]);
    let silent = [route(1, "shop/web", "app.test")];
    assert_eq!(outcome(&silent, None, true, &mine), ["app.test"]);
    let others = [with_said(
        &[("internal", Admission::Admitted)],
        route(1, "shop/web", "app.test"),
    )];
    assert_eq!(outcome(&others, None, true, &mine), ["app.test OtherRouter"]);
    let mine = ShardFilter {
        namespace_labels: Some("shard=public".into()),
        ..mine
    };
    assert_eq!(outcome(&silent, Some(vec!["shop"]), false, &mine), ["app.test"]);
}

#[test]
fn only_names_of_namespaces_that_match_are_served() {
    let choice = ShardFilter {
        namespace_labels: Some("shard=public".into()),
        ..ShardFilter::default()
    };
    let objects = [
        route(1, "shop/web", "shop.test"),
        route(1, "bank/web", "bank.test"),
        of_kind(ObjectKind::Ingress, route(1, "bank/in", "in.test")),
    ];
    let (left_out, unseen) = (
        ["shop.test", "bank.test OtherNamespace", "in.test OtherNamespace"],
        None,
    );
    assert_eq!(outcome(&objects, Some(vec!["shop", "empty"]), false, &choice), left_out);
    // Unseen namespaces leave everything out, as nothing else tells whose these objects are.
    assert_eq!(outcome(&objects, unseen, false, &choice).len(), 3);
    assert!(
        outcome(&objects, None, false, &choice)
            .iter()
            .all(|one| one.ends_with(" OtherNamespace"))
    );
    // The older claim of a namespace that does not match takes nothing from one that does.
    let objects = [route(1, "bank/web", "app.test"), route(2, "shop/web", "app.test")];
    assert_eq!(
        outcome(&objects, Some(vec!["shop"]), false, &choice),
        ["app.test", "app.test OtherNamespace"]
    );
}

#[test]
fn where_namespaces_may_not_be_read_a_routers_word_decides() {
    let choice = ShardFilter {
        namespace_labels: Some("shard=public".into()),
        ..of_routers(&["default"])
    };
    let admitted = |object| with_said(&[("default", Admission::Admitted)], object);
    let objects = [
        admitted(route(1, "shop/web", "app.test")),
        route(1, "shop/new", "new.test"),
        of_kind(ObjectKind::Ingress, route(1, "bank/in", "in.test")),
    ];
    let expected = ["app.test", "in.test OtherNamespace", "new.test OtherRouter"];
    assert_eq!(outcome(&objects, None, false, &choice), expected);
    // Where namespaces may be read, the status of a Route that has left its shard no longer counts.
    assert_eq!(
        outcome(&objects[..1], Some(vec!["bank"]), false, &choice),
        ["app.test OtherNamespace"]
    );
}

#[test]
fn a_route_without_a_host_has_what_the_named_routers_give_it() {
    let given = |router, host| said(router, host, Admission::Admitted);
    let object = Object {
        hostnames: Vec::new(),
        router_statuses: vec![
            given("internal", "web.internal.test"),
            given("default", "web.apps.test"),
            given("spare", "web.apps.test"),
        ],
        ..route(1, "shop/web", "")
    };
    let objects = [object];
    let any = ShardFilter {
        routers: RouterNames::Any,
        ..ShardFilter::default()
    };
    let of = |shard| outcome(&objects, None, false, &shard);
    assert_eq!(of(any), ["web.apps.test", "web.internal.test"]);
    assert_eq!(of(ShardFilter::default()), ["web.apps.test"]);
    assert_eq!(
        outcome(&objects, None, false, &of_routers(&["internal"])),
        ["web.internal.test"]
    );
    assert_eq!(
        outcome(&objects, None, false, &of_routers(&["none"])),
        ["web.apps.test OtherRouter", "web.internal.test OtherRouter"]
    );
}

#[test]
fn every_name_of_what_is_left_out_is_shown() {
    let choice = ShardFilter {
        namespace_labels: Some("shard=public".into()),
        ..ShardFilter::default()
    };
    let mut made = route(3, "bank/web-x7k2p", "app.test");
    made.ingress = Some("uid-bank/web".into());
    let objects = [
        wildcard(route(1, "bank/star", "www.acme.test")),
        Object {
            hostnames: ["app.test", "other.test", "other.test"].map(str::to_owned).to_vec(),
            ..of_kind(ObjectKind::Ingress, route(1, "bank/web", ""))
        },
        made,
    ];
    let expected = ["*.acme.test", "app.test", "other.test"].map(|host| format!("{host} OtherNamespace"));
    assert_eq!(outcome(&objects, Some(vec![]), false, &choice), expected);
}

#[test]
fn an_ingress_counts_where_its_class_is_one_of_those_named() {
    let choice = ShardFilter {
        ingress_classes: ["openshift-default", "public"].map(str::to_owned).to_vec(),
        ..ShardFilter::default()
    };
    let of_class = |class: Option<&str>, host: &str| Object {
        class: class.map(str::to_owned),
        ..of_kind(ObjectKind::Ingress, route(1, &format!("shop/{host}"), host))
    };
    let objects = [
        of_class(Some("public"), "a.test"),
        of_class(Some("nginx"), "b.test"),
        of_class(None, "c.test"),
        route(1, "shop/web", "d.test"),
    ];
    let class = |name: &str, is_default| IngressClass {
        name: name.into(),
        is_default,
    };
    let with = |classes: Option<&[IngressClass]>| {
        let rules = ClaimRules {
            shard: choice.clone(),
            ..ClaimRules::default()
        };
        let ingress_classes = classes.map(|all| all.iter().collect());
        let learned = discover(
            ClusterObjects {
                ingress_classes,
                ..seen(&objects)
            },
            &rules,
        );
        let names: Vec<_> = learned.routes.iter().map(|claim| claim.hostname.to_string()).collect();
        let reasons: Vec<_> = learned.rejected.into_iter().map(|one| one.reason).collect();
        (names.join(" "), reasons)
    };
    let of_nginx = "OtherIngressClass: its class is nginx";
    let none = "OtherIngressClass: it names no class, and";
    for (classes, names, why) in [
        (
            Some(&[class("nginx", true), class("public", false)][..]),
            "a.test d.test",
            Some("openshift-default or public is not"),
        ),
        (
            Some(&[class("nginx", false), class("public", true)][..]),
            "a.test c.test d.test",
            None,
        ),
        (
            Some(&[][..]),
            "a.test d.test",
            Some("openshift-default or public is not the default one"),
        ),
        (
            None,
            "a.test d.test",
            Some("signalbox may not read which class is the default"),
        ),
    ] {
        let (found, reasons) = with(classes);
        assert_eq!((found.as_str(), reasons[0].as_str()), (names, of_nginx));
        let second = reasons.get(1).map(String::as_str);
        assert_eq!(second.is_some(), why.is_some());
        assert!(
            second.is_none_or(|second| second.starts_with(&format!("{none} {}", why.unwrap()))),
            "{second:?}"
        );
    }
    assert_eq!(
        outcome(&objects, None, false, &ShardFilter::default()).len(),
        4,
        "all, where none is named"
    );
}

#[test]
fn another_class_ingress_is_not_rejected_if_its_route_is_chosen() {
    let choice = ShardFilter {
        ingress_classes: vec!["public".into()],
        ..ShardFilter::default()
    };
    let mut made = route(3, "shop/web-x7k2p", "app.test");
    made.ingress = Some("uid-shop/web".into());
    let ingress = of_kind(ObjectKind::Ingress, route(1, "shop/web", "app.test"));
    assert_eq!(outcome(&[ingress, made], None, false, &choice), ["app.test"]);
}
