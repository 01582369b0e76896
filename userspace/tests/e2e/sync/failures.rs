//! Failures between the nodes, and unwanted sync: which flows continue then, and the reports about the others.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use signalbox_core::availability::sync::PROTOCOL;

use super::config::{Settings, doors};
use super::fake_peers::{FakePeer, connect_from, hello, is_refused};
use super::network::SYNC_IS_DROPPED;
use super::pair::Pair;
use super::speakers::while_they_speak;
use crate::lab::cut::expect_cut;
use crate::lab::namespace::connect_here;
use crate::lab::services::{echo, greeter, greeting};
use crate::lab::tiers::ping;
use crate::lab::{SOON, Server, Signalbox, eventually};

type Flow = (TcpStream, Arc<TcpStream>);

/// Whether a node sends its flows, and receives its peer's, as metrics say.
fn connected(pair: &Pair, node: usize) -> [f64; 2] {
    ["out", "in"].map(|direction| {
        let key = format!("signalbox_ha_sync_connected{{direction=\"{direction}\"}}");
        pair.balancer(node).metric(&key)
    })
}

fn enter_all(pair: &Pair, node: usize) -> Vec<Flow> {
    let flows: Vec<_> = doors().iter().map(|door| pair.enter(door)).collect();
    for (client, _) in &flows {
        expect_cut(pair.balancer(node), client);
    }
    flows
}

fn speak(flows: &[Flow]) {
    for (client, host) in flows {
        ping(client, host);
        ping(host, client);
    }
}

