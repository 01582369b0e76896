//! Replication of layer-4 services' connections: reports received from other nodes, and reports sent to them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use signalbox_common::net::Key;
use signalbox_core::availability::sync::{Message, ServiceRecord};

use super::Node;
use crate::kernel::address::from_words;
use crate::state::service_flows::ServiceKeys;
use crate::state::sync::{PeerState, Rejection};

/// Maximum time to wait for a node that has not found its own connections yet.
const FIRST_SWEEP_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of connections looked up at once.
const MAX_LOOKUPS: usize = 256;

/// Connections reported by other nodes, by node.
#[derive(Default)]
pub(super) struct ServiceReplicas(HashMap<String, ServiceKeys>);

impl ServiceReplicas {
    /// Enters a connection of a peer.
    pub(super) fn add(&mut self, node: &Node, peer: &PeerState, record: &ServiceRecord) {
        let key = record.key();
        if is_own(node, &key) {
            return;
        }
        let most = node.services.max_replicas().min(node.max_replicas) as usize;
        let count: usize = self.0.values().map(ServiceKeys::len).sum();
        let is_known = self.0.values().any(|known| known.contains(&key));
        let entered = if !is_known && count >= most {
            Err(Rejection::NoRoom)
        } else {
            node.services.enter_replica(record)
        };
        if is_known {
            self.forget(node, &key);
        }
        match entered {
            Ok(()) => {
                let known = self.0.entry(peer.node.clone()).or_default();
                known.insert(key);
                peer.service_flows.store(known.len() as u64, Relaxed);
            }
            Err(why) => peer.rejected[why as usize].inc(),
        }
    }

    /// Ends a connection of a peer.
    pub(super) fn end(&mut self, node: &Node, key: &Key) {
        if is_own(node, key) {
            return;
        }
        node.services.end_replica(key);
        self.forget(node, key);
    }

    /// Ends the connections of a peer's groups that are missing in its full pass.
    pub(super) fn end_full(&mut self, node: &Node, peer: &PeerState, seen: &ServiceKeys, groups: &[String]) {
        let owned = node.shared.ha.owned();
        let mut groups = groups.to_vec();
        groups.retain(|group| !owned.contains(group));
        node.services.end_other_replicas(&groups, seen);
        // The peer has all connections of its groups, so reports by other nodes about them are dropped.
        self.retain(node, |name, key| {
            let is_theirs = group_of(node, key).is_some_and(|group| groups.contains(&group));
            !is_own(node, key) && (!is_theirs || (name == peer.node && seen.contains(key)))
        });
    }

    /// Forgets the connections of addresses that this node has got.
    pub(super) fn forget_own(&mut self, node: &Node) {
        self.retain(node, |_, key| !is_own(node, key));
    }

    /// Forgets a connection, regardless of the node that reported it.
    fn forget(&mut self, node: &Node, key: &Key) {
        for (name, known) in &mut self.0 {
            if known.remove(key) {
                count(node, name, known);
            }
        }
    }

    fn retain(&mut self, node: &Node, is_kept: impl Fn(&str, &Key) -> bool) {
        for (name, known) in &mut self.0 {
            known.retain(|key| is_kept(name, key));
            count(node, name, known);
        }
    }
}

/// Publishes in the peer's state how many of its connections are known.
fn count(node: &Node, name: &str, known: &ServiceKeys) {
    if let Some(peer) = node.peers.iter().find(|peer| peer.name == *name) {
        peer.state.service_flows.store(known.len() as u64, Relaxed);
    }
}

/// Whether this node has the address of a connection: reports by other nodes do not matter then.
fn is_own(node: &Node, key: &Key) -> bool {
    let floating = &node.shared.snapshot.load().floating;
    node.shared.ha.has(floating, from_words(key.destination))
}

fn group_of(node: &Node, key: &Key) -> Option<String> {
    let floating = &node.shared.snapshot.load().floating;
    let group = floating.group_of(from_words(key.destination))?;
    floating.name_of(group).map(str::to_owned)
}

/// Changes of connections to report to a peer, and connections that were reported to it.
#[derive(Default)]
pub(super) struct ServiceChanges {
    dirty: RefCell<ServiceKeys>,
    sent: RefCell<ServiceKeys>,
}

impl ServiceChanges {
    pub(super) fn add(&self, keys: &ServiceKeys) {
        self.dirty.borrow_mut().extend(keys);
    }

    /// Puts changes into a batch, until it has `limit` bytes. Returns whether some are left.
    pub(super) fn put(&self, node: &Node, peer: &PeerState, bytes: &mut Vec<u8>, limit: usize) -> bool {
        let mut dirty = self.dirty.borrow_mut();
        while bytes.len() < limit {
            let keys: Vec<Key> = dirty.iter().take(MAX_LOOKUPS).copied().collect();
            if keys.is_empty() {
                return false;
            }
            let records = node.shared.sync.services.records(&keys);
            for (key, record) in keys.into_iter().zip(records) {
                dirty.remove(&key);
                self.put_one(node, peer, &key, record, bytes);
            }
        }
        !dirty.is_empty()
    }

    fn put_one(&self, node: &Node, peer: &PeerState, key: &Key, record: Option<ServiceRecord>, bytes: &mut Vec<u8>) {
        let (shared, mut sent) = (&node.shared, self.sent.borrow_mut());
        let floating = &shared.snapshot.load().floating;
        // A connection left to another node has not ended: that node reports its end.
        let is_own = shared.ha.has(floating, from_words(key.destination));
        match record.filter(|_| is_own) {
            Some(record) => {
                Message::ServiceFlow(Box::new(record)).encode(bytes);
                sent.insert(*key);
                peer.flows_sent.inc();
            }
            None if sent.remove(key) && is_own => {
                Message::ServiceEnd(Box::new(*key)).encode(bytes);
                peer.ends_sent.inc();
            }
            None => {}
        }
    }
}

/// The initial sending of all connections.
pub(super) struct ServicePass {
    since: Instant,
    /// Groups whose connections are awaited.
    wanted: Vec<String>,
    /// Groups whose connections are being sent, once they are known.
    groups: Option<Vec<String>>,
}

impl ServicePass {
    pub(super) fn begin(changes: &ServiceChanges, wanted: &[String]) -> Self {
        changes.dirty.borrow_mut().clear();
        changes.sent.borrow_mut().clear();
        Self {
            since: Instant::now(),
            wanted: wanted.to_vec(),
            groups: None,
        }
    }

    /// Marks all connections for sending, as soon as they are known. Returns whether they are known, or never will be.
    pub(super) fn advance(&mut self, node: &Node, changes: &ServiceChanges) -> bool {
        let services = &node.shared.sync.services;
        if self.groups.is_some() || !services.is_wanted() {
            return true;
        }
        let is_late = self.since.elapsed() > FIRST_SWEEP_TIMEOUT;
        let owned = node.shared.ha.owned();
        self.wanted.retain(|group| owned.contains(group));
        if let Some((all, groups)) = services.all()
            && (is_late || self.wanted.iter().all(|group| groups.contains(group)))
        {
            changes.add(&all);
            self.groups = Some(groups);
            return true;
        }
        is_late
    }

    /// Ends the pass. `own` are the groups that the node has had the whole time.
    pub(super) fn end(self, own: &[String], bytes: &mut Vec<u8>) {
        if let Some(mut groups) = self.groups {
            groups.retain(|group| own.contains(group));
            Message::ServiceFullEnd(groups).encode(bytes);
        }
    }
}
