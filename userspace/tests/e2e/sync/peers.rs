//! Peers without a right certificate, or that misbehave: nothing changes, and it is counted.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use signalbox_core::availability::sync::{FlowRecord, Message, Name, PROTOCOL};

use super::config::{Settings, doors};
use super::fake_peers::{SYNC, connect, hello, is_refused};
use super::pair::Pair;
use crate::lab::cut::expect_cut;
use crate::lab::namespace::connect_here;
use crate::lab::tiers::ping;
use crate::lab::{SOON, eventually};

/// Time for which a node that has got addresses takes over reported flows of them (reconcile/flow_gc/replicas.rs).
const TAKE_OVER_TIMEOUT: Duration = Duration::from_secs(10);

#[test]
fn strangers_change_nothing() {
    let Some(pair) = Pair::begin("strangers_change_nothing") else {
        return;
    };
    let flows: Vec<_> = doors().iter().map(|door| pair.enter(door)).collect();
    for (client, _) in &flows {
        expect_cut(pair.balancer(0), client);
    }
    pair.wait_shadows(1, flows.len() as u64);
    let errors = |reason: &str| {
        let key = format!("signalbox_ha_sync_errors_total{{reason=\"{reason}\"}}");
        pair.balancer(0).metric(&key)
    };
    // No TLS, no certificate, and that of a node with another name.
    let mut plain = pair.nodes[1].run(|| connect_here(SYNC)).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    plain.set_read_timeout(Some(SOON)).unwrap();
    let _ = plain.read(&mut [0; 64]);
    let own = hello("node-b", PROTOCOL, 1, 2);
    assert!(is_refused(connect(&pair, None).unwrap(), &own));
    assert!(
        is_refused(connect(&pair, Some("node-c")).unwrap(), &own),
        "its certificate is for node-c"
    );
    assert!(is_refused(
        connect(&pair, Some("node-c")).unwrap(),
        &hello("node-c", PROTOCOL, 2, 3)
    ));
    assert!(eventually(SOON, || errors("tls") >= 3.0), "{}", errors("tls"));
    assert!(eventually(SOON, || errors("unknown_node") >= 1.0));
    // A node of the set with another version, another list of nodes, another protocol.
    assert!(is_refused(
        connect(&pair, Some("node-b")).unwrap(),
        &hello("node-b", PROTOCOL + 1, 1, 2)
    ));
    assert!(eventually(SOON, || errors("other_protocol") >= 1.0));
    assert!(is_refused(
        connect(&pair, Some("node-b")).unwrap(),
        &hello("node-b", PROTOCOL, 0, 2)
    ));
    assert!(is_refused(
        connect(&pair, Some("node-b")).unwrap(),
        &hello("node-b", PROTOCOL, 1, 3)
    ));
    assert!(eventually(SOON, || errors("other_nodes") >= 2.0));
    assert!(is_refused(
        connect(&pair, Some("node-b")).unwrap(),
        b"\x01\x00\x0cGET / HTTP/1"
    ));
    assert!(eventually(SOON, || errors("malformed") >= 1.0));
    // Many silent ones do not keep the true peer out.
    let silent: Vec<_> = (0..40)
        .filter_map(|_| pair.nodes[1].run(|| connect_here(SYNC)).ok())
        .collect();
    pair.wait_synced();
    drop(silent);
    let more = pair.enter(&doors()[0]);
    expect_cut(pair.balancer(0), &more.0);
    pair.wait_shadows(1, flows.len() as u64 + 1);
    for (client, host) in flows.iter().chain([&more]) {
        ping(client, host);
        ping(host, client);
    }
}

#[test]
fn flows_beyond_a_peers_room_are_counted_and_the_rest_continue() {
    let Some(pair) = Pair::begin_with(
        "flows_beyond_a_peers_room_are_counted_and_the_rest_continue",
        Settings {
            room: 4,
            ..Settings::default()
        },
    ) else {
        return;
    };
    let flows: Vec<_> = doors().iter().map(|door| pair.enter(door)).collect();
    for (client, _) in &flows {
        expect_cut(pair.balancer(0), client);
    }
    pair.wait_shadows(1, 4);
    let no_room = || {
        pair.balancer(1)
            .metric("signalbox_ha_sync_rejected_total{reason=\"no_room\"}")
    };
    assert!(eventually(SOON, || no_room() >= 2.0), "{}", no_room());
    pair.give(1);
    // Any four continue; the others are told.
    let goes_on = |(client, host): &(TcpStream, Arc<TcpStream>)| {
        host.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        let mut client: &TcpStream = client;
        client.write_all(b"x").is_ok() && (&**host).read_exact(&mut [0; 1]).is_ok()
    };
    assert_eq!(flows.iter().filter(|flow| goes_on(flow)).count(), 4);
}

