//! Connects to a host, and tries others if it does not answer. Prepares the flow for being cut where possible.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use signalbox_core::availability::ha::floating::FloatingSources;
use signalbox_core::wire::peek::proxy::ToldConnection;
use signalbox_tls::host_fault::{AuthoritySetting, HostTlsFault};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::choose::{Chooser, Lease, MAX_HOSTS_TRIED};
use super::cut::{ConnectingLegB, CutAttempt, CutKind, CutRequest, HeldFlow};
use super::queue;
use super::redispatch::{accepted, is_silent};
use super::report::{FailedConnect, Report, note_failed_connect};
use super::socket::Socket;
use super::worker_state::Worker;
use crate::kernel::cut::table::tick;
use crate::state::outcome::Ineligible;
use crate::state::sync::Unprotected;
use crate::state::{ListenerState, RouteState, Shared, Snapshot};
use crate::sys;

/// Largest window scale whose smallest window is below the segment size of most paths. Allows windows up to 16 MiB.
const MAX_PAUSING_WINDOW_SCALE: u8 = 8;

/// Number of checks of the flow table for the cut before waiting for the connect with epoll.
const MAX_POLLS: usize = 2;

/// Request for a connection to a host.
pub(super) struct DialRequest<'a> {
    pub(super) client: SocketAddr,
    pub(super) vip: SocketAddr,
    /// The true client: named by a PROXY header, otherwise the peer.
    pub(super) true_client: SocketAddr,
    /// Address that the true client connected to, for a PROXY header.
    pub(super) destination: SocketAddr,
    /// Number of bytes taken off the client's stream: a PROXY header, and what an HTTP/2 client sent when greeted.
    pub(super) consumed: u32,
    /// Part of the consumed bytes that the host must still get.
    pub(super) consumed_payload: &'a [u8],
    /// True if the balancer has sent bytes to the client (HTTP/2 SETTINGS).
    pub(super) greeted: bool,
    /// The client's socket.
    pub(super) client_fd: RawFd,
    pub(super) name: Option<&'a str>,
    pub(super) route: Option<&'a Arc<RouteState>>,
    pub(super) listener: &'a Arc<ListenerState>,
    pub(super) cut: Result<(), Ineligible>,
    pub(super) kind: CutKind,
}

/// An established connection to a host.
pub(super) struct HostConnection {
    pub(super) host: Socket,
    pub(super) lease: Lease,
    pub(super) attempt: Result<CutAttempt, Ineligible>,
    /// Bytes to send to the host before those in the client's socket: a PROXY header, and bytes taken off the client's
    /// stream.
    pub(super) preamble: Vec<u8>,
    /// Time that the connect took.
    pub(super) connect_time: Duration,
}

