//! Flows that were routed in the kernel move between nodes as others do.

use std::net::{IpAddr, SocketAddr};

use super::config::{Door, Settings, doors};
use super::keepalived::FAST;
use super::moves::{Flow, expect_flows, finish, speak};
use super::pair::Pair;
use super::speakers::while_they_speak;
use crate::kernel_peek::{PEEK, exits};
use crate::lab::{SOON, eventually};

/// Doors whose clients are routed by their first bytes.
pub(super) fn named() -> Vec<Door> {
    doors().into_iter().filter(|door| !door.first.is_empty()).collect()
}

/// Waits until a node routes clients of these doors in the kernel, which it does soon after a move.
pub(super) fn wait_routed(pair: &Pair, node: usize, doors: &[Door]) {
    for door in doors {
        let is_routed = || {
            let before = exits(pair.balancer(node), "routed");
            finish(&pair.enter(door));
            exits(pair.balancer(node), "routed") > before
        };
        assert!(eventually(SOON, is_routed), "{}", door.at);
    }
    expect_flows(pair, node, 0);
}

/// The node's share of the ports of the addresses that move.
fn expect_moving_sources(flows: &[Flow], node: u16) {
    let sources: [IpAddr; 2] = ["10.2.0.10".parse().unwrap(), "fd00:2::10".parse().unwrap()];
    for (_, host) in flows {
        let from: SocketAddr = host.peer_addr().unwrap();
        assert!(sources.contains(&from.ip().to_canonical()), "{from}");
        assert_eq!(from.port() % 2, node, "{from}");
    }
}

#[test]
fn kernel_flows_outlive_their_balancer_and_new_ones_use_another() {
    let settings = Settings {
        lines: PEEK,
        ..Settings::default()
    };
    let test = "kernel_flows_outlive_their_balancer_and_new_ones_use_another";
    let Some(mut pair) = Pair::begin_with(test, settings) else {
        return;
    };
    let doors = named();
    wait_routed(&pair, 0, &doors);
    let before = exits(pair.balancer(0), "routed");
    let flows: Vec<_> = (0..5).flat_map(|_| &doors).map(|door| pair.enter(door)).collect();
    assert_eq!(exits(pair.balancer(0), "routed"), before + flows.len() as u64);
    expect_moving_sources(&flows, 0);
    expect_flows(&pair, 0, flows.len());
    assert_eq!(pair.balancer(0).metric("signalbox_ha_unprotected_total"), 0.0);
    pair.wait_shadows(1, flows.len() as u64);
    pair.kill(0);
    pair.take(1);
    speak(&flows);
    expect_flows(&pair, 1, flows.len());
    flows.iter().for_each(finish);
    expect_flows(&pair, 1, 0);
    wait_routed(&pair, 1, &doors);
    let flows: Vec<_> = doors.iter().map(|door| pair.enter(door)).collect();
    expect_moving_sources(&flows, 1);
    speak(&flows);
}

/// A new process of the owner routes new flows in the kernel, and old ones move.
#[test]
fn a_new_process_of_the_owner_routes_in_the_kernel() {
    let settings = Settings {
        lines: PEEK,
        ..Settings::default()
    };
    let Some(mut pair) = Pair::begin_with("a_new_process_of_the_owner_routes_in_the_kernel", settings) else {
        return;
    };
    let doors = named();
    wait_routed(&pair, 0, &doors);
    let mut flows: Vec<_> = doors.iter().map(|door| pair.enter(door)).collect();
    expect_flows(&pair, 0, flows.len());
    for (node, state) in [(1, "backup"), (0, "master")] {
        pair.take_over(node);
        pair.report(node, state);
        pair.wait_synced();
        for door in &doors {
            flows.push(pair.enter(door));
        }
    }
    pair.wait_shadows(1, flows.len() as u64);
    pair.kill(0);
    pair.take(1);
    speak(&flows);
    expect_flows(&pair, 1, flows.len());
}

/// keepalived has a packet socket for IPv6: a socket that the program chooses would be lost beside it.
#[test]
fn both_address_families_are_kernel_routed_beside_keepalived() {
    let test = "both_address_families_are_kernel_routed_beside_keepalived";
    let settings = Settings {
        lines: PEEK,
        ..Settings::moved_by(FAST)
    };
    let Some(mut pair) = Pair::begin_keepalived_with(test, settings) else {
        return;
    };
    while_they_speak(&mut pair, |pair, speakers| {
        for node in [1, 0] {
            pair.take_over(node);
            pair.wait_synced();
            pair.wait_owner(0);
            speakers.add(12);
            pair.wait_flows(0, speakers.count());
            pair.wait_shadows(1, speakers.count());
        }
        // Of twelve flows, four have no name.
        assert!(exits(pair.balancer(0), "routed") >= 8);
        pair.kill(0);
        pair.wait_owner(1);
    });
}
