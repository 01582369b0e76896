//! Flows of other nodes in the flow table: taken over when their virtual addresses come to this node, left to others
//! when they go.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use signalbox_common::cut::CutFlow;
use signalbox_common::cut::flow::{IS_REPLICA, RESYNC, SOCKETS_CLOSED, state};

use super::FlowGc;
use crate::datapath::worker::WorkerCommand;
use crate::kernel::address::from_words;
use crate::state::ha::OwnedGroups;
use crate::state::outcome::FlowEnd;

/// Time without packets after which a flow of another node that stray packets have promoted is a shadow again.
const STRAY_TTL: Duration = Duration::from_secs(2);

/// Groups of virtual addresses that this node had in the last pass; `None` before the first report.
pub(super) type FormerGroups = Option<Arc<OwnedGroups>>;

impl FlowGc {
    /// Whether this node has a flow's virtual address: only then it ages the flow, and resets it.
    pub(super) fn owns(&self, flow: &CutFlow) -> bool {
        let floating = &self.shared.snapshot.load().floating;
        self.shared.ha.is_responsible(floating, from_words(flow.vip))
    }

    /// Leaves the flows of groups that this node has lost since `before` to others. Returns true if something has
    /// changed: all flows are examined then, and shadows of groups that it has got are taken over.
    pub(super) fn follow_ownership(&self, before: &mut FormerGroups) -> bool {
        let now = self.shared.ha.is_reported().then(|| self.shared.ha.owned());
        if *before == now {
            return false;
        }
        *before = now;
        let cut = (0..self.cut.table.len()).filter(|&index| self.cut.table.state(index) == state::CUT);
        let left = cut.filter(|&index| self.leave(index)).count();
        if left > 0 {
            tracing::info!(
                flows = left,
                "Flows are left to the nodes that have their virtual addresses now."
            );
        }
        true
    }

    /// Takes a shadow over whose virtual address is this node's: from now on it is counted, and aged.
    pub(super) fn take_over(&self, index: u32, shadow: &CutFlow) {
        let floating = &self.shared.snapshot.load().floating;
        if self.shared.ha.has(floating, from_words(shadow.vip)) && self.cut.promote(index) {
            let promoted = self.cut.table.read(index);
            self.adopt_replica(index, &promoted);
        }
    }

    /// Decides about a flow that packets have promoted: it is this node's, or they were late ones, from before its
    /// address went to another node.
    pub(super) fn settle_replica(&self, index: u32, flow: &CutFlow, idle: Duration) {
        if self.owns(flow) {
            self.adopt_replica(index, flow);
        } else if idle >= STRAY_TTL && !flow.ended() {
            self.cut.demote(index);
        }
    }

    /// Counts a flow that packets or [`Self::take_over`] have promoted, and has the other nodes told of it.
    pub(super) fn adopt_replica(&self, index: u32, flow: &CutFlow) {
        self.adopt_flow(index, flow, &self.shared.snapshot.load());
        self.cut.table.changes.add(index);
        self.shared.sync.promoted.inc();
    }

    /// Leaves a flow to the node that has its virtual address now. False if it is this node's.
    fn leave(&self, index: u32) -> bool {
        let flow = self.cut.table.read(index);
        if flow.handoff_state != SOCKETS_CLOSED || flow.ended() || self.owns(&flow) {
            return false;
        }
        self.count_bytes(index, &flow);
        self.release(index, &flow, FlowEnd::Moved);
        self.cut.table.set_marks(index, IS_REPLICA);
        self.cut.demote(index)
    }

    /// Removes flows of which their node says that they have ended: shadows, and those of which no packet has come
    /// here. Others have been promoted by their packets, and end by them; so do all flows of addresses that this node
    /// has.
    pub fn end_replicas(&self, indices: &[u32]) {
        let _pass = self.pass_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let floating = self.shared.snapshot.load().floating.clone();
        let mut gone = Vec::new();
        for &index in indices {
            let flow = self.cut.table.read(index);
            if self.shared.ha.has(&floating, from_words(flow.vip)) {
                continue;
            }
            let is_silent = flow.dirs.iter().all(|dir| dir.flags & RESYNC != 0);
            let is_over = match flow.state {
                state::SHADOW => self.cut.retire_shadow(index),
                state::CUT => is_silent && self.cut.demote(index) && self.cut.retire_shadow(index),
                _ => false,
            };
            if is_over {
                self.release(index, &flow, FlowEnd::Moved);
                gone.push((index, self.port_of(&flow)));
            }
        }
        self.free_entries(&mut gone);
    }

    /// Removes all shadows: this process does not replicate.
    pub fn drop_shadows(&self) {
        let is_shadow = |index: &u32| self.cut.table.state(*index) == state::SHADOW;
        let shadows: Vec<_> = (0..self.cut.table.len()).filter(is_shadow).collect();
        self.end_replicas(&shadows);
    }

    /// Has the workers leave the source ports of shadows alone, as far as they are this node's.
    pub fn reserve_ports(&self, indices: &[u32]) {
        let ports = indices.iter().map(|&index| self.port_of(&self.cut.table.read(index)));
        for (worker, ports) in self.workers.iter().zip(self.ports_by_worker(ports)) {
            if !ports.is_empty() {
                worker.send(WorkerCommand::Reserve(ports));
            }
        }
    }
}
