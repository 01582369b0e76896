//! Nodes whose addresses keepalived moves: flows that speak all the time, while a node dies and comes back.

use super::pair::Pair;
use super::speakers::while_they_speak;

/// Adverts of VRRPv3, as is the default.
pub(super) const FAST: &str = "  vrrp: { advert: 100ms }\n";
/// Adverts of a second.
const SLOW: &str = "  vrrp: { advert: 1s }\n";

#[test]
fn no_flow_is_lost_when_a_node_dies() {
    let Some(mut pair) = Pair::begin_keepalived("no_flow_is_lost_when_a_node_dies", FAST) else {
        return;
    };
    while_they_speak(&mut pair, |pair, _| {
        pair.kill(0);
        pair.wait_owner(1);
    });
}

#[test]
fn no_flow_is_lost_when_a_node_dies_with_slow_adverts() {
    let Some(mut pair) = Pair::begin_keepalived("no_flow_is_lost_when_a_node_dies_with_slow_adverts", SLOW) else {
        return;
    };
    while_they_speak(&mut pair, |pair, _| {
        pair.kill(0);
        pair.wait_owner(1);
    });
}

/// Failures of a node in a row, each followed by its return.
const RETURNS: usize = 10;

mod share_10 {
    use super::*;

    /// The preferred node fails again and again. Each time it comes back empty, hears of all flows, and takes its addresses
    /// back.
    #[test]
    fn no_flow_is_lost_when_a_node_fails_and_comes_back_ten_times() {
        let test = "no_flow_is_lost_when_a_node_fails_and_comes_back_ten_times";
        let Some(mut pair) = Pair::begin_keepalived(test, FAST) else {
            return;
        };
        while_they_speak(&mut pair, |pair, speakers| {
            for _ in 0..RETURNS {
                pair.kill(0);
                pair.wait_owner(1);
                speakers.add(1);
                pair.revive(0);
                pair.supervise(0);
                pair.wait_sole_owner(0);
                speakers.add(1);
                pair.wait_flows(0, speakers.count());
                pair.wait_shadows(1, speakers.count());
            }
        });
    }

    /// Both processes are replaced, one node after the other, as for an upgrade.
    #[test]
    fn no_flow_is_lost_when_both_nodes_are_upgraded() {
        let Some(mut pair) = Pair::begin_keepalived("no_flow_is_lost_when_both_nodes_are_upgraded", FAST) else {
            return;
        };
        while_they_speak(&mut pair, |pair, _| {
            for node in [1, 0] {
                pair.restart(node);
                pair.wait_synced();
            }
            // The first node has, or gets, its addresses again, and the other one knows all of its flows.
            pair.wait_owner(0);
            pair.kill(0);
            pair.wait_owner(1);
        });
    }
}

/// The other node does not get the flows: nothing is released unless forced.
#[test]
fn a_release_that_would_lose_flows_is_refused() {
    let Some(mut pair) = Pair::begin_keepalived("a_release_that_would_lose_flows_is_refused", FAST) else {
        return;
    };
    pair.balancers[1] = None;
    let refused = pair.try_ha(0, &["release"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{refused:?}");
    assert!(
        said.contains("nothing is released") && said.contains("node-b does not get them"),
        "{said}"
    );
    assert_eq!(pair.balancer(0).json("/api/v1/ha")["groups"][0]["state"], "master");
    let forced = pair.try_ha(0, &["release", "--force"]);
    assert!(forced.status.success(), "{forced:?}");
}
