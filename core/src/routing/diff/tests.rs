use std::time::Duration;

use super::*;
use crate::routing::view::tests::model;

#[test]
fn equal_models_and_reordered_clusters_have_no_diff() {
    assert_eq!(diff(&model(), &model()).unwrap(), []);
    let mut turned = model();
    turned.clusters.reverse();
    turned.routes[0].clusters = vec![(1, 10), (0, 80)];
    assert_eq!(diff(&model(), &turned).unwrap(), []);
}

#[test]
fn each_difference_is_named_with_what_it_was_and_would_be() {
    let mut new = model();
    new.clusters[0].hosts[0].weight = 5;
    new.clusters[1].hosts.clear();
    new.routes[0].clusters = vec![(1, 1)];
    new.routes[0].allow = Some(vec!["192.0.2.0/24".parse().unwrap()]);
    new.unmatched = crate::model::Unmatched::Cluster(1);
    new.timeouts.idle = Duration::from_secs(90);
    let some = |text: &str| Some(text.to_owned());
    let field = |field: &str, before, after| FieldChange {
        field: field.into(),
        before,
        after,
    };
    let shown: Vec<_> = diff(&model(), &new).unwrap();
    let of = |kind: &str, name: &str| shown.iter().find(|one| one.kind == kind && one.name == name).unwrap();
    let kinds: Vec<_> = shown.iter().map(|one| (&*one.kind, one.name.as_str())).collect();
    let expected = [
        ("setting", "timeouts"),
        ("setting", "unmatched"),
        ("host", "east/h1"),
        ("host", "west/h3"),
        ("route", "app.test"),
    ];
    assert_eq!(kinds, expected);
    assert_eq!(
        of("setting", "timeouts").fields,
        [field("idle", some("1h"), some("90s"))]
    );
    let unmatched = of("setting", "unmatched");
    assert_eq!(
        unmatched.fields,
        [field("", some("any"), None), field("cluster", None, some("west")),]
    );
    assert_eq!(of("host", "east/h1").fields, [field("weight", some("1"), some("5"))]);
    let gone = of("host", "west/h3");
    assert_eq!(gone.before, some("address 10.0.0.3, http 80, https 443, weight 1"));
    assert_eq!((&gone.after, &gone.fields), (&None, &vec![]));
    assert_eq!(
        of("route", "app.test").fields,
        [
            field("allow", None, some("[192.0.2.0/24]")),
            field("clusters", some("east:10 west:80"), some("west:1")),
        ]
    );
    assert_eq!(of("route", "app.test").before, some("clusters east:10 west:80"));
}
