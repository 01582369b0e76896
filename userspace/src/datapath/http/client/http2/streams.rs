//! Count of a connection's streams.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Notify;

use crate::state::ListenerState;

/// Streams of a connection whose exchange has not ended.
pub(super) struct Streams {
    listener: Arc<ListenerState>,
    active: Cell<usize>,
    /// Whether there has been a stream.
    has_begun: Cell<bool>,
    ended_at: Cell<Instant>,
    idle: Notify,
}

impl Streams {
    pub(super) fn new(listener: &Arc<ListenerState>) -> Rc<Self> {
        listener.http2.connections.inc();
        Rc::new(Self {
            listener: Arc::clone(listener),
            active: Cell::new(0),
            has_begun: Cell::new(false),
            ended_at: Cell::new(Instant::now()),
            idle: Notify::new(),
        })
    }

    /// Counts a stream.
    pub(super) fn enter(self: &Rc<Self>) -> StreamCount {
        self.listener.http2.streams.enter();
        self.active.set(self.active.get() + 1);
        self.has_begun.set(true);
        StreamCount(Rc::clone(self))
    }

    /// Counts requests that never become exchanges because a field is malformed.
    pub(super) fn count_malformed(&self, count: u64) {
        // Called at each wake-up, nearly always with 0: all workers share the counter, so skip it then.
        if count > 0 {
            self.listener.http2.malformed.add(count);
        }
    }

    pub(super) const fn has_begun(&self) -> bool {
        self.has_begun.get()
    }

    /// Time at which the last exchange ended.
    pub(super) const fn ended_at(&self) -> Instant {
        self.ended_at.get()
    }

    /// Whether there are exchanges.
    pub(super) const fn are_active(&self) -> bool {
        self.active.get() > 0
    }

    /// Waits until the last stream has ended.
    pub(super) async fn become_idle(&self) {
        self.idle.notified().await;
    }
}

/// Counts a stream for its lifetime.
pub(super) struct StreamCount(Rc<Streams>);

impl Drop for StreamCount {
    fn drop(&mut self) {
        let streams = &self.0;
        streams.listener.http2.streams.leave();
        streams.active.set(streams.active.get() - 1);
        if streams.active.get() == 0 {
            streams.ended_at.set(Instant::now());
            streams.idle.notify_one();
        }
    }
}
