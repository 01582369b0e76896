//! Leg A of a connection that may be cut, late or with its last request. Leg B is connected with the same options.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::datapath::cut::CutKind;
use crate::datapath::dial::DialRequest;
use crate::state::{ListenerState, RouteState};

/// Leg A of a connection that may be cut.
#[derive(Clone, Copy)]
pub(in crate::datapath::http) struct LegA<'a> {
    pub(in crate::datapath::http) peer: SocketAddr,
    pub(in crate::datapath::http) local: SocketAddr,
    pub(in crate::datapath::http) fd: RawFd,
    pub(in crate::datapath::http) listener: &'a Arc<ListenerState>,
    pub(in crate::datapath::http) kind: CutKind,
    /// Number of bytes taken off the client's stream, if they count.
    pub(in crate::datapath::http) consumed: u32,
}

impl LegA<'_> {
    /// Request for leg B.
    pub(super) fn dial_request<'r>(&'r self, route: Option<&'r Arc<RouteState>>) -> DialRequest<'r> {
        DialRequest {
            client: self.peer,
            vip: self.local,
            true_client: self.peer,
            destination: self.local,
            consumed: self.consumed,
            consumed_payload: &[],
            greeted: false,
            client_fd: self.fd,
            name: None,
            route,
            listener: self.listener,
            cut: Ok(()),
            kind: self.kind,
        }
    }
}
