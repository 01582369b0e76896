//! Flows reported by other nodes, by entry of this node's flow table.
//!
//! After a move of addresses, several nodes have reported a flow: each may end it, and it counts for the last one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use foldhash::fast::FixedState;

use super::replicas::Placed;
use crate::state::sync::PeerState;

/// Flows of one node.
#[derive(Default)]
struct FlowsOfPeer {
    /// Entries by the node's numbers of the flows, and the numbers by entry.
    placed: HashMap<u32, Placed, FixedState>,
    numbers: HashMap<u32, u32, FixedState>,
}

/// Flows of all other nodes.
#[derive(Default)]
pub(super) struct ToldFlows {
    of_peers: HashMap<String, FlowsOfPeer>,
    /// Node for which an entry counts as a shadow: the last node that reported it.
    counted: HashMap<u32, Arc<PeerState>, FixedState>,
}

impl ToldFlows {
    /// Assigns another entry, or none, to a node's number of a flow. Returns the previous one.
    pub(super) fn replace(&mut self, peer: &PeerState, number: u32, placed: Option<Placed>) -> Option<Placed> {
        let flows = self.of_peers.entry(peer.node.clone()).or_default();
        let former = match placed {
            Some(placed) => flows.placed.insert(number, placed),
            None => flows.placed.remove(&number),
        };
        if let Some(former) = &former
            && flows.numbers.get(&former.index) == Some(&number)
        {
            flows.numbers.remove(&former.index);
        }
        if let Some(placed) = placed {
            flows.numbers.insert(placed.index, number);
        }
        if let Some(former) = &former
            && placed.is_none_or(|placed| placed.index != former.index)
            && self.is_counted_by(peer, former.index)
        {
            self.uncount(former.index);
        }
        former
    }

    /// Whether any node has reported an entry.
    pub(super) fn has(&self, index: u32) -> bool {
        self.counted.contains_key(&index) || self.of_peers.values().any(|flows| flows.numbers.contains_key(&index))
    }

    /// Iterates over the flows of a node.
    pub(super) fn of(&self, peer: &PeerState) -> impl Iterator<Item = &Placed> {
        self.of_peers
            .get(&peer.node)
            .into_iter()
            .flat_map(|flows| flows.placed.values())
    }

    /// Counts an entry as a shadow of `peer`, and of no other node.
    pub(super) fn count(&mut self, peer: &Arc<PeerState>, index: u32) {
        peer.shadows.fetch_add(1, Relaxed);
        if let Some(former) = self.counted.insert(index, Arc::clone(peer)) {
            former.shadows.fetch_sub(1, Relaxed);
        }
    }

    /// Counts an entry as a shadow of no node.
    pub(super) fn uncount(&mut self, index: u32) {
        if let Some(peer) = self.counted.remove(&index) {
            peer.shadows.fetch_sub(1, Relaxed);
        }
    }

    /// Forgets the entry of a removed flow.
    pub(super) fn forget_entry(&mut self, index: u32) {
        self.uncount(index);
        for flows in self.of_peers.values_mut() {
            if let Some(number) = flows.numbers.remove(&index) {
                flows.placed.remove(&number);
            }
        }
    }

    /// Forgets the reports of a node.
    pub(super) fn forget_all(&mut self, peer: &PeerState) {
        let flows = self.of_peers.remove(&peer.node).unwrap_or_default();
        for placed in flows.placed.into_values() {
            if self.is_counted_by(peer, placed.index) {
                self.uncount(placed.index);
            }
        }
    }

    fn is_counted_by(&self, peer: &PeerState, index: u32) -> bool {
        self.counted
            .get(&index)
            .is_some_and(|counting| counting.node == peer.node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(node: &str) -> Arc<PeerState> {
        Arc::new(PeerState {
            node: node.to_owned(),
            ..PeerState::default()
        })
    }

    fn tell(told: &mut ToldFlows, peer: &Arc<PeerState>, number: u32, index: u32) {
        let placed = Placed {
            index,
            is_new: false,
            identity: u64::from(index),
        };
        told.replace(peer, number, Some(placed));
        told.count(peer, index);
    }

    fn counts(peers: &[Arc<PeerState>; 2]) -> [u64; 2] {
        [0, 1].map(|at: usize| peers[at].shadows.load(Relaxed))
    }

    #[test]
    fn a_flow_counts_for_its_last_reporting_node_until_it_ends() {
        let (mut told, peers) = (ToldFlows::default(), [peer("a"), peer("b")]);
        tell(&mut told, &peers[0], 5, 100);
        tell(&mut told, &peers[0], 5, 100);
        tell(&mut told, &peers[0], 6, 101);
        assert_eq!(counts(&peers), [2, 0]);
        tell(&mut told, &peers[1], 70, 100);
        assert_eq!(counts(&peers), [1, 1]);
        // Each node that has reported it may end it.
        assert_eq!(told.replace(&peers[0], 5, None).map(|placed| placed.index), Some(100));
        assert_eq!(counts(&peers), [1, 1]);
        told.forget_entry(100);
        assert_eq!(counts(&peers), [1, 0]);
        assert!(told.replace(&peers[1], 70, None).is_none() && !told.has(100));
        // A number that is reused for another flow.
        tell(&mut told, &peers[0], 6, 102);
        assert_eq!(counts(&peers), [1, 0]);
        assert!(!told.has(101) && told.has(102));
        told.uncount(102);
        assert_eq!((counts(&peers), told.of(&peers[0]).count()), ([0, 0], 1));
        tell(&mut told, &peers[1], 9, 102);
        told.forget_all(&peers[1]);
        assert_eq!(counts(&peers), [0, 0]);
    }
}
