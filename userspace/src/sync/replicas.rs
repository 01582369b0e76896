//! The flows of other nodes in this node's flow table, by the node that sends them and its number of the flow.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use foldhash::fast::FixedState;
use signalbox_common::cut::CutFlow;
use signalbox_common::cut::flow::state;
use signalbox_core::sync::{FlowRecord, Name};

use super::Node;
use super::interfaces::ShadowInterfaces;
use crate::kernel::Cut;
use crate::kernel::address::from_words;
use crate::kernel::cut::shadow::{ShadowCursor, ShadowPlace};
use crate::state::sync::{PeerState, Rejection};

/// Most names that one connection may give: flows refer to hosts, routes and listeners.
const MAX_NAMES: usize = 32_768;
/// Kinds of names that flows refer to.
const NAME_KINDS: [&str; 3] = ["host", "listener", "route"];

/// Whether a flow is one between addresses that move: no other could be carried here, or should be.
fn moves(node: &Node, flow: &CutFlow) -> bool {
    let floating = &node.shared.snapshot.load().floating;
    floating.group_of(from_words(flow.vip)).is_some() && floating.moves(from_words(flow.local))
}

/// Flows of all other nodes.
pub(super) struct Replicas {
    cursor: ShadowCursor,
    interfaces: ShadowInterfaces,
    /// Flows by node.
    of_peers: HashMap<String, HashMap<u32, u32, FixedState>>,
}

/// Names that the sender of a connection has given, and what it has sent of all its flows.
#[derive(Default)]
pub(super) struct Session {
    names: HashMap<u32, u32, FixedState>,
    /// Flows of the full pass that is under way.
    seen: Option<HashSet<u32, FixedState>>,
}

impl Session {
    /// Takes a name. False for one that flows do not have, or for too many.
    pub(super) fn add_name(&mut self, cut: &Cut, name: &Name) -> bool {
        let is_known_kind = name
            .parts
            .first()
            .is_some_and(|kind| NAME_KINDS.contains(&kind.as_str()));
        if !is_known_kind || self.names.len() >= MAX_NAMES {
            return false;
        }
        let parts: Vec<&str> = name.parts.iter().map(String::as_str).collect();
        // Without room for the name the flow counts for nobody, and is carried all the same.
        self.names
            .insert(name.number, cut.names.number(&parts).unwrap_or_default());
        true
    }

    fn own_number(&self, number: u32) -> u32 {
        self.names.get(&number).copied().unwrap_or_default()
    }

    pub(super) fn begin_full(&mut self) {
        self.seen = Some(HashSet::default());
    }
}

impl Replicas {
    pub(super) fn new(vip_interface: Option<String>) -> Self {
        Self {
            cursor: ShadowCursor::default(),
            interfaces: ShadowInterfaces::new(vip_interface),
            of_peers: HashMap::new(),
        }
    }

    /// Enters a flow. Returns the entry of a new shadow, whose source port is to be left alone.
    pub(super) fn add(
        &mut self,
        node: &Node,
        peer: &PeerState,
        session: &mut Session,
        record: &FlowRecord,
    ) -> std::io::Result<Option<u32>> {
        if let Some(seen) = &mut session.seen {
            seen.insert(record.index);
        }
        let mut shadow = record.shadow(Node::record_clock());
        if !moves(node, &shadow) {
            peer.rejected[Rejection::OtherAddresses as usize].inc();
            return Ok(None);
        }
        shadow.host = session.own_number(record.host);
        shadow.route = session.own_number(record.route);
        shadow.listener = u16::try_from(session.own_number(u32::from(record.listener))).unwrap_or_default();
        let host = from_words(shadow.host_addr);
        shadow.dirs[0].hop_ifindex = self.interfaces.interface_to_host(host);
        shadow.dirs[1].hop_ifindex = self.interfaces.interface_to_clients(host.is_ipv4());
        let flows = self.of_peers.entry(peer.node.clone()).or_default();
        let mut placed = node.cut.install_shadow(&mut self.cursor, &shadow)?;
        if let ShadowPlace::Occupied(other) = placed {
            // An older flow with the same client's port, or from the same port to the host: its end is under way.
            node.flow_gc.end_replicas(&[other]);
            placed = node.cut.install_shadow(&mut self.cursor, &shadow)?;
        }
        let (place, is_new) = match placed {
            ShadowPlace::New(index) => (Some(index), true),
            ShadowPlace::Known(index) => (Some(index), false),
            ShadowPlace::Occupied(_) => (None, false),
            ShadowPlace::Full => {
                peer.rejected[Rejection::NoRoom as usize].inc();
                (None, false)
            }
        };
        let former = match place {
            Some(place) => flows.insert(record.index, place),
            None => flows.remove(&record.index),
        };
        // The sender has given the number to another flow, and the former one's end was not worth a message.
        if let Some(former) = former.filter(|former| place != Some(*former)) {
            node.flow_gc.end_replicas(&[former]);
        }
        peer.shadows.store(flows.len() as u64, Relaxed);
        Ok(place.filter(|_| is_new))
    }

    /// Forgets a flow that has ended; returns its entry.
    pub(super) fn end(&mut self, peer: &PeerState, session: &mut Session, index: u32) -> Option<u32> {
        if let Some(seen) = &mut session.seen {
            seen.remove(&index);
        }
        let flows = self.of_peers.get_mut(&peer.node)?;
        let place = flows.remove(&index);
        peer.shadows.store(flows.len() as u64, Relaxed);
        place
    }

    /// Ends the full pass of a peer that has these groups of virtual addresses: returns the entries of shadows of such
    /// flows that were not among those sent, whoever has sent them before, to whatever process of this node.
    pub(super) fn end_full(
        &mut self,
        node: &Node,
        peer: &PeerState,
        session: &mut Session,
        groups: &[String],
    ) -> Vec<u32> {
        let Some(seen) = session.seen.take() else {
            return Vec::new();
        };
        let snapshot = node.shared.snapshot.load();
        let is_of_groups = |place: u32| {
            let vip = from_words(node.cut.table.read(place).vip);
            let group = snapshot.floating.group_of(vip);
            let name = group.and_then(|group| snapshot.floating.name_of(group));
            name.is_some_and(|name| groups.iter().any(|known| known == name))
        };
        let flows = self.of_peers.entry(peer.node.clone()).or_default();
        let alive: HashSet<u32, FixedState> = seen.iter().filter_map(|index| flows.get(index).copied()).collect();
        flows.retain(|_, place| alive.contains(place) || !is_of_groups(*place));
        peer.shadows.store(flows.len() as u64, Relaxed);
        let is_over = |place: &u32| {
            node.cut.table.state(*place) == state::SHADOW && !alive.contains(place) && is_of_groups(*place)
        };
        (0..node.cut.table.len()).filter(is_over).collect()
    }

    /// Makes room for the flows of a peer.
    pub(super) fn begin(&mut self, peer: &Arc<PeerState>) {
        self.of_peers.entry(peer.node.clone()).or_default();
    }
}
