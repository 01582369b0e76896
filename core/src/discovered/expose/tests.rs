//! Ports that applications get, services that they become, and addresses that stay the configuration's own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::ports::assign;
use super::*;
use crate::discovered::discovery::ClusterDiscovery;
use crate::model::services::{Affinity, ServiceBind};
use crate::model::{AppPattern, EndpointFilter, Naming};
use crate::model::{Bind, Listener, Protocol, RoutingEvents};

fn rule(pattern: &str, listen: &str) -> ExposeRule {
    let (address, ports) = listen.rsplit_once(':').unwrap();
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    ExposeRule {
        pattern: AppPattern::parse(pattern).unwrap(),
        port_names: Vec::new(),
        protocols: BTreeSet::new(),
        addresses: vec![address.parse().unwrap()],
        ports: first.parse().unwrap()..=last.parse().unwrap(),
        mode: Mode::Nat,
        affinity: Affinity::Flow,
        idle: std::time::Duration::from_secs(60),
        health: ExposeRule::HEALTH,
        shield: None,
    }
}

fn model(rules: Vec<ExposeRule>) -> Model {
    let mut model = crate::routing::view::tests::model();
    model.routing_events = Some(RoutingEvents {
        brokers: Vec::new(),
        tls: None,
        login: None,
        destination: String::new(),
        client_id: None,
        subscription: None,
        filter: EndpointFilter { types: BTreeSet::new() },
        naming: Naming {
            prefix: "ha-".into(),
            domain: None,
        },
        certificates: None,
        applications: Vec::new(),
        expose: rules,
    });
    model
}

fn endpoint(host: &str, at: &str, port_name: &str, protocol: &str) -> AppEndpoint {
    AppEndpoint {
        host: host.into(),
        addr: at.parse().unwrap(),
        port_name: port_name.into(),
        protocols: [protocol.to_owned()].into(),
        is_stopped: false,
    }
}

fn discovered(applications: &[(&str, Vec<AppEndpoint>)]) -> Discovered {
    let learned = |endpoints: &Vec<AppEndpoint>| {
        Arc::new(ClusterDiscovery {
            endpoints: endpoints.clone(),
            ..ClusterDiscovery::default()
        })
    };
    let all = applications.iter();
    let all = all.map(|(name, endpoints)| ((*name).to_owned(), learned(endpoints)));
    Discovered::from([("events".to_owned(), all.collect())])
}

/// Application with a database.
fn db(name: &'static str, last: u8) -> (&'static str, Vec<AppEndpoint>) {
    (
        name,
        vec![endpoint("g.mysql", &format!("10.2.0.{last}:35531"), "mysql", "mysql")],
    )
}

fn port_of(exposure: &ExposeResult, name: &str) -> u16 {
    exposure.ports[name]
}

#[test]
fn a_tcp_endpoint_becomes_a_service_with_its_own_cluster() {
    let mut model = model(vec![rule("bank/*", "10.1.0.9:3306"), rule("*", "10.1.0.9:20000-20009")]);
    let web = endpoint("g.haproxy", "10.2.0.2:35530", "haproxy", "http");
    let mut stopped = endpoint("h.mysql", "10.2.0.2:35532", "mysql", "mysql");
    stopped.is_stopped = true;
    let two = vec![
        web,
        endpoint("g.mysql", "10.2.0.2:35531", "mysql", "mysql"),
        endpoint("i.mysql", "10.2.0.2:35533", "mysql", "tcp"),
        stopped,
    ];
    let exposure = expose(
        &mut model,
        &discovered(&[("bank/db", two), db("shop/db", 3)]),
        &Ports::new(),
    );
    let names: Vec<&String> = exposure.entries.keys().collect();
    assert_eq!(
        names,
        ["bank/db:mysql", "shop/db:mysql"],
        "nothing that is routed by name"
    );
    assert_eq!(exposure.entries["bank/db:mysql"].listen, ["10.1.0.9:3306"]);
    let [bank, shop] = &model.services[..] else { panic!() };
    assert!(bank.is_exposed() && (20_000..=20_009).contains(shop.listen[0].ports.start()));
    let cluster = &model.clusters[bank.cluster];
    assert_eq!(
        (cluster.name.as_str(), cluster.application_name()),
        ("bank/db:mysql", Some("bank/db"))
    );
    let hosts: Vec<_> = cluster
        .hosts
        .iter()
        .map(|host| (host.name.as_str(), host.ports["bank/db:mysql"]))
        .collect();
    assert_eq!(
        hosts,
        [("g.mysql", 35_531), ("i.mysql", 35_533)],
        "who is stopped is none"
    );
    assert_eq!((exposure.ranges[1].used, exposure.ranges[1].free), (1, 9));
}