mod share_6 {
    use super::*;

    /// A rogue node of the set: it has a certificate, and sends what it likes.
    #[test]
    fn a_mad_peer_harms_no_flow_of_the_owner() {
        let Some(mut pair) = Pair::begin("a_mad_peer_harms_no_flow_of_the_owner") else {
            return;
        };
        let begun = Instant::now();
        let flows: Vec<_> = doors().iter().map(|door| pair.enter(door)).collect();
        for (client, _) in &flows {
            expect_cut(pair.balancer(0), client);
        }
        let mut words = hello("node-b", PROTOCOL, 1, 2);
        Message::FullBegin.encode(&mut words);
        // The owner's own flows, by their addresses and ports but to other places, and ends of everything.
        for (at, (client, _)) in flows.iter().enumerate() {
            let local = client.local_addr().unwrap();
            let vip = client.peer_addr().unwrap();
            let ports = u32::from(local.port()) << 16 | u32::from(vip.port());
            let mapped = |address: std::net::IpAddr| signalbox::kernel::address::to_words(address);
            Message::Flow(Box::new(FlowRecord {
                index: at as u32,
                ports: [ports, (80 << 16) | (40_000 + at as u32)],
                addresses: [
                    mapped(local.ip()),
                    mapped(vip.ip()),
                    mapped(vip.ip()),
                    mapped(local.ip()),
                ],
                ..FlowRecord::default()
            }))
            .encode(&mut words);
            Message::End(at as u32).encode(&mut words);
        }
        // More flows than there is room for.
        for at in 0..6000u32 {
            Message::Flow(Box::new(FlowRecord {
                index: 100 + at,
                ports: [at << 16 | 443, 443 << 16 | at],
                addresses: [
                    [0, 0, 0xffff, 0x0a01_0063],
                    [0, 0, 0xffff, 0x0a01_000a],
                    [0, 0, 0xffff, 0x0a02_000a],
                    [0, 0, 0xffff, 0x0a02_0063],
                ],
                ..FlowRecord::default()
            }))
            .encode(&mut words);
        }
        // A connection to the node itself, such as an operator's.
        Message::Flow(Box::new(FlowRecord {
            index: 99,
            ports: [40_000 << 16 | 22, 22 << 16 | 40_000],
            addresses: [
                [0, 0, 0xffff, 0x0a01_0002],
                [0, 0, 0xffff, 0x0a01_000b],
                [0, 0, 0xffff, 0x0a02_000a],
                [0, 0, 0xffff, 0x0a02_0063],
            ],
            ..FlowRecord::default()
        }))
        .encode(&mut words);
        Message::FullEnd(vec!["g1".into()]).encode(&mut words);
        Message::Name(Name {
            number: 1,
            parts: vec!["other".into(), "x".into()],
        })
        .encode(&mut words);
        // Until then the rogue peer's flows would be the owner's.
        std::thread::sleep(TAKE_OVER_TIMEOUT.saturating_sub(begun.elapsed()));
        // The true peer would come back at once, and take the place of this one.
        pair.stop(1);
        // It ends with a name of a kind that flows do not have, and with its connection.
        assert!(is_refused(connect(&pair, Some("node-b")).unwrap(), &words));
        std::thread::sleep(Duration::from_millis(300));
        for (client, host) in &flows {
            ping(client, host);
            ping(host, client);
        }
        assert_eq!(pair.balancer(0).flow_count(), flows.len() as u64);
        let state = pair.balancer(0).json("/api/v1/ha");
        assert!(
            state["sync"]["peers"][0]["rejected"]["no_room"].as_u64().unwrap() > 0,
            "{state:#}"
        );
        assert_eq!(state["sync"]["peers"][0]["rejected"]["other_addresses"], 1, "{state:#}");
        // The true peer comes back, and reports which flows it really has.
        pair.start(1);
        pair.report(1, "backup");
        pair.wait_synced();
        let more = pair.enter(&doors()[1]);
        expect_cut(pair.balancer(0), &more.0);
    }
}
