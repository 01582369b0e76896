//! The way to a host: a lease, and a kept or new connection.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use signalbox_core::routing::last_request::LastRequestObstacle;
use signalbox_core::wire::hostname::Hostname;
use signalbox_core::wire::http1::grammar::elements;
use signalbox_core::wire::peek::proxy;

use super::host_room::{HostRoom, HostRoomGuard};
use super::host_tls::HostSession;
use super::host_versions::{CutHost, HostVersions, MadeConnection};
use super::http2::{HostStreamLeg, SharedHost};
use super::leg::Leg;
use super::leg_a::LegA;
use super::pool::{ActiveConnection, StreamOrDial};
use crate::datapath::choose::{Chooser, Lease};
use crate::datapath::cut::HeldFlow;
use crate::datapath::dial::{MAX_HOSTS_TRIED, connect_uncut, dial, dial_held, try_host};
use crate::datapath::queue;
use crate::datapath::worker_state::Worker;
use crate::state::outcome::Ineligible;
use crate::state::{RouteState, Snapshot};

/// Client of a request, for a PROXY header.
#[derive(Clone, Copy)]
pub(super) struct ProxiedClient<'a> {
    pub(super) client: std::net::SocketAddr,
    pub(super) destination: std::net::SocketAddr,
    pub(super) name: Option<&'a Hostname>,
}

/// Hosts for one request.
pub(super) struct Upstream<'a> {
    pub(super) worker: &'a Worker,
    pub(super) snapshot: &'a Snapshot,
    pub(super) chooser: Chooser<'a>,
    /// Whether hosts are spoken to in TLS.
    pub(super) is_tls: bool,
    /// Leg A of a connection to cut, or the reason why there is none.
    pub(super) leg_a: Result<LegA<'a>, Ineligible>,
    /// A client's last request, in the form for the host: it is cut at connect.
    pub(super) last_request: Option<Vec<u8>>,
    /// Whether the request asks for another protocol.
    pub(super) is_upgrade: bool,
    /// Whether the connection would belong to this client alone.
    pub(super) is_personal: bool,
    /// Room for connections to hosts, if the client is a stream.
    pub(super) host_room: Option<Rc<HostRoom>>,
    pub(super) leased: LeasedHost,
}

/// The host of a request that was or will be sent. Holds no snapshot: an answer may take hours.
pub(super) struct LeasedHost {
    pub(super) lease: Lease,
    /// TLS of the connection in use.
    pub(super) session: Option<HostSession>,
    pub(super) route: Option<Arc<RouteState>>,
}

/// A connection to the host of a lease, or a stream of one.
pub(super) struct HostStream {
    pub(super) stream: Leg,
    /// Counts the connection while it carries a request. `None`: a stream, whose connection is counted elsewhere.
    pub(super) active: Option<ActiveConnection>,
    /// Bytes to send before the request: a PROXY header.
    pub(super) preamble: Vec<u8>,
    /// Time that the connect took.
    pub(super) connect: Duration,
    /// Flow of a connection that may be cut late, or the reason why it may not.
    pub(super) held: Result<HeldFlow, Ineligible>,
}

/// A connected host for a request.
pub(super) enum ReachedHost {
    Stream(HostStream),
    /// The kernel carries request and answer.
    Cut(CutHost),
}

impl From<HostStream> for ReachedHost {
    fn from(stream: HostStream) -> Self {
        Self::Stream(stream)
    }
}

