//! Layer-4 services.

use std::time::Duration;

use signalbox_core::model::services::{Affinity, Hook, Mode, Transport};

use super::{documented, only_mistake, only_mistakes, right};

/// Example of the documentation, with clusters to go to.
fn example() -> String {
    format!(
        "{}clusters:\n  - {{ name: east, hosts: [{{ name: a, address: 10.2.0.2, ports: {{ dns: 5353 }} }}] }}\n  \
         - {{ name: west, hosts: [{{ name: b, address: 10.3.0.2, tcp: 7000 }}] }}\nversion: 1\n",
        documented("services:")
    )
}

#[track_caller]
fn wrong(from: &str, to: &str, path: &str, part: &str) {
    let text = example();
    assert!(text.contains(from), "the example has no {from:?}");
    only_mistake(&text.replacen(from, to, 1), path, part);
}

#[test]
fn the_reference_example_parses_as_documented() {
    let model = right(&example()).model;
    assert!(model.listeners.is_empty(), "services need no listener");
    let [mysql, dns, game] = &model.services[..] else {
        panic!("{:?}", model.services)
    };
    assert_eq!(
        (mysql.protocol, mysql.mode, mysql.affinity),
        (Transport::Tcp, Mode::Nat, Affinity::Flow)
    );
    assert_eq!((mysql.cluster, mysql.idle), (0, Duration::from_secs(3600)));
    assert_eq!(mysql.listen[1].to_string(), "[fd00:1::1]:3306");
    assert_eq!(
        (dns.protocol, dns.affinity, dns.idle),
        (Transport::Udp, Affinity::Source, Duration::from_secs(30))
    );
    assert_eq!(
        (game.mode, game.cluster, game.listen[0].ports.clone()),
        (Mode::DsrIpip, 1, 7000..=7100)
    );
    assert_eq!(game.listen[0].to_string(), "10.1.0.9:7000-7100");
    assert_eq!(model.clusters[0].hosts[0].ports["dns"], 5353);
}

#[test]
fn addresses() {
    let path = "services[0].listen[0]";
    let wrong = |to: &str, part: &str| wrong("10.1.0.1:3306", to, path, part);
    wrong("10.1.0.1", "is not an address with a port, such as");
    wrong("0.0.0.0:3306", "a service needs its own addresses");
    wrong("*:3306", "is not an address with a port");
    wrong("10.1.0.0/24:3306", "is not an address with a port");
    wrong("10.1.0.1:0", "needs a port, or a range of them, from 1 to 65535");
    wrong("10.1.0.1:9-3", "needs a port, or a range of them");
    wrong("10.1.0.1:70000", "needs a port, or a range of them");
    wrong(
        "[::ffff:10.1.0.1]:3306",
        "is an IPv4-mapped IPv6 address: write 10.1.0.1:3306",
    );
    wrong("fd00:1::1:3306", "is not an address with a port");
    wrong("127.0.0.1:8089", "is already used by admin.listen by default");
}

#[test]
fn an_address_has_one_service() {
    wrong(
        "10.1.0.9:7000-7100",
        "10.1.0.1:50-60",
        "services[2].listen[0]",
        "10.1.0.1:50-60 is already used by service `dns` on line 3 (10.1.0.1:53)",
    );
    // An address and port of another protocol is free.
    right(&example().replacen("10.1.0.9:7000-7100", "10.1.0.1:3306", 1));
    let listener = "listeners:\n  - { name: web, protocol: tcp, cluster: east, listen: [\"10.1.0.1:3306\"] }\n";
    only_mistake(
        &(example() + listener),
        "services[0].listen[0]",
        "10.1.0.1:3306 is already used by listener `web`",
    );
}

#[test]
fn words_and_keys() {
    wrong(
        "protocol: udp",
        "protocol: sctp",
        "services[1].protocol",
        "allowed: tcp or udp",
    );
    wrong(
        "mode: dsr-ipip",
        "mode: dsr",
        "services[2].mode",
        "allowed: nat, dsr-l2 or dsr-ipip",
    );
    wrong(
        "affinity: source",
        "affinity: client",
        "services[1].affinity",
        "allowed: flow or source",
    );
    wrong(
        "cluster: west",
        "cluster: wets",
        "services[2].cluster",
        "did you mean `west`?",
    );
    let backup = |name: &str| format!("cluster: west, backup: {name}");
    let path = "services[2].backup";
    wrong("cluster: west", &backup("eats"), path, "did you mean `east`?");
    wrong("cluster: west", &backup("west"), path, "cannot be its own backup");
    wrong("cluster: west", &backup("shop/db"), path, "`shop/db` is an application");
    let both = right(&example().replacen("cluster: west", &backup("east"), 1)).model;
    assert_eq!((both.services[2].cluster, both.services[2].backup), (1, Some(0)));
    wrong("name: game", "name: dns", "services[2].name", "dns");
    wrong("idle: 30s", "idle: 30", "services[1].idle", "has no unit");
    wrong("name: game, ", "", "services[2]", "the key `name` is missing");
    wrong(
        "{ dns: 5353 }",
        "{ dns: 0 }",
        "clusters[0].hosts[0].ports.dns",
        "is not a whole number from 1 to 65535",
    );
    wrong(", tcp: 7000", "", "clusters[1].hosts[0]", "the host has no port");
}

