//! Connects to a host and tries others when one does not answer; prepares the flow for being cut where it can be.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use signalbox_core::peek::proxy;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::choose::{Chooser, Lease};
use super::cut::{Attempt, Connecting, Unfit, Wanted};
use super::socket::Socket;
use super::sys;
use super::worker::Worker;
use crate::state::{ListenerState, RouteState, Snapshot};
use crate::store::Event;

/// Hosts tried for one connection.
const ATTEMPTS: usize = 3;

/// Polls of the flow table for the cut before epoll is asked to wait for the connect.
const LOOKS: usize = 2;

/// Request for a connection to a host.
pub(super) struct Ask<'a> {
    pub(super) client: SocketAddr,
    pub(super) vip: SocketAddr,
    /// The true client: named by a PROXY header, or else the peer.
    pub(super) who: SocketAddr,
    /// Bytes taken off the client's stream: a PROXY header, and what an HTTP/2 client said while it was greeted.
    pub(super) consumed: u32,
    /// Part of the consumed bytes that the host must still get.
    pub(super) kept: &'a [u8],
    /// True if the balancer has sent bytes to the client (HTTP/2 SETTINGS).
    pub(super) greeted: bool,
    /// The client's socket.
    pub(super) socket: RawFd,
    pub(super) name: Option<&'a str>,
    pub(super) route: Option<&'a Arc<RouteState>>,
    pub(super) listener: &'a Arc<ListenerState>,
    pub(super) cut: Result<(), Unfit>,
}

/// An established connection to a host.
pub(super) struct Dialled {
    pub(super) host: Socket,
    pub(super) lease: Lease,
    pub(super) attempt: Result<Attempt, Unfit>,
    /// Bytes to send to the host before those in the client's socket: a PROXY header, and bytes taken off the client's
    /// stream.
    pub(super) front: Vec<u8>,
    /// Time that the connect took.
    pub(super) took: Duration,
}

/// Connects to a host and tries others when one does not answer. Fails with the last error, or `None` where there was
/// no host.
pub(super) async fn connect(
    worker: &Worker,
    snapshot: &Snapshot,
    mut chooser: Chooser<'_>,
    ask: &Ask<'_>,
) -> Result<Dialled, Option<std::io::Error>> {
    let mut last = None;
    while chooser.attempts() < ATTEMPTS {
        let Some(lease) = chooser.next_host() else { break };
        let began = Instant::now();
        let mut front = if lease.proxy_protocol {
            proxy::v2_header(ask.who, ask.vip, ask.name)
        } else {
            Vec::new()
        };
        front.extend_from_slice(ask.kept);
        let connected = timeout(snapshot.model.timeouts.connect, dial(worker, &lease, ask, front.len()));
        let (label, error) = match connected.await {
            Ok(Ok((host, attempt))) => {
                lease.host.total.inc();
                let took = began.elapsed();
                lease.cluster.connect_seconds.observe(took);
                if lease.host.failing.load(Relaxed) && lease.host.failing.swap(false, Relaxed) {
                    worker.tell(Event::Connected(Arc::clone(&lease.host)));
                }
                return Ok(Dialled {
                    host,
                    lease,
                    attempt,
                    front,
                    took,
                });
            }
            Ok(Err(error)) => (connect_label(&error), error),
            Err(_) => ("timeout", std::io::ErrorKind::TimedOut.into()),
        };
        lease.host.refused.inc();
        lease.cluster.connect_failures.inc(label);
        // A shortage of our own (descriptors, ports) is not the host's fault.
        if label != "no_resources" {
            lease.host.failing.store(true, Relaxed);
            worker.tell(Event::ConnectFailed(Arc::clone(&lease.host), error.to_string()));
        }
        last = Some(error);
    }
    Err(last)
}

fn connect_label(error: &std::io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED) => "refused",
        Some(libc::EHOSTUNREACH | libc::ENETUNREACH) => "unreachable",
        Some(libc::ETIMEDOUT) => "timeout",
        _ if sys::is_own_shortage(error) => "no_resources",
        _ => "other",
    }
}

/// Connects to the host of a lease, through tier `cut` where the flow can be cut.
async fn dial(
    worker: &Worker,
    lease: &Lease,
    ask: &Ask<'_>,
    injected: usize,
) -> std::io::Result<(Socket, Result<Attempt, Unfit>)> {
    let Connecting { attempt, mut host } = match begin(worker, lease, ask, injected) {
        Ok(connecting) => connecting,
        Err(Begun::Failed(error)) => return Err(error),
        Err(Begun::Unfit(unfit)) => return Ok((Socket::Watched(plainly(lease.backend).await?), Err(unfit))),
    };
    // A near host has answered by the time that other tasks have had their turn: the flow table says so.
    for _ in 0..LOOKS {
        if attempt.outcome().is_ok() {
            return Ok((host, Ok(attempt)));
        }
        tokio::task::yield_now().await;
    }
    let stream = host.watched()?;
    stream.writable().await?;
    if let Err(unfit) = attempt.outcome() {
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
        // Userspace writes to this socket, so Nagle's algorithm is switched off.
        stream.set_nodelay(true)?;
        return Ok((host, Err(unfit)));
    }
    Ok((host, Ok(attempt)))
}

/// Reason why leg B of a flow to be cut was not begun.
enum Begun {
    Unfit(Unfit),
    Failed(std::io::Error),
}

fn begin(worker: &Worker, lease: &Lease, ask: &Ask<'_>, injected: usize) -> Result<Connecting, Begun> {
    ask.cut.map_err(Begun::Unfit)?;
    let Some((cutter, registry)) = &worker.cut else {
        return Err(Begun::Unfit(Unfit::NotAvailable));
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
    let (host, route, listener) = numbers().ok_or(Begun::Unfit(Unfit::NotAvailable))?;
    let wanted = Wanted {
        client: ask.client,
        vip: ask.vip,
        backend: lease.backend,
        injected: injected as u32,
        consumed: ask.consumed,
        greeted: ask.greeted,
        clock: sys::stamp_clock(ask.socket),
        scale: sys::other_scale(ask.socket),
        host,
        route,
        listener,
    };
    match cutter.connect(&wanted) {
        Ok(Ok(connecting)) => Ok(connecting),
        Ok(Err(error)) => Err(Begun::Failed(error)),
        Err(unfit) => Err(Begun::Unfit(unfit)),
    }
}

/// Connects from a source port of the kernel's choice: the flow will not be cut.
async fn plainly(backend: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = sys::plain_socket(backend)?;
    socket.set_nodelay(true)?;
    socket.connect(backend).await
}
