//! Reclaiming. A node that is about to take groups of addresses from another node first makes that one hand them over.
//! Then connections that cannot move along continue there, as in every other planned move.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use signalbox_core::availability::ha::priority::own_priorities;
use signalbox_core::availability::sync::Message;
use signalbox_core::model::HighAvailability;
use signalbox_core::model::ha::{HaMode, Preemption};
use tokio::sync::oneshot;
use tokio::task::{JoinSet, spawn_local};
use tokio::time::sleep;

use super::hand_over::{await_leave, prepare};
use super::{Node, Peer};
use crate::state::Shared;
use crate::state::sync::{PlannedMove, ReclaimRequest};

/// Time limit for other nodes to hand over the reclaimed groups.
const RECLAIM_TIMEOUT: Duration = Duration::from_secs(6);
const RECLAIM_INTERVAL: Duration = Duration::from_millis(5);
/// Interval of requests to a node that does not answer: after a move, connections to it are made again.
const ASK_INTERVAL: Duration = Duration::from_millis(250);
/// Time for a reclaimed group to leave, in addition to the time that VRRP takes, and the maximum of the sum. A busy
/// machine has taken three seconds, and connections were lost. The owner answers no ARP requests for that time.
const SPARE_LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_LEAVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Adverts that a node waits for before it takes a group, plus one.
const ADVERTS: u32 = 4;

/// Makes the nodes with these groups hand them over. Returns the names of the nodes that have answered.
pub async fn request(shared: &Shared, groups: Vec<String>) -> Vec<String> {
    let Some(moves) = shared.sync.planned_moves.load_full() else {
        return Vec::new();
    };
    let (reply, answered) = oneshot::channel();
    let _ = moves.send(PlannedMove::Reclaim(ReclaimRequest { groups, reply }));
    answered.await.unwrap_or_default()
}

/// Asks all connected nodes, and waits for them.
pub(super) async fn ask(node: &Node, request: ReclaimRequest) {
    for peer in &node.peers {
        peer.state.has_answered_reclaim.store(false, Relaxed);
    }
    let has_answered = |peer: &&Peer| peer.state.has_answered_reclaim.load(Relaxed);
    let began = Instant::now();
    let mut asked = vec![None::<Instant>; node.peers.len()];
    while began.elapsed() < RECLAIM_TIMEOUT {
        let waits: Vec<_> = node
            .peers
            .iter()
            .map(|peer| !has_answered(&peer) && peer.is_there())
            .collect();
        if !waits.contains(&true) {
            break;
        }
        for ((peer, asked), _) in node
            .peers
            .iter()
            .zip(&mut asked)
            .zip(&waits)
            .filter(|(_, waits)| **waits)
        {
            let is_due = asked.is_none_or(|at| at.elapsed() >= ASK_INTERVAL);
            if is_due && peer.state.is_sending.load(Relaxed) {
                *asked = Some(Instant::now());
                peer.queue.add_move(Message::Reclaim(request.groups.clone()));
            }
        }
        sleep(RECLAIM_INTERVAL).await;
    }
    let answered: Vec<_> = node
        .peers
        .iter()
        .filter(has_answered)
        .map(|peer| peer.name.clone())
        .collect();
    tracing::info!(
        groups = request.groups.join(", "),
        answered = answered.join(", "),
        "Groups are reclaimed from the nodes that have them."
    );
    let _ = request.reply.send(answered);
}

/// Hands over the groups that another node reclaims, if this node has them and will lose them.
pub(super) fn answer(node: &Rc<Node>, peer_name: &str, groups: Vec<String>) {
    let (node, peer_name) = (Rc::clone(node), peer_name.to_owned());
    let Some(at) = node.peers.iter().position(|peer| peer.name == peer_name) else {
        return;
    };
    // A peer that asks again has lost its connection. It gets the answer over the new one.
    if node.peers[at].is_reclaiming.replace(true) {
        return;
    }
    spawn_local(async move {
        let snapshot = node.shared.snapshot.load_full();
        let (Some(ha), period) = (&snapshot.model.ha, snapshot.model.timeouts.drain) else {
            node.peers[at].is_reclaiming.set(false);
            return;
        };
        let owned = node.shared.ha.owned();
        let leaves = |group: &String| {
            let is_here = owned.contains(group) && !node.leaving.borrow().contains_key(group);
            is_here && takes(ha, &peer_name, &node.name, group)
        };
        let mut preparing = JoinSet::new();
        for group in groups.into_iter().filter(leaves) {
            let node = Rc::clone(&node);
            preparing.spawn_local(async move {
                let has_begun = prepare(&node, &group, period).await.is_ok();
                (group, has_begun)
            });
        }
        let begun = preparing.join_all().await;
        node.peers[at].queue.add_move(Message::ReclaimAnswer);
        node.peers[at].is_reclaiming.set(false);
        for (group, has_begun) in begun {
            await_leave(&node, &group, has_begun, leave_timeout(ha)).await;
        }
    });
}

/// Whether a node that reclaims a group will get it from its owner. With VRRP it must have precedence over the owner.
fn takes(ha: &HighAvailability, other: &str, own: &str, group: &str) -> bool {
    let priority = |node: &str| {
        let at = ha.groups.iter().position(|one| one.name == group)?;
        own_priorities(ha, node).get(at).copied()
    };
    match ha.mode {
        HaMode::Keepalived => ha.preemption == Preemption::WhenSynced && priority(other) > priority(own),
        // An external program decides, and has requested this.
        HaMode::External => true,
        HaMode::Address => false,
    }
}

fn leave_timeout(ha: &HighAvailability) -> Duration {
    match ha.mode {
        HaMode::Keepalived => (ha.vrrp.advert * ADVERTS + SPARE_LEAVE_TIMEOUT).min(MAX_LEAVE_TIMEOUT),
        _ => MAX_LEAVE_TIMEOUT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use signalbox_config::ha::parse;

    fn section(more: &str) -> HighAvailability {
        let nodes = "nodes: [{ name: a, address: 10.1.0.1 }, { name: b, address: 10.1.0.2 }]";
        let groups = "groups: [{ name: g1, vips: 10.1.1.5, prefer: a }, { name: g2, vips: 10.1.1.6, prefer: b }]";
        parse(&format!("{{ {nodes}, {groups}, {more} }}")).unwrap().0
    }

    #[test]
    fn a_vrrp_reclaim_needs_precedence_and_when_synced_preemption() {
        let ha = section("preemption: when-synced");
        assert!(takes(&ha, "a", "b", "g1") && takes(&ha, "b", "a", "g2"));
        assert!(!takes(&ha, "a", "b", "g2") && !takes(&ha, "b", "a", "g1"));
        assert!(!takes(&ha, "a", "b", "g3") && !takes(&ha, "b", "b", "g1"));
        for kept in ["preemption: never", "preemption: { delay: 5s }", "mode: address"] {
            assert!(!takes(&section(kept), "a", "b", "g1"), "{kept}");
        }
        assert!(takes(&section("mode: external"), "b", "a", "g1"));
    }

    #[test]
    fn a_group_has_as_long_to_leave_as_vrrp_takes() {
        let timeout = |advert: &str| leave_timeout(&section(&format!("vrrp: {{ advert: {advert} }}")));
        assert_eq!(timeout("100ms"), Duration::from_millis(5400));
        assert_eq!(timeout("1s"), Duration::from_secs(9));
        assert_eq!(timeout("40s"), MAX_LEAVE_TIMEOUT);
    }
}