#[test]
fn a_service_of_two_protocols_is_two() {
    let model = right(&example().replacen("protocol: udp", "protocol: [udp, tcp]", 1)).model;
    let [_, tcp, udp, game] = &model.services[..] else {
        panic!("{:?}", model.services)
    };
    assert_eq!((&*tcp.name, tcp.protocol), ("dns", Transport::Tcp));
    assert_eq!((&*udp.name, udp.protocol), ("dns:udp", Transport::Udp));
    assert_eq!((udp.configured_name(), &tcp.listen), ("dns", &udp.listen));
    // The order of the list does not matter.
    let other = right(&example().replacen("protocol: udp", "protocol: [tcp, udp]", 1)).model;
    assert_eq!(model.services, other.services);
    assert_eq!(tcp.idle, Duration::from_secs(30), "the entry says so");
    assert_eq!(game.name, "game");
    let defaults = right(&example().replacen("protocol: tcp", "protocol: [tcp, udp]", 1)).model;
    let idle: Vec<_> = defaults.services[..2].iter().map(|one| one.idle.as_secs()).collect();
    assert_eq!(idle, [3600, 30]);
    let wrong = |protocol: &str, path: &str, part: &str| wrong("protocol: udp", protocol, path, part);
    let path = "services[1].protocol";
    wrong("protocol: []", path, "a service needs a protocol");
    wrong("protocol: [udp, udp]", "services[1].protocol[1]", "write each once");
    wrong(
        "protocol: [udp, sctp]",
        "services[1].protocol[1]",
        "allowed: tcp or udp",
    );
    // The port may be another's for one of both.
    let taken = example().replacen("10.1.0.9:7000-7100", "10.1.0.1:3306", 1);
    let part = "10.1.0.1:3306 is already used by service `mysql`";
    only_mistake(
        &taken.replacen(
            "protocol: udp, listen: [\"10.1.0.1:3306",
            "protocol: [udp, tcp], listen: [\"10.1.0.1:3306",
            1,
        ),
        "services[2].listen[0]",
        part,
    );
}

/// A tcp listener connects to each endpoint's own port; a service has one port for all hosts.
#[test]
fn an_application_is_behind_a_tcp_listener_and_no_service() {
    let text = "version: 1\nrouting_events: {}\nclusters: []\n\
                listeners: [{ name: db, protocol: tcp, listen: [\"10.1.0.1:5432\"], cluster: shop/db }]\n";
    let model = right(text).model;
    assert_eq!(model.clusters[model.listeners[0].cluster.unwrap()].name, "shop/db");
    let service = "version: 1\nrouting_events: {}\nclusters: []\n\
                   services: [{ name: db, protocol: tcp, listen: [\"10.1.0.1:5432\"], cluster: shop/db }]\n";
    only_mistake(
        service,
        "services[0].cluster",
        "`shop/db` is an application, whose endpoints have ports",
    );
}

#[test]
fn the_layer4_section_is_parsed_and_its_mistakes_are_reported() {
    let with = |text: &str| format!("{}layer4: {text}\n", example());
    let common = right(&with(
        "{ hook: tc, flows: 4096, nat: { sources: [10.2.0.1], ports: 2000-3000 }, tunnel: { source_ipv4: 10.99.0.0/16 } }",
    ));
    let layer4 = common.model.layer4;
    assert_eq!(
        (layer4.hook, layer4.flows, layer4.nat_ports),
        (Hook::Tc, 4096, Some(2000..=3000))
    );
    assert_eq!(layer4.tunnel_v4.to_string(), "10.99.0.0/16");
    assert_eq!(right(&example()).model.layer4.nat_ports, None);
    only_mistakes(
        &with,
        r#"
            { hook: generic }                         | layer4.hook               | allowed: auto, native or tc
            { flows: 3 }                              | layer4.flows              | from 1024 to 16777216
            { nat: { ports: 80-90 } }                 | layer4.nat.ports          | a range of ports above 1023
            { nat: { sources: [0.0.0.0] } }           | layer4.nat.sources[0]     | not the address of one machine
            { tunnel: { source_ipv6: "fd00::/120" } } | layer4.tunnel.source_ipv6 | /96 or shorter
        "#,
    );
}
