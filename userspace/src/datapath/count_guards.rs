//! Guards that count a connection for as long as it lives: in the process, at its listener, against its source.

use std::sync::Arc;

use signalbox_common::cut::flow::{OWNS_LISTENER_SOURCE, OWNS_SOURCE};
use signalbox_core::limit::SourceCells;

use crate::state::{ListenerState, Shared};

/// Counts a connection into the process from its acceptance for as long as it has sockets: a process that drains ends
/// when none is left, so not even one that has been accepted and not yet looked at may be missed.
pub struct ProcessGuard {
    shared: Arc<Shared>,
    is_detached: bool,
}

impl ProcessGuard {
    pub fn new(shared: &Arc<Shared>) -> Self {
        shared.totals.with_sockets.enter();
        shared.totals.current.enter();
        shared.totals.total.inc();
        Self {
            shared: Arc::clone(shared),
            is_detached: false,
        }
    }

    /// Keeps the connection counted when its sockets close: the flow GC counts its end.
    pub fn detach(&mut self) {
        self.is_detached = true;
    }
}

impl Drop for ProcessGuard {
    fn drop(&mut self) {
        self.shared.totals.with_sockets.leave();
        if !self.is_detached {
            self.shared.totals.current.leave();
        }
    }
}

/// Counts a connection into its listener and its source for as long as it lives.
pub(super) struct ListenerGuard {
    shared: Arc<Shared>,
    listener: Arc<ListenerState>,
    pub(super) source: Option<(SourceCells, bool)>,
    /// Source of the connection for the listener's shield limit, `limits.concurrent`.
    pub(super) conn_count_source: Option<SourceCells>,
    is_detached: bool,
}

impl ListenerGuard {
    pub(super) fn new(shared: &Arc<Shared>, listener: &Arc<ListenerState>) -> Self {
        listener.active.enter();
        listener.total.inc();
        Self {
            shared: Arc::clone(shared),
            listener: Arc::clone(listener),
            source: None,
            conn_count_source: None,
            is_detached: false,
        }
    }

    /// Marks of a flow that tell the flow GC which counts to give back.
    pub(super) fn marks(&self) -> u8 {
        let mark = |is_set: bool, mark| if is_set { mark } else { 0 };
        mark(self.source.is_some(), OWNS_SOURCE) | mark(self.conn_count_source.is_some(), OWNS_LISTENER_SOURCE)
    }

    /// Keeps the connection counted after the drop: the flow GC gives it back, by its marks.
    pub(super) fn detach(mut self) {
        self.finish_peeking();
        self.source = None;
        self.conn_count_source = None;
        self.is_detached = true;
    }

    pub(super) fn finish_peeking(&mut self) {
        if let Some((source, peeking)) = &mut self.source
            && std::mem::take(peeking)
        {
            self.shared.limiter.peek_ended(*source);
        }
    }
}

impl Drop for ListenerGuard {
    fn drop(&mut self) {
        self.finish_peeking();
        if let Some((source, _)) = self.source {
            self.shared.limiter.connection_closed(source);
        }
        if let Some(source) = self.conn_count_source {
            self.shared.limiter.connection_closed(source);
        }
        if !self.is_detached {
            self.listener.active.leave();
        }
    }
}
