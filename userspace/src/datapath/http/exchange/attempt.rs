//! A request, and the host connection that it is sent over.

use std::cell::Cell;
use std::time::Instant;

use signalbox_core::model::http::RequestPolicy;
use signalbox_core::wire::hostname::Hostname;
use signalbox_core::wire::http1::byte_range::ByteRange;
use signalbox_core::wire::http1::head::RequestHead;

use crate::datapath::cut::HeldFlow;
use crate::datapath::flow::FlowGuard;
use crate::datapath::http::host::pool::ActiveConnection;
use crate::datapath::http::message::answer::HostSide;
use crate::datapath::log_context::LogContext;
use crate::state::access_log::RequestLine;

/// Maximum number of bytes of a target in the access log.
const MAX_LOGGED_TARGET_BYTES: usize = 2048;

/// A request whose head has been read.
pub(in crate::datapath::http) struct Request {
    pub(in crate::datapath::http) head: RequestHead,
    /// Bytes from which the head was parsed.
    pub(in crate::datapath::http) bytes: Vec<u8>,
    /// Number of bytes of the head that the client sent.
    pub(in crate::datapath::http) taken: usize,
    pub(in crate::datapath::http) began: Instant,
    /// Id of the request, if it has one.
    pub(in crate::datapath::http) id: Option<Box<str>>,
}

/// A connection to a host in use, and its entry in the list of flows.
pub(super) struct Attempt {
    pub(super) host: HostSide,
    pub(super) link: HostLink,
}

/// Counts of a connection to a host, and its entry in the list of flows, while it is in use.
pub(super) struct HostLink {
    pub(super) listed: FlowGuard,
    /// Record for the access log; `None` if it is off. A kept connection has a connect time of zero.
    pub(super) log: Option<LogContext>,
    /// `None` for a stream, whose connection is counted elsewhere.
    pub(super) _active: Option<ActiveConnection>,
    /// Flow of a connection that may be cut late.
    pub(super) held: Option<HeldFlow>,
    /// Whether the connection uses a source port for cut flows. No other connection can use it during TIME_WAIT.
    pub(super) has_cut_port: bool,
}

impl HostLink {
    /// Notes the status code sent to the client, for the access log.
    pub(super) fn set_status(&self, status: u16) {
        if let Some(line) = self.log.as_ref().and_then(|log| log.request.as_ref()) {
            line.status.set(Some(status));
        }
    }
}

impl Request {
    /// Line of the access log for the request.
    pub(super) fn log_line(&self, is_tls: bool) -> RequestLine {
        let text = |range: ByteRange| String::from_utf8_lossy(range.of(&self.bytes)).into_owned();
        let mut target = text(self.head.target);
        // A target consists of graphic ASCII characters.
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

    /// Protocols that the client asks for in place of HTTP, if its route allows all of them; otherwise none.
    pub(super) fn upgrades(&self, policy: &RequestPolicy) -> Vec<Box<[u8]>> {
        let asked = || self.head.upgrades(&self.bytes);
        let are_allowed = asked().all(|protocol| policy.allows_upgrade(protocol));
        asked().filter(|_| are_allowed).map(Into::into).collect()
    }

    /// Whether a field of this name has a value that meets the condition.
    pub(super) fn has(&self, name: &str, is_met: impl Fn(&[u8]) -> bool) -> bool {
        self.head.fields.values(&self.bytes, name).any(is_met)
    }
}
