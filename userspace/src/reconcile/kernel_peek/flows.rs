//! Flows that the program has begun: their hosts' counts, and facts for the access log.

use std::sync::Arc;
use std::time::Duration;

use signalbox_common::cut::flow::CutFlow;
use signalbox_common::peek::proxy::{ConnectionId, part};
use signalbox_core::wire::hostname::Hostname;

use super::KernelPeek;
use crate::kernel::peek::WaitingFlow;
use crate::state::RouteState;

impl KernelPeek {
    /// Takes over the counts that a flow of the program is in: bits of `signalbox_common::peek::abi::counted`, and its host's
    /// word in the counts. Nothing where another process's program has made the flow.
    #[must_use]
    pub fn take_counted(&self, index: u32, flow: &CutFlow) -> (u32, u32) {
        self.peek.take_counted(index, flow.started)
    }

    /// Route of a flow that waits for its host.
    pub(super) fn route_of(&self, waiting: &WaitingFlow) -> Option<Arc<RouteState>> {
        self.registry.adopt_route(&self.shared, waiting.flow.route)
    }

    /// Whether this process's program has made a flow.
    #[must_use]
    pub fn has_begun(&self, index: u32, flow: &CutFlow) -> bool {
        self.peek.about(index, flow.started).is_some()
    }

    /// Returns the name that the client of a flow of the program has asked for, the time that the host took to accept it,
    /// and the id that the host was told, as far as they are known.
    #[must_use]
    pub fn about(&self, index: u32, flow: &CutFlow) -> (Option<Hostname>, Option<Duration>, Option<ConnectionId>) {
        let Some(about) = self.peek.about(index, flow.started) else {
            return (None, None, None);
        };
        let name = about
            .name
            .as_str()
            .and_then(|name| Hostname::parse(name.as_bytes()).ok());
        let id = ConnectionId::of_flow(self.shared.connection_ids.seed(), flow.started, index);
        let is_told = about.parts & part::UNIQUE_ID != 0;
        (name, about.accepted_after, is_told.then_some(id))
    }
}
