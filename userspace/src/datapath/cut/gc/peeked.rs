//! Flows that the kernel peek has made: counted when they are seen first.

use std::sync::Arc;

use signalbox_common::cut::flow::{CutFlow, OWNS_CONN, state};
use signalbox_core::model::Tier;

use super::FlowGc;
use crate::datapath::kernel_peek::KernelPeek;
use crate::kernel::address::from_words;
use crate::state::sync::Unprotected;

impl FlowGc {
    /// Counts the flows that the kernel peek makes for it.
    pub fn follow_kernel_peek(&self, kernel_peek: Arc<KernelPeek>) {
        // Set once: there is one in a process.
        let _ = self.kernel_peek.set(kernel_peek);
    }

    /// Counts a flow as a connection, as its worker would have done.
    pub(super) fn count_peeked(&self, index: u32, flow: &CutFlow) {
        self.cut.table.set_marks(index, OWNS_CONN);
        self.shared.totals.total.inc();
        self.shared.totals.current.enter();
        if let Some((host, cluster)) = self.registry.host_of(flow.host) {
            host.total.inc();
            host.active.enter();
            cluster.active[Tier::Cut as usize].enter();
            cluster.opened[Tier::Cut as usize].inc();
            if let Some(route) = self.registry.adopt_route(&self.shared, flow.route) {
                let share = route.stats.for_cluster(&cluster.name);
                route.peeked.inc();
                share.connections.inc();
                share.active.enter();
            }
        }
        if let Some(listener) = self.registry.listener_of(flow.listener) {
            listener.total.inc();
            listener.named.inc();
            listener.active.enter();
        }
        let floating = &self.shared.snapshot.load().floating;
        if floating.group_of(from_words(flow.vip)).is_some() && !floating.moves(from_words(flow.local)) {
            self.shared.sync.unprotected[Unprotected::NoFloatingSource as usize].inc();
        }
        self.follow_load(flow);
        self.settle(flow);
    }

    /// Tells the kernel peek how many connections a flow's host has.
    pub(super) fn follow_load(&self, flow: &CutFlow) {
        if let Some(kernel_peek) = self.kernel_peek.get() {
            kernel_peek.follow_load(flow);
        }
    }

    /// Frees the entry and port of a flow that has never come to be. Returns whether it is free: a program may be completing
    /// it, which has found it by its port, until some time after the port was given back.
    pub(super) fn forget_peeked(&self, index: u32, flow: &CutFlow) -> bool {
        if self.cut.pending.give_back_of(flow.ports_b as u16, index) {
            return false;
        }
        self.cut.table.set_marks(index, 0);
        self.cut.table.set_state(index, state::FREE);
        self.settle(flow);
        true
    }

    fn settle(&self, flow: &CutFlow) {
        if let Some(kernel_peek) = self.kernel_peek.get() {
            kernel_peek.settle(flow);
        }
    }
}