#[test]
fn port_names_and_protocols_say_what_of_an_application_is_meant() {
    let mut by_name = rule("*", "10.1.0.9:3306");
    by_name.port_names = vec!["mysql-*".into()];
    let mut by_protocol = rule("*", "10.1.0.9:8443");
    by_protocol.protocols = ["tls".to_owned()].into();
    let mut model = model(vec![by_name, by_protocol]);
    let all = vec![
        endpoint("a", "10.2.0.2:1", "mysql-5.1", "mysql"),
        endpoint("b", "10.2.0.2:2", "mongodb-2.4", "mongodb"),
        endpoint("c", "10.2.0.2:3", "web", "tls"),
    ];
    let exposure = expose(&mut model, &discovered(&[("bank/db", all)]), &Ports::new());
    let names: Vec<&String> = exposure.entries.keys().collect();
    assert_eq!(names, ["bank/db:mysql-5.1", "bank/db:web"]);
}

#[test]
fn ports_that_the_configuration_uses_are_not_given_out() {
    let mut model = model(vec![rule("a/*", "10.1.0.9:80-82"), rule("b/*", "10.1.0.9:3306")]);
    model.listeners.push(Listener {
        http: crate::model::http::HttpPolicy::default(),
        tls: None,
        name: "web".into(),
        protocol: Protocol::Http,
        listen: vec![Bind {
            prefix: "10.1.0.0/24".parse().unwrap(),
            port: 80,
        }],
        cluster: None,
        backup: None,
        trusted_proxies: Vec::new(),
        routing: crate::model::Routing::Connection,
        datapath: crate::model::Datapath {
            tier: None,
            cut: false,
            cuts_last_requests: false,
            cuts_long_answers: false,
            peek: crate::model::PeekPlace::Userspace,
            serves_orphaned: false,
        },
        shield: None,
    });
    model.services.push(Service {
        name: "db".into(),
        protocol: Transport::Tcp,
        listen: vec![ServiceBind {
            address: "10.1.0.9".parse().unwrap(),
            ports: 3306..=3310,
        }],
        cluster: 0,
        backup: None,
        mode: Mode::Nat,
        affinity: Affinity::Flow,
        idle: std::time::Duration::from_secs(60),
        shield: None,
    });
    let discovered = discovered(&[db("a/1", 1), db("a/2", 2), db("a/3", 3), db("b/1", 4)]);
    let exposure = expose(&mut model, &discovered, &Ports::new());
    let given: BTreeSet<u16> = exposure.ports.values().copied().collect();
    assert_eq!(given, [81, 82].into());
    assert_eq!(exposure.ranges[0].taken, [(80, "listener web".to_owned())].into());
    let reason = |name: &str| exposure.entries[name].reason.clone().unwrap();
    assert_eq!(
        reason("b/1:mysql"),
        "service db of the configuration has 10.1.0.9:3306: give the rule another port, or move the other"
    );
    let full = exposure.entries.values().filter(|entry| entry.listen.is_empty());
    let full: Vec<_> = full.filter_map(|entry| entry.reason.clone()).collect();
    assert!(
        full.iter().any(|reason| reason
            == "all 2 ports of 10.1.0.9:80-82 are given: widen the range, or narrow the rule's `match` or `port_names`"),
        "{full:?}"
    );
    assert_eq!(model.services.len(), 3, "the others are served all the same");
    assert_eq!(exposure.ranges[0].waiting, 1);
}

