//! Clients that have opened a connection and sent nothing yet: all nodes accept each other's SYN cookies.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use signalbox_core::availability::sync::{Message, PROTOCOL, SharedCookieKey};

use super::config::{Door, Settings};
use super::fake_peers::{connect, hello};
use super::kernel_peek::{named, wait_routed};
use super::moves::{finish, speak};
use super::network::SYNC_IS_DROPPED;
use super::pair::{Pair, node_name};
use crate::kernel_peek::{PEEK, exits};
use crate::lab::{SOON, eventually};

/// Clients of each door, with timestamps and without.
const CLIENTS: usize = 3;

fn begin(test: &str) -> Option<(Pair, Vec<Door>)> {
    let settings = Settings {
        lines: PEEK,
        ..Settings::default()
    };
    let pair = Pair::begin_with(test, settings)?;
    let doors = named();
    wait_routed(&pair, 0, &doors);
    Some((pair, doors))
}

/// Waits until a node accepts the cookies of its peer.
fn wait_shared(pair: &Pair, node: usize) {
    let ha = || pair.balancer(node).json("/api/v1/ha");
    let is_shared = eventually(SOON, || ha()["sync"]["peers"][0]["same_cookies"] == true);
    assert!(is_shared, "{:#}", ha());
}

/// Connections of clients that send nothing.
fn silent<'d>(pair: &Pair, doors: &'d [Door]) -> Vec<(&'d Door, TcpStream)> {
    let mut all = Vec::new();
    // Without timestamps, a cookie holds no window scale of Linux.
    for is_on in ["0", "1"] {
        let set = |name| format!("net.ipv4.tcp_{name}={is_on}");
        let settings = ["timestamps", "window_scaling"].map(set);
        pair.client.sysctl(&settings.each_ref().map(String::as_str)).unwrap();
        for door in (0..CLIENTS).flat_map(|_| doors) {
            all.push((door, pair.client.connect(door.at)));
        }
    }
    all
}

/// Has silent clients speak, and be served.
fn expect_served(pair: &Pair, clients: Vec<(&Door, TcpStream)>) {
    let flows = clients.into_iter().map(|(door, client)| pair.enter_with(door, client));
    for flow in flows.collect::<Vec<_>>() {
        speak(std::slice::from_ref(&flow));
        finish(&flow);
    }
}

/// Whether a client is told within [`SOON`] that its connection is lost.
fn is_reset(mut client: &TcpStream) -> bool {
    client.set_read_timeout(Some(SOON)).unwrap();
    let outcome = client.read(&mut [0; 1]);
    matches!(outcome, Err(error) if error.kind() == ErrorKind::ConnectionReset)
}

#[test]
fn silent_clients_are_served_by_the_node_that_has_the_address() {
    outlive_their_node("silent_clients_are_served_by_the_node_that_has_the_address", "1");
}

/// There the program cannot ask the kernel whether the machine has an address: clients wait for the process.
#[test]
fn silent_clients_are_served_where_nodes_do_not_forward() {
    outlive_their_node("silent_clients_are_served_where_nodes_do_not_forward", "0");
}

