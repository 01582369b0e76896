//! A balancer of a set uses its part of a cluster's hosts, and others replace those that are out of order.

use crate::lab;

use std::collections::{BTreeMap, BTreeSet};

use lab::{Lab, Router, SOON, Signalbox, config, eventually, http, lab_test};

const HOSTS: [&str; 3] = ["east-1", "east-2", "east-3"];

/// Balancer `me` of a set of three.
fn body(me: &str, size: &str) -> String {
    let others: Vec<_> = ["lb-1", "lb-2", "lb-3"]
        .into_iter()
        .filter(|name| *name != me)
        .collect();
    let other = |name: &&str| format!("{{ url: \"http://{name}:8089\", token_file: /nowhere, name: {name} }}");
    let others: Vec<_> = others.iter().map(other).collect();
    format!(
        "subset: {{ name: {me}, size: {size} }}\nbalancers: [{}]\n{}clusters:\n{}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
        others.join(", "),
        config::WEB_LISTENERS,
        config::cluster("east", &["balance: round-robin"], &HOSTS)
    )
}

/// The hosts that twelve connections get.
fn used(lab: &Lab) -> BTreeSet<String> {
    let ask = |_| {
        let answer = http::get(lab.client.connect("10.1.0.1:80"), "a.test", "/").unwrap();
        assert_eq!(answer.status, 200);
        answer.field("host")
    };
    (0..12).map(ask).collect()
}

/// Returns each host's place in the subset by the API.
fn places(sb: &Signalbox) -> BTreeMap<String, String> {
    let place = |host: &&str| {
        (
            (*host).to_owned(),
            sb.host(host)["subset"].as_str().unwrap_or("-").to_owned(),
        )
    };
    HOSTS.iter().map(place).collect()
}

fn with(places: &BTreeMap<String, String>, wanted: &str) -> BTreeSet<String> {
    let found = places.iter().filter(|(_, place)| *place == wanted);
    found.map(|(host, _)| host.clone()).collect()
}

#[lab_test]
fn three_balancers_with_a_third_each_use_every_host() {
    let lab = Lab::new();
    let _routers = HOSTS.map(|host| Router::start(&lab, host));
    let sb = Signalbox::start(&lab, &body("lb-1", "33%"));
    sb.wait_healthy(&HOSTS);
    let mut all = BTreeSet::new();
    for me in ["lb-1", "lb-2", "lb-3"] {
        sb.reload(&body(me, "33%"));
        let own = with(&places(&sb), "own");
        assert_eq!((own.len(), used(&lab)), (1, own.clone()), "{me}");
        assert_eq!(with(&places(&sb), "spare").len(), 2, "{me}: {:?}", places(&sb));
        all.extend(own);
    }
    assert_eq!(all.len(), 3, "every host is somebody's: {all:?}");
    sb.reload(&body("lb-1", "all"));
    assert_eq!(used(&lab).len(), 3);
    assert_eq!(with(&places(&sb), "-").len(), 3);
}

#[lab_test]
fn a_host_that_is_out_of_order_has_a_stand_in_until_it_is_back() {
    let lab = Lab::new();
    let mut routers: BTreeMap<_, _> = HOSTS.map(|host| (host.to_owned(), Router::start(&lab, host))).into();
    let sb = Signalbox::start(&lab, &body("lb-1", "2"));
    sb.wait_healthy(&HOSTS);
    let own = with(&places(&sb), "own");
    assert_eq!((own.len(), used(&lab)), (2, own.clone()));
    let explained = sb.json("/api/v1/explain?host=a.test").to_string();
    assert!(
        explained.contains("it is outside of this balancer's subset"),
        "{explained}"
    );
    let down = own.first().unwrap().clone();
    drop(routers.remove(&down));
    let stands_in = || {
        let now = places(&sb);
        with(&now, "stand-in").len() == 1 && with(&now, "own") == own
    };
    assert!(eventually(SOON, stands_in), "{:?}", places(&sb));
    let now = used(&lab);
    assert_eq!(now.len(), 2, "two usable hosts stay: {now:?}");
    assert!(!now.contains(&down), "{now:?}");
    let shown = sb.cli(&["hosts"]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("stand-in"), "{shown:?}");
    let _back = Router::start(&lab, HOSTS.into_iter().find(|host| **host == down).unwrap());
    assert!(
        eventually(SOON, || with(&places(&sb), "spare").len() == 1),
        "{:?}",
        places(&sb)
    );
    assert_eq!(used(&lab), own);
}
