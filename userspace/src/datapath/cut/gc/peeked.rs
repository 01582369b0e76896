//! Flows made by the kernel peek: they are counted when they are first seen.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use signalbox_common::cut::flow::{CutFlow, FAILURE_IS_COUNTED, IS_PEEKED, OWNS_CONN, ineligible, state};
use signalbox_core::model::Tier;

use super::FlowGc;
use crate::datapath::kernel_peek::KernelPeek;
use crate::datapath::report::Report;
use crate::kernel::address::from_words;
use crate::state::sync::Unprotected;

impl FlowGc {
    /// Counts the flows of the kernel peek.
    pub fn follow_kernel_peek(&self, kernel_peek: Arc<KernelPeek>) {
        // Set once: a process has only one.
        let _ = self.kernel_peek.set(kernel_peek);
    }

    /// Counts a flow as a connection, as its worker would have done.
    pub(super) fn count_peeked(&self, index: u32, flow: &CutFlow) {
        self.cut.table.set_marks(index, OWNS_CONN);
        self.shared.totals.total.inc();
        self.shared.totals.in_kernel.inc();
        self.shared.totals.current.enter();
        if let Some((host, cluster)) = self.registry.host_of(flow.host) {
            host.total.inc();
            host.active.enter();
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
        self.follow_load(flow);
        if flow.marks & FAILURE_IS_COUNTED == 0 {
            self.settle(flow);
        }
    }

    /// Notes the time that a host took to accept a flow, as a worker does for a connect.
    pub(super) fn note_connect_time(&self, index: u32, took: Duration) {
        let flow = self.cut.table.read(index);
        let Some((_, cluster)) = self.registry.host_of(flow.host) else {
            return;
        };
        cluster.connect_seconds.observe(took);
        if let Some(route) = self.registry.adopt_route(&self.shared, flow.route) {
            route.stats.for_cluster(&cluster.name).quality.connected(took);
        }
    }

    /// Counts a connection that its host did not accept, as a worker counts a failed connect.
    pub(super) fn count_failure(&self, index: u32, flow: &CutFlow) {
        self.cut.table.set_marks(index, IS_PEEKED | FAILURE_IS_COUNTED);
        // A failed connection is no load for the host.
        self.settle(flow);
        let Some((host, cluster)) = self.registry.host_of(flow.host) else {
            return;
        };
        let label = match flow.ineligible {
            ineligible::REFUSED => "refused",
            ineligible::SILENT => "timeout",
            // The client has timestamps, and no option of the client makes a host leave them out.
            ineligible::TIMESTAMPS => return host.note_unfit(),
            // The cause is the client's options, or a lack of room in the programs.
            _ => return,
        };
        host.refused.inc();
        cluster.connect_failures.inc(label);
        if let Some(route) = self.registry.adopt_route(&self.shared, flow.route) {
            route.stats.for_cluster(&cluster.name).quality.connect_failed();
        }
        // A host that ignores three SYNs may be alive: userspace's connects wait for `timeouts.connect`. A check helps.
        let report = if flow.ineligible == ineligible::SILENT {
            Report::Silent(host)
        } else {
            host.failing.store(true, Relaxed);
            Report::ConnectFailed(host, io::Error::from(io::ErrorKind::ConnectionRefused).to_string())
        };
        let _ = self.reports.send(report);
    }

    /// Tells the kernel peek how many connections a flow's host has.
    pub(super) fn follow_load(&self, flow: &CutFlow) {
        if let Some(kernel_peek) = self.kernel_peek.get() {
            kernel_peek.follow_load(flow);
        }
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
        self.cut.table.set_marks(index, 0);
        self.cut.table.set_state(index, state::FREE);
        if flow.marks & FAILURE_IS_COUNTED == 0 {
            self.settle(flow);
        }
        true
    }

    fn settle(&self, flow: &CutFlow) {
        if let Some(kernel_peek) = self.kernel_peek.get() {
            kernel_peek.settle(flow);
        }
    }
}