/// `forwarding`: whether the second node's kernel forwards packets.
fn outlive_their_node(test: &str, forwarding: &str) {
    let Some((mut pair, doors)) = begin(test) else {
        return;
    };
    for family in ["ipv4", "ipv6"] {
        let setting = format!("net.{family}.conf.all.forwarding={forwarding}");
        pair.nodes[1].sysctl(&[setting.as_str()]).unwrap();
    }
    (0..2).for_each(|node| wait_shared(&pair, node));
    let clients = silent(&pair, &doors);
    // A request that must not be sent twice may have reached a host by the first node.
    let posting = pair.client.connect(doors[0].at);
    // At different ports, because repetitions come in any order.
    let speaking = [0, 3].map(|at: usize| (&doors[at], pair.client.connect(doors[at].at)));
    pair.kill(0);
    // Clients speak before the process has heard that the addresses are here.
    pair.balancer(1).stand_still(true);
    pair.add_group(0, 1);
    for (door, client) in &speaking {
        (&*client).write_all(&door.first).unwrap();
    }
    if forwarding == "0" {
        std::thread::sleep(Duration::from_millis(100));
        pair.balancer(1).stand_still(false);
    }
    for (door, client) in speaking {
        speak(&[pair.enter_spoken(door, client)]);
    }
    pair.balancer(1).stand_still(false);
    pair.report(1, "master");
    expect_served(&pair, clients);
    // Some may have workers: while the tables change, or if a host is slow on a busy machine.
    assert!(exits(pair.balancer(1), "delivered") > 0);
    (&posting)
        .write_all(b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n")
        .unwrap();
    assert!(is_reset(&posting));
    assert_eq!(exits(pair.balancer(1), "not_repeatable"), 1);
    // Its own clients may send one.
    let mut own = pair.client.connect(doors[0].at);
    own.write_all(b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n")
        .unwrap();
    let host = pair.accept(doors[0].port);
    assert!((&*host).read(&mut [0; 64]).unwrap() > 0);
}

/// The first node has acknowledged what the second does not know.
#[test]
fn clients_of_flows_that_are_lost_are_told() {
    let test = "clients_of_flows_that_are_lost_are_told";
    if !signalbox_lab::privileged(test, &["nft"]) {
        return;
    }
    let Some((mut pair, doors)) = begin(test) else {
        return;
    };
    (0..2).for_each(|node| wait_shared(&pair, node));
    for node in &pair.nodes {
        node.try_must(&["nft", "-f", "-"], SYNC_IS_DROPPED).unwrap();
    }
    let is_apart = || pair.balancer(1).metric("signalbox_ha_sync_connected{direction=\"in\"}") == 0.0;
    assert!(eventually(SOON, is_apart));
    let flows: Vec<_> = doors.iter().map(|door| pair.enter(door)).collect();
    pair.kill(0);
    pair.take(1);
    for (client, _) in &flows {
        (&*client).write_all(b"more").unwrap();
    }
    for (client, _) in &flows {
        assert!(is_reset(client), "{client:?}");
    }
}

/// A node that has come back takes the key of the set, by that one's clock, and accepts its own for a while.
#[test]
fn a_node_changes_its_key_and_loses_no_client() {
    let Some((mut pair, doors)) = begin("a_node_changes_its_key_and_loses_no_client") else {
        return;
    };
    pair.stop(1);
    let is_shared = || pair.balancer(0).json("/api/v1/ha")["sync"]["peers"][0]["same_cookies"] == true;
    assert!(eventually(SOON, || !is_shared()), "a node that is gone shares nothing");
    let before = silent(&pair, &doors);
    let mut bytes = hello(node_name(1), PROTOCOL, 1, 2);
    let key = |born, clock_ms| {
        Message::CookieKey(SharedCookieKey {
            born,
            key: [born, 7],
            clock_ms,
        })
    };
    key(2, u64::from(u32::MAX) + 10).encode(&mut bytes);
    let mut peer = connect(&pair, Some(node_name(1))).unwrap();
    peer.write_all(&bytes).unwrap();
    // A node that has just come collects keys, and so is told of this one again.
    let tell = || {
        let mut bytes = Vec::new();
        key(2, u64::from(u32::MAX) + 10).encode(&mut bytes);
        peer.write_all(&bytes).unwrap();
        peer.flush().unwrap();
        is_shared()
    };
    assert!(eventually(SOON, tell));
    let after = silent(&pair, &doors);
    // An older one still: the former key counts, so it has to wait.
    let mut bytes = Vec::new();
    key(1, 99).encode(&mut bytes);
    peer.write_all(&bytes).unwrap();
    peer.flush().unwrap();
    assert!(eventually(SOON, || !is_shared()));
    expect_served(&pair, before);
    pair.restart(0);
    pair.report(0, "master");
    wait_routed(&pair, 0, &doors);
    expect_served(&pair, after);
}
