//! Another list of nodes, brought to one node after the other while flows continue.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::config::{Settings, doors};
use super::keepalived::FAST;
use super::moves::{finish, speak};
use super::nodes::{enter_at, expect_nothing, expect_owner};
use super::pair::{Pair, node_name};
use super::speakers::while_they_speak;
use crate::lab::{SOON, eventually};

/// Several times as long as a node waits for those that are not there.
const REFUSAL_PERIOD: Duration = Duration::from_secs(12);

/// Whether a node says that another one has another list.
fn is_other_list(pair: &Pair, node: usize, other: usize) -> bool {
    let ha = pair.balancer(node).json("/api/v1/ha");
    let peers = ha["sync"]["peers"].as_array().unwrap();
    peers.iter().any(|peer| {
        let error = peer["send_error"].as_str().unwrap_or_default();
        peer["node"] == node_name(other) && error.contains("ha.nodes")
    })
}

mod share_10 {
    use super::*;

    #[test]
    fn a_third_node_comes_without_harm_to_flows() {
        let settings = Settings {
            nodes: 3,
            ..Settings::default()
        };
        let Some(mut pair) = Pair::begin_with("a_third_node_comes_without_harm_to_flows", settings) else {
            return;
        };
        let mut flows = enter_at(&pair, 0, &doors());
        expect_owner(&pair, 0, flows.len());
        // A reload reports that a restart is needed, and changes nothing.
        pair.settings.listed = vec![0, 1, 2];
        for node in [0, 1] {
            let body = pair.settings.body(node, pair.dir());
            pair.balancer(node).reload(&body);
            let is_said = eventually(SOON, || {
                pair.balancer(node).proc.log().contains("are read at the start only")
            });
            assert!(is_said, "{}", pair.logs());
        }
        pair.wait_synced();
        pair.settings.listed = vec![0, 1];
        flows.extend(enter_at(&pair, 0, &doors()));
        expect_owner(&pair, 0, flows.len());
        pair.settings.listed = vec![0, 1, 2];
        // The new node starts too early: the others refuse it, and it takes nothing from them.
        pair.start(2);
        pair.report(2, "backup");
        assert!(eventually(SOON, || is_other_list(&pair, 2, 0)), "{}", pair.logs());
        std::thread::sleep(REFUSAL_PERIOD);
        let ha = pair.balancer(2).json("/api/v1/ha");
        assert_eq!(ha["may_preempt"], false, "{ha:#}");
        // The standby first: it keeps its shadows while the owner refuses it.
        pair.restart(1);
        pair.report(1, "backup");
        assert!(eventually(SOON, || is_other_list(&pair, 1, 0)), "{}", pair.logs());
        pair.give(1);
        speak(&flows);
        // Ports of known flows do no harm, whichever list they are from.
        for _ in 0..8 {
            flows.extend(enter_at(&pair, 1, &doors()));
        }
        speak(&flows);
        // Then the other one.
        pair.restart(0);
        pair.report(0, "backup");
        pair.wait_synced();
        expect_owner(&pair, 1, flows.len());
        for owner in [2, 0] {
            pair.give(owner);
            speak(&flows);
            flows.extend(enter_at(&pair, owner, &doors()));
            expect_owner(&pair, owner, flows.len());
        }
        flows.iter().for_each(finish);
        expect_nothing(&pair, 0);
    }

    /// A node with another list waits for the owner's flows for as long as the owner is there, and no longer.
    #[test]
    fn a_refused_node_may_take_the_addresses_once_the_other_is_gone() {
        let test = "a_refused_node_may_take_the_addresses_once_the_other_is_gone";
        let settings = Settings {
            nodes: 3,
            ..Settings::default()
        };
        let Some(mut pair) = Pair::begin_with(test, settings) else {
            return;
        };
        let flows = enter_at(&pair, 0, &doors());
        expect_owner(&pair, 0, flows.len());
        pair.settings.listed = vec![0, 1, 2];
        pair.restart(1);
        pair.report(1, "backup");
        assert!(eventually(SOON, || is_other_list(&pair, 1, 0)), "{}", pair.logs());
        let may_preempt = || pair.balancer(1).json("/api/v1/ha")["may_preempt"].clone();
        assert_eq!(may_preempt(), false);
        pair.kill(0);
        let may_preempt = || pair.balancer(1).json("/api/v1/ha")["may_preempt"].clone();
        assert!(eventually(SOON, || may_preempt() == true));
        pair.take(1);
        speak(&flows);
    }

