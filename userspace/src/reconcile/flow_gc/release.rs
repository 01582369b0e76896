//! Ends of flows: a flow's counts are given back, and the access log gets its line.

use std::net::SocketAddr;
use std::time::Duration;

use signalbox_common::cut::flow::{CutFlow, OWNS_CONN, OWNS_LISTENER_SOURCE, OWNS_ROUTE_SOURCE, OWNS_SOURCE};
use signalbox_core::limits::limit::SourceCells;
use signalbox_core::model::Tier;
use signalbox_core::wire::hostname::HostnamePattern;

use super::{FlowGc, idle_for};
use crate::kernel::address::from_words;
use crate::kernel::cut::table::{duration_between, tick};
use crate::state::access_log;
use crate::state::outcome::FlowEnd;
use crate::sys::unix_ms;

impl FlowGc {
    /// Gives back all counts that the flow holds, and logs its end.
    pub(super) fn release(&self, index: u32, flow: &CutFlow, end: FlowEnd) {
        // Only once, for the first caller: the copy of the flow may be old.
        let marks = self.cut.table.take_marks(index);
        if marks & OWNS_CONN == 0 {
            return;
        }
        self.log_end(index, flow, end);
        self.shared.totals.current.leave();
        if let Some((host, cluster)) = self.registry.host_of(flow.host) {
            cluster.leave_host(&host);
            cluster.active[Tier::Cut as usize].leave();
            cluster.closed[end as usize].inc();
            if let Some(share) = self.registry.stats_of(flow.route, &cluster) {
                share.active.leave();
                share.quality.flow_ended(end, flow.dirs[0].bytes, flow.dirs[1].bytes);
            }
        }
        if let Some(listener) = self.registry.listener_of(flow.listener) {
            listener.active.leave();
        }
        self.leave_sources(flow, marks);
    }

    /// Gives back the counts of a flow's source that the flow's marks name.
    pub(super) fn leave_sources(&self, flow: &CutFlow, marks: u8) {
        if marks & OWNS_LISTENER_SOURCE != 0
            && let Some(listener) = self.registry.listener_of(flow.listener)
            && let Some(source) = listener.source(self.shared.seed, from_words(flow.client))
        {
            self.shared.limits.sources.connection_closed(source);
        }
        if marks & OWNS_ROUTE_SOURCE != 0
            && let Some(route) = self.registry.route_of(flow.route)
            && let Ok(hostname) = HostnamePattern::parse(&route)
        {
            let source = self.shared.route_source(&hostname, from_words(flow.client));
            self.shared.limits.requests.ended(source);
        }
        if marks & OWNS_SOURCE != 0 {
            let source = SourceCells::new(self.shared.seed, from_words(flow.client));
            self.shared.limits.sources.connection_closed(source);
        }
    }

    /// Logs a flow's end in the access log, with data of the flow table.
    fn log_end(&self, index: u32, flow: &CutFlow, end: FlowEnd) {
        self.shared.log.log_end(
            access_log::ConnectionEnd::Flow(end),
            Some((index, flow.started)),
            || {
                let now = tick();
                let life = duration_between(flow.started, now);
                // The flow may have ended some time before this pass noticed it.
                let since = match end {
                    FlowEnd::Idle | FlowEnd::Drained => Duration::ZERO,
                    _ => idle_for(flow, now),
                };
                let listener = self.registry.listener_of(flow.listener);
                let snapshot = self.shared.snapshot.load();
                let mut configured = snapshot.model.listeners.iter();
                let protocol = listener
                    .as_ref()
                    .and_then(|state| configured.find(|known| known.name == state.name));
                let of_program = self.kernel_peek.get().map(|peek| peek.about(index, flow));
                let (name, connect, connection_id) = of_program.unwrap_or_default();
                let at = |words, port| SocketAddr::new(from_words(words), port);
                access_log::ConnectionRecord {
                    at_ms: unix_ms().saturating_sub(since.as_millis() as u64),
                    client: at(flow.client, (flow.ports_a >> 16) as u16),
                    local: at(flow.vip, flow.ports_a as u16),
                    protocol: protocol.map(|listener| listener.protocol.as_str()),
                    listener,
                    name,
                    route: self.registry.route_of(flow.route).map(Into::into),
                    host: self.registry.host_of(flow.host),
                    backend: Some(at(flow.host_addr, (flow.ports_b >> 16) as u16)),
                    tier: Some(Tier::Cut),
                    bytes_in: flow.dirs[0].bytes,
                    bytes_out: flow.dirs[1].bytes,
                    duration: life.saturating_sub(since),
                    connect,
                    connection_id,
                    end: access_log::ConnectionEnd::Flow(end),
                    closed_by: None,
                    request: None,
                }
            },
        );
    }
}
