//! The flows of other nodes in this node's flow table, by sending node and its number for the flow.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher as _;
use std::sync::Arc;

use foldhash::fast::FixedState;
use signalbox_common::cut::CutFlow;
use signalbox_common::cut::flow::{IS_REPLICA, SOCKETS_CLOSED, state};
use signalbox_core::availability::sync::{FlowRecord, Name};

use super::Node;
use super::connection::LinkError;
use super::interfaces::ShadowInterfaces;
use super::told::ToldFlows;
use crate::kernel::Cut;
use crate::kernel::address::from_words;
use crate::kernel::cut::free_entry::FreeEntrySearch;
use crate::kernel::cut::shadow::ShadowPlace;
use crate::state::service_flows::ServiceKeys;
use crate::state::sync::{PeerState, Rejection};

/// Maximum number of names on one connection. Flows refer to hosts, routes and listeners.
const MAX_NAMES: usize = 32_768;
/// Kinds of names that flows refer to.
const NAME_KINDS: [&str; 3] = ["host", "listener", "route"];
/// Largest number that a flow may have at its sender, because no flow table is larger.
const MAX_SENDER_INDEX: u32 = 1 << 24;

/// Whether all addresses of a flow move: no other flow could or should be carried here.
fn moves(node: &Node, flow: &CutFlow) -> bool {
    let floating = &node.shared.snapshot.load().floating;
    floating.group_of(from_words(flow.vip)).is_some() && floating.moves(from_words(flow.local))
}

/// Whether this node carries a flow, to an address that it has.
fn is_own(node: &Node, flow: &CutFlow) -> bool {
    let floating = &node.shared.snapshot.load().floating;
    flow.state == state::CUT && flow.marks & IS_REPLICA == 0 && node.shared.ha.has(floating, from_words(flow.vip))
}

/// Identity of a flow, independent of its entry.
fn identity(flow: &CutFlow) -> u64 {
    FixedState::default().hash_one((
        (flow.client, flow.vip, flow.ports_a),
        (flow.host_addr, flow.local, flow.ports_b),
    ))
}

/// Entry of a flow in this node's table.
#[derive(Clone, Copy)]
pub(super) struct Placed {
    pub(super) index: u32,
    /// True for a new shadow, whose source port must be reserved.
    pub(super) is_new: bool,
    pub(super) identity: u64,
}

impl Placed {
    /// Returns the entry, if it still belongs to this flow.
    fn current(&self, cut: &Cut) -> Option<u32> {
        (identity(&cut.table.read(self.index)) == self.identity).then_some(self.index)
    }
}

/// Flows of all other nodes.
pub(super) struct Replicas {
    search: FreeEntrySearch,
    interfaces: ShadowInterfaces,
    told: ToldFlows,
}

/// A name that the sender of a connection has given.
enum SessionName {
    /// No accepted flow has referred to it yet.
    Unused(Vec<String>),
    Numbered(u32),
}

/// Names from the sender of a connection, and whether its full pass is in progress.
#[derive(Default)]
pub(super) struct Session {
    names: HashMap<u32, SessionName, FixedState>,
    is_full_pass: bool,
    /// Connections of layer-4 services in the current full pass.
    pub(super) seen_services: Option<ServiceKeys>,
}

impl Session {
    /// Adds a name. False for a name that flows cannot have, or if there are too many.
    pub(super) fn add_name(&mut self, name: Name) -> bool {
        let is_known_kind = name
            .parts
            .first()
            .is_some_and(|kind| NAME_KINDS.contains(&kind.as_str()));
        if !is_known_kind || self.names.len() >= MAX_NAMES {
            return false;
        }
        self.names.insert(name.number, SessionName::Unused(name.parts));
        true
    }

    /// Returns this node's number of a name; 0 if there is no name, or no room for it. The flow is carried then, but
    /// not counted for it.
    fn own_number(&mut self, cut: &Cut, number: u32) -> u32 {
        let Some(name) = self.names.get_mut(&number) else {
            return 0;
        };
        if let SessionName::Unused(parts) = name {
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            *name = SessionName::Numbered(cut.names.number(&parts).unwrap_or_default());
        }
        match name {
            SessionName::Numbered(number) => *number,
            SessionName::Unused(_) => 0,
        }
    }
}

impl Replicas {
    pub(super) fn new(vip_interface: Option<String>) -> Self {
        Self {
            search: FreeEntrySearch::default(),
            interfaces: ShadowInterfaces::new(vip_interface),
            told: ToldFlows::default(),
        }
    }

    /// Begins a full pass of a peer: its numbers now belong to the flows that it sends from here on.
    pub(super) fn begin_full(&mut self, peer: &PeerState, session: &mut Session) {
        self.told.forget_all(peer);
        session.is_full_pass = true;
    }

