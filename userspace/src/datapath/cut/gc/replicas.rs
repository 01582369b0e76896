//! Flows of other nodes in the flow table: taken over when their virtual addresses come to this node, left to others
//! when they go.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
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

/// Time behind a change of owner in which shadows are taken over that are there, or that its former owner has told of in
/// its last moment.
const TAKE_OVER_TIMEOUT: Duration = Duration::from_secs(10);

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

    /// Groups whose flows are all this node's: their shadows have been taken over.
    pub fn taken_over(&self) -> Arc<OwnedGroups> {
        self.taken_over.load_full()
    }

    /// Leaves the flows of groups that this node has lost since `before` to others. Returns true if something has
    /// changed: all flows are examined then, and shadows of groups that it has got are taken over.
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

    /// Takes a shadow over whose virtual address has come to this node: from now on it is counted, and aged. What others
    /// tell of this node's addresses later is none of its flows, unless packets say so.
    pub(super) fn take_over(&self, index: u32, shadow: &CutFlow) {
        let floating = &self.shared.snapshot.load().floating;
        let is_late = seq::after(tick(), self.takes_over_until.load(Relaxed));
        if !is_late && self.shared.ha.has(floating, from_words(shadow.vip)) && self.cut.promote(index) {
            let promoted = self.cut.table.read(index);
            self.adopt_replica(index, &promoted);
        }
    }

    /// Decides about a flow that packets have promoted: it is this node's, or they were late ones, from before its
    /// address went to another node. Returns true if the flow's entry is to be freed.
    pub(super) fn settle_replica(&self, index: u32, flow: &CutFlow, idle: Duration) -> bool {
        if self.owns(flow) {
            self.adopt_replica(index, flow);
        } else if idle >= STRAY_TTL && !flow.ended() && self.cut.demote(index) {
            return flow.marks & HAS_ENDED_ELSEWHERE != 0 && self.cut.retire_shadow(index);
        }
        false
    }

    /// Counts a flow that packets or [`Self::take_over`] have promoted, and has the other nodes told of it.
    pub(super) fn adopt_replica(&self, index: u32, flow: &CutFlow) {
        self.adopt_flow(index, flow, &self.shared.snapshot.load());
        self.cut.table.changes.add(index);
        self.shared.sync.promoted.inc();
    }

    /// Leaves a flow to the node that has its virtual address now. False if it is this node's, or not known whose.
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

    /// Removes flows of which their node says that they have ended: shadows, and those of which no packet has come
    /// here. Others have been promoted by their packets, and end by them; so do the flows that this node has taken
    /// over.
    pub fn end_replicas(&self, indices: &[u32]) {
        let _pass = self.pass_lock.lock().unwrap_or_else(PoisonError::into_inner);
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
                // This node had it, and does not know yet that it has it no more.
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

    /// Removes all shadows: this process does not replicate.
    pub fn drop_shadows(&self) {
        let is_shadow = |index: &u32| self.cut.table.state(*index) == state::SHADOW;
        let shadows: Vec<_> = (0..self.cut.table.len()).filter(is_shadow).collect();
        self.end_replicas(&shadows);
    }

    /// Has the workers leave the source ports of shadows alone, as far as they are this node's.
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