/// Whether both ends of a flow learn of its end when its client speaks: it neither continues nor hangs.
fn is_told((client, host): &Flow) -> bool {
    let is_reset = |mut end: &TcpStream| {
        end.set_read_timeout(Some(SOON)).unwrap();
        let outcome = end.write_all(b"x").and_then(|()| end.read(&mut [0; 1]));
        matches!(outcome, Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
    };
    is_reset(client) && is_reset(host)
}

/// Connections that a service has at a node.
fn service_flows(balancer: &Signalbox) -> u64 {
    let services = balancer.json("/api/v1/services");
    let all = services["services"].as_array().unwrap();
    all.iter().filter_map(|service| service["flows"].as_u64()).sum()
}

/// Hosts that answer clients directly, with the services' address.
const DIRECT_HOSTS: [&str; 3] = ["direct-1", "direct-2", "direct-3"];
const DIRECT_AT: &str = "10.1.0.10:5432";

/// Builds hosts on both networks: packets reach them from behind, and their answers leave for the clients' network.
fn direct_hosts(pair: &Pair) -> Vec<Server> {
    let build = |(at, name): (usize, &&str)| {
        let ns = pair.namespace(name);
        let add = |bridge: &str| {
            format!(
                "link add {name} type veth peer name {bridge} netns {}\nlink set {name} master {bridge}\nlink set {name} up\n",
                ns.name()
            )
        };
        pair.client.ip(&add("front")).unwrap();
        pair.host.ip(&add("back")).unwrap();
        ns.sysctl(&[
            "net.ipv4.conf.all.arp_ignore=1",
            "net.ipv4.conf.all.arp_announce=2",
            "net.ipv4.conf.all.rp_filter=0",
            "net.ipv4.conf.back.rp_filter=0",
        ])
        .unwrap();
        let last = 21 + at;
        ns.ip(&format!(
            "addr add 10.1.0.{last}/24 dev front\nlink set front up\naddr add 10.2.0.{last}/24 dev back\nlink set back up\n\
             addr add 10.1.0.10/32 dev lo\nlink set lo up\n"
        ))
        .unwrap();
        greeter(&ns, "0.0.0.0:5432", name)
    };
    DIRECT_HOSTS.iter().enumerate().map(build).collect()
}

fn direct_settings() -> Settings {
    let hosts = (21..).zip(DIRECT_HOSTS);
    let hosts = hosts.map(|(last, name)| format!("      - {{ name: {name}, address: 10.2.0.{last}, tcp: 5432 }}\n"));
    Settings {
        services: "  - { name: direct, protocol: tcp, listen: [\"10.1.0.10:5432\"], cluster: direct, mode: dsr-l2 }\n"
            .into(),
        clusters: format!(
            "  - name: direct\n    health: {{ tcp: {{}}, interval: 1s, timeout: 1s, rise: 1, fall: 100 }}\n    hosts:\n{}",
            hosts.collect::<String>()
        ),
        ..Settings::default()
    }
}

mod share_10 {
    use super::*;

    /// A node has been upgraded to a version with another protocol between nodes.
    #[test]
    fn a_node_with_another_protocol_gets_the_addresses_and_no_flows() {
        let test = "a_node_with_another_protocol_gets_the_addresses_and_no_flows";
        if !signalbox_lab::privileged(test, &["nft"]) {
            return;
        }
        let Some(mut pair) = Pair::begin(test) else {
            return;
        };
        let known = enter_all(&pair, 0);
        pair.wait_shadows(1, known.len() as u64);
        // Each node meets, in place of the other one, a peer with the right name and certificate that speaks another
        // version.
        if let Some(mut second) = pair.balancers[1].take() {
            second.kill9();
        }
        let fakes = [0, 1].map(|node| FakePeer::start(&pair, node, PROTOCOL + 1));
        pair.start(1);
        pair.report(1, "backup");
        let why = format!("the peer speaks version {} of the protocol", PROTOCOL + 1);
        for node in [0, 1] {
            let is_said = eventually(SOON, || pair.balancer(node).proc.log().contains(&why));
            assert!(is_said, "{}", pair.logs());
            assert_eq!(connected(&pair, node)[0], 0.0);
        }
        assert!(fakes.iter().all(|fake| fake.accepted() > 0));
        let strange = connect_from(&pair.nodes[0], &pair, Some("node-b")).unwrap();
        assert!(is_refused(strange, &hello("node-b", PROTOCOL + 1, 1, 2)));
        let refused = || {
            let key = "signalbox_ha_sync_errors_total{reason=\"other_protocol\"}";
            pair.balancer(0).metric(key)
        };
        assert!(eventually(SOON, || refused() >= 1.0));
        let shown = pair.balancer(0).cli(&["ha", "sync", "-o", "json"]);
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
        assert_eq!(shown["peers"][0]["sending"], false, "{shown:#}");
        assert_eq!(shown["peers"][0]["receiving"], false, "{shown:#}");
        let said = shown["peers"][0]["send_error"].as_str().unwrap();
        assert!(said.contains(&why), "{said}");
        let unknown = enter_all(&pair, 0);
        speak(&known);
        // The addresses still move, with the flows that the other node's kernel has known since before.
        pair.kill(0);
        pair.take(1);
        speak(&known);
        for flow in &unknown {
            assert!(is_told(flow), "{:?}", flow.0);
        }
        speak(&enter_all(&pair, 1));
    }

    #[test]
    fn service_connections_do_not_move_where_replication_is_off() {
        let settings = Settings {
            sync: ", services: off",
            idle: Some("1h"),
            ..Settings::default()
        };
        let test = "service_connections_do_not_move_where_replication_is_off";
        let Some(mut pair) = Pair::begin_with(test, settings) else {
            return;
        };
        let all = doors();
        let (of_services, of_listeners) = all.split_at(2);
        let services: Vec<_> = of_services.iter().map(|door| pair.enter(door)).collect();
        let counted = eventually(SOON, || service_flows(pair.balancer(0)) == services.len() as u64);
        assert!(counted, "{}", pair.balancer(0).json("/api/v1/services"));
        let listeners: Vec<_> = of_listeners.iter().map(|door| pair.enter(door)).collect();
        pair.wait_shadows(1, listeners.len() as u64);
        // Several times as long as it takes to report connections where that is wanted.
        std::thread::sleep(Duration::from_secs(1));
        let sync = pair.balancer(1).json("/api/v1/ha")["sync"].clone();
        assert_eq!(sync["peers"][0]["service_flows"], 0, "{sync:#}");
        pair.kill(0);
        pair.take(1);
        speak(&listeners);
        for (client, _) in &services {
            let mut client: &TcpStream = client;
            client.set_read_timeout(Some(SOON)).unwrap();
            let outcome = client.write_all(b"x").and_then(|()| client.read(&mut [0; 1]));
            println!("a service's connection behind the move: {outcome:?}");
            assert!(outcome.is_err());
        }
        assert_eq!(service_flows(pair.balancer(1)), 0);
        speak(&of_services.iter().map(|door| pair.enter(door)).collect::<Vec<_>>());
    }

    /// The nodes do not replicate these, and choose the same host.
    #[test]
    fn connections_with_direct_return_keep_their_host() {
        let mut hosts = Vec::new();
        let begun = Pair::begin_prepared(
            "connections_with_direct_return_keep_their_host",
            direct_settings(),
            |pair| {
                hosts = direct_hosts(pair);
            },
        );
        let Some(mut pair) = begun else { return };
        for node in [0, 1] {
            pair.balancer(node).wait_healthy(&DIRECT_HOSTS);
            let is_divided = || {
                let services = pair.balancer(node).json("/api/v1/services");
                let all = services["services"][0]["hosts"].as_array().cloned().unwrap_or_default();
                all.len() == 3
                    && all
                        .iter()
                        .all(|host| host["reachable"] == true && host["share"].as_f64() > Some(20.0))
            };
            assert!(
                eventually(SOON, is_divided),
                "{}",
                pair.balancer(node).json("/api/v1/services")
            );
        }
        let enter = |_: usize| {
            let stream = pair.client.run(|| connect_here(DIRECT_AT)).unwrap();
            stream.set_read_timeout(Some(SOON)).unwrap();
            let name = greeting(&stream);
            (stream, name)
        };
        let flows: Vec<_> = (0..24).map(enter).collect();
        for name in DIRECT_HOSTS {
            assert!(flows.iter().any(|(_, host)| host == name), "{name} has none");
        }
        let packets = |node: usize| {
            let key = "signalbox_service_packets_total{service=\"direct\",direction=\"in\"}";
            pair.balancer(node).metric(key)
        };
        let speak = |flows: &[(TcpStream, String)]| {
            for (stream, name) in flows {
                echo(stream, &name.as_bytes().repeat(3000)).unwrap();
            }
        };
        speak(&flows);
        assert_eq!(packets(1), 0.0);
        for owner in [1, 0] {
            pair.give(owner);
            speak(&flows);
        }
        assert!(packets(1) >= flows.len() as f64);
        pair.kill(0);
        pair.take(1);
        speak(&flows);
        drop(hosts);
    }

    /// The nodes do not reach each other, though clients and hosts reach both.
    #[test]
    fn flows_go_on_while_the_nodes_do_not_reach_each_other() {
        let Some(mut pair) = Pair::begin_bare("flows_go_on_while_the_nodes_do_not_reach_each_other") else {
            return;
        };
        while_they_speak(&mut pair, |pair, speakers| {
            let known = speakers.count();
            for node in &pair.nodes {
                node.try_must(&["nft", "-f", "-"], SYNC_IS_DROPPED).unwrap();
            }
            for node in [0, 1] {
                let is_seen = eventually(SOON, || connected(pair, node) == [0.0; 2]);
                assert!(is_seen, "{:?}:\n{}", connected(pair, node), pair.logs());
            }
            // New ones are served like others, but are not known to the other node, which keeps those that it knows.
            speakers.add(12);
            pair.wait_flows(0, speakers.count());
            pair.wait_shadows(1, known);
            for node in &pair.nodes {
                node.must(&["nft", "delete", "table", "inet", "cut"]);
            }
            pair.wait_synced();
            assert_eq!([0, 1].map(|node| connected(pair, node)), [[1.0; 2]; 2]);
            pair.wait_shadows(1, speakers.count());
            pair.kill(0);
            pair.take(1);
            pair.wait_flows(1, speakers.count());
        });
    }
}