/// Connects to a host, and tries others if it does not answer. Fails with the last error, or with `None` if there was
/// no host.
pub(super) async fn connect(
    worker: &Worker,
    snapshot: &Snapshot,
    chooser: &mut Chooser<'_>,
    ask: &DialRequest<'_>,
) -> Result<HostConnection, Option<std::io::Error>> {
    let mut last = None;
    while chooser.attempts() < MAX_HOSTS_TRIED {
        // Only the connection's own bytes show whether its client has left, and those belong to the host.
        let Ok(mut lease) = queue::next_host(chooser, snapshot.model.timeouts.queue, || false).await else {
            break;
        };
        let told = ToldConnection {
            client: ask.true_client,
            destination: ask.destination,
            name: ask.name,
            alpn: None,
            id: None,
        };
        let mut preamble = lease.proxy_header(&worker.shared.connection_ids, &told);
        preamble.extend_from_slice(ask.consumed_payload);
        let dialled = dial(worker, &lease, ask, preamble.len());
        match try_host(worker, snapshot, &lease, ask.route, dialled).await {
            Ok(((host, attempt), connect_time)) => {
                return Ok(HostConnection {
                    host,
                    lease,
                    attempt,
                    preamble,
                    connect_time,
                });
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last)
}

/// Waits for a connect to the leased host within its time limit, and counts the result. A failure counts for the route
/// too. Returns the time that the connect took.
pub(super) async fn try_host<T>(
    worker: &Worker,
    snapshot: &Snapshot,
    lease: &Lease,
    route: Option<&Arc<RouteState>>,
    dialled: impl Future<Output = std::io::Result<T>>,
) -> std::io::Result<(T, Duration)> {
    let (began, asked) = (Instant::now(), tick());
    let (label, error) = match timeout(snapshot.model.timeouts.connect, dialled).await {
        Ok(Ok(connected)) => {
            lease.host.total.inc();
            lease.host.accepted_at.store(tick(), Relaxed);
            let took = began.elapsed();
            lease.cluster.connect_seconds.observe(took);
            if lease.host.failing.load(Relaxed) && lease.host.failing.swap(false, Relaxed) {
                worker.report(Report::Connected(Arc::clone(&lease.host)));
            }
            return Ok((connected, took));
        }
        Ok(Err(error)) if is_silent(&error) => {
            lease.cluster.redispatches.inc();
            // A host that has accepted others since has only lost this connection's SYN.
            if !lease.host.has_accepted_since(asked) {
                lease.cluster.note_silent(&lease.host);
                note_failed_connect(
                    &worker.reports,
                    (&lease.host, &lease.cluster),
                    route.map(|route| &**route),
                    FailedConnect::Silent,
                );
            }
            return Err(error);
        }
        Ok(Err(error)) => (connect_label(&error), error),
        Err(_) => ("timeout", std::io::ErrorKind::TimedOut.into()),
    };
    lease.host.refused.inc();
    lease.cluster.connect_failures.inc(label);
    // A shortage in the balancer (descriptors, ports) is not the host's fault.
    if label != "no_resources" {
        lease.host.failing.store(true, Relaxed);
        if let Some(route) = route {
            route.stats.for_cluster(&lease.cluster.name).quality.connect_failed();
        }
        if let Some(fault) = HostTlsFault::of(&error, AuthoritySetting::BackendTls) {
            worker.report(Report::TlsFailed(Arc::clone(&lease.host), fault));
        }
        worker.report(Report::ConnectFailed(Arc::clone(&lease.host), error.to_string()));
    }
    Err(error)
}

fn connect_label(error: &std::io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED) => "refused",
        Some(libc::EHOSTUNREACH | libc::ENETUNREACH) => "unreachable",
        Some(libc::ETIMEDOUT) => "timeout",
        None if signalbox_tls::client::is_tls_error(error) => "tls",
        None if super::http::is_not_http2(error) => "http2",
        _ if sys::is_out_of_resources(error) => "no_resources",
        _ => "other",
    }
}

/// Connects to the host of a lease, through tier `cut` where the flow can be cut.
pub(super) async fn dial(
    worker: &Worker,
    lease: &Lease,
    ask: &DialRequest<'_>,
    injected: usize,
) -> std::io::Result<(Socket, Result<CutAttempt, Ineligible>)> {
    let ConnectingLegB { attempt, mut host } = match begin_cut(worker, lease, ask, injected) {
        Ok(connecting) => connecting,
        Err(BeginError::Failed(error)) => return Err(error),
        Err(BeginError::Ineligible(ineligible)) => {
            let host = connect_uncut(&worker.shared, lease).await?;
            return Ok((Socket::Registered(host), Err(ineligible)));
        }
    };
    // A nearby host has answered by the time other tasks have had their turn. The flow table shows this.
    for _ in 0..MAX_POLLS {
        if attempt.is_paired() {
            return Ok((host, Ok(attempt)));
        }
        tokio::task::yield_now().await;
    }
    let stream = host.registered()?;
    accepted(&worker.shared, lease, stream.writable()).await?;
    if let Err(ineligible) = attempt.outcome().await {
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
        // Userspace writes to this socket, so Nagle's algorithm is switched off.
        stream.set_nodelay(true)?;
        return Ok((host, Err(ineligible)));
    }
    Ok((host, Ok(attempt)))
}