#[test]
fn an_endpoint_packets_cannot_reach_is_left_out_with_a_reason() {
    let mut direct = rule("b/*", "10.1.0.9:35531");
    direct.mode = Mode::DsrL2;
    let mut model = model(vec![rule("a/*", "10.1.0.9:3306"), direct]);
    let discovered = discovered(&[
        (
            "a/db",
            vec![
                endpoint("six", "[fd00::1]:35531", "mysql", "mysql"),
                endpoint("four", "10.2.0.2:35531", "mysql", "mysql"),
            ],
        ),
        (
            "b/db",
            vec![
                endpoint("same", "10.2.0.2:35531", "mysql", "mysql"),
                endpoint("other", "10.2.0.3:35532", "mysql", "mysql"),
            ],
        ),
    ]);
    let exposure = expose(&mut model, &discovered, &Ports::new());
    let why = |name: &str, host: &str| exposure.entries[name].left_out[host].clone();
    assert!(why("a/db:mysql", "six").contains("add an IPv6 address to its `listen`"));
    assert!(why("b/db:mysql", "other").contains("use `mode: nat`"));
    let hosts: Vec<_> = model
        .services
        .iter()
        .map(|service| model.clusters[service.cluster].hosts.len())
        .collect();
    assert_eq!(hosts, [1, 1]);
}

#[test]
fn a_single_port_is_whose_it_was_first() {
    let rules = vec![rule("*", "10.1.0.9:3306")];
    let first = expose(&mut model(rules.clone()), &discovered(&[db("z/db", 1)]), &Ports::new());
    assert_eq!(port_of(&first, "z/db:mysql"), 3306);
    let both = discovered(&[db("a/db", 2), db("z/db", 1)]);
    let second = expose(&mut model(rules.clone()), &both, &first.ports);
    assert_eq!(second.entries["z/db:mysql"].listen, ["10.1.0.9:3306"]);
    let reason = second.entries["a/db:mysql"].reason.as_ref().unwrap();
    assert!(reason.starts_with("another application has 10.1.0.9:3306, which is a single port"));
    // The application has no such endpoint for now: its port is kept, unless another application has no port at all.
    let third = expose(&mut model(rules.clone()), &discovered(&[]), &second.ports);
    assert_eq!((port_of(&third, "z/db:mysql"), third.ranges[0].kept), (3306, 1));
    let fourth = expose(&mut model(rules), &discovered(&[db("a/db", 2)]), &third.ports);
    assert_eq!(fourth.ports.keys().collect::<Vec<_>>(), ["a/db:mysql"]);
}

#[test]
fn balancers_with_a_shared_table_keep_an_unknown_apps_port() {
    let mut shared = model(vec![rule("*", "10.1.0.9:80-81")]);
    shared.admin.listen = Some("10.1.0.9:80".parse().unwrap());
    shared.etcd = Some(crate::model::EtcdStore {
        endpoints: Vec::new(),
        prefix: "/".into(),
        ca: None,
        identity: None,
    });
    let held = Ports::from([("z/db:mysql".to_owned(), 81)]);
    let exposure = expose(&mut shared, &discovered(&[db("a/db", 2)]), &held);
    assert_eq!(exposure.ports, held);
    let reason = exposure.entries["a/db:mysql"].reason.as_ref().unwrap();
    assert!(
        reason
            .starts_with("the ports of 10.1.0.9:80-81 are given (0), or kept for port names that applications had (1)"),
        "{reason}"
    );
}

fn names(count: std::ops::Range<usize>) -> impl Strategy<Value = BTreeSet<String>> {
    proptest::collection::btree_set("[a-d]/[a-z]{1,3}:[a-z]{1,2}", count)
}

fn set(names: &BTreeSet<String>) -> BTreeSet<&str> {
    names.iter().map(String::as_str).collect()
}

fn held(given: &BTreeMap<String, u16>) -> BTreeMap<&str, u16> {
    given.iter().map(|(name, port)| (name.as_str(), *port)).collect()
}

