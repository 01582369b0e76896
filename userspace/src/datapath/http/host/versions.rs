//! HTTP versions to use with a host.

use std::rc::Rc;

use super::tls::HostSession;
use crate::datapath::choose::Lease;
use crate::datapath::cut::{CutAttempt, HeldFlow};
use crate::datapath::http::leg::Leg;
use crate::datapath::http::leg::http2::SharedHost;
use crate::datapath::socket::Socket;
use crate::state::outcome::Ineligible;

/// HTTP versions to use with a host.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum HostVersions {
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
    /// Either version, as the host chooses by ALPN.
    ByAlpn,
}

/// A connection to a host that was made for a request.
pub(super) enum MadeConnection {
    /// A connection with its flow if it may be cut late, or the reason why it may not.
    Http1(Leg, Result<HeldFlow, Ineligible>),
    Http2(Rc<SharedHost>),
    /// A cut connection, for a request that is its client's last.
    Cut(CutHost),
}

/// A host whose connection is cut, and the first bytes for it.
pub(in crate::datapath::http) struct CutHost {
    pub(in crate::datapath::http) attempt: CutAttempt,
    pub(in crate::datapath::http) host: Socket,
    /// The request, after a PROXY header if the host wants one.
    pub(in crate::datapath::http) bytes: Vec<u8>,
}

impl HostVersions {
    /// Versions for a request. A request for another protocol uses HTTP/1.1. So does a request that authenticates its
    /// connection, if the host leaves the choice.
    pub(super) fn new(lease: &Lease, session: Option<&HostSession>, is_upgrade: bool, is_personal: bool) -> Self {
        match session {
            _ if is_upgrade => Self::Http1,
            None if lease.h2c => Self::Http2,
            Some(session) if session.tls.config.offers_http2() && !is_personal => Self::ByAlpn,
            None | Some(_) => Self::Http1,
        }
    }

    pub(super) fn may_be_http2(self) -> bool {
        self != Self::Http1
    }
}
