//! Flows of other nodes in the flow table. This node takes them over when it gets their virtual addresses, and leaves
//! its own to other nodes when it loses an address.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use signalbox_common::cut::CutFlow;
use signalbox_common::cut::flow::{HAS_ENDED_ELSEWHERE, IS_REPLICA, RESYNC, SOCKETS_CLOSED, state};
use signalbox_common::net::seq;

use super::FlowGc;
use crate::datapath::worker::WorkerCommand;
use crate::kernel::address::from_words;
use crate::kernel::cut::table::{tick, ticks_of};
use crate::state::ha::OwnedGroups;
use crate::state::outcome::FlowEnd;

/// Time after a change of owner in which existing shadows, and those that the former owner reported last, are taken
/// over.
const TAKE_OVER_TIMEOUT: Duration = Duration::from_secs(10);

/// Time without packets after which another node's flow that stray packets have promoted becomes a shadow again.
const STRAY_TTL: Duration = Duration::from_secs(2);

/// Groups of virtual addresses that this node had in the last pass; `None` before the first report.
pub(super) type FormerGroups = Option<Arc<OwnedGroups>>;

impl FlowGc {
    /// Whether this node has a flow's virtual address. Only then does it age the flow and reset it.
    pub(super) fn owns(&self, flow: &CutFlow) -> bool {
        let floating = &self.shared.snapshot.load().floating;
        self.shared.ha.is_responsible(floating, from_words(flow.vip))
    }

    /// Groups whose flows all belong to this node: their shadows have been taken over.
    pub fn taken_over(&self) -> Arc<OwnedGroups> {
        self.taken_over.load_full()
    }

    /// Leaves the flows of groups that this node has lost since `before` to other nodes. Returns true if a group has
    /// changed: all flows are examined then, and shadows of new groups are taken over.
    pub(super) fn follow_ownership(&self, before: &mut FormerGroups) -> bool {
        let now = self.shared.ha.is_reported().then(|| self.shared.ha.owned());
        if *before == now {
            return false;
        }
        let is_new = |group: &String| before.as_ref().is_none_or(|before| !before.contains(group));
        if now.iter().any(|now| now.iter().any(is_new)) {
            self.takes_over_until
                .store(tick().wrapping_add(ticks_of(TAKE_OVER_TIMEOUT)), Relaxed);
        }
        *before = now;
        let cut = (0..self.cut.table.len()).filter(|&index| self.cut.table.state(index) == state::CUT);
        let left = cut
            .filter(|&index| self.leave(index, &self.cut.table.read(index)))
            .count();
        if left > 0 {
            tracing::info!(
                flows = left,
                "Flows are left to the nodes that have their virtual addresses now."
            );
        }
        true
    }

    /// Takes over a shadow whose virtual address has moved to this node: from now on the flow is counted and aged.
    /// Later reports about this node's addresses do not make a flow its own; only packets do.
    pub(super) fn take_over(&self, index: u32, shadow: &CutFlow) {
        let floating = &self.shared.snapshot.load().floating;
        let is_late = seq::after(tick(), self.takes_over_until.load(Relaxed));
        if !is_late && self.shared.ha.has(floating, from_words(shadow.vip)) && self.cut.promote(index) {
            let promoted = self.cut.table.read(index);
            self.adopt_replica(index, &promoted);
        }
    }

    /// Decides about a flow that packets have promoted. Either it belongs to this node, or the packets were late, from
    /// before its address moved to another node. Returns true if the flow's entry is to be freed.
    pub(super) fn settle_replica(&self, index: u32, flow: &CutFlow, idle: Duration) -> bool {
        if self.owns(flow) {
            self.adopt_replica(index, flow);
        } else if idle >= STRAY_TTL && !flow.ended() && self.cut.demote(index) {
            return flow.marks & HAS_ENDED_ELSEWHERE != 0 && self.cut.retire_shadow(index);
        }
        false
    }

    /// Counts a flow that packets or [`Self::take_over`] have promoted, and reports it to the other nodes.
    pub(super) fn adopt_replica(&self, index: u32, flow: &CutFlow) {
        self.adopt_flow(index, flow, &self.shared.snapshot.load());
        self.cut.table.changes.add(index);
        self.shared.sync.promoted.inc();
    }

    /// Leaves a flow to the node that now has its virtual address. False if that is this node, or unknown.
    pub(super) fn leave(&self, index: u32, flow: &CutFlow) -> bool {
        let is_carried = flow.handoff_state == SOCKETS_CLOSED && !flow.ended();
        if !self.shared.ha.is_reported() || !is_carried || self.owns(flow) {
            return false;
        }
        self.count_bytes(index, flow);
        self.release(index, flow, FlowEnd::Moved);
        self.cut.table.set_marks(index, IS_REPLICA);
        self.cut.demote(index)
    }

    /// Removes flows that their node reports as ended: shadows, and flows without a packet here. Flows that packets
    /// have promoted, or that this node has taken over, end by their own packets.
    pub fn end_replicas(&self, indices: &[u32]) {
        let _pass = self.pass_lock.lock();
        if self.is_retired() {
            return;
        }
        let snapshot = self.shared.snapshot.load_full();
        let mut gone = Vec::new();
        for &index in indices {
            let flow = self.cut.table.read(index);
            let is_owned = self.shared.ha.has(&snapshot.floating, from_words(flow.vip));
            let is_silent = flow.dirs.iter().all(|dir| dir.flags & RESYNC != 0);
            let is_over = match flow.state {
                state::SHADOW => self.cut.retire_shadow(index),
                state::CUT if is_owned => false,
                // This node had the flow, and does not know yet that it has lost it.
                state::CUT if flow.marks & IS_REPLICA == 0 => self.leave(index, &flow) && self.cut.retire_shadow(index),
                state::CUT if is_silent => self.cut.demote(index) && self.cut.retire_shadow(index),
                state::CUT => {
                    self.cut.table.add_mark(index, HAS_ENDED_ELSEWHERE);
                    false
                }
                _ => false,
            };
            if is_over {
                self.release(index, &flow, FlowEnd::Moved);
                gone.push((index, self.port_of(&flow)));
            }
        }
        self.free_entries(&mut gone);
    }

    /// Removes all shadows, because this process does not replicate.
    pub fn drop_shadows(&self) {
        let is_shadow = |index: &u32| self.cut.table.state(*index) == state::SHADOW;
        let shadows: Vec<_> = (0..self.cut.table.len()).filter(is_shadow).collect();
        self.end_replicas(&shadows);
    }

    /// Tells the workers not to use the source ports of shadows, as far as they are this node's ports.
    pub fn reserve_ports(&self, indices: &[u32]) {
        let flows = indices.iter().map(|&index| self.cut.table.read(index));
        let ports = flows
            .filter(|flow| matches!(flow.state, state::SHADOW | state::CUT))
            .map(|flow| self.port_of(&flow));
        for (worker, ports) in self.workers.iter().zip(self.ports_by_worker(ports)) {
            if !ports.is_empty() {
                worker.send(WorkerCommand::Reserve(ports));
            }
        }
    }
}
