//! Guards that count a connection for as long as it lives: in the process, at its listener, against its source.

use std::sync::Arc;

use signalbox_common::cut::flow::{COUNTED, CROWDED};
use signalbox_core::limit::SourceCells;

use crate::state::{ListenerState, Shared};

/// Counts a connection into the process from its acceptance for as long as it has sockets: a process that drains ends
/// when none is left, so not even one that has been accepted and not yet looked at may be missed.
pub struct Seat {
    shared: Arc<Shared>,
    outlived: bool,
}

impl Seat {
    pub fn take(shared: &Arc<Shared>) -> Self {
        shared.totals.held.enter();
        shared.totals.current.enter();
        shared.totals.total.inc();
        Self {
            shared: Arc::clone(shared),
            outlived: false,
        }
    }

    /// Keeps the connection counted when its sockets close: the keeper of the flow table counts its end.
    pub fn outlive(&mut self) {
        self.outlived = true;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shared.totals.held.leave();
        if !self.outlived {
            self.shared.totals.current.leave();
        }
    }
}

/// Counts a connection into its listener and its source for as long as it lives.
pub(super) struct Counted {
    shared: Arc<Shared>,
    listener: Arc<ListenerState>,
    pub(super) source: Option<(SourceCells, bool)>,
    /// Source of the connection for the listener's shield limit, `limits.concurrent`.
    pub(super) crowd: Option<SourceCells>,
    handed: bool,
}

impl Counted {
    pub(super) fn new(shared: &Arc<Shared>, listener: &Arc<ListenerState>) -> Self {
        listener.active.enter();
        listener.total.inc();
        Self {
            shared: Arc::clone(shared),
            listener: Arc::clone(listener),
            source: None,
            crowd: None,
            handed: false,
        }
    }

    /// Marks of a flow that tell the keeper which counts to give back.
    pub(super) fn marks(&self) -> u8 {
        let mark = |is_set: bool, mark| if is_set { mark } else { 0 };
        mark(self.source.is_some(), COUNTED) | mark(self.crowd.is_some(), CROWDED)
    }

    /// Keeps the connection counted after the drop: the keeper of the flow table gives it back, by its marks.
    pub(super) fn hand_over(mut self) {
        self.peeked();
        self.source = None;
        self.crowd = None;
        self.handed = true;
    }

    pub(super) fn peeked(&mut self) {
        if let Some((source, peeking)) = &mut self.source
            && std::mem::take(peeking)
        {
            self.shared.limiter.peek_ended(*source);
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.peeked();
        if let Some((source, _)) = self.source {
            self.shared.limiter.connection_closed(source);
        }
        if let Some(source) = self.crowd {
            self.shared.limiter.connection_closed(source);
        }
        if !self.handed {
            self.listener.active.leave();
        }
    }
}
