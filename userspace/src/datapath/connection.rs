//! One connection from its acceptance to its end.

use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use signalbox_core::limit::{Refusal as Limited, Source};
use signalbox_core::model::Protocol;
use signalbox_core::peek::{Asked, proxy};
use signalbox_core::view::Destination;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep_until, timeout};

use super::choose::{Chooser, Lease};
use super::flow::Parts;
use super::half::with_scratch;
use super::joined::Joint;
use super::peek;
use super::refuse::{Refusal, refuse};
use super::relay::{End, Outcome, Policy, Relay};
use super::sys;
use super::worker::Worker;
use crate::state::{ListenerState, Shared, Snapshot};
use crate::store::Event;

/// Hosts tried for one connection.
const ATTEMPTS: usize = 3;

/// Counts a connection into the process from its acceptance to its end: a process that drains ends when none is left,
/// so not even one that has been accepted and not yet looked at may be missed.
pub struct Seat(Arc<Shared>);

impl Seat {
    pub fn take(shared: &Arc<Shared>) -> Self {
        shared.totals.active.enter();
        shared.totals.total.inc();
        Self(Arc::clone(shared))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.totals.active.leave();
    }
}

/// Counts a connection into its listener and its source for as long as it lives.
struct Counted {
    shared: Arc<Shared>,
    listener: Arc<ListenerState>,
    source: Option<(Source, bool)>,
}

impl Counted {
    fn new(shared: &Arc<Shared>, listener: &Arc<ListenerState>) -> Self {
        listener.active.enter();
        listener.total.inc();
        Self {
            shared: Arc::clone(shared),
            listener: Arc::clone(listener),
            source: None,
        }
    }

