//! The way to a host: a lease, and a kept or new connection.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use signalbox_core::routing::view::Destination;
use signalbox_core::wire::hostname::Hostname;
use signalbox_core::wire::peek::proxy::ToldConnection;

use super::cut_plan::CutPlan;
use super::dialer::HostDialer;
use super::pool::{ActiveConnection, StreamOrDial};
use super::tls::HostSession;
use super::versions::{CutHost, HostVersions, MadeConnection};
use crate::datapath::choose::{Chooser, Lease, MAX_HOSTS_TRIED};
use crate::datapath::cut::HeldFlow;
use crate::datapath::dial::try_host;
use crate::datapath::http::host_room::{HostRoom, HostRoomGuard};
use crate::datapath::http::leg::Leg;
use crate::datapath::http::leg::http2::HostStreamLeg;
use crate::datapath::queue;
use crate::datapath::worker_state::Worker;
use crate::state::outcome::Ineligible;
use crate::state::{RouteState, Snapshot};

/// Client of a request, for a PROXY header.
#[derive(Clone, Copy)]
pub(in crate::datapath::http) struct ProxiedClient<'a> {
    pub(in crate::datapath::http) client: std::net::SocketAddr,
    pub(in crate::datapath::http) destination: std::net::SocketAddr,
    pub(in crate::datapath::http) name: Option<&'a Hostname>,
    /// Protocol that the client's TLS has agreed upon.
    pub(in crate::datapath::http) alpn: Option<&'static str>,
}

/// Hosts for one request.
pub(in crate::datapath::http) struct Upstream<'a> {
    pub(in crate::datapath::http) worker: &'a Worker,
    pub(in crate::datapath::http) snapshot: &'a Snapshot,
    pub(in crate::datapath::http) chooser: Chooser<'a>,
    pub(in crate::datapath::http) destination: Destination,
    /// Whether hosts are spoken to in TLS.
    pub(in crate::datapath::http) is_tls: bool,
    /// Part of the exchange that the kernel may carry.
    pub(in crate::datapath::http) cut: CutPlan<'a>,
    /// Whether the answer may be so long that it is worth a cut.
    pub(in crate::datapath::http) may_be_long: bool,
    /// Whether the request asks for another protocol.
    pub(in crate::datapath::http) is_upgrade: bool,
    /// Whether the connection would belong to this client alone.
    pub(in crate::datapath::http) is_personal: bool,
    /// Room for connections to hosts, if the client is a stream.
    pub(in crate::datapath::http) host_room: Option<Rc<HostRoom>>,
    pub(in crate::datapath::http) leased: LeasedHost,
}

/// The host of a request that was or will be sent. Holds no snapshot: an answer may take hours.
pub(in crate::datapath::http) struct LeasedHost {
    pub(in crate::datapath::http) lease: Lease,
    /// TLS of the connection in use.
    pub(in crate::datapath::http) session: Option<HostSession>,
    pub(in crate::datapath::http) route: Option<Arc<RouteState>>,
}

/// A connection to the host of a lease, or a stream of one.
pub(in crate::datapath::http) struct HostStream {
    pub(in crate::datapath::http) stream: Leg,
    /// Counts the connection while it carries a request. `None`: a stream, whose connection is counted elsewhere.
    pub(in crate::datapath::http) active: Option<ActiveConnection>,
    /// Bytes to send before the request: a PROXY header.
    pub(in crate::datapath::http) preamble: Vec<u8>,
    /// Time that the connect took.
    pub(in crate::datapath::http) connect: Duration,
    /// Flow of a connection that may be cut late, or the reason why it may not.
    pub(in crate::datapath::http) held: Result<HeldFlow, Ineligible>,
}

/// A connected host for a request.
pub(in crate::datapath::http) enum ReachedHost {
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
    /// Prepares another attempt, after one that was lost. `was_refused`: the host does not want the request, so another
    /// one gets it, if there is one.
    pub(in crate::datapath::http) fn retry(&mut self, was_refused: bool) {
        self.leased.lease.cluster.retries.inc();
        if self.cut.is_last_request() {
            self.cut = CutPlan::No(Ineligible::PerRequest);
        }
        if was_refused {
            self.chooser.refused();
            if let Some(lease) = self.chooser.next_host() {
                self.leased.lease = lease;
            }
        }
    }

