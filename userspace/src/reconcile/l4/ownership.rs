//! Owners of services' connections, when virtual addresses and their connections move between nodes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use signalbox_common::l4::abi::state;
use signalbox_common::l4::{L4Flow, mode};
use signalbox_common::net::Key;
use signalbox_common::net::ip::TCP;
use signalbox_core::availability::ha::floating::FloatingSources;

use crate::kernel::address::from_words;
use crate::state::{Shared, Snapshot};

/// Node that ages, counts and ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowOwner {
    /// This node: the connection cannot move.
    Fixed,
    /// This node, which has had the connection's addresses for this time.
    Own(Duration),
    /// Another node, which reports when the connection has ended.
    Other,
}

impl FlowOwner {
    /// Maximum time that a connection can have been idle. A node does not see the packets that another node carries.
    pub(super) const fn max_idle(self) -> Duration {
        match self {
            Self::Own(since) => since,
            Self::Fixed | Self::Other => Duration::MAX,
        }
    }
}

/// Times since when this node has had groups of virtual addresses.
pub(super) type OwnedSince = HashMap<String, Instant>;

/// Groups that this node has at one moment.
pub(super) struct Ownership {
    snapshot: Arc<Snapshot>,
    /// For each group: the time for which this node has had it. Empty if connections are not replicated.
    groups: Vec<Option<Duration>>,
}

impl Ownership {
    /// Checks which groups this node has. `since` is kept from one check to the next.
    pub(super) fn new(shared: &Shared, since: &mut OwnedSince) -> Self {
        let snapshot = shared.snapshot.load_full();
        if !shared.sync.services.is_wanted() {
            return Self {
                snapshot,
                groups: Vec::new(),
            };
        }
        let (now, owned) = (Instant::now(), shared.ha.owned());
        let is_never_reported = shared.ha.is_never_reported();
        let has = |name: &str| is_never_reported || owned.contains(name);
        since.retain(|name, _| has(name));
        let mut group = |index: usize| {
            let name = snapshot.floating.name_of(index).filter(|name| has(name))?;
            let first = *since.entry(name.to_owned()).or_insert(now);
            Some(now.duration_since(first))
        };
        let groups = (0..snapshot.floating.group_count()).map(&mut group).collect();
        Self { snapshot, groups }
    }

    /// Returns the owner of an established flow, by either of its directions.
    pub(super) fn owner(&self, key: &Key, flow: &L4Flow) -> FlowOwner {
        if self.groups.is_empty() {
            return FlowOwner::Fixed;
        }
        match moving_group(&self.snapshot.floating, key, flow) {
            None => FlowOwner::Fixed,
            Some(group) => match self.groups.get(group) {
                Some(Some(since)) => FlowOwner::Own(*since),
                _ => FlowOwner::Other,
            },
        }
    }

    /// Names of the groups that this node has.
    pub(super) fn own_groups(&self) -> Vec<String> {
        let all = self.groups.iter().enumerate().filter(|(_, since)| since.is_some());
        all.filter_map(|(group, _)| self.snapshot.floating.name_of(group).map(str::to_owned))
            .collect()
    }
}

/// Returns whether an entry is for the direction from the host.
pub(super) fn is_reply(flow: &L4Flow) -> bool {
    flow.state & state::REPLY != 0
}

/// Returns the group that a flow moves with: that of its virtual address, if its source address towards the host
/// belongs to the group too.
pub(super) fn moving_group(floating: &FloatingSources, key: &Key, flow: &L4Flow) -> Option<usize> {
    if key.protocol != TCP || flow.mode != mode::NAT {
        return None;
    }
    let (vip, source) = if is_reply(flow) {
        (flow.source, key.destination)
    } else {
        (key.destination, flow.source)
    };
    let group = floating.group_of(from_words(vip))?;
    floating.is_source_of(group, from_words(source)).then_some(group)
}
