//! Records that a worker writes to the access log.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use signalbox_common::peek::proxy::ConnectionId;
use signalbox_core::model::{Protocol, Tier};
use signalbox_core::wire::hostname::Hostname;

use super::flow::{Flow, FlowContext};
use crate::kernel::cut::table::{duration_between, tick};
use crate::state::access_log::{ConnectionEnd, ConnectionRecord, FlowDetails, FlowKey, RequestLine};
use crate::state::outcome::{Direction, FlowEnd};
use crate::state::{ListenerState, Shared};
use crate::sys::unix_ms;

/// Protocol of a client whose TLS ends here.
pub(super) const HTTPS: &str = "https";

/// A connection that may still be refused.
#[derive(Clone, Copy)]
pub(super) struct PendingConnection<'a> {
    pub(super) shared: &'a Shared,
    pub(super) listener: &'a Arc<ListenerState>,
    /// Protocol that the client speaks: the listener's, or [`HTTPS`].
    pub(super) protocol: &'static str,
    pub(super) client: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) accepted: Instant,
    /// Request, where requests are routed one by one.
    pub(super) request: Option<&'a RequestLine>,
}

impl PendingConnection<'_> {
    /// Logs that the connection is refused. `why` is the metric's label.
    pub(super) fn log_refused(&self, name: Option<&Hostname>, route: Option<&str>, why: &'static str) {
        self.shared
            .log
            .log_end(ConnectionEnd::Refused(why), None, || ConnectionRecord {
                at_ms: unix_ms(),
                client: self.client,
                local: self.local,
                listener: Some(Arc::clone(self.listener)),
                protocol: Some(self.protocol),
                name: name.cloned(),
                route: route.map(Into::into),
                host: None,
                backend: None,
                tier: None,
                bytes_in: 0,
                bytes_out: 0,
                duration: self.accepted.elapsed(),
                connect: None,
                connection_id: None,
                end: ConnectionEnd::Refused(why),
                closed_by: None,
                request: self.request.cloned(),
            });
    }
}

/// Data of a connection that a host has accepted, for its record.
pub(super) struct LogContext {
    pub(super) accepted: Instant,
    pub(super) protocol: Protocol,
    pub(super) name: Option<Hostname>,
    pub(super) connect: Duration,
    /// Id in the PROXY header of the host.
    pub(super) connection_id: Option<ConnectionId>,
    /// Request, where requests are routed one by one.
    pub(super) request: Option<RequestLine>,
}

impl LogContext {
    /// Logs the end of the connection between `parts`. `flow` has its byte counts.
    pub(super) fn log_end(
        &self,
        shared: &Shared,
        parts: &FlowContext,
        flow: Option<&Rc<Flow>>,
        tier: Tier,
        end: FlowEnd,
    ) {
        shared.log.log_end(ConnectionEnd::Flow(end), None, || ConnectionRecord {
            at_ms: unix_ms(),
            client: parts.client,
            local: parts.local,
            listener: Some(Arc::clone(&parts.listener)),
            protocol: Some(self.protocol.as_str()),
            name: self.name.clone(),
            route: parts.route.clone(),
            host: Some((Arc::clone(&parts.host), Arc::clone(&parts.cluster))),
            backend: Some(parts.backend),
            tier: Some(tier),
            bytes_in: flow.map_or(0, |flow| flow.bytes_in.get()),
            bytes_out: flow.map_or(0, |flow| flow.bytes_out.get()),
            duration: self.accepted.elapsed(),
            connect: Some(self.connect),
            connection_id: self.connection_id,
            end: ConnectionEnd::Flow(end),
            // `closed_by` names the sender of the first FIN. A reset ends a direction too, so it is left out.
            closed_by: flow.filter(|_| end == FlowEnd::Finished).and_then(|flow| {
                flow.finished_first.get().map(|direction| match direction {
                    Direction::In => "client",
                    Direction::Out => "host",
                })
            }),
            request: self.request.clone(),
        });
    }

    /// Keeps details of a cut flow that the flow table lacks, for the record at its end.
    pub(super) fn keep_details(&self, shared: &Shared, client: SocketAddr, key: FlowKey) {
        let before = self.accepted.elapsed().saturating_sub(duration_between(key.1, tick()));
        let details = FlowDetails {
            client,
            name: self.name.clone(),
            connect: self.connect,
            connection_id: self.connection_id,
            setup: before,
            request: self.request.clone(),
        };
        shared.log.keep_details(key, details);
    }
}
