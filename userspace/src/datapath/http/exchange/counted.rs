//! Guard that counts a request for its route's limits while it, or its tunnel, lasts.

use std::sync::Arc;

use signalbox_core::limits::limit::SourceCells;

use crate::state::Shared;

/// Guards of a request: one for the limits of its name's connections, one for the limits of requests.
pub(super) type CountedGuards = [Option<CountedRequest>; 2];

/// A request in flight.
pub(super) struct CountedRequest {
    shared: Arc<Shared>,
    source: SourceCells,
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.shared.limits.requests.ended(self.source);
    }
}

impl CountedRequest {
    /// Guard of a request that the limiter has admitted.
    pub(super) fn new(shared: Arc<Shared>, source: SourceCells) -> Self {
        Self { shared, source }
    }
}
