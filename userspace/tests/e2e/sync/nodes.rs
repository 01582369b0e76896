//! More than two nodes: every node is told about every flow, and may be the next one that carries it.

use super::config::{Door, Settings, doors, second_doors};
use super::moves::{Flow, expect_flows, finish, speak};
use super::pair::{Pair, node_name};
use super::websockets;
use crate::lab::cut::expect_cut;
use crate::lab::{SOON, eventually};

/// Opens a flow by each door, which a node cuts from a source port in its share.
pub(super) fn enter_at(pair: &Pair, node: usize, doors: &[Door]) -> Vec<Flow> {
    let flows: Vec<_> = doors.iter().map(|door| pair.enter(door)).collect();
    let (listed, nodes) = (&pair.settings.listed, pair.settings.listed.len());
    let slot = listed.iter().position(|&listed| listed == node).unwrap();
    for (client, host) in &flows {
        expect_cut(pair.balancer(node), client);
        let source = host.peer_addr().unwrap();
        assert_eq!(
            usize::from(source.port()) % nodes,
            slot,
            "{source} is no port of {}",
            node_name(node)
        );
    }
    flows
}

/// Waits until a node carries all flows, and every other one that runs keeps them as shadows of that node.
pub(super) fn expect_owner(pair: &Pair, owner: usize, count: usize) {
    expect_flows(pair, owner, count);
    for other in pair.running().into_iter().filter(|&node| node != owner) {
        expect_flows(pair, other, 0);
        let shadows = || {
            let balancer = pair.balancer(other);
            let key = |node: usize| format!("signalbox_ha_shadow_flows{{peer=\"{}\"}}", node_name(node));
            let of_owner = balancer.metric(&key(owner));
            (of_owner, balancer.metric("signalbox_ha_shadow_flows"))
        };
        let are_there = eventually(SOON, || shadows() == (count as f64, count as f64));
        assert!(
            are_there,
            "{} has {:?} shadows (of {}, of all), not {count}:\n{}",
            node_name(other),
            shadows(),
            node_name(owner),
            pair.logs()
        );
    }
    let is_own = eventually(SOON, || pair.shadows(owner).iter().all(|&count| count == 0));
    assert!(
        is_own,
        "{} has shadows of its own flows: {:?}",
        node_name(owner),
        pair.shadows(owner)
    );
}

/// Waits until no node counts a flow in any way.
pub(super) fn expect_nothing(pair: &Pair, owner: usize) {
    expect_owner(pair, owner, 0);
    for node in pair.running() {
        for host in ["host4", "host6"] {
            let active = || pair.balancer(node).host(host)["active_connections"].clone();
            let are_gone = eventually(SOON, || active() == 0);
            assert!(are_gone, "{host} has {} at {}", active(), node_name(node));
        }
    }
}

mod share_6 {
    use super::*;

    #[test]
    fn flows_move_around_three_nodes() {
        let Some(pair) = Pair::begin_with("flows_move_around_three_nodes", Settings::of(3)) else {
            return;
        };
        let mut flows = enter_at(&pair, 0, &doors());
        flows.extend(
            [("10.1.0.10:8080", "a.test"), ("[fd00:1::10]:8080", "b.test")]
                .map(|(at, name)| websockets::open(&pair, at, name)),
        );
        expect_owner(&pair, 0, flows.len());
        for owner in [1, 2, 0, 2, 1, 0] {
            pair.give(owner);
            speak(&flows);
            expect_owner(&pair, owner, flows.len());
            // Each node has its own flows begin, and some end at it: both others learn of that.
            flows.extend(enter_at(&pair, owner, &doors()));
            expect_owner(&pair, owner, flows.len());
            flows.drain(..2).for_each(|flow| finish(&flow));
            expect_owner(&pair, owner, flows.len());
        }
        for node in 0..3 {
            let (balancer, rejected) = (pair.balancer(node), "signalbox_ha_sync_rejected_total");
            assert!(balancer.metric("signalbox_ha_promoted_total") > 0.0);
            assert_eq!(balancer.metric(rejected), 0.0, "{}", node_name(node));
        }
        speak(&flows);
        flows.iter().for_each(finish);
        expect_nothing(&pair, 0);
    }

    #[test]
    fn the_third_node_carries_on_when_two_die_at_once() {
        let Some(mut pair) = Pair::begin_with("the_third_node_carries_on_when_two_die_at_once", Settings::of(3)) else {
            return;
        };
        let mut flows = enter_at(&pair, 0, &doors());
        expect_owner(&pair, 0, flows.len());
        pair.give(1);
        flows.extend(enter_at(&pair, 1, &doors()));
        speak(&flows);
        expect_owner(&pair, 1, flows.len());
        pair.kill(1);
        pair.kill(0);
        pair.take(2);
        speak(&flows);
        expect_flows(&pair, 2, flows.len());
        flows.extend(enter_at(&pair, 2, &doors()));
        flows.drain(..4).for_each(|flow| finish(&flow));
        expect_flows(&pair, 2, flows.len());
        // Both come back empty, and learn of all remaining flows from the third node.
        for node in [0, 1] {
            pair.revive(node);
        }
        pair.wait_synced();
        expect_owner(&pair, 2, flows.len());
        pair.give(0);
        speak(&flows);
        expect_owner(&pair, 0, flows.len());
        flows.iter().for_each(finish);
        expect_nothing(&pair, 0);
    }