    fn peeked(&mut self) {
        if let Some((source, peeking)) = &mut self.source
            && std::mem::take(peeking)
        {
            self.shared.limiter.peeked(*source);
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.peeked();
        if let Some((source, _)) = self.source {
            self.shared.limiter.closed(source);
        }
        self.listener.active.leave();
    }
}

/// A connection that has been understood and placed.
struct Placed {
    client: TcpStream,
    host: TcpStream,
    lease: Lease,
    parts: Parts,
    policy: Policy,
    preread: u64,
}

/// Serves one accepted connection.
pub async fn serve(worker: Rc<Worker>, client: TcpStream, peer: SocketAddr, local: Option<SocketAddr>, _seat: Seat) {
    let Some(local) = local.or_else(|| sys::local_addr(&client).ok()) else {
        return;
    };
    let snapshot = worker.shared.snapshot.load_full();
    let Some(index) = snapshot.binds.find(local) else {
        // Accepted for an address that has been taken out of the configuration meanwhile.
        worker.shared.totals.refused.inc();
        return;
    };
    let listener = Arc::clone(&snapshot.listeners[index]);
    let mut counted = Counted::new(&worker.shared, &listener);
    // Boxed: what finding a host needs is given back before the flow begins to live.
    let Some(placed) = Box::pin(place(
        &worker,
        snapshot,
        index,
        client,
        sys::canonical(peer),
        local,
        &mut counted,
    ))
    .await
    else {
        return;
    };
    let Placed {
        client,
        host,
        lease,
        parts,
        policy,
        preread,
    } = placed;
    let listed = worker.flows.open(worker.index, parts);
    let end = carry(&worker, &listed.flow, client, host, policy, preread).await;
    lease.cluster.closed[end as usize].inc();
}

/// Peeks, chooses and connects; refuses where that comes to nothing.
async fn place(
    worker: &Rc<Worker>,
    snapshot: Arc<Snapshot>,
    index: usize,
    client: TcpStream,
    peer: SocketAddr,
    local: SocketAddr,
    counted: &mut Counted,
) -> Option<Placed> {
    let (model, shared) = (&snapshot.model, &worker.shared);
    let (configured, state) = (&model.listeners[index], Arc::clone(&snapshot.listeners[index]));
    let protocol = configured.protocol;
    let limit = if protocol == Protocol::Tls {
        model.timeouts.peek_tls
    } else {
        model.timeouts.peek_http
    };
    let began = Instant::now();

    let trusted = configured
        .trusted_proxies
        .iter()
        .any(|prefix| prefix.contains(&peer.ip()));
    let (mut who, mut preread) = (peer, 0);
    let mut outcome = Ok(Asked::default());
    if trusted {
        match peek::proxy_header(&client, protocol, limit).await {
            Ok((len, named)) => (preread, who) = (len, named.map_or(peer, sys::canonical)),
            Err(why) => outcome = Err(why),
        }
    }
    // A trusted proxy is not a greedy client; the clients it names are counted one by one.
    let limits = model.limits.per_source;
    if (limits.concurrent, limits.per_second, limits.peeking) != (0, 0, 0) && !(trusted && who == peer) {
        let source = Source::new(shared.seed, who.ip());
        if let Err(why) = shared.limiter.admit(source, &limits, shared.started.elapsed()) {
            shared.totals.refused.inc();
            state.refused.inc(match why {
                Limited::Concurrent => "source_concurrent",
                Limited::Peeking => "source_peeking",
                Limited::Rate => "source_rate",
            });
            sys::reset_on_close(client.as_raw_fd());
            return None;
        }
        counted.source = Some((source, true));
    }
    if outcome.is_ok() {
        outcome = peek::asked(&client, protocol, limit.saturating_sub(began.elapsed())).await;
    }
    counted.peeked();
    if protocol != Protocol::Tcp {
        state.peek_seconds.observe(began.elapsed());
    }

    // What was in force while it made up its mind may be gone: choose by what is in force now.
    let snapshot = shared.snapshot.load_full();
    let refusal = match outcome {
        Err(why) => {
            state.peek.inc(why.label());
            Refusal::Peek(why)
        }
        Ok(asked) => {
            count_found(&state, protocol, &asked);
            let fallback = snapshot
                .binds
                .find(local)
                .and_then(|at| snapshot.model.listeners[at].cluster);
            let to = snapshot.view.destination(asked.name.as_ref(), fallback);
            let chooser = Chooser::new(shared, &snapshot, to, protocol, who.ip());
            match connect(worker, &snapshot, chooser).await {
                Ok((mut host, lease)) => {
                    if lease.proxy_protocol {
                        let name = asked.name.as_ref().map(signalbox_core::name::HostName::as_str);
                        // An empty send queue takes a few hundred bytes at once.
                        if host.write_all(&proxy::v2_header(who, local, name)).await.is_err() {
                            return turn_away(shared, &state, client, protocol, Refusal::ConnectFailed).await;
                        }
                    }
                    let route = match to {
                        Destination::Route(route) => Some(snapshot.routes[route].host.as_str().into()),
                        _ => None,
                    };
                    let forced = configured.datapath.tier;
                    let policy = Policy {
                        forced,
                        joinable: worker.joiner.is_some(),
                        idle: snapshot.model.timeouts.idle,
                    };
                    let parts = Parts {
                        client: who,
                        local,
                        backend: lease.backend,
                        listener: state,
                        route,
                        cluster: Arc::clone(&lease.cluster),
                        host: Arc::clone(&lease.host),
                    };
                    return Some(Placed {
                        client,
                        host,
                        lease,
                        parts,
                        policy,
                        preread,
                    });
                }
                Err(None) if to == Destination::Nowhere && asked.name.is_none() => Refusal::NoName,
                Err(None) if to == Destination::Nowhere => Refusal::NoRoute,
                Err(None) => Refusal::NoHost,
                Err(Some(_)) => Refusal::ConnectFailed,
            }
        }
    };
    turn_away(shared, &state, client, protocol, refusal).await
}

/// Counts a refusal and tells the client.
async fn turn_away(
    shared: &Shared,
    listener: &ListenerState,
    client: TcpStream,
    protocol: Protocol,
    why: Refusal,
) -> Option<Placed> {
    shared.totals.refused.inc();
    listener.refused.inc(why.label());
    refuse(client, protocol, why).await;
    None
}

fn count_found(state: &ListenerState, protocol: Protocol, asked: &Asked) {
    match (protocol, &asked.name) {
        (Protocol::Tcp, _) => {}
        (_, Some(_)) => state.found.inc(),
        (Protocol::Tls, None) => state.peek.inc("no_sni"),
        (Protocol::Http, None) => state.peek.inc("no_host"),
    }
}

/// Connects to a host, trying others when one does not answer; the last error, or none where there was no host.
async fn connect(
    worker: &Worker,
    snapshot: &Snapshot,
    mut chooser: Chooser<'_>,
) -> Result<(TcpStream, Lease), Option<std::io::Error>> {
    let mut last = None;
    while chooser.attempts() < ATTEMPTS {
        let Some(lease) = chooser.next_host() else { break };
        let began = Instant::now();
        let (label, error) = match timeout(snapshot.model.timeouts.connect, dial(lease.backend)).await {
            Ok(Ok(stream)) => {
                lease.host.total.inc();
                lease.cluster.connect_seconds.observe(began.elapsed());
                if lease.host.failing.load(Relaxed) && lease.host.failing.swap(false, Relaxed) {
                    worker.tell(Event::Connected(Arc::clone(&lease.host)));
                }
                return Ok((stream, lease));
            }
            Ok(Err(error)) => (connect_label(&error), error),
            Err(_) => ("timeout", std::io::ErrorKind::TimedOut.into()),
        };
        lease.host.refused.inc();
        lease.cluster.connect_failures.inc(label);
        // Our own shortage is not the host's fault.
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

async fn dial(backend: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = if backend.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    socket.set_nodelay(true)?;
    socket.connect(backend).await
}

/// Carries an established flow on the best tier it is fit for, until it ends.
async fn carry(
    worker: &Rc<Worker>,
    flow: &Rc<super::flow::Flow>,
    client: TcpStream,
    host: TcpStream,
    mut policy: Policy,
    preread: u64,
) -> End {
    let mut timer = pin!(sleep_until((Instant::now() + policy.idle).into()));
    let mut relay = Relay::new(client, host, Rc::clone(flow), policy, preread);
    let end = loop {
        match relay.run(timer.as_mut()).await {
            Outcome::Ended(end) => break end,
            Outcome::Quiet => {}
        }
        let Some(joiner) = &worker.joiner else {
            break End::Failed;
        };
        if !truly_empty(&relay) {
            // Bytes have just come whose event tokio has not seen yet: let it look.
            tokio::task::yield_now().await;
            continue;
        }
        let moved = relay.moved();
        // Away from tokio's epoll, which would wake for every packet.
        let (Ok(client), Ok(host)) = (relay.client.into_std(), relay.host.into_std()) else {
            return End::Failed;
        };
        match Joint::join(joiner, &worker.watch, flow, (client, host), moved, policy.idle) {
            Ok(joint) => return joint.run().await,
            Err(refused) => {
                tracing::debug!(error = %refused.error, "A flow could not be joined in the kernel.");
                let (Ok(client), Ok(host)) = (TcpStream::from_std(refused.client), TcpStream::from_std(refused.host))
                else {
                    return End::Failed;
                };
                policy.joinable = false;
                relay = Relay::resume(client, host, Rc::clone(flow), policy, moved);
                flow.why.set("the socket map refused it");
            }
        }
    };
    if matches!(end, End::ClientReset | End::HostReset | End::Failed) {
        sys::reset_on_close(relay.client.as_raw_fd());
        sys::reset_on_close(relay.host.as_raw_fd());
    }
    end
}

/// Whether both receive queues are empty. A queue that has been read in part would be replayed by the socket map.
fn truly_empty(relay: &Relay) -> bool {
    with_scratch(|scratch| {
        [&relay.client, &relay.host].iter().all(|stream| {
            sys::recv(stream.as_raw_fd(), &mut scratch[..1], libc::MSG_PEEK)
                .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        })
    })
}
