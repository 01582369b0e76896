//! A request, and a connection to a host that it is sent over.

use std::cell::Cell;
use std::time::Instant;

use signalbox_core::hostname::Hostname;
use signalbox_core::http1::byte_range::ByteRange;
use signalbox_core::http1::head::RequestHead;
use signalbox_core::model::http::RequestPolicy;

use super::answer::HostSide;
use super::pool::ActiveConnection;
use crate::datapath::cut::HeldFlow;
use crate::datapath::flow::FlowGuard;
use crate::datapath::log_context::LogContext;
use crate::state::connection_log::RequestLine;

/// Most bytes of a target that the connection log has.
const MAX_LOGGED_TARGET_BYTES: usize = 2048;

/// A request whose head has been read.
pub(super) struct Request {
    pub(super) head: RequestHead,
    /// Bytes that the head was parsed from.
    pub(super) bytes: Vec<u8>,
    /// Bytes of the head as the client has sent it.
    pub(super) taken: usize,
    pub(super) began: Instant,
    /// Id of the request, where it has one.
    pub(super) id: Option<Box<str>>,
}

/// A connection to a host in use, and its entry in the list of flows.
pub(super) struct Attempt {
    pub(super) host: HostSide,
    pub(super) link: HostLink,
}

/// Counts of a connection to a host, and its entry in the list of flows, while it is in use.
pub(super) struct HostLink {
    pub(super) listed: FlowGuard,
    /// Record for the connection log; `None` where it is off. A kept connection took no time to connect.
    pub(super) log: Option<LogContext>,
    /// `None`: a stream, whose connection is counted elsewhere.
    pub(super) _active: Option<ActiveConnection>,
    /// Flow of a connection that may be cut late.
    pub(super) held: Option<HeldFlow>,
    /// Whether the connection has a source port of those for flows that are cut, which nobody else can use while it is
    /// in TIME_WAIT.
    pub(super) has_cut_port: bool,
}

impl HostLink {
    /// Notes the status code that the client got, for the connection log.
    pub(super) fn set_status(&self, status: u16) {
        if let Some(line) = self.log.as_ref().and_then(|log| log.request.as_ref()) {
            line.status.set(Some(status));
        }
    }
}

impl Request {
    /// Line of the connection log for the request.
    pub(super) fn log_line(&self, is_tls: bool) -> RequestLine {
        let text = |range: ByteRange| String::from_utf8_lossy(range.of(&self.bytes)).into_owned();
        let mut target = text(self.head.target);
        // A target is of graphic ASCII characters.
        target.truncate(MAX_LOGGED_TARGET_BYTES);
        RequestLine {
            method: text(self.head.method_name),
            target,
            id: self.id.clone(),
            is_tls,
            status: Cell::new(None),
        }
    }

    pub(super) fn name(&self) -> Option<&Hostname> {
        self.head
            .authority
            .as_ref()
            .and_then(|authority| authority.hostname.as_ref())
    }

    /// Protocols that the client asks for in place of HTTP, where its route lets all of them through; none otherwise.
    pub(super) fn upgrades(&self, policy: &RequestPolicy) -> Vec<Box<[u8]>> {
        let asked = || self.head.upgrades(&self.bytes);
        let are_allowed = asked().all(|protocol| policy.allows_upgrade(protocol));
        asked().filter(|_| are_allowed).map(Into::into).collect()
    }

    /// Whether a field of this name has a value that meets a condition.
    pub(super) fn has(&self, name: &str, is_met: impl Fn(&[u8]) -> bool) -> bool {
        self.head.fields.values(&self.bytes, name).any(is_met)
    }
}
