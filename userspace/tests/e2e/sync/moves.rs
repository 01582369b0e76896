//! Established connections outlive the balancer that made them, and move to and fro between balancers.

use std::io::{ErrorKind, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::config::{Door, Settings, doors};
use super::pair::Pair;
use crate::lab::cut::expect_cut;
use crate::lab::tiers::ping;
use crate::lab::{SOON, eventually};

pub(super) type Flow = (TcpStream, Arc<TcpStream>);

/// Opens a flow by each door, which the first node cuts and the second one knows.
fn enter_all(pair: &Pair, doors: &[Door]) -> Vec<Flow> {
    let flows: Vec<_> = doors.iter().map(|door| pair.enter(door)).collect();
    for (client, _) in &flows {
        expect_cut(pair.balancer(0), client);
    }
    pair.wait_shadows(1, flows.len() as u64);
    flows
}

pub(super) fn speak(flows: &[Flow]) {
    for (client, host) in flows {
        ping(client, host);
        ping(host, client);
        ping(client, host);
    }
}

/// Finishes a flow from the client's side.
pub(super) fn finish((client, host): &Flow) {
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!((&**host).read(&mut [0; 8]).unwrap(), 0);
    host.shutdown(Shutdown::Write).unwrap();
    assert_eq!((&*client).read(&mut [0; 8]).unwrap(), 0);
}

pub(super) fn expect_flows(pair: &Pair, node: usize, count: usize) {
    let balancer = pair.balancer(node);
    let is = eventually(SOON, || balancer.flow_count() == count as u64);
    assert!(is, "{count} flows are expected: {:#?}", balancer.flows("limit=10"));
}

/// Waits until a node carries `count` flows, or has been told of them.
fn expect_known(pair: &Pair, node: usize, count: usize) {
    let known = || pair.balancer(node).flow_count() + pair.shadows(node).iter().sum::<u64>();
    let is = eventually(SOON, || known() == count as u64);
    assert!(is, "{count} flows are expected, and {} are known", known());
}

#[test]
fn every_kind_of_flow_outlives_its_balancer() {
    let Some(mut pair) = Pair::begin("every_kind_of_flow_outlives_its_balancer") else {
        return;
    };
    let flows = enter_all(&pair, &doors());
    assert_eq!(
        pair.balancer(1).flow_count(),
        0,
        "shadows are no flows of the node that keeps them"
    );
    pair.kill(0);
    pair.take(1);
    speak(&flows);
    expect_flows(&pair, 1, flows.len());
    let second = pair.balancer(1);
    let all = flows.len() as f64;
    assert!(eventually(SOON, || second.metric("signalbox_ha_promoted_total") == all));
    assert_eq!(second.metric("signalbox_ha_unprotected_total"), 0.0);
    assert_eq!(second.host("host4")["active_connections"], 3);
    let (ended, left) = flows.split_at(flows.len() / 2);
    ended.iter().for_each(finish);
    expect_flows(&pair, 1, left.len());
    // The node continues undisturbed: new connections and old ones.
    speak(left);
    let more: Vec<_> = doors().iter().map(|door| pair.enter(door)).collect();
    speak(&more);
}

/// Connections without timestamps, as old or hardened clients have them.
#[test]
fn flows_without_timestamps_move_too() {
    let Some(mut pair) = Pair::begin("flows_without_timestamps_move_too") else {
        return;
    };
    pair.client.sysctl(&["net.ipv4.tcp_timestamps=0"]).unwrap();
    let flows = enter_all(&pair, &doors());
    pair.kill(0);
    pair.take(1);
    speak(&flows);
    flows.iter().for_each(finish);
    expect_flows(&pair, 1, 0);
}

/// The standby's process is dead when the addresses move to it: its kernel carries the flows all the same.
#[test]
fn a_standby_whose_process_is_dead_carries_flows() {
    let Some(mut pair) = Pair::begin("a_standby_whose_process_is_dead_carries_flows") else {
        return;
    };
    let flows = enter_all(&pair, &doors());
    if let Some(mut second) = pair.balancers[1].take() {
        second.kill9();
    }
    pair.kill(0);
    pair.take(1);
    speak(&flows);
    pair.start(1);
    pair.report(1, "master");
    expect_flows(&pair, 1, flows.len());
    speak(&flows);
    flows.iter().for_each(finish);
    expect_flows(&pair, 1, 0);
}

/// A flow that has been silent since its addresses moved is known to its new owner: it can be drained.
#[test]
fn a_silent_flow_is_drained_by_its_new_owner() {
    let Some(mut pair) = Pair::begin("a_silent_flow_is_drained_by_its_new_owner") else {
        return;
    };
    let flows = enter_all(&pair, &doors());
    pair.kill(0);
    pair.take(1);
    expect_flows(&pair, 1, flows.len());
    let out = json!({ "action": "out", "names": ["host:v4/host4", "host:v6/host6"], "force": true, "timeout": 1 });
    let answer = pair.balancer(1).unix("POST", "/api/v1/rotations", &out.to_string());
    assert_eq!(answer.status / 100, 2, "{}", answer.body);
    for (client, host) in &flows {
        for end in [client, &**host] {
            end.set_read_timeout(Some(SOON)).unwrap();
            let mut byte = [0; 1];
            let outcome = (&*end).read(&mut byte);
            assert!(
                matches!(&outcome, Err(error) if error.kind() == ErrorKind::ConnectionReset),
                "both ends are reset: {outcome:?}"
            );
        }
    }
    expect_flows(&pair, 1, 0);
}

#[test]
fn flows_move_to_and_fro() {
    let Some(pair) = Pair::begin("flows_move_to_and_fro") else {
        return;
    };
    let flows = enter_all(&pair, &doors());
    for round in 0..10 {
        let (owner, other) = ((round + 1) % 2, round % 2);
        pair.give(owner);
        speak(&flows);
        expect_flows(&pair, owner, flows.len());
        expect_flows(&pair, other, 0);
    }
    let (ended, left) = flows.split_at(2);
    ended.iter().for_each(finish);
    expect_flows(&pair, 0, left.len());
    speak(left);
    assert_eq!(pair.balancer(0).host("host4")["active_connections"], 2);
}

/// A node that was dead comes back empty, hears of all flows, and takes them over.
#[test]
fn a_node_that_comes_back_hears_of_all_flows() {
    let Some(mut pair) = Pair::begin("a_node_that_comes_back_hears_of_all_flows") else {
        return;
    };
    let flows = enter_all(&pair, &doors());
    pair.kill(0);
    pair.take(1);
    speak(&flows);
    // These are from ports of the second node, and those of the first are still in use.
    let more: Vec<_> = doors().iter().map(|door| pair.enter(door)).collect();
    pair.revive(0);
    pair.wait_synced();
    // The node reports it with its next look at its peers.
    let may_preempt = || pair.balancer(0).json("/api/v1/ha")["may_preempt"] == true;
    assert!(eventually(SOON, may_preempt));
    pair.wait_shadows(0, (flows.len() + more.len()) as u64);
    pair.give(0);
    speak(&flows);
    speak(&more);
    expect_flows(&pair, 0, flows.len() + more.len());
    let newest: Vec<_> = doors().iter().map(|door| pair.enter(door)).collect();
    for flows in [&flows, &more, &newest] {
        speak(flows);
        flows.iter().for_each(finish);
    }
    expect_flows(&pair, 0, 0);
    pair.wait_shadows(1, 0);
}

/// The first packet after a move is the last one: that is the usual end of an idle session.
#[test]
fn a_flow_that_ends_right_after_a_move_is_seen_to_end() {
    let Some(mut pair) = Pair::begin("a_flow_that_ends_right_after_a_move_is_seen_to_end") else {
        return;
    };
    let flows = enter_all(&pair, &doors());
    pair.kill(0);
    pair.take(1);
    expect_flows(&pair, 1, flows.len());
    flows.iter().for_each(finish);
    expect_flows(&pair, 1, 0);
}

/// A node that has been dead numbers its flows from the beginning again: the other one does not take them for those of
/// before.
#[test]
fn a_node_may_die_twice() {
    let Some(mut pair) = Pair::begin("a_node_may_die_twice") else {
        return;
    };
    let old = enter_all(&pair, &doors());
    pair.kill(0);
    pair.take(1);
    speak(&old);
    pair.revive(0);
    pair.wait_synced();
    pair.wait_shadows(0, old.len() as u64);
    pair.give(0);
    speak(&old);
    let new: Vec<_> = doors().iter().map(|door| pair.enter(door)).collect();
    pair.wait_shadows(1, (old.len() + new.len()) as u64);
    pair.kill(0);
    pair.take(1);
    speak(&old);
    speak(&new);
    expect_flows(&pair, 1, old.len() + new.len());
}

#[test]
fn flows_that_end_at_the_owner_end_at_the_other_node() {
    let Some(pair) = Pair::begin("flows_that_end_at_the_owner_end_at_the_other_node") else {
        return;
    };
    for _ in 0..3 {
        let flows = enter_all(&pair, &doors());
        flows.iter().for_each(finish);
        expect_flows(&pair, 0, 0);
        pair.wait_shadows(1, 0);
    }
    let states = pair.balancer(1).json("/api/v1/ha");
    assert_eq!(states["sync"]["peers"][0]["rejected"]["no_room"], 0, "{states:#}");
}

/// Both nodes have the addresses, as when VRRP's adverts do not get through: packets reach one or the other.
#[test]
fn nothing_is_corrupt_while_both_nodes_have_the_addresses() {
    let Some(pair) = Pair::begin("nothing_is_corrupt_while_both_nodes_have_the_addresses") else {
        return;
    };
    let flows = enter_all(&pair, &doors());
    pair.take(1);
    let mut newer = Vec::new();
    for round in 0..6 {
        pair.announce(round % 2);
        speak(&flows);
        speak(&newer);
        newer.push(pair.enter(&doors()[round]));
        // A node resets the clients of flows that it has not been told of.
        expect_known(&pair, 1 - round % 2, flows.len() + newer.len());
    }
    // The first node yields.
    pair.withdraw(0);
    pair.announce(1);
    speak(&flows);
    flows.iter().for_each(finish);
    expect_flows(&pair, 0, 0);
}

mod share_6 {
    use super::*;

    /// A flow is reported once, however long it lives: the other node cannot know whether it has been silent since.
    #[test]
    fn a_flow_that_was_told_of_long_ago_is_not_idle() {
        let settings = Settings {
            lines: "timeouts: { idle: 6s }",
            ..Settings::default()
        };
        let Some(mut pair) = Pair::begin_with("a_flow_that_was_told_of_long_ago_is_not_idle", settings) else {
            return;
        };
        let flows = enter_all(&pair, &doors());
        for _ in 0..8 {
            std::thread::sleep(Duration::from_secs(1));
            speak(&flows);
        }
        pair.kill(0);
        pair.take(1);
        expect_flows(&pair, 1, flows.len());
        // The flow GC has visited all of them since.
        std::thread::sleep(Duration::from_millis(2500));
        speak(&flows);
        // And from the move on it does get idle.
        expect_flows(&pair, 1, 0);
    }
}
