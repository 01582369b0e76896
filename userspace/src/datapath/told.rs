//! Records that a worker writes to the connection log.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use signalbox_core::hostname::Hostname;
use signalbox_core::model::{Protocol, Tier};

use super::flow::{Direction, Flow, Parts};
use super::relay;
use crate::connection_log::{End, Key, Opening, Record};
use crate::kernel::cut::table::{between, tick};
use crate::state::{ListenerState, Shared, unix_ms};

/// A connection that may yet be refused.
#[derive(Clone, Copy)]
pub(super) struct Caller<'a> {
    pub(super) shared: &'a Shared,
    pub(super) listener: &'a Arc<ListenerState>,
    pub(super) protocol: Protocol,
    pub(super) client: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) accepted: Instant,
}

impl Caller<'_> {
    /// Logs that the connection is refused; `why` is the metric's label.
    pub(super) fn refused(&self, name: Option<&Hostname>, route: Option<&str>, why: &'static str) {
        self.shared.log.ended(End::Refused(why), None, || Record {
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
            end: End::Refused(why),
            closed_by: None,
        });
    }
}

/// Data of a connection that a host has accepted, for its record.
pub(super) struct Opened {
    pub(super) accepted: Instant,
    pub(super) protocol: Protocol,
    pub(super) name: Option<Hostname>,
    pub(super) connect: Duration,
}

impl Opened {
    /// Logs the end of the connection between `parts`; `flow` says what it carried.
    pub(super) fn ended(&self, shared: &Shared, parts: &Parts, flow: Option<&Rc<Flow>>, tier: Tier, end: relay::End) {
        shared.log.ended(End::Flow(end), None, || Record {
            at_ms: unix_ms(),
            client: parts.client,
            local: parts.local,
            listener: Some(Arc::clone(&parts.listener)),
            protocol: Some(self.protocol),
            name: self.name.clone(),
            route: parts.route.clone(),
            host: Some((Arc::clone(&parts.host), Arc::clone(&parts.cluster))),
            backend: Some(parts.backend),
            tier: Some(tier),
            bytes_in: flow.map_or(0, |flow| flow.bytes_in.get()),
            bytes_out: flow.map_or(0, |flow| flow.bytes_out.get()),
            duration: self.accepted.elapsed(),
            connect: Some(self.connect),
            end: End::Flow(end),
            // `closed_by` is for FINs only: a reset, too, ends a direction.
            closed_by: flow.filter(|_| end == relay::End::Finished).and_then(|flow| {
                flow.finished_first.get().map(|direction| match direction {
                    Direction::In => "client",
                    Direction::Out => "host",
                })
            }),
        });
    }

    /// Keeps what the flow table does not know of a cut flow, for the record at its end.
    pub(super) fn cut(&self, shared: &Shared, client: SocketAddr, key: Key) {
        let before = self.accepted.elapsed().saturating_sub(between(key.1, tick()));
        let opening = Opening {
            client,
            name: self.name.clone(),
            connect: self.connect,
            before,
        };
        shared.log.cut(key, opening);
    }
}
