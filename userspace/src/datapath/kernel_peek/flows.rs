//! Flows that the program has begun: their hosts' counts, and facts for the access log.

use std::sync::PoisonError;
use std::time::Duration;

use signalbox_common::cut::flow::CutFlow;
use signalbox_core::hostname::Hostname;

use super::KernelPeek;
use crate::state::HostState;

impl KernelPeek {
    /// Notes that userspace has seen a flow of the program: the flow now counts for its host, or is over.
    pub fn settle(&self, flow: &CutFlow) {
        self.with_host(flow, |index, _| self.peek.settle(index));
    }

    /// Writes the connection count of a flow's host, if it has changed.
    pub fn follow_load(&self, flow: &CutFlow) {
        self.with_host(flow, |index, host| self.peek.set_counted(index, host.active.get()));
    }

    /// Returns the name that the client of a flow of the program has asked for, and the time that the host took to accept
    /// it, as far as they are known.
    #[must_use]
    pub fn about(&self, index: u32, flow: &CutFlow) -> (Option<Hostname>, Option<Duration>) {
        let Some((name, accepted_after)) = self.peek.about(index, flow.started) else {
            return (None, None);
        };
        let name = name.as_str().and_then(|name| Hostname::parse(name.as_bytes()).ok());
        (name, accepted_after)
    }

    fn with_host(&self, flow: &CutFlow, note: impl Fn(u32, &HostState)) {
        let by_flow = self.by_flow.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((index, host)) = by_flow.get(&(flow.host, (flow.ports_b >> 16) as u16)) {
            note(*index, host);
        }
    }

    /// Counts connections that the program has begun as seen. They are from before flows were checked, and have been
    /// adopted by now.
    pub fn settle_all(&self) {
        for (index, _) in self.lock().hosts.values() {
            self.peek.settle_all(*index);
        }
    }
}
