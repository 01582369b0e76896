//! Leg A of a connection that may be cut, late or with its last request. Leg B is connected with the same options.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use signalbox_core::model::Listener;

use super::client::HttpConnection;
use super::leg::Leg;
use crate::datapath::cut::CutKind;
use crate::datapath::cut::eligibility::CutFacts;
use crate::datapath::dial::DialRequest;
use crate::state::outcome::Ineligible;
use crate::state::{ListenerState, RouteState};
use crate::sys;

/// Leg A of a connection that may be cut.
#[derive(Clone, Copy)]
pub(super) struct LegA<'a> {
    peer: SocketAddr,
    local: SocketAddr,
    fd: RawFd,
    listener: &'a Arc<ListenerState>,
    pub(super) kind: CutKind,
    /// Number of bytes taken off the client's stream, if they count.
    pub(super) consumed: u32,
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

impl HttpConnection<'_> {
    /// Leg A for the cut of an upgraded connection, of a last request or of a long answer, or why there is none.
    /// `is_counted`: the tunnel or request counts against a limit that only userspace can give back.
    pub(super) fn leg_a<'a>(
        &self,
        kind: CutKind,
        client: &Leg,
        listener: Option<&Listener>,
        is_counted: bool,
        state: &'a Arc<ListenerState>,
    ) -> Result<LegA<'a>, Ineligible> {
        let client = match client {
            Leg::Plain(client) => client,
            // Streams share a socket.
            _ if !self.is_tls => return Err(Ineligible::PerRequest),
            _ => return Err(Ineligible::Terminated),
        };
        let shared = &self.worker.shared;
        if shared.life.stopping.load(Relaxed) {
            return Err(Ineligible::TakingOver);
        }
        if is_counted {
            return Err(Ineligible::CountedRequest);
        }
        let peer = client.peer_addr().map_err(|_| Ineligible::NotAvailable)?;
        let peer = sys::canonical(peer);
        let facts = CutFacts {
            datapath: listener.ok_or(Ineligible::Disabled)?.datapath,
            is_counted: true,
            is_named_by_proxy: peer != self.peer,
            is_available: self.worker.cut.is_some(),
            // The host is asked for its address later.
            ends: None,
        };
        if let Some(why) = facts.obstacle() {
            return Err(why);
        }
        Ok(LegA {
            peer,
            local: self.local,
            fd: client.as_raw_fd(),
            listener: state,
            kind,
            consumed: 0,
        })
    }
}
