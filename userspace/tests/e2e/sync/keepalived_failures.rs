//! Failures of VRRP itself, where keepalived moves the addresses: flows that speak all the time continue.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use super::config::Settings;
use super::keepalived::FAST;
use super::network::VRRP_IS_DROPPED;
use super::pair::{Pair, node_name};
use super::speakers::while_they_speak;
use crate::lab::signalbox::binary;
use crate::lab::{SOON, available, eventually};
use crate::life::upgrades::other_version;

/// Time for which both nodes have the addresses.
const SPLIT_PERIOD: Duration = Duration::from_secs(10);

mod share_10 {
    use super::*;

    /// keepalived is started again each time, and the preferred node takes its addresses back.
    #[test]
    fn no_flow_is_lost_when_keepalived_is_killed() {
        let Some(mut pair) = Pair::begin_keepalived("no_flow_is_lost_when_keepalived_is_killed", FAST) else {
            return;
        };
        while_they_speak(&mut pair, |pair, speakers| {
            for _ in 0..2 {
                let before = pair.times_master(1);
                let killed: HashSet<_> = pair.kill_keepalived(0).into_iter().collect();
                assert_eq!(killed.len(), 2);
                let is_replaced = eventually(SOON, || {
                    let now = pair.keepalived(0);
                    now.len() == 2 && now.iter().all(|pid| !killed.contains(pid))
                });
                assert!(is_replaced, "{}", pair.logs());
                let has_moved = eventually(SOON, || pair.times_master(1) > before);
                assert!(has_moved, "{}", pair.logs());
                pair.wait_sole_owner(0);
                pair.wait_flows(0, speakers.count());
            }
            // At the node that has nothing: nothing moves.
            pair.kill_keepalived(1);
            // At one that cannot start it again.
            pair.supervisors[0].as_mut().unwrap().kill();
            pair.kill_keepalived(0);
            pair.wait_owner(1);
        });
    }

    /// Neither node hears the other's adverts: both have the addresses, and packets reach one or the other.
    #[test]
    fn no_byte_is_lost_while_adverts_do_not_get_through() {
        let Some(mut pair) = Pair::begin_keepalived("no_byte_is_lost_while_adverts_do_not_get_through", FAST) else {
            return;
        };
        while_they_speak(&mut pair, |pair, speakers| {
            for node in &pair.nodes {
                node.try_must(&["nft", "-f", "-"], VRRP_IS_DROPPED).unwrap();
            }
            pair.wait_owner(1);
            let states = || [0, 1].map(|node| pair.state(node));
            for second in 0..SPLIT_PERIOD.as_secs() as usize {
                assert_eq!(states(), ["master", "master"], "{}", pair.logs());
                // Beside keepalived's own announcements, of which each node makes some.
                pair.point_to(second % 2);
                std::thread::sleep(Duration::from_secs(1));
            }
            let carried = pair.balancer(1).metric("signalbox_ha_promoted_total");
            assert!(carried > 0.0, "the second node has carried some");
            for node in &pair.nodes {
                node.must(&["nft", "delete", "table", "inet", "cut"]);
            }
            // New connections reach the owner though neighbours have heard of the other one last, and the other one
            // knows them.
            pair.wait_sole_owner(0);
            speakers.add(10);
            pair.wait_flows(0, speakers.count());
            pair.wait_shadows(1, speakers.count());
            pair.kill(0);
            pair.wait_owner(1);
        });
    }

    /// An operator moves the addresses to and fro.
    #[test]
    fn no_flow_is_lost_when_a_node_is_repeatedly_released() {
        let test = "no_flow_is_lost_when_a_node_is_repeatedly_released";
        let settings = Settings {
            mover: FAST,
            ..Settings::of(3)
        };
        let Some(mut pair) = Pair::begin_keepalived_with(test, settings) else {
            return;
        };
        while_they_speak(&mut pair, |pair, speakers| {
            for round in 0..10 {
                // Now and then the next node is released too, so that each of the three has the addresses.
                let releases = 1 + round % 2;
                let mut owner = 0;
                for _ in 0..releases {
                    pair.ha(owner, "release");
                    let next = pair.wait_other_owner(owner);
                    pair.wait_flows(next, speakers.count());
                    pair.wait_flows(owner, 0);
                    owner = next;
                    // Flows that begin at one node and at the others.
                    speakers.add(2);
                    for other in (0..3).filter(|&node| node != owner) {
                        pair.wait_shadows(other, speakers.count());
                    }
                }
                for node in [1, 2, 0] {
                    pair.ha(node, "reclaim");
                }
                pair.wait_sole_owner(0);
                pair.wait_flows(0, speakers.count());
                for other in [1, 2] {
                    pair.wait_shadows(other, speakers.count());
                }
            }
        });
    }