    /// Gets a connection to the lease's host, a kept or shared one if allowed. Otherwise connects to another host with
    /// another lease. `None`: no connect succeeded. `waiting`: the client's end, which may leave while waiting for a
    /// host.
    pub(in crate::datapath::http) async fn connect(
        &mut self,
        may_reuse: bool,
        client: ProxiedClient<'_>,
        waiting: &mut Leg,
    ) -> Option<ReachedHost> {
        let may_reuse = may_reuse && self.cut.obstacle().is_some();
        let patience = self.snapshot.model.timeouts.queue;
        loop {
            match self.connect_leased(may_reuse, client).await {
                Ok(host) => return Some(host),
                Err(Unreached::NoRoom) => return None,
                Err(Unreached::Host) if self.chooser.attempts() >= MAX_HOSTS_TRIED => return None,
                Err(Unreached::Host) => {}
            }
            let lease = queue::next_host(&mut self.chooser, patience, || waiting.is_gone()).await;
            self.leased.lease = lease.ok()?;
        }
    }

    /// Gets a connection to the lease's host.
    async fn connect_leased(&mut self, may_reuse: bool, client: ProxiedClient<'_>) -> Result<ReachedHost, Unreached> {
        let not_cut = self.cut.obstacle().unwrap_or(Ineligible::PerRequest);
        let LeasedHost { lease, session, route } = &mut self.leased;
        if let (Some(route), None) = (&*route, &lease.stats) {
            lease.count_for_route(route);
        }
        *session = self
            .is_tls
            .then(|| HostSession::new(self.snapshot, lease, client.name))
            .flatten();
        let versions = HostVersions::new(lease, session.as_ref(), self.is_upgrade, self.is_personal);
        let shares = !self.is_personal && lease.proxy.is_none();
        let pool = &self.worker.pool;
        let (mut sharing, mut kept) = (None, None);
        let may_share = shares && versions.may_be_http2();
        if may_share {
            match pool.stream(lease, session.as_ref(), may_reuse).await {
                StreamOrDial::Stream(stream) => return Ok(HostStream::shared(stream, Duration::ZERO, not_cut).into()),
                StreamOrDial::Kept(stream) => kept = Some(stream),
                StreamOrDial::Dial(dial) => sharing = dial,
            }
        }
        let room = match &self.host_room {
            Some(room) => {
                let patience = self.snapshot.model.timeouts.queue;
                Some(room.enter(self.worker, patience).await.ok_or(Unreached::NoRoom)?)
            }
            None => None,
        };
        if may_reuse && shares && !may_share {
            kept = pool.take(lease, session.as_ref());
        }
        if let Some(stream) = kept {
            return Ok(HostStream::kept(stream, lease, not_cut, room).into());
        }
        let told = ToldConnection {
            client: client.client,
            destination: client.destination,
            name: client.name.map(Hostname::as_str),
            alpn: client.alpn,
            id: None,
        };
        let mut preamble = lease.proxy_header(&self.worker.shared.connection_ids, &told);
        let (made, connect) = self.dial(versions, &mut preamble).await.ok_or(Unreached::Host)?;
        let LeasedHost { lease, session, .. } = &self.leased;
        match made {
            MadeConnection::Cut(host) => Ok(ReachedHost::Cut(host)),
            MadeConnection::Http1(stream, held) => {
                if let Some(sharing) = sharing {
                    sharing.found_http1();
                }
                Ok(ReachedHost::Stream(HostStream {
                    stream,
                    active: Some(ActiveConnection::new(&lease.cluster, room)),
                    preamble,
                    connect,
                    held,
                }))
            }
            MadeConnection::Http2(host) => {
                let stream = host.open();
                if shares {
                    pool.share(lease, session.as_ref(), host, sharing);
                }
                // A connection that has ended already counts as none.
                let stream = stream.ok_or(Unreached::Host)?;
                Ok(HostStream::shared(Box::new(stream), connect, not_cut).into())
            }
        }
    }

    /// Makes a connection to the lease's host, and returns the time that it took. `None`, counted: it failed.
    async fn dial(&self, versions: HostVersions, preamble: &mut Vec<u8>) -> Option<(MadeConnection, Duration)> {
        let LeasedHost { lease, session, route } = &self.leased;
        let dialer = HostDialer {
            worker: self.worker,
            snapshot: self.snapshot,
            lease,
            route: route.as_ref(),
            session: session.clone(),
            versions,
            preamble,
        };
        let dialled = async {
            if self.is_tls && session.is_none() {
                return Err(std::io::Error::other("no TLS to hosts is configured"));
            }
            dialer.connect(&self.cut).await
        };
        let made = try_host(self.worker, self.snapshot, lease, route.as_ref(), dialled)
            .await
            .ok()?;
        if let Some(share) = &lease.stats {
            share.quality.connected(made.1);
        }
        Some(made)
    }
}

/// Reason why a lease's host was not reached.
enum Unreached {
    /// No place for another connection of this client became free.
    NoRoom,
    Host,
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
    pub(in crate::datapath::http) fn keep(&self, worker: &Worker, stream: Leg, is_personal: bool) {
        if !is_personal && self.lease.proxy.is_none() && !stream.is_stream() {
            worker.pool.put(&self.lease, self.session.as_ref(), stream);
        }
    }
}
