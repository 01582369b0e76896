//! State of a worker that its connections share.

use std::rc::Rc;
use std::sync::Arc;

use super::conn_guard::ConnectionPlace;
use super::cut::Cutter;
use super::cut::registry::Registry;
use super::flow::FlowList;
use super::http::client::handshake_slots::HandshakeSlots;
use super::http::drain::DrainSignal;
use super::http::host::pool::HostPool;
use super::http::timers::TimerPool;
use super::report::{Report, Reports};
use super::sockmap_watch::SockmapWatch;
use super::tracking::Tracking;
use crate::kernel::sockmap::SockmapPair;
use crate::state::Shared;

/// State that the connections of a worker share. Never leaves the worker's thread.
pub struct Worker {
    pub index: usize,
    pub shared: Arc<Shared>,
    pub flows: Rc<FlowList>,
    pub sockmap_watch: Rc<SockmapWatch>,
    pub sockmap: Option<Arc<SockmapPair>>,
    /// Parts of tier `cut`; `None` where it is off or not available.
    pub cut: Option<(Rc<Cutter>, Arc<Registry>)>,
    pub(super) tracking: Rc<Tracking>,
    /// Idle connections to hosts, kept for further requests (`routing: request`).
    pub(super) pool: HostPool,
    pub(super) timers: TimerPool,
    /// Handshakes with clients that are in progress.
    pub(super) handshakes: Rc<HandshakeSlots>,
    /// Signal for clients' connections that wait for their next request.
    pub(super) drain: DrainSignal,
    pub(super) default_max_connections: u32,
    pub(super) reports: Reports,
}

impl Worker {
    /// Sends an event to the store. Only failures and recoveries are sent, never normal connections.
    pub fn report(&self, event: Report) {
        // A closed channel means that the process is ending.
        let _ = self.reports.send(event);
    }

    pub fn max_connections(&self) -> u32 {
        self.shared
            .snapshot
            .load()
            .model
            .limits
            .max_connections
            .unwrap_or(self.default_max_connections)
    }

    /// A place for another connection, if there are descriptors and `limits.max_connections` allows it.
    pub(super) fn place(&self) -> Option<ConnectionPlace> {
        let limit = self.shared.snapshot.load().model.limits.max_connections;
        let of_streams = self.shared.totals.stream_sockets.get().div_ceil(2);
        let limit = limit.map(|limit| limit.saturating_sub(of_streams));
        self.has_room().then(|| ConnectionPlace::take(&self.shared, limit))?
    }

    /// Whether there are descriptors for another connection. Each has two, and streams of HTTP/2 may have more.
    pub fn has_room(&self) -> bool {
        let totals = &self.shared.totals;
        let of_streams = totals.stream_sockets.get().div_ceil(2);
        let is_below = |connections: u32, limit: u32| connections.saturating_add(of_streams) < limit;
        let limit = self.shared.snapshot.load().model.limits.max_connections;
        is_below(totals.with_sockets.get(), self.max_connections())
            && limit.is_none_or(|limit| is_below(totals.current.get(), limit))
    }
}