    /// Enters a flow. Returns its entry, if there is one.
    pub(super) fn add(
        &mut self,
        node: &Node,
        peer: &Arc<PeerState>,
        session: &mut Session,
        record: &FlowRecord,
    ) -> Result<Option<Placed>, LinkError> {
        if record.index >= MAX_SENDER_INDEX {
            return Err(LinkError::Unexpected);
        }
        let mut shadow = record.shadow(Node::record_clock());
        if !moves(node, &shadow) {
            peer.rejected[Rejection::OtherAddresses as usize].inc();
            return Ok(None);
        }
        shadow.host = session.own_number(&node.cut, record.host);
        shadow.route = session.own_number(&node.cut, record.route);
        let listener = session.own_number(&node.cut, u32::from(record.listener));
        shadow.listener = u16::try_from(listener).unwrap_or_default();
        let host = from_words(shadow.host_addr);
        shadow.dirs[0].hop_ifindex = self.interfaces.interface_to_host(host);
        shadow.dirs[1].hop_ifindex = self.interfaces.interface_to_clients(host.is_ipv4());
        let placed = self.place(node, peer, &shadow)?;
        let former = self.told.replace(peer, record.index, placed);
        if let Some(placed) = placed
            && !is_own(node, &node.cut.table.read(placed.index))
        {
            self.told.count(peer, placed.index);
        }
        // The sender has reused the number for another flow, without a message about the earlier one's end.
        let former = former.filter(|former| placed.is_none_or(|placed| placed.identity != former.identity));
        if let Some(former) = former.and_then(|former| former.current(&node.cut)) {
            node.flow_gc.end_replicas(&[former]);
        }
        Ok(placed)
    }

    /// Handles a changed entry: a flow that has ended, or is now this node's, is no longer another node's shadow.
    pub(super) fn note_change(&mut self, node: &Node, index: u32) {
        if !self.told.has(index) {
            return;
        }
        let flow = node.cut.table.read(index);
        if !matches!(flow.state, state::SHADOW | state::CUT) {
            self.told.forget_entry(index);
        } else if is_own(node, &flow) {
            self.told.uncount(index);
        }
    }

    /// Finds or makes the entry of a shadow.
    fn place(&mut self, node: &Node, peer: &PeerState, shadow: &CutFlow) -> std::io::Result<Option<Placed>> {
        let mut place = node.cut.install_shadow(&mut self.search, shadow)?;
        if let ShadowPlace::Occupied(other) = place {
            // An older flow with the same client's port, or the same port to the host: it is about to end.
            node.flow_gc.end_replicas(&[other]);
            place = node.cut.install_shadow(&mut self.search, shadow)?;
        }
        let (index, is_new) = match place {
            ShadowPlace::New(index) => (index, true),
            ShadowPlace::Known(index) => (index, false),
            ShadowPlace::Occupied(_) => {
                peer.rejected[Rejection::Occupied as usize].inc();
                return Ok(None);
            }
            ShadowPlace::Full => {
                peer.rejected[Rejection::NoRoom as usize].inc();
                return Ok(None);
            }
        };
        Ok(Some(Placed {
            index,
            is_new,
            identity: identity(shadow),
        }))
    }

    /// Forgets an ended flow, and returns its entry.
    pub(super) fn end(&mut self, node: &Node, peer: &PeerState, index: u32) -> Option<u32> {
        self.told.replace(peer, index, None)?.current(&node.cut)
    }

    /// Ends the full pass of a peer that has these groups of virtual addresses. Returns the entries of flows to them
    /// that were not sent in it. It does not matter which node sent them before, or to which process of this node.
    pub(super) fn end_full(
        &mut self,
        node: &Node,
        peer: &PeerState,
        session: &mut Session,
        groups: &[String],
    ) -> Vec<u32> {
        if !std::mem::take(&mut session.is_full_pass) {
            return Vec::new();
        }
        let snapshot = node.shared.snapshot.load();
        let table = &node.cut.table;
        let told = self.told.of(peer);
        let alive: HashSet<u32, FixedState> = told.filter_map(|placed| placed.current(&node.cut)).collect();
        let is_candidate =
            |index: &u32| matches!(table.state(*index), state::SHADOW | state::CUT) && !alive.contains(index);
        let is_over = |index: &u32| {
            let flow = table.read(*index);
            let group = snapshot.floating.group_of(from_words(flow.vip));
            let name = group.and_then(|group| snapshot.floating.name_of(group));
            flow.handoff_state == SOCKETS_CLOSED && name.is_some_and(|name| groups.iter().any(|known| known == name))
        };
        (0..table.len()).filter(is_candidate).filter(is_over).collect()
    }
}
