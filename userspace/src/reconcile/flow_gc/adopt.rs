//! Adoption of flows that an earlier process, or a process of another version, has made.

use std::collections::HashSet;
use std::sync::Arc;

use signalbox_common::cut::flow::{CutFlow, HANDED_OFF, IS_PEEKED, IS_REPLICA, OWNS_CONN, state};
use signalbox_core::model::Tier;

use super::FlowGc;
use super::places::{PlacedPort, port_of};
use crate::datapath::report::Report;
use crate::datapath::worker::WorkerCommand;
use crate::state::Snapshot;

impl FlowGc {
    /// Adopts the flows of an earlier process among the entries `indices`, and clears unfinished ones for which `waits`
    /// is false. Workers are told not to use the source ports of these flows or those in `reserved`.
    pub(super) fn adopt(
        &self,
        indices: impl IntoIterator<Item = u32>,
        reserved: &[PlacedPort],
        waits: impl Fn(u32) -> bool,
    ) {
        let snapshot = self.shared.snapshot.load_full();
        let alone = self.cut.pins.is_locked();
        let mut taken = reserved.to_vec();
        let mut adopted = 0;
        for index in indices {
            match self.cut.table.state(index) {
                state::FREE => continue,
                // A shadow is found later, through its node's messages or its packets.
                state::SHADOW => {
                    taken.push(port_of(&self.cut.table.read(index), &snapshot.floating));
                    continue;
                }
                state::CUT | state::CLOSING | state::DELETING => {}
                state::HELD if alone && self.cut.abandon_held(index) => {}
                // Either its host answers, or it is forgotten later.
                _ if waits(index) => continue,
                seen => {
                    if alone && self.cut.table.read(index).marks & IS_REPLICA != 0 {
                        // Tuples may lead to the entry already.
                        self.cut.remove(&[index]);
                    } else if alone {
                        self.cut.table.change_state(index, seen, state::FREE);
                    }
                    continue;
                }
            }
            let flow = self.cut.table.read(index);
            taken.push(port_of(&flow, &snapshot.floating));
            if flow.ended() && flow.marks & (OWNS_CONN | IS_PEEKED) == 0 {
                // The earlier process has counted and logged its end. The entry stays for late packets, until the
                // collector frees it.
                continue;
            }
            // A flow made by a program has no sockets, even if its entry says so until the host has got the first data.
            if flow.state != state::CUT || (alone && flow.handoff_state < HANDED_OFF && !waits(index)) {
                // The process that should have handed off the received bytes has ended.
                self.cut.table.set_state(index, state::CLOSING);
                self.cut.table.set_marks(index, 0);
                continue;
            }
            self.adopt_flow(index, &flow, &snapshot);
            if alone {
                self.cut.table.set_sockets_closed(index);
            }
            adopted += 1;
        }
        if adopted > 0 {
            tracing::info!(flows = adopted, "Flows of an earlier process are adopted.");
        }
        let taken: Arc<[_]> = taken.into_iter().filter(|port| self.is_our_port(port)).collect();
        for worker in &self.workers {
            worker.send(WorkerCommand::AllowCut(Arc::clone(&taken)));
        }
    }

    /// Counts a flow that an earlier process or another node has made.
    pub(super) fn adopt_flow(&self, index: u32, flow: &CutFlow, snapshot: &Snapshot) {
        if let Some(orphan) = self
            .registry
            .adopt(snapshot, self.shared.limits.words, flow.host, flow.listener)
        {
            let _ = self.reports.send(Report::HostAdopted(orphan));
        }
        // The flow's source was counted in a process that has ended, or on another node, or by this process's program.
        self.take_counts_over(index, flow);
        if let Some((_, cluster)) = self.registry.host_of(flow.host) {
            cluster.active[Tier::Cut as usize].enter();
            cluster.opened[Tier::Cut as usize].inc();
            // The flow counts as active, but not as a new connection of its route: the process that made it has counted
            // that.
            let route = self.registry.adopt_route(&self.shared, flow.route);
            if let Some(route) = route {
                route.stats.for_cluster(&cluster.name).active.enter();
            }
        }
        if let Some(listener) = self.registry.listener_of(flow.listener) {
            listener.active.enter();
        }
    }

    /// Carries over the flows of another version whose process has ended, and frees the source ports of flows that
    /// ended with it.
    pub(super) fn carry_over(&self) {
        let carried = self.cut.carry_over();
        if carried.is_empty() && self.cut.waits_for_other_version() {
            return;
        }
        let reserved = std::mem::take(&mut *self.reserved.lock());
        if carried.is_empty() && reserved.is_empty() {
            return;
        }
        let live: HashSet<_> = carried
            .iter()
            .map(|&index| self.port_of(&self.cut.table.read(index)))
            .collect();
        self.adopt(carried, &[], |_| false);
        self.return_ports(reserved.into_iter().filter(|port| !live.contains(port)));
    }
}
