//! Naive reading of the rules: take the oldest remaining object, look at everything accepted so far. Slow, and as
//! unlike the real implementation as the rules allow.

use std::time::Instant;

use proptest::prelude::*;

use super::{Admission, ClaimRules, ClusterDiscovery, Object, ObjectKind, discover, route, said, seen};

/// Accepted claims: name and path, and the object.
type Accepted<'a> = Vec<(String, &'a Object)>;

/// Served name: name, origin, weight.
type Served = Vec<(String, String, Option<u32>)>;

/// Refused name: name, origin, rival.
type Refused = Vec<(String, String, Option<String>)>;

fn model(objects: &[Object], wildcards: bool) -> (Served, Refused) {
    let mut left: Vec<&Object> = objects.iter().collect();
    let mut accepted: Accepted<'_> = Vec::new();
    let mut rejected = Vec::new();
    while !left.is_empty() {
        let oldest = (0..left.len())
            .min_by_key(|at| {
                let object = left[*at];
                let created = object.created.clone().unwrap_or_else(|| "9999".into());
                let [namespace, name, uid] = [&object.namespace, &object.name, &object.uid].map(Clone::clone);
                let tie = match object.kind {
                    ObjectKind::Route => [uid, namespace, name],
                    _ => [namespace, name, uid],
                };
                (created, object.kind, tie)
            })
            .unwrap();
        let object = left.remove(oldest);
        let is_refused = !object.router_statuses.is_empty();
        let mut mine: Vec<String> = Vec::new();
        for host in &object.hostnames {
            let twin = |other: &Object| other.ingress.as_ref() == Some(&object.uid) && other.hostnames.contains(host);
            if object.kind == ObjectKind::Ingress && objects.iter().any(twin) {
                continue;
            }
            let name = match (
                object.subdomain && object.kind == ObjectKind::Route,
                host.split_once('.'),
            ) {
                (true, Some((_, domain))) => format!("*.{domain}"),
                _ => host.clone(),
            };
            if is_refused {
                if !mine.contains(&name) {
                    rejected.push((name.clone(), object.origin(), None));
                    mine.push(name);
                }
                continue;
            }
            if name.starts_with("*.") && !wildcards {
                rejected.push((name, object.origin(), None));
                continue;
            }
            if mine.contains(&name) {
                continue;
            }
            mine.push(name.clone());
            match rival(&name, object, &accepted) {
                Some(rival) => rejected.push((name, object.origin(), Some(rival.origin()))),
                None => accepted.push((name, object)),
            }
        }
    }
    let mut served: Served = Vec::new();
    for (name, object) in accepted {
        if !served.iter().any(|(taken, ..)| *taken == name) {
            let weight = object
                .annotations
                .get("signalbox.io/weight")
                .and_then(|text| text.parse().ok());
            let weight = weight.filter(|weight| (0..=100).contains(weight));
            served.push((name, object.origin(), weight));
        }
    }
    served.sort();
    rejected.sort();
    (served, rejected)
}

fn rival<'a>(name: &str, object: &Object, accepted: &Accepted<'a>) -> Option<&'a Object> {
    let same = accepted.iter().filter(|(taken, _)| taken == name);
    let foreign = same.clone().find(|(_, other)| other.namespace != object.namespace);
    let over = |wild: &str, below: &str| {
        wild.strip_prefix("*.")
            .is_some_and(|domain| below.split_once('.').is_some_and(|(_, rest)| rest == domain))
    };
    let related =
        |taken: &str| (over(taken, name) && !name.starts_with("*.")) || (over(name, taken) && !taken.starts_with("*."));
    let domain = accepted.iter().find(|(taken, other)| {
        related(taken)
            && other.namespace != object.namespace
            && (object.kind, other.kind) == (ObjectKind::Route, ObjectKind::Route)
    });
    let twin = same
        .clone()
        .find(|(_, other)| object.path.is_some() && other.path == object.path);
    foreign.or(domain).or(twin).map(|(_, other)| *other)
}

