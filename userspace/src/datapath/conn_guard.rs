//! Guard that counts a connection for its lifetime: in the process, at its listener, and against its source.

use std::sync::Arc;

use signalbox_common::cut::flow::{OWNS_CONN, OWNS_LISTENER_SOURCE, OWNS_ROUTE_SOURCE, OWNS_SOURCE};
use signalbox_core::limits::limit::SourceCells;
use signalbox_core::routing::obstacle::PeekObstacle;

use crate::state::{ListenerState, Shared};

/// Counts a connection from the time it is accepted. A cut flow takes the counts over ([`Self::detach`]); otherwise
/// they end with the guard.
pub struct ConnGuard {
    shared: Arc<Shared>,
    /// `None` once the guard is detached.
    sockets: Option<SocketGuard>,
    place: Option<ConnectionPlace>,
    listener: Option<Arc<ListenerState>>,
    /// Source of the connection for the limits that all listeners share; true while the client is being peeked at.
    source: Option<(SourceCells, bool)>,
    /// Source of the connection for the listener's shield limit, `limits.concurrent`.
    conn_count_source: Option<SourceCells>,
    /// Source of the connection for the limits of its route.
    route_source: Option<SourceCells>,
    /// Whether the connection is not yet counted by its path, which its route decides.
    awaits_path: bool,
}

/// Counts a connection for the process while it has sockets. A draining process ends when no connection is left, so a
/// connection that was only just accepted must be counted too.
pub(super) struct SocketGuard(Arc<Shared>);

impl Drop for SocketGuard {
    fn drop(&mut self) {
        self.0.totals.with_sockets.leave();
    }
}

/// Place of a connection among all, by `limits.max_connections`: taken before the connection is accepted.
pub(super) struct ConnectionPlace {
    shared: Arc<Shared>,
    /// Whether the count ends with the place.
    is_counted: bool,
}

impl ConnectionPlace {
    /// Takes a place; `None` if all that a limit allows are taken.
    pub(super) fn take(shared: &Arc<Shared>, limit: Option<u32>) -> Option<Self> {
        match limit {
            None => Some(Self::beyond_limits(shared)),
            Some(limit) => shared.totals.current.try_enter(limit).then(|| Self::counted(shared)),
        }
    }

    /// Takes a place, no matter how many are taken.
    pub(super) fn beyond_limits(shared: &Arc<Shared>) -> Self {
        shared.totals.current.enter();
        Self::counted(shared)
    }

    fn counted(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            is_counted: true,
        }
    }

    /// Leaves the count to a cut flow.
    fn hand_over(mut self) {
        self.is_counted = false;
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        if self.is_counted {
            self.shared.totals.current.leave();
        }
    }
}

impl ConnGuard {
    /// Counts a connection that was accepted.
    pub(super) fn new(place: ConnectionPlace) -> Self {
        let shared = &place.shared;
        shared.totals.with_sockets.enter();
        shared.totals.total.inc();
        Self {
            shared: Arc::clone(shared),
            sockets: Some(SocketGuard(Arc::clone(shared))),
            place: Some(place),
            listener: None,
            source: None,
            conn_count_source: None,
            route_source: None,
            awaits_path: false,
        }
    }

    pub(super) fn enter_listener(&mut self, listener: &Arc<ListenerState>) {
        listener.active.enter();
        listener.total.inc();
        let obstacle = listener.left_to_workers.get();
        self.awaits_path = obstacle.is_none();
        if obstacle.is_some() {
            listener.paths.count_worker(obstacle);
        }
        self.listener = Some(Arc::clone(listener));
    }

    /// Counts the connection by its path, once its route is known. `None`: the program has passed it up.
    pub(super) fn count_path(&mut self, obstacle: Option<PeekObstacle>) {
        if let Some(listener) = self.listener.as_ref().filter(|_| self.awaits_path) {
            listener.paths.count_worker(obstacle);
            self.awaits_path = false;
        }
    }

    /// Counts the connection against its source, which the limiter has admitted. From now on the client is peeked at.
    pub(super) fn enter_source(&mut self, source: SourceCells) {
        self.source = Some((source, true));
    }

    /// Counts the connection against its source's limit at the listener.
    pub(super) fn enter_listener_source(&mut self, source: SourceCells) {
        self.conn_count_source = Some(source);
    }

    /// Counts the connection against its source's limit at its route, whose limiter has admitted it.
    pub(super) fn enter_route_source(&mut self, source: SourceCells) {
        self.route_source = Some(source);
    }

    /// Whether the connection counts against the limits of its route.
    pub(super) const fn has_route_source(&self) -> bool {
        self.route_source.is_some()
    }

    pub(super) fn finish_peeking(&mut self) {
        if let Some((source, peeking)) = &mut self.source
            && std::mem::take(peeking)
        {
            self.shared.limits.sources.peek_ended(*source);
        }
    }

    /// Marks that tell the flow GC which counts to give back for the flow.
    pub(super) fn marks(&self) -> u8 {
        let mark = |is_set: bool, mark| if is_set { mark } else { 0 };
        OWNS_CONN
            | mark(self.source.is_some(), OWNS_SOURCE)
            | mark(self.conn_count_source.is_some(), OWNS_LISTENER_SOURCE)
            | mark(self.route_source.is_some(), OWNS_ROUTE_SOURCE)
    }

    /// Passes the counts to a cut flow: the flow GC gives them back, as the flow's marks say. The count of sockets
    /// stays until the sockets are closed.
    pub(super) fn detach(&mut self) -> Option<SocketGuard> {
        self.finish_peeking();
        if let Some(place) = self.place.take() {
            place.hand_over();
        }
        self.sockets.take()
    }
}

impl Drop for ConnGuard {
    fn drop(&mut self) {
        self.count_path(None);
        if self.sockets.is_none() {
            return;
        }
        self.finish_peeking();
        let shared = &self.shared;
        for source in self
            .source
            .map(|(source, _)| source)
            .into_iter()
            .chain(self.conn_count_source)
        {
            shared.limits.sources.connection_closed(source);
        }
        if let Some(source) = self.route_source {
            shared.limits.requests.ended(source);
        }
        if let Some(listener) = &self.listener {
            listener.active.leave();
        }
    }
}