    /// Two groups are at two nodes, and move past each other: the flows of one do not notice the moves of the other.
    #[test]
    fn two_groups_at_different_nodes_leave_each_other_alone() {
        let settings = Settings {
            has_second_group: true,
            ..Settings::of(3)
        };
        let Some(pair) = Pair::begin_with("two_groups_at_different_nodes_leave_each_other_alone", settings) else {
            return;
        };
        pair.give_group(1, 1);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let (mut former, mut promoted) = ([0, 1], [0.0; 3]);
        // Owners of the two groups: one or the other has moved since the line before.
        for owners in [[0, 1], [2, 1], [2, 0], [1, 0], [1, 1], [0, 1], [0, 2]] {
            let before = [first.len(), second.len()];
            for group in (0..2).filter(|&group| owners[group] != former[group]) {
                pair.give_group(group, owners[group]);
            }
            former = owners;
            speak(&first);
            speak(&second);
            first.extend(enter_at(&pair, owners[0], &doors()));
            second.extend(enter_at(&pair, owners[1], &second_doors()));
            for node in 0..3 {
                let counts = [first.len(), second.len()];
                let own: usize = (0..2)
                    .filter(|&group| owners[group] == node)
                    .map(|group| counts[group])
                    .sum();
                expect_flows(&pair, node, own);
                pair.wait_shadows(node, (first.len() + second.len() - own) as u64);
            }
            // A node that has got a group has promoted that group's flows, and no other flow has been promoted.
            let now = [0, 1, 2].map(|node| pair.balancer(node).metric("signalbox_ha_promoted_total"));
            println!("at {owners:?} {before:?} flows were, {promoted:?} -> {now:?} are promoted");
            let moved: f64 = (0..3).map(|node| now[node] - promoted[node]).sum();
            assert!(
                moved == 0.0 || before.iter().any(|&count| count as f64 == moved),
                "{moved} of {before:?}"
            );
            promoted = now;
        }
        let mut ports: Vec<_> = first
            .iter()
            .chain(&second)
            .map(|(_, host)| (host.local_addr().unwrap(), host.peer_addr().unwrap()))
            .collect();
        let count = ports.len();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), count);
        first.iter().chain(&second).for_each(finish);
        for node in 0..3 {
            expect_flows(&pair, node, 0);
            pair.wait_shadows(node, 0);
        }
    }

    /// A node dies after it has reported its flows to only one of the others, and the other one gets its addresses:
    /// flows that this one does not know are over, and take no room anywhere.
    #[test]
    fn flows_unknown_to_a_new_owner_leave_no_shadow_on_a_third_node() {
        let test = "flows_unknown_to_a_new_owner_leave_no_shadow_on_a_third_node";
        let Some(mut pair) = Pair::begin_with(test, Settings::of(3)) else {
            return;
        };
        let known = enter_at(&pair, 0, &doors());
        expect_owner(&pair, 0, known.len());
        let dropped =
            "table inet cut { chain in { type filter hook input priority -300; ip saddr 10.3.0.11 drop; }; }\n";
        pair.nodes[1].try_must(&["nft", "-f", "-"], dropped).unwrap();
        let unknown = enter_at(&pair, 0, &doors());
        pair.wait_shadows(2, (known.len() + unknown.len()) as u64);
        pair.wait_shadows(1, known.len() as u64);
        pair.kill(0);
        pair.take(1);
        speak(&known);
        expect_owner(&pair, 1, known.len());
        drop(unknown);
        pair.give(2);
        speak(&known);
        expect_owner(&pair, 2, known.len());
        known.iter().for_each(finish);
        expect_nothing(&pair, 2);
    }

    /// As many nodes as there may be.
    #[test]
    fn a_flow_moves_along_eight_nodes() {
        let Some(pair) = Pair::begin_with("a_flow_moves_along_eight_nodes", Settings::of(8)) else {
            return;
        };
        for node in 0..8 {
            let ha = pair.balancer(node).json("/api/v1/ha");
            let peers = ha["sync"]["peers"].as_array().unwrap();
            assert_eq!(peers.len(), 7);
            for peer in peers {
                assert!(peer["sending"] == true && peer["complete"] == true, "{peer:#}");
            }
            println!(
                "{} has {} KiB",
                node_name(node),
                resident_kib(pair.balancer(node).proc.pid())
            );
        }
        let mut flows = enter_at(&pair, 0, &doors());
        for owner in (1..8).chain([0]) {
            pair.give(owner);
            speak(&flows);
            expect_owner(&pair, owner, flows.len());
            flows.push(enter_at(&pair, owner, &doors()[..1]).remove(0));
            flows.drain(..1).for_each(|flow| finish(&flow));
            expect_owner(&pair, owner, flows.len());
        }
        flows.iter().for_each(finish);
        expect_nothing(&pair, 0);
    }
}

/// Memory that a process has, in KiB.
fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
