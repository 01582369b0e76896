//! The way to a host: a lease, and a connection that was kept or is made.

use std::sync::Arc;
use std::time::Duration;

use signalbox_core::hostname::Hostname;
use signalbox_core::http1::grammar::elements;
use signalbox_core::peek::proxy;

use super::host_tls::HostSession;
use super::leg::Leg;
use super::leg_a::LegA;
use super::pool::ActiveConnection;
use crate::datapath::choose::{Chooser, Lease};
use crate::datapath::cut::HeldFlow;
use crate::datapath::dial::{MAX_HOSTS_TRIED, connect_uncut, dial_held, try_host};
use crate::datapath::worker_state::Worker;
use crate::state::outcome::Ineligible;
use crate::state::{RouteState, Snapshot};

/// Client of a request, for a PROXY header.
#[derive(Clone, Copy)]
pub(super) struct ProxiedClient<'a> {
    pub(super) client: std::net::SocketAddr,
    pub(super) local: std::net::SocketAddr,
    pub(super) name: Option<&'a Hostname>,
}

/// Hosts for one request.
pub(super) struct Upstream<'a> {
    pub(super) worker: &'a Worker,
    pub(super) snapshot: &'a Snapshot,
    pub(super) chooser: Chooser<'a>,
    /// Whether hosts are spoken to in TLS.
    pub(super) is_tls: bool,
    /// Leg A of a connection that is to be cut late, or why there is none.
    pub(super) leg_a: Result<LegA<'a>, Ineligible>,
    pub(super) leased: LeasedHost,
}

/// The host that a request has been sent to, or is to be. Holds no snapshot: an answer may take hours.
pub(super) struct LeasedHost {
    pub(super) lease: Lease,
    /// TLS of the connection in use.
    pub(super) session: Option<HostSession>,
    pub(super) route: Option<Arc<RouteState>>,
}

/// A connection to the host of a lease.
pub(super) struct HostStream {
    pub(super) stream: Leg,
    /// Counts the connection while it carries a request.
    pub(super) active: ActiveConnection,
    /// Bytes that go before the request: a PROXY header.
    pub(super) preamble: Vec<u8>,
    /// Time that the connect took.
    pub(super) connect: Duration,
    /// Flow of a connection that may be cut late, or why it may not.
    pub(super) held: Result<HeldFlow, Ineligible>,
}

impl Upstream<'_> {
    /// Gets a connection to the lease's host, a kept one if that may be, or else to another host, with another lease.
    /// `None`: no host could be connected to.
    pub(super) async fn connect(&mut self, may_reuse: bool, client: ProxiedClient<'_>) -> Option<HostStream> {
        let may_reuse = may_reuse && self.leg_a.is_err();
        loop {
            let LeasedHost { lease, session, route } = &mut self.leased;
            if let (Some(route), None) = (&*route, &lease.stats) {
                lease.count_for_route(route);
            }
            *session = self
                .is_tls
                .then(|| HostSession::new(self.snapshot, lease, client.name))
                .flatten();
            let kept = || self.worker.pool.take(lease, session.as_ref());
            if let Some(stream) = (may_reuse && !lease.proxy_protocol).then(kept).flatten() {
                return Some(HostStream {
                    stream,
                    active: ActiveConnection::new(&lease.cluster),
                    preamble: Vec::new(),
                    connect: Duration::ZERO,
                    held: Err(self.leg_a.err().unwrap_or(Ineligible::PerRequest)),
                });
            }
            let mut preamble = if lease.proxy_protocol {
                proxy::v2_header(client.client, client.local, client.name.map(Hostname::as_str))
            } else {
                Vec::new()
            };
            let (backend, session) = (lease.backend, session.clone());
            let dial = async {
                match (session, self.leg_a) {
                    (None, _) if self.is_tls => Err(std::io::Error::other("no TLS to hosts is configured")),
                    (None, Ok(leg_a)) => {
                        let request = leg_a.dial_request(route.as_ref());
                        let (stream, held) = dial_held(self.worker, lease, &request).await?;
                        Ok((Leg::Plain(stream), held))
                    }
                    (None, Err(why)) => {
                        let stream = connect_uncut(backend).await?;
                        Ok((Leg::Plain(stream), Err(why)))
                    }
                    // The PROXY header goes before the handshake.
                    (Some(session), _) => {
                        let stream = connect_uncut(backend).await?;
                        let stream = session.begin(stream, std::mem::take(&mut preamble)).await?;
                        Ok((stream, Err(Ineligible::Terminated)))
                    }
                }
            };
            if let Ok(((stream, held), connect)) = try_host(self.worker, self.snapshot, lease, dial).await {
                return Some(HostStream {
                    stream,
                    active: ActiveConnection::new(&lease.cluster),
                    preamble,
                    connect,
                    held,
                });
            }
            if self.chooser.attempts() >= MAX_HOSTS_TRIED {
                return None;
            }
            self.leased.lease = self.chooser.next_host()?;
        }
    }
}

impl LeasedHost {
    /// Keeps a connection after an exchange, where other clients may use it.
    pub(super) fn keep(&self, worker: &Worker, stream: Leg, is_personal: bool) {
        if !is_personal && !self.lease.proxy_protocol {
            worker.pool.put(&self.lease, self.session.as_ref(), stream);
        }
    }
}

/// Whether credentials or a challenge are of a scheme that authenticates the connection and not the request: such a
/// connection belongs to one client.
pub(super) fn authenticates_connection(value: &[u8]) -> bool {
    let is_of_connection = |element: &[u8]| {
        let scheme = element.split(|&b| b == b' ').next().unwrap_or_default();
        ["ntlm", "negotiate", "nego2"]
            .into_iter()
            .any(|name| scheme.eq_ignore_ascii_case(name.as_bytes()))
    };
    elements(value).any(is_of_connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_that_authenticate_a_connection() {
        for value in ["NTLM", "Negotiate oYG2", "nego2 abc", "Basic realm=a, NTLM"] {
            assert!(authenticates_connection(value.as_bytes()), "{value}");
        }
        for value in ["Basic bnRsbTo=", "Bearer negotiate", ""] {
            assert!(!authenticates_connection(value.as_bytes()), "{value}");
        }
    }
}