proptest! {
    #[test]
    fn ports_are_usable_distinct_and_given_as_long_as_there_are_any(
        ports in proptest::collection::btree_set(1000..1040u16, 0..30), names in names(0..40)
    ) {
        let none = BTreeMap::new();
        let given = assign(&ports, &set(&names), &none, &none, false).assigned;
        let distinct: BTreeSet<u16> = given.values().copied().collect();
        prop_assert_eq!(distinct.len(), given.len());
        prop_assert!(distinct.is_subset(&ports));
        prop_assert_eq!(given.len(), ports.len().min(names.len()));
    }

    #[test]
    fn a_port_once_given_does_not_move_whoever_comes(early in names(0..20), late in names(0..20)) {
        let (ports, none) = ((1000..1020u16).collect(), BTreeMap::new());
        let before = assign(&ports, &set(&early), &none, &none, false).assigned;
        let all: BTreeSet<String> = early.union(&late).cloned().collect();
        let after = assign(&ports, &set(&all), &held(&before), &none, false).assigned;
        for (name, port) in &before {
            prop_assert_eq!(after.get(name), Some(port));
        }
    }

    /// The matching is stable: no name and port prefer each other to their partners. As both sides rank by one number,
    /// only one such matching exists, so the order of events cannot influence it.
    #[test]
    fn balancers_without_a_memory_agree(names in names(0..30)) {
        let (ports, none): (BTreeSet<u16>, _) = ((1000..1016).collect(), BTreeMap::new());
        let given = assign(&ports, &set(&names), &none, &none, false).assigned;
        // By definition the best pair comes first.
        let mut pairs: Vec<_> = names.iter().flat_map(|n| ports.iter().map(move |p| (n, *p))).collect();
        pairs.sort_by_key(|(name, port)| std::cmp::Reverse(ports::rank(name, *port)));
        let mut expected: BTreeMap<String, u16> = BTreeMap::new();
        for (name, port) in pairs {
            if !expected.contains_key(name) && !expected.values().any(|taken| *taken == port) {
                expected.insert(name.clone(), port);
            }
        }
        prop_assert_eq!(given, expected);
    }

    /// Each balancer has given ports while it knew other names than its peer, and one table is made of both.
    #[test]
    fn two_that_have_one_port_are_parted_the_same_everywhere(one in names(1..15), other in names(1..15)) {
        let (ports, none) = ((1000..1040u16).collect(), BTreeMap::new());
        let mut table = assign(&ports, &set(&one), &none, &none, false).assigned;
        table.extend(assign(&ports, &set(&other), &none, &none, false).assigned);
        let all: BTreeSet<String> = one.union(&other).cloned().collect();
        let given = assign(&ports, &set(&all), &held(&table), &none, false).assigned;
        prop_assert_eq!(given.len(), all.len());
        let kept = given.iter().filter(|(name, port)| table.get(*name) == Some(port)).count();
        let distinct: BTreeSet<&u16> = table.values().collect();
        prop_assert_eq!(kept, distinct.len(), "of each port, one holder stays");
    }

    /// Two balancers that know different applications, one of them with more than its range holds, change no port that
    /// the other has given.
    #[test]
    fn a_shared_table_comes_to_rest(one in names(0..12), other in names(0..12)) {
        let ports: BTreeSet<u16> = (1000..1008).collect();
        let mut table: BTreeMap<String, u16> = BTreeMap::new();
        let turn = |table: &mut BTreeMap<String, u16>, known: &BTreeSet<String>| {
            let (here, away): (BTreeMap<&str, u16>, BTreeMap<&str, u16>) =
                held(table).into_iter().partition(|(name, _)| known.contains(*name));
            let choice = assign(&ports, &set(known), &here, &away, true);
            assert!(choice.displaced.is_empty());
            table.extend(choice.assigned);
        };
        turn(&mut table, &one);
        turn(&mut table, &other);
        let rest = table.clone();
        turn(&mut table, &one);
        turn(&mut table, &other);
        prop_assert_eq!(&table, &rest);
        let distinct: BTreeSet<&u16> = table.values().collect();
        prop_assert_eq!(distinct.len(), table.len());
    }

    #[test]
    fn a_kept_port_is_given_away_only_when_there_is_no_other(away in names(0..8), come in names(0..12)) {
        let ports: BTreeSet<u16> = (1000..1010).collect();
        let none = BTreeMap::new();
        let come: BTreeSet<String> = come.difference(&away).cloned().collect();
        let before = assign(&ports, &set(&away), &none, &none, false).assigned;
        let choice = assign(&ports, &set(&come), &none, &held(&before), false);
        let spare = ports.len() - before.len();
        let is_full = come.len() > spare;
        let shared = assign(&ports, &set(&come), &none, &held(&before), true);
        prop_assert_eq!((shared.assigned.len(), shared.displaced.len()), (if is_full { spare } else { come.len() }, 0));
        prop_assert_eq!(choice.displaced.len(), come.len().min(ports.len()).saturating_sub(spare));
    }
}
