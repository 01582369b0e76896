//! Replication of layer-4 services' connections: what this node is told of them, and whom it tells.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use signalbox_common::net::Key;
use signalbox_core::sync::{Message, ServiceRecord};

use super::Node;
use crate::kernel::address::from_words;
use crate::state::service_flows::ServiceKeys;
use crate::state::sync::{PeerState, Rejection};

/// Longest time that a node is waited for that has not found its own connections yet.
const FIRST_SWEEP_TIMEOUT: Duration = Duration::from_secs(5);
/// Most connections that are looked up at once.
const MAX_LOOKUPS: usize = 256;

/// Table of services' connections, as replication needs it.
pub trait ServiceTable: Send + Sync {
    /// Begins to look for this node's connections at once, and often.
    fn begin(&self);

    /// Whether connections can be entered: the services are in the kernel.
    fn is_ready(&self) -> bool;

    /// Most connections of other nodes that the table has room for.
    fn max_replicas(&self) -> u32;

    /// Enters a connection that another node carries, or brings it up to date.
    fn enter(&self, record: &ServiceRecord) -> Result<(), Rejection>;

    /// Removes a connection that has ended at another node, by the key of its client's direction.
    fn end(&self, key: &Key);

    /// Removes the connections of these groups but those that are known.
    fn end_others(&self, groups: &[String], known: &ServiceKeys);
}

/// Connections that other nodes have told of, by node.
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
            node.services.enter(record)
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
        node.services.end(key);
        self.forget(node, key);
    }

    /// Ends the connections of a peer's groups that were not among all that it has sent.
    pub(super) fn end_full(&mut self, node: &Node, peer: &PeerState, seen: &ServiceKeys, groups: &[String]) {
        let owned = node.shared.ha.owned();
        let mut groups = groups.to_vec();
        groups.retain(|group| !owned.contains(group));
        node.services.end_others(&groups, seen);
        // Whoever told of the others: the peer has all of its groups' connections.
        self.retain(node, |name, key| {
            let is_theirs = group_of(node, key).is_some_and(|group| groups.contains(&group));
            !is_own(node, key) && (!is_theirs || (name == peer.node && seen.contains(key)))
        });
    }

    /// Forgets the connections of addresses that have come to this node.
    pub(super) fn forget_own(&mut self, node: &Node) {
        self.retain(node, |_, key| !is_own(node, key));
    }

    /// Forgets a connection, whoever has told of it.
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

/// Has the state of a peer say how many of its connections are known.
fn count(node: &Node, name: &str, known: &ServiceKeys) {
    if let Some(peer) = node.peers.iter().find(|peer| peer.name == *name) {
        peer.state.service_flows.store(known.len() as u64, Relaxed);
    }
}

/// Whether this node has the address of a connection: nobody else has a say in it.
fn is_own(node: &Node, key: &Key) -> bool {
    let floating = &node.shared.snapshot.load().floating;
    node.shared.ha.has(floating, from_words(key.destination))
}

fn group_of(node: &Node, key: &Key) -> Option<String> {
    let floating = &node.shared.snapshot.load().floating;
    let group = floating.group_of(from_words(key.destination))?;
    floating.name_of(group).map(str::to_owned)
}

/// Changes of connections that a peer has to be told of, and those that it has been told of.
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
        // What is left to another node has not ended: that node says so when it does.
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

/// The sending of all connections at the beginning.
pub(super) struct ServicePass {
    since: Instant,
    /// Groups whose connections are waited for.
    wanted: Vec<String>,
    /// Groups whose connections are among those being sent, once they are known.
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

    /// Marks all connections for sending, as soon as they are known. Returns whether they are, or will not be.
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

    /// Ends the pass; `own` are the groups that the node has had all the while.
    pub(super) fn end(self, own: &[String], bytes: &mut Vec<u8>) {
        if let Some(mut groups) = self.groups {
            groups.retain(|group| own.contains(group));
            Message::ServiceFullEnd(groups).encode(bytes);
        }
    }
}
