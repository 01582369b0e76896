//! Flows made by the kernel peek: they are counted when they are first seen.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use signalbox_common::cut::flow::{
    CutFlow, FAILURE_IS_COUNTED, IS_PEEKED, OWNS_CONN, OWNS_LISTENER_SOURCE, OWNS_ROUTE_SOURCE, OWNS_SOURCE,
    ineligible, state,
};
use signalbox_common::peek::abi::counted;
use signalbox_core::model::Tier;

use super::FlowGc;
use crate::datapath::report::{FailedConnect, Report, note_failed_connect};
use crate::kernel::address::from_words;
use crate::kernel::cut::table::tick;
use crate::reconcile::kernel_peek::KernelPeek;
use crate::state::HostState;
use crate::state::sync::Unprotected;

impl FlowGc {
    /// Counts the flows of the kernel peek.
    pub fn follow_kernel_peek(&self, kernel_peek: Arc<KernelPeek>) {
        // Set once: a process has only one.
        let _ = self.kernel_peek.set(kernel_peek);
    }

    /// Counts a flow as a connection, as its worker would have done.
    pub(super) fn count_peeked(&self, index: u32, flow: &CutFlow) {
        self.shared.totals.total.inc();
        self.shared.totals.in_kernel.inc();
        self.take_counts_over(index, flow);
        if let Some((host, cluster)) = self.registry.host_of(flow.host) {
            host.total.inc();
            if host.failing.load(Relaxed) && host.failing.swap(false, Relaxed) {
                let _ = self.reports.send(Report::Connected(Arc::clone(&host)));
            }
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
            listener.paths.kernel.inc();
            listener.named.inc();
            listener.active.enter();
        }
        let floating = &self.shared.snapshot.load().floating;
        if floating.group_of(from_words(flow.vip)).is_some() && !floating.moves(from_words(flow.local)) {
            self.shared.sync.unprotected[Unprotected::NoFloatingSource as usize].inc();
        }
    }

    /// Makes this process the owner of a flow, which then counts for its host, among all connections, and for the limits
    /// that its program or worker has counted it for.
    pub(super) fn take_counts_over(&self, index: u32, flow: &CutFlow) {
        let (counted, count) = self.take_counted(index, flow);
        self.cut.table.set_marks(index, OWNS_CONN | marks_of(counted));
        if counted & counted::IN_ALL == 0 {
            self.shared.totals.current.enter();
        }
        let host = self.registry.host_of(flow.host);
        // The word may be that of a former state of the host, which has left the configuration and come back.
        let is_of = |host: &HostState| counted & counted::BY_HOST != 0 && host.active.word() == Some(count);
        if host.as_ref().is_some_and(|(host, _)| is_of(host)) {
            return;
        }
        if counted & counted::BY_HOST != 0 {
            self.shared.limits.words.leave(count);
        }
        if let Some((host, _)) = host {
            host.active.enter();
        }
    }

    fn take_counted(&self, index: u32, flow: &CutFlow) -> (u32, u32) {
        let kernel_peek = self.kernel_peek.get();
        kernel_peek.map_or((0, 0), |kernel_peek| kernel_peek.take_counted(index, flow))
    }

    /// Gives back the counts of a flow that was never established.
    pub(super) fn give_counts_back(&self, index: u32, flow: &CutFlow) {
        let (counted, count) = self.take_counted(index, flow);
        if counted & counted::IN_ALL != 0 {
            self.shared.totals.current.leave();
        }
        if counted & counted::BY_HOST != 0 {
            match self.registry.host_of(flow.host) {
                Some((host, cluster)) if host.active.word() == Some(count) => cluster.leave_host(&host),
                _ => self.shared.limits.words.leave(count),
            }
        }
        self.leave_sources(flow, marks_of(counted));
    }

    /// Notes the time that a host took to accept a flow, as a worker does for a connect.
    pub(super) fn note_connect_time(&self, index: u32, took: Duration) {
        let flow = self.cut.table.read(index);
        let Some((host, cluster)) = self.registry.host_of(flow.host) else {
            return;
        };
        host.connect_times.note(took);
        host.accepted_at.store(tick(), Relaxed);
        cluster.connect_seconds.observe(took);
        if let Some(route) = self.registry.adopt_route(&self.shared, flow.route) {
            route.stats.for_cluster(&cluster.name).quality.connected(took);
        }
    }

    /// Counts a connection that its host did not accept, as a worker counts a failed connect.
    pub(super) fn count_failure(&self, index: u32, flow: &CutFlow) {
        self.cut.table.set_marks(index, IS_PEEKED | FAILURE_IS_COUNTED);
        // A failed connection is no load for the host.
        self.give_counts_back(index, flow);
        let Some((host, cluster)) = self.registry.host_of(flow.host) else {
            return;
        };
        let why = match flow.ineligible {
            ineligible::REFUSED => FailedConnect::Refused,
            ineligible::SILENT => FailedConnect::Silent,
            // The client has timestamps, and no option of the client makes a host leave them out.
            ineligible::TIMESTAMPS => return host.note_unfit(),
            // The cause is the client's options, or a lack of room in the programs.
            _ => return,
        };
        let route = self.registry.adopt_route(&self.shared, flow.route);
        note_failed_connect(&self.reports, (&host, &cluster), route.as_deref(), why);
    }

    /// Frees the entry and port of a flow that was never established. Returns whether the entry is free. It may not be:
    /// a program that has found it by its port may be completing it, until some time after the port was given back.
    pub(super) fn forget_peeked(&self, index: u32, flow: &CutFlow) -> bool {
        if self.cut.pending.give_back_of(flow.ports_b as u16, index) {
            return false;
        }
        if !self.cut.table.change_state(index, flow.state, state::DELETING) {
            return false;
        }
        // Before another flow may have the entry.
        self.give_counts_back(index, flow);
        self.cut.table.set_marks(index, 0);
        self.cut.table.set_state(index, state::FREE);
        true
    }
}

/// Marks of a flow that counts for these limits.
const fn marks_of(counted: u32) -> u8 {
    const fn mark(counted: u32, bit: u32, mark: u8) -> u8 {
        if counted & bit == 0 { 0 } else { mark }
    }
    mark(counted, counted::BY_SOURCE, OWNS_SOURCE)
        | mark(counted, counted::AT_LISTENER, OWNS_LISTENER_SOURCE)
        | mark(counted, counted::AT_ROUTE, OWNS_ROUTE_SOURCE)
}