impl Upstream<'_> {
    /// Leaves the request to userspace, after an attempt with it.
    pub(super) fn give_up_cut(&mut self) {
        if self.last_request.take().is_some() {
            self.leg_a = Err(Ineligible::PerRequest);
        }
    }

    /// Leases another host than the one that refused a request, if there is one.
    pub(super) fn choose_other(&mut self) {
        self.chooser.refused();
        if let Some(lease) = self.chooser.next_host() {
            self.leased.lease = lease;
        }
    }

    /// Gets a connection to the lease's host, a kept or shared one if allowed. Otherwise connects to another host with
    /// another lease. `None`: no connect succeeded. `waiting`: the client's end, which may leave while waiting for a
    /// host.
    pub(super) async fn connect(
        &mut self,
        may_reuse: bool,
        client: ProxiedClient<'_>,
        waiting: &mut Leg,
    ) -> Option<ReachedHost> {
        let may_reuse = may_reuse && self.leg_a.is_err();
        let not_cut = self.leg_a.as_ref().err().copied().unwrap_or(Ineligible::PerRequest);
        let patience = self.snapshot.model.timeouts.queue;
        loop {
            let LeasedHost { lease, session, route } = &mut self.leased;
            if let (Some(route), None) = (&*route, &lease.stats) {
                lease.count_for_route(route);
            }
            *session = self
                .is_tls
                .then(|| HostSession::new(self.snapshot, lease, client.name))
                .flatten();
            let versions = HostVersions::new(lease, session.as_ref(), self.is_upgrade, self.is_personal);
            let shares = !self.is_personal && !lease.proxy_protocol;
            let pool = &self.worker.pool;
            let (mut sharing, mut kept) = (None, None);
            let may_share = shares && versions.may_be_http2();
            if may_share {
                match pool.stream(lease, session.as_ref(), may_reuse).await {
                    StreamOrDial::Stream(stream) => {
                        return Some(HostStream::shared(stream, Duration::ZERO, not_cut).into());
                    }
                    StreamOrDial::Kept(stream) => kept = Some(stream),
                    StreamOrDial::Dial(dial) => sharing = dial,
                }
            }
            let room = match &self.host_room {
                Some(room) => Some(room.enter(self.worker, patience).await?),
                None => None,
            };
            if may_reuse && shares && !may_share {
                kept = pool.take(lease, session.as_ref());
            }
            if let Some(stream) = kept {
                return Some(HostStream::kept(stream, lease, not_cut, room).into());
            }
            let mut preamble = if lease.proxy_protocol {
                proxy::v2_header(client.client, client.destination, client.name.map(Hostname::as_str))
            } else {
                Vec::new()
            };
            let (backend, cluster, session) = (lease.backend, Arc::clone(&lease.cluster), session.clone());
            let dialled = async {
                let (leg, held) = match (session, self.leg_a) {
                    (None, _) if self.is_tls => return Err(std::io::Error::other("no TLS to hosts is configured")),
                    (None, Ok(leg_a)) if self.last_request.is_some() && versions == HostVersions::Http1 => {
                        let request = leg_a.dial_request(route.as_ref());
                        let bytes = [&preamble, self.last_request.as_deref().unwrap_or_default()].concat();
                        let (host, attempt) = dial(self.worker, lease, &request, bytes.len()).await?;
                        match attempt {
                            Ok(attempt) => return Ok(MadeConnection::Cut(CutHost { attempt, host, bytes })),
                            Err(why) => {
                                lease.host.note_not_cut(why);
                                (Leg::Plain(host.into_registered()?), Err(why))
                            }
                        }
                    }
                    (None, Ok(_)) if self.last_request.is_some() => {
                        let why = Ineligible::LastRequest(LastRequestObstacle::Http2Host);
                        (Leg::Plain(connect_uncut(backend).await?), Err(why))
                    }
                    (None, Ok(leg_a)) => {
                        let request = leg_a.dial_request(route.as_ref());
                        let (stream, held) = dial_held(self.worker, lease, &request).await?;
                        if let Err(why) = held {
                            lease.host.note_not_cut(why);
                        }
                        (Leg::Plain(stream), held)
                    }
                    (None, Err(why)) => (Leg::Plain(connect_uncut(backend).await?), Err(why)),
                    // The PROXY header goes before the handshake.
                    (Some(session), _) => {
                        let stream = connect_uncut(backend).await?;
                        let before = std::mem::take(&mut preamble);
                        let stream = session.begin(stream, before, versions.may_be_http2()).await?;
                        (stream, Err(Ineligible::Terminated))
                    }
                };
                if versions != HostVersions::Http2 && !leg.has_chosen_http2() {
                    return Ok(MadeConnection::Http1(leg, held));
                }
                let before = std::mem::take(&mut preamble);
                let limits = self.snapshot.model.limits.heads;
                Box::pin(SharedHost::begin(leg, before, backend, &cluster, limits))
                    .await
                    .map(MadeConnection::Http2)
            };
            let made = try_host(self.worker, self.snapshot, lease, route.as_ref(), dialled).await;
            if let (Ok((_, took)), Some(share)) = (&made, &lease.stats) {
                share.quality.connected(*took);
            }
            let session = self.leased.session.as_ref();
            match made {
                Ok((MadeConnection::Http1(stream, held), connect)) => {
                    if let Some(sharing) = sharing {
                        sharing.found_http1();
                    }
                    let active = Some(ActiveConnection::new(&self.leased.lease.cluster, room));
                    return Some(ReachedHost::Stream(HostStream {
                        stream,
                        active,
                        preamble,
                        connect,
                        held,
                    }));
                }
                Ok((MadeConnection::Cut(host), _)) => return Some(ReachedHost::Cut(host)),
                Ok((MadeConnection::Http2(host), connect)) => {
                    let stream = host.open();
                    if shares {
                        pool.share(&self.leased.lease, session, host, sharing);
                    }
                    // A connection that has ended already counts as none.
                    if let Some(stream) = stream {
                        return Some(HostStream::shared(Box::new(stream), connect, not_cut).into());
                    }
                }
                Err(_) => {}
            }
            if self.chooser.attempts() >= MAX_HOSTS_TRIED {
                return None;
            }
            let lease = queue::next_host(&mut self.chooser, patience, || waiting.is_gone()).await;
            self.leased.lease = lease.ok()?;
        }
    }
}

impl HostStream {
    /// A kept connection, used before by another request.
    fn kept(stream: Leg, lease: &Lease, not_cut: Ineligible, room: Option<HostRoomGuard>) -> Self {
        Self {
            stream,
            active: Some(ActiveConnection::new(&lease.cluster, room)),
            preamble: Vec::new(),
            connect: Duration::ZERO,
            held: Err(not_cut),
        }
    }

    /// A stream of a shared connection.
    fn shared(stream: Box<HostStreamLeg>, connect: Duration, not_cut: Ineligible) -> Self {
        Self {
            stream: Leg::HostStream(stream),
            active: None,
            preamble: Vec::new(),
            connect,
            held: Err(not_cut),
        }
    }
}

impl LeasedHost {
    /// Keeps a connection after an exchange if other clients may use it.
    pub(super) fn keep(&self, worker: &Worker, stream: Leg, is_personal: bool) {
        if !is_personal && !self.lease.proxy_protocol && !stream.is_stream() {
            worker.pool.put(&self.lease, self.session.as_ref(), stream);
        }
    }
}

/// Whether credentials or a challenge use a scheme that authenticates the connection rather than the request. Such a
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