/// Connects to the leased host so that the flow may be cut late, or says why it cannot be.
pub(super) async fn dial_held(
    worker: &Worker,
    lease: &Lease,
    ask: &DialRequest<'_>,
) -> std::io::Result<(TcpStream, Result<HeldFlow, Ineligible>)> {
    let (host, attempt) = dial(worker, lease, ask, 0).await?;
    let host = host.into_registered()?;
    // Userspace writes to this socket until the cut, so Nagle's algorithm is switched off.
    host.set_nodelay(true)?;
    match attempt {
        Ok(attempt) if attempt.is_held() => Ok((host, Ok(attempt.hold()))),
        // Programs of another build cannot hold flows, and have cut this one.
        Ok(_) => Err(std::io::Error::other("the flow was cut too early")),
        Err(why) => Ok((host, Err(why))),
    }
}

/// Reason why leg B of a flow was not started.
enum BeginError {
    Ineligible(Ineligible),
    Failed(std::io::Error),
}

/// Starts connecting leg B of a flow to cut. A flow to a virtual address is counted if it would end when the address
/// moves to another node.
fn begin_cut(
    worker: &Worker,
    lease: &Lease,
    ask: &DialRequest<'_>,
    injected: usize,
) -> Result<ConnectingLegB, BeginError> {
    let floating = &worker.shared.snapshot.load().floating;
    let begun = try_begin_cut(worker, lease, ask, injected, floating);
    if floating.group_of(ask.vip.ip()).is_some() {
        let why = match &begun {
            Ok(connecting) => (!connecting.attempt.can_move()).then_some(Unprotected::NoFloatingSource),
            Err(BeginError::Ineligible(_)) => Some(Unprotected::NotCut),
            Err(BeginError::Failed(_)) => None,
        };
        if let Some(why) = why {
            worker.shared.sync.unprotected[why as usize].inc();
        }
    }
    begun
}

fn try_begin_cut(
    worker: &Worker,
    lease: &Lease,
    ask: &DialRequest<'_>,
    injected: usize,
    floating: &FloatingSources,
) -> Result<ConnectingLegB, BeginError> {
    ask.cut.map_err(BeginError::Ineligible)?;
    let Some((cutter, registry)) = &worker.cut else {
        return Err(BeginError::Ineligible(Ineligible::NotAvailable));
    };
    let numbers = || {
        let route = match ask.route {
            Some(route) => registry.route(route)?,
            None => 0,
        };
        Some((
            registry.host(&lease.host, &lease.cluster)?,
            route,
            registry.listener(ask.listener)?,
        ))
    };
    let (host, route, listener) = numbers().ok_or(BeginError::Ineligible(Ineligible::NotAvailable))?;
    let wanted = CutRequest {
        client: ask.client,
        vip: ask.vip,
        backend: lease.backend,
        injected: injected as u32,
        consumed: ask.consumed,
        greeted: ask.greeted,
        timestamp_clock: sys::timestamp_clock(ask.client_fd),
        window_scale: match ask.kind {
            CutKind::LongAnswer => sys::window_scale_up_to(ask.client_fd, MAX_PAUSING_WINDOW_SCALE),
            _ => sys::differing_window_scale(ask.client_fd),
        },
        host,
        route,
        listener,
        kind: ask.kind,
        may_float: worker.shared.ha.may_have(floating, ask.vip.ip()),
    };
    match cutter.connect(&wanted, floating) {
        Ok(Ok(connecting)) => Ok(connecting),
        Ok(Err(error)) => Err(BeginError::Failed(error)),
        Err(ineligible) => Err(BeginError::Ineligible(ineligible)),
    }
}

/// Connects to the leased host from a source port that the kernel chooses: the flow will not be cut.
pub(super) async fn connect_uncut(shared: &Shared, lease: &Lease) -> std::io::Result<TcpStream> {
    let socket = super::cut::uncut_socket(lease.backend)?;
    socket.set_nodelay(true)?;
    accepted(shared, lease, socket.connect(lease.backend)).await
}