fn objects() -> impl Strategy<Value = Vec<Object>> {
    let kind = prop_oneof![
        4 => Just(ObjectKind::Route),
        1 => Just(ObjectKind::Ingress),
        1 => Just(ObjectKind::TlsRoute),
        1 => Just(ObjectKind::HttpRoute),
    ];
    let host = prop::sample::select(&["a.test", "b.test", "x.a.test", "y.a.test", "z.x.a.test"][..]);
    let one = (
        (
            kind,
            prop::option::weighted(0.9, 0..4u32),
            0..3usize,
            prop::collection::vec(host, 1..3),
        ),
        (
            0..3usize,
            any::<bool>(),
            0..8u8,
            prop::option::of(0..130u32),
            prop::option::weighted(0.2, 0..20usize),
        ),
    );
    prop::collection::vec(one, 0..20).prop_map(|list| {
        let numbered = list.into_iter().enumerate();
        let object = numbered.map(
            |(at, ((kind, age, namespace, hosts), (path, sub, admission, weight, ingress)))| {
                let mut object = route(age.unwrap_or(0), &format!("ns{namespace}/o{}", at / 2), "");
                object.uid = format!("u{at}");
                object.kind = kind;
                object.created = age.and(object.created);
                object.hostnames = hosts.iter().map(|host| (*host).to_owned()).collect();
                if kind == ObjectKind::Route {
                    object.hostnames.truncate(1);
                    object.subdomain = sub;
                    object.ingress = ingress.map(|at| format!("u{at}"));
                    object.path = Some(["", "/a", "/b"][path].to_owned());
                } else {
                    object.path = None;
                    if sub && object.hostnames[0] == "a.test" {
                        object.hostnames[0] = "*.a.test".into();
                    }
                }
                if admission == 0 {
                    object.router_statuses = vec![said("default", "", Admission::Refused("no".into()))];
                }
                object
                    .annotations
                    .extend(weight.map(|weight| ("signalbox.io/weight".to_owned(), weight.to_string())));
                object
            },
        );
        object.collect()
    })
}

fn with(objects: &[Object], wildcards: bool) -> ClusterDiscovery {
    discover(
        seen(objects),
        &ClaimRules {
            wildcards,
            ..ClaimRules::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn as_the_rules_read_plainly(objects in objects(), wildcards in any::<bool>()) {
        let learned = with(&objects, wildcards);
        let (served, rejected) = model(&objects, wildcards);
        let mut found: Vec<_> =
            learned.routes.iter().map(|claim| (claim.hostname.to_string(), claim.origin.clone(), claim.weight)).collect();
        found.sort();
        prop_assert_eq!(found, served);
        let mut found: Vec<_> = learned
            .rejected
            .iter()
            .map(|one| (one.hostname.clone(), one.origin.clone(), one.rival.clone()))
            .collect();
        found.sort();
        prop_assert_eq!(found, rejected);
    }

    #[test]
    fn the_order_of_objects_means_nothing(
        (objects, shuffled) in objects().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
    ) {
        prop_assert_eq!(with(&objects, true), with(&shuffled, true));
    }
}

/// Prints how long ten thousand Routes take; asserts only their outcome.
#[test]
fn ten_thousand_routes() {
    let objects: Vec<Object> = (0..10_000u32)
        .map(|at| {
            let mut object = route(
                at % 3600,
                &format!("ns{}/web{at}", at % 700),
                &format!("app{at}.apps.test"),
            );
            object
                .annotations
                .insert("haproxy.router.openshift.io/timeout".into(), "5s".into());
            object
                .annotations
                .insert("signalbox.io/weight".into(), (at % 100 + 1).to_string());
            object
        })
        .collect();
    let timed = |wildcards| {
        let mut times: Vec<_> = (0..9)
            .map(|_| {
                let began = Instant::now();
                let learned = with(&objects, wildcards);
                let time = began.elapsed();
                assert_eq!((learned.routes.len(), learned.rejected.len()), (10_000, 0));
                time
            })
            .collect();
        times.sort_unstable();
        times
    };
    println!("10 000 Routes: {:?}", timed(false));
    println!("10 000 Routes, where wildcards are served: {:?}", timed(true));
    assert_eq!(with(&objects, false), with(&objects, true));
}