    /// A version whose maps have another layout takes over on each node, one after the other, and then the one before again.
    #[test]
    fn no_flow_is_lost_when_both_nodes_change_version_and_back() {
        let test = "no_flow_is_lost_when_both_nodes_change_version_and_back";
        let Some(next) = other_version(test) else { return };
        let Some(mut pair) = Pair::begin_keepalived(test, FAST) else {
            return;
        };
        while_they_speak(&mut pair, |pair, speakers| {
            for program in [next.as_path(), binary().as_ref()] {
                for node in [1, 0] {
                    pair.take_over_by(node, program);
                    pair.wait_synced();
                    pair.wait_owner(0);
                    speakers.add(6);
                    pair.wait_flows(0, speakers.count());
                    pair.wait_shadows(1, speakers.count());
                    assert_eq!(pair.times_master(1), 0.0, "the addresses stay:\n{}", pair.logs());
                }
            }
            pair.kill(0);
            pair.wait_owner(1);
        });
    }

    /// A new version of the program takes over on each node, one after the other.
    #[test]
    fn no_flow_is_lost_when_new_processes_take_over_on_both_nodes() {
        let Some(mut pair) = Pair::begin_keepalived("no_flow_is_lost_when_new_processes_take_over_on_both_nodes", FAST)
        else {
            return;
        };
        while_they_speak(&mut pair, |pair, speakers| {
            for node in [1, 0] {
                pair.take_over(node);
                pair.wait_synced();
                pair.wait_owner(0);
                speakers.add(6);
                pair.wait_flows(0, speakers.count());
                pair.wait_shadows(1, speakers.count());
                assert_eq!(pair.times_master(1), 0.0, "the addresses stay:\n{}", pair.logs());
            }
            pair.kill(0);
            pair.wait_owner(1);
        });
    }

    /// The time of day jumps forwards on the node that has the addresses and back on the other one, and again after a move.
    #[test]
    fn no_flow_is_lost_when_a_clock_jumps() {
        let test = "no_flow_is_lost_when_a_clock_jumps";
        if !available(test, &[("faketime", "faketime")]) {
            return;
        }
        let begun = Pair::begin_keepalived_prepared(test, Settings::moved_by(FAST), |pair| {
            for node in [0, 1] {
                set_clock(pair, node, "+0");
                let clock = clock(pair, node).display().to_string();
                pair.environment[node] = [
                    (
                        "LD_PRELOAD",
                        faketime().expect("the package `faketime` has it").display().to_string(),
                    ),
                    ("FAKETIME_TIMESTAMP_FILE", clock),
                    ("FAKETIME_NO_CACHE", "1".to_owned()),
                    // The monotonic clock of a real machine cannot be changed.
                    ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
                    ("NO_FAKE_STAT", "1".to_owned()),
                ]
                .to_vec();
            }
        });
        let Some(mut pair) = begun else { return };
        while_they_speak(&mut pair, |pair, speakers| {
            set_clock(pair, 0, "+3600");
            set_clock(pair, 1, "-3600");
            wait_clock(pair, 0, 3600);
            wait_clock(pair, 1, -3600);
            speakers.add(6);
            pair.wait_shadows(1, speakers.count());
            pair.wait_synced();
            assert_eq!([pair.state(0), pair.state(1)], ["master", "backup"]);
            pair.ha(0, "release");
            pair.wait_owner(1);
            set_clock(pair, 1, "+7200");
            wait_clock(pair, 1, 7200);
            pair.wait_flows(1, speakers.count());
            pair.ha(0, "reclaim");
            pair.wait_owner(0);
            pair.kill(0);
            pair.wait_owner(1);
            pair.wait_flows(1, speakers.count());
        });
    }
}

/// Library that gives a program another time of day.
fn faketime() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?;
    let library = |folder: std::fs::DirEntry| folder.path().join("faketime/libfaketimeMT.so.1");
    folders.flatten().map(library).find(|path| path.exists())
}

/// File with the difference between a node's time of day and that of this machine, in seconds.
fn clock(pair: &Pair, node: usize) -> PathBuf {
    pair.dir().join(format!("{}.clock", node_name(node)))
}

fn set_clock(pair: &Pair, node: usize, offset: &str) {
    let (file, new) = (clock(pair, node), pair.dir().join("clock.new"));
    std::fs::write(&new, offset).unwrap();
    std::fs::rename(new, file).unwrap();
}

/// Waits until a node's time of day differs from that of this machine by `offset` seconds.
fn wait_clock(pair: &Pair, node: usize, offset: i64) {
    let mut differs = 0.0;
    let has_jumped = eventually(SOON, || {
        let here = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        let there = pair.balancer(node).json("/api/v1/figures")["at"].as_f64().unwrap();
        differs = there - here.as_secs_f64();
        (differs - offset as f64).abs() < 60.0
    });
    assert!(has_jumped, "it differs by {differs} s");
}