    #[test]
    fn a_node_leaves_without_harm_to_flows() {
        let Some(mut pair) = Pair::begin_with("a_node_leaves_without_harm_to_flows", Settings::of(3)) else {
            return;
        };
        let mut flows = enter_at(&pair, 0, &doors());
        pair.give(2);
        flows.extend(enter_at(&pair, 2, &doors()));
        speak(&flows);
        // The node that had the addresses learns of these when it is connected to again.
        expect_owner(&pair, 2, flows.len());
        pair.give(0);
        expect_owner(&pair, 0, flows.len());
        // The first of the list goes: all others have another place, and other ports.
        pair.give(2);
        expect_owner(&pair, 2, flows.len());
        pair.kill(0);
        pair.settings.listed = vec![1, 2];
        pair.restart(1);
        pair.report(1, "backup");
        speak(&flows);
        pair.take_over_with_settings(2);
        pair.wait_synced();
        expect_owner(&pair, 2, flows.len());
        for _ in 0..4 {
            flows.extend(enter_at(&pair, 2, &doors()));
        }
        expect_owner(&pair, 2, flows.len());
        pair.give(1);
        speak(&flows);
        for _ in 0..4 {
            flows.extend(enter_at(&pair, 1, &doors()));
        }
        expect_owner(&pair, 1, flows.len());
        flows.iter().for_each(finish);
        expect_nothing(&pair, 1);
    }

    /// As the documents say: the new list to all files, then to the processes, those without addresses first, then the new
    /// node starts.
    #[test]
    fn no_flow_is_lost_when_a_third_node_joins_under_keepalived() {
        let test = "no_flow_is_lost_when_a_third_node_joins_under_keepalived";
        let settings = Settings {
            nodes: 3,
            ..Settings::moved_by(FAST)
        };
        let Some(mut pair) = Pair::begin_keepalived_with(test, settings) else {
            return;
        };
        while_they_speak(&mut pair, |pair, speakers| {
            pair.settings.listed = vec![0, 1, 2];
            [0, 1].into_iter().for_each(|node| write_list(pair, node));
            for node in [1, 0] {
                pair.take_over(node);
            }
            pair.wait_synced();
            pair.wait_sole_owner(0);
            pair.start(2);
            pair.supervise(2);
            pair.wait_synced();
            assert_eq!(pair.times_master(2), 0.0, "{}", pair.logs());
            speakers.add(6);
            for node in [1, 2] {
                pair.wait_shadows(node, speakers.count());
            }
            // Both of the old nodes fail: the new one has everything.
            pair.kill(0);
            let next = pair.wait_other_owner(0);
            pair.wait_flows(next, speakers.count());
            let last = 3 - next;
            pair.wait_shadows(last, speakers.count());
            pair.kill(next);
            pair.wait_owner(last);
            pair.wait_flows(last, speakers.count());
        });
    }

    /// The node that has the addresses is the one that goes.
    #[test]
    fn no_flow_is_lost_when_a_node_leaves_under_keepalived() {
        let test = "no_flow_is_lost_when_a_node_leaves_under_keepalived";
        let settings = Settings {
            mover: FAST,
            ..Settings::of(3)
        };
        let Some(mut pair) = Pair::begin_keepalived_with(test, settings) else {
            return;
        };
        while_they_speak(&mut pair, |pair, speakers| {
            pair.ha(0, "release");
            pair.wait_other_owner(0);
            let mut supervisor = pair.supervisors[0].take().unwrap();
            supervisor.signal(Signal::SIGTERM);
            assert_eq!(supervisor.exit_code(2 * SOON), 0);
            let mut balancer = pair.balancers[0].take().unwrap();
            balancer.proc.signal(Signal::SIGTERM);
            assert_eq!(balancer.proc.exit_code(4 * SOON), 0);
            pair.settings.listed = vec![1, 2];
            [1, 2].into_iter().for_each(|node| write_list(pair, node));
            // Its first node is preferred from now on.
            pair.wait_sole_owner(1);
            pair.wait_flows(1, speakers.count());
            for node in [2, 1] {
                pair.take_over(node);
            }
            pair.wait_synced();
            pair.wait_sole_owner(1);
            speakers.add(6);
            pair.wait_flows(1, speakers.count());
            pair.wait_shadows(2, speakers.count());
            pair.kill(1);
            pair.wait_owner(2);
            pair.wait_flows(2, speakers.count());
        });
    }
}

/// Writes the current list to a node's file. Its supervisor reads it at once, its balancer when it is replaced.
fn write_list(pair: &Pair, node: usize) {
    let body = pair.settings.body(node, pair.dir());
    pair.balancer(node).write(&body);
}
