//! A request that is its client's last is cut when its host is connected. Leg B's socket delivers the request's
//! remaining bytes, and the kernel carries the answer. The answer is not parsed, and no further bytes of the client are
//! forwarded.

use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

use signalbox_core::model::Tier;
use signalbox_core::model::http::RequestPolicy;
use signalbox_core::routing::last_request::{LastRequest, LastRequestObstacle};
use signalbox_core::wire::http1::framing::BodyLength;

use super::attempt::Request;
use super::connection::HttpConnection;
use crate::datapath::choose::Lease;
use crate::datapath::conn_guard::ConnGuard;
use crate::datapath::cut::QueuedBytes;
use crate::datapath::http::host::versions::CutHost;
use crate::datapath::http::leg::Leg;
use crate::datapath::socket::Socket;
use crate::state::outcome::{FlowEnd, Ineligible};
use crate::sys;

/// A request whose flow is cut and is to be handed off.
pub(in crate::datapath::http) struct CutExchange {
    pub(super) client: Leg,
    pub(super) host: CutHost,
    /// Counts the flow against its host.
    pub(super) lease: Lease,
}

impl HttpConnection<'_> {
    /// Whether a connection's last request can be cut, as far as the request and its route decide.
    pub(super) fn last_request(
        &self,
        request: &Request,
        body: BodyLength,
        behind_head: usize,
        policy: &RequestPolicy,
    ) -> Result<(), Ineligible> {
        let last = LastRequest {
            is_logged: self.worker.shared.log.is_on(),
            policy,
            expects_continue: request.head.expects_continue(&request.bytes),
            body,
            behind_head,
        };
        last.obstacle().map_or(Ok(()), |why| Err(Ineligible::LastRequest(why)))
    }

    /// Whether client and host can be the two legs of a cut flow, as far as this is known before the host is connected.
    /// An obstacle found later costs the host a connection that could have been kept.
    pub(super) fn fits_cut(&self, client: &Leg, lease: &Lease) -> Result<(), Ineligible> {
        let obstacle = |why| Err(Ineligible::LastRequest(why));
        if self.worker.cut.is_none() {
            return Err(Ineligible::NotAvailable);
        }
        if self.peer.is_ipv4() != lease.backend.is_ipv4() {
            return Err(Ineligible::FamilyMismatch);
        }
        if lease.h2c {
            return obstacle(LastRequestObstacle::Http2Host);
        }
        if lease.host.is_unfit() {
            return obstacle(LastRequestObstacle::HostUnfit);
        }
        let Some(socket) = client.tcp() else {
            return Err(Ineligible::PerRequest);
        };
        match sys::recv(socket.as_raw_fd(), &mut [0], libc::MSG_PEEK) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Ok(0) => obstacle(LastRequestObstacle::HalfClosed),
            Ok(_) => obstacle(LastRequestObstacle::BytesBehind),
            // The client has left.
            Err(_) => Err(Ineligible::PerRequest),
        }
    }

    /// Hands a request's flow off to the kernel. The flow GC gives the counts back when it ends.
    pub(in crate::datapath::http) fn hand_off(&self, exchange: CutExchange, guard: &mut ConnGuard) {
        let CutExchange { client, host, lease } = exchange;
        let Leg::Plain(client) = client else { return };
        let cluster = Arc::clone(&lease.cluster);
        let CutHost { attempt, host, bytes } = host;
        let queued = QueuedBytes::Dropped(Arc::clone(&self.listener));
        self.listener.requests.count_cut(&cluster.name);
        match attempt.hand_off(Socket::Registered(client), host, &bytes, queued, guard) {
            Ok(()) => {
                cluster.opened[Tier::Cut as usize].inc();
                cluster.active[Tier::Cut as usize].enter();
                lease.detach();
            }
            Err(error) => {
                tracing::debug!(%error, "A flow ended while its request was being cut.");
                self.listener.request_refused.inc("client_gone");
                cluster.closed[FlowEnd::ClientReset as usize].inc();
            }
        }
    }
}
