//! Life of one connection, from accept to close.

use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use signalbox_core::hostname::Hostname;
use signalbox_core::limit::{LimitExceeded as Limited, SourceCells};
use signalbox_core::model::{Datapath, Protocol, Tier};
use signalbox_core::peek::ClientRequest;
use signalbox_core::peek::h2::GreetedClient;
use signalbox_core::view::Destination;
use tokio::net::TcpStream;
use tokio::time::sleep_until;

use super::choose::{Chooser, Lease};
use super::count_guards::{ListenerGuard, ProcessGuard};
use super::cut::CutAttempt;
use super::dial::{DialRequest, HostConnection, connect};
use super::flow::{Flow, FlowContext};
use super::log_context::{LogContext, PendingConnection};
use super::peek;
use super::pump::with_scratch;
use super::refuse::{RefuseReason, refuse};
use super::relay::{Relay, RelayOutcome, TierPolicy};
use super::socket::Socket;
use super::sockmap::SockmapFlow;
use super::worker::Worker;
use crate::state::outcome::{Direction, FlowEnd, Ineligible};
use crate::state::route_stats::RouteRefusal;
use crate::state::{ListenerState, Shared, Snapshot};
use crate::sys;

/// A connection whose client has been understood and whose host has been connected.
struct ConnectedPair {
    client: Socket,
    host: Socket,
    lease: Lease,
    context: FlowContext,
    policy: TierPolicy,
    preread: u64,
    attempt: Result<CutAttempt, Ineligible>,
    /// Bytes to send to the host before those in the client's socket; not sent yet.
    preamble: Vec<u8>,
    /// Number of bytes of `preamble` that came from the client itself (the rest is a PROXY header).
    preamble_from_client: u64,
    /// Record for the connection log; `None` where connections are not logged.
    log: Option<Box<LogContext>>,
}

/// Serves one accepted connection.
pub async fn serve(
    worker: Rc<Worker>,
    client: Socket,
    peer: SocketAddr,
    local: Option<SocketAddr>,
    process_guard: ProcessGuard,
) {
    let accepted = Instant::now();
    let Some(local) = local.or_else(|| sys::local_addr(&client).ok()) else {
        return;
    };
    let snapshot = worker.shared.snapshot.load_full();
    let Some(index) = snapshot.binds.find(local) else {
        // The connection was accepted for an address that has been taken out of the configuration meanwhile.
        worker.shared.totals.refused.inc();
        return;
    };
    let listener = Arc::clone(&snapshot.listeners[index]);
    let mut counted = ListenerGuard::new(&worker.shared, &listener);
    // Boxed: the memory that finding a host needs is freed before the long life of the flow begins.
    let Some(placed) = Box::pin(peek_and_connect(
        &worker,
        snapshot,
        index,
        client,
        sys::canonical(peer),
        (local, accepted),
        &mut counted,
    ))
    .await
    else {
        return;
    };
    let ConnectedPair {
        client,
        host,
        lease,
        context: parts,
        policy,
        preread,
        attempt,
        preamble,
        preamble_from_client: kept,
        log: opened,
    } = placed;
    let told = |parts: &FlowContext, flow: Option<&Rc<Flow>>, tier, end| {
        if let Some(opened) = &opened {
            opened.log_end(&worker.shared, parts, flow, tier, end);
        }
    };
    let ineligible = match attempt {
        Ok(attempt) => {
            if let Some(opened) = &opened {
                opened.keep_details(&worker.shared, parts.client, attempt.key());
            }
            if let Err(end) = cut(attempt, (client, host), &preamble, lease, counted, process_guard) {
                told(&parts, None, Tier::Cut, end);
            }
            return;
        }
        Err(ineligible) => ineligible,
    };
    listener.not_cut[ineligible.index()].inc();
    let (Ok(client), Ok(host)) = (client.into_registered(), host.into_registered()) else {
        lease.cluster.closed[FlowEnd::Failed as usize].inc();
        told(&parts, None, Tier::Copy, FlowEnd::Failed);
        return;
    };
    let listed = worker.flows.open(worker.index, parts);
    listed.flow.not_cut.set(ineligible.label());
    if kept > 0 {
        listed.flow.add_bytes(Direction::In, kept);
    }
    let descriptors = [client.as_raw_fd(), host.as_raw_fd()];
    let relay = Relay::new(client, host, Rc::clone(&listed.flow), policy, preread).with_preamble(preamble);
    let mut carried = pin!(run_relay(&worker, &listed.flow, relay, policy));
    let end = tokio::select! {
        end = &mut carried => end,
        () = listed.flow.close.notified() => {
            // Reset rather than FIN: undelivered bytes are lost, which an orderly end would hide. The flow still owns
            // its sockets.
            for fd in descriptors {
                sys::reset_on_close(fd);
            }
            FlowEnd::Drained
        }
    };
    lease.cluster.closed[end as usize].inc();
    told(&listed.flow.context, Some(&listed.flow), listed.flow.tier(), end);
}

/// Detaches a cut flow from its sockets, which [`CutAttempt::hand_off`] empties. Returns how the flow ended if it ended
/// before that.
fn cut(
    attempt: CutAttempt,
    (client, host): (Socket, Socket),
    preamble: &[u8],
    lease: Lease,
    counted: ListenerGuard,
    process_guard: ProcessGuard,
) -> Result<(), FlowEnd> {
    let cluster = Arc::clone(&lease.cluster);
    let marks = counted.marks();
    match attempt.hand_off(client, host, preamble, marks, process_guard) {
        Ok(()) => {
            cluster.opened[Tier::Cut as usize].inc();
            cluster.active[Tier::Cut as usize].enter();
            lease.detach();
            counted.detach();
            Ok(())
        }
        Err(error) => {
            tracing::debug!(%error, "A flow ended while it was being cut.");
            cluster.closed[FlowEnd::ClientReset as usize].inc();
            Err(FlowEnd::ClientReset)
        }
    }
}

/// Peeks, chooses a host and connects to it; refuses the client where any of these fails.
async fn peek_and_connect(
    worker: &Rc<Worker>,
    snapshot: Arc<Snapshot>,
    index: usize,
    mut client: Socket,
    peer: SocketAddr,
    (local, accepted): (SocketAddr, Instant),
    counted: &mut ListenerGuard,
) -> Option<ConnectedPair> {
    let (model, shared) = (&snapshot.model, &worker.shared);
    let (configured, state) = (&model.listeners[index], Arc::clone(&snapshot.listeners[index]));
    let protocol = configured.protocol;
    let limit = if protocol == Protocol::Tls {
        model.timeouts.peek_tls
    } else {
        model.timeouts.peek_http
    };
    let began = Instant::now();

    let mut caller = PendingConnection {
        shared,
        listener: &snapshot.listeners[index],
        protocol,
        client: peer,
        local,
        accepted,
    };
    // The shield's count is an estimate between two looks at userspace's counters: this check is exact.
    if let Some(limits) = configured.shield.as_ref().map(|shield| shield.limits)
        && limits.concurrent > 0
    {
        let most = limits.concurrent;
        state
            .source_bits
            .get_or_init(|| (limits.ipv4_prefix, limits.ipv6_prefix));
        let source = state.source(shared.seed, peer.ip())?;
        if shared.limiter.try_acquire(source, most).is_err() {
            shared.totals.refused.inc();
            state.refused.inc("shield_concurrent");
            shared.over_limit.report(&state, peer.ip());
            caller.log_refused(None, None, "shield_concurrent");
            sys::reset_on_close(client.as_raw_fd());
            return None;
        }
        counted.conn_count_source = Some(source);
    }
    let trusted = configured
        .trusted_proxies
        .iter()
        .any(|prefix| prefix.contains(&peer.ip()));
    let (mut who, mut preread) = (peer, 0);
    let mut outcome = Ok(ClientRequest::default());
    if trusted {
        match peek::proxy_header(&mut client, protocol, limit).await {
            Ok((len, named)) => (preread, who) = (len, named.map_or(peer, sys::canonical)),
            Err(why) => outcome = Err(why),
        }
    }
    caller.client = who;
    // A trusted proxy is exempt from the limits of a source; the clients that it names are counted instead.
    let limits = model.limits.per_source;
    if (limits.concurrent, limits.per_second, limits.peeking) != (0, 0, 0) && !(trusted && who == peer) {
        let source = SourceCells::new(shared.seed, who.ip());
        if let Err(why) = shared.limiter.admit(source, &limits, shared.started.elapsed()) {
            shared.totals.refused.inc();
            let why = match why {
                Limited::Concurrent => "source_concurrent",
                Limited::Peeking => "source_peeking",
                Limited::Rate => "source_rate",
            };
            state.refused.inc(why);
            caller.log_refused(None, None, why);
            sys::reset_on_close(client.as_raw_fd());
            return None;
        }
        counted.source = Some((source, true));
    }
    let mut greeted = None;
    if outcome.is_ok() {
        let left = limit.saturating_sub(began.elapsed());
        outcome = peek::peek_request(&mut client, protocol, left, &mut greeted).await;
    }
    counted.finish_peeking();
    if protocol != Protocol::Tcp {
        state.peek_seconds.observe(began.elapsed());
    }

    // The snapshot may have changed while the client was peeked at: choose by the one in force now.
    let snapshot = shared.snapshot.load_full();
    let refusal = match outcome {
        Err(why) => {
            state.peek.inc(why.label());
            caller.log_refused(None, None, why.label());
            RefuseReason::Peek(why)
        }
        Ok(asked) => {
            count_name(&state, protocol, &asked);
            let fallback = snapshot
                .binds
                .find(local)
                .and_then(|at| snapshot.model.listeners[at].cluster);
            let to = snapshot.view.destination(asked.hostname.as_ref(), fallback);
            let chooser = Chooser::new(shared, &snapshot, to, protocol, who.ip());
            let route = match to {
                Destination::Route(route) => snapshot.routes.get(route),
                _ => None,
            };
            let named = limits.concurrent != 0 && who != peer;
            let mut fit = match configured.datapath {
                Datapath { tier: None, cut: true } if named => Err(Ineligible::NamedSource),
                Datapath { tier: None, cut: true } => Ok(()),
                _ => Err(Ineligible::Disabled),
            };
            let (kept, taken, said) = greeted.as_ref().map_or((&[][..], 0, 0), GreetedClient::handoff);
            preread += taken;
            if let (Ok(()), 1.., Some((cutter, _))) = (fit, said, &worker.cut) {
                fit = cutter.record_greeting(peer, local, said);
            }
            let ask = DialRequest {
                client: peer,
                vip: local,
                true_client: who,
                consumed: preread as u32,
                consumed_payload: kept,
                greeted: greeted.is_some(),
                client_fd: client.as_raw_fd(),
                name: asked.hostname.as_ref().map(signalbox_core::hostname::Hostname::as_str),
                route,
                listener: &state,
                cut: fit,
            };
            match connect(worker, &snapshot, chooser, &ask).await {
                Ok(HostConnection {
                    host,
                    mut lease,
                    attempt,
                    preamble,
                    connect_time: took,
                }) => {
                    if let Some(route) = route {
                        lease.count_for_route(route);
                    }
                    let forced = configured.datapath.tier;
                    let policy = TierPolicy {
                        forced,
                        sockmap_available: worker.sockmap.is_some(),
                        idle: snapshot.model.timeouts.idle,
                    };
                    let parts = FlowContext {
                        client: who,
                        local,
                        backend: lease.backend,
                        listener: state,
                        route: route.map(|route| route.hostname.as_str().into()),
                        cluster: Arc::clone(&lease.cluster),
                        host: Arc::clone(&lease.host),
                        stats: lease.stats.clone(),
                    };
                    let opened = shared.log.is_on().then(|| {
                        Box::new(LogContext {
                            accepted,
                            protocol,
                            name: asked.hostname,
                            connect: took,
                        })
                    });
                    return Some(ConnectedPair {
                        client,
                        host,
                        lease,
                        context: parts,
                        policy,
                        preread,
                        attempt,
                        preamble,
                        preamble_from_client: kept.len() as u64,
                        log: opened,
                    });
                }
                Err(error) => {
                    let why = match (&error, to) {
                        (None, Destination::NoRoute) if asked.hostname.is_none() => RefuseReason::NoName,
                        (None, Destination::NoRoute) => RefuseReason::NoRoute,
                        (None, _) => RefuseReason::NoHost,
                        (Some(_), _) => RefuseReason::ConnectFailed,
                    };
                    let route = count_refused(&snapshot, to, asked.hostname.as_ref(), error.is_some());
                    caller.log_refused(asked.hostname.as_ref(), route, why.label());
                    why
                }
            }
        }
    };
    count_and_refuse(shared, &state, client, protocol, refusal, greeted).await
}

/// Counts a refusal and answers the client with it.
async fn count_and_refuse(
    shared: &Shared,
    listener: &ListenerState,
    client: Socket,
    protocol: Protocol,
    why: RefuseReason,
    greeted: Option<GreetedClient>,
) -> Option<ConnectedPair> {
    shared.totals.refused.inc();
    listener.refused.inc(why.label());
    if let Ok(client) = client.into_registered() {
        refuse(client, protocol, why, greeted).await;
    }
    None
}

/// Counts a refusal for its route and returns the route's name, where there is a route.
fn count_refused<'a>(
    snapshot: &'a Snapshot,
    to: Destination,
    name: Option<&Hostname>,
    was_tried: bool,
) -> Option<&'a str> {
    let (route, why) = match to {
        Destination::Route(route) if was_tried => (Some(route), RouteRefusal::ConnectFailed),
        Destination::Route(route) => (Some(route), RouteRefusal::NoHost),
        Destination::Closed => (
            name.and_then(|name| snapshot.view.table.find(name)),
            RouteRefusal::OutOfRotation,
        ),
        Destination::Cluster(_) | Destination::Any | Destination::NoRoute => return None,
    };
    let state = snapshot.routes.get(route?)?;
    state.stats.refuse(why);
    Some(&state.hostname)
}

fn count_name(state: &ListenerState, protocol: Protocol, asked: &ClientRequest) {
    match (protocol, &asked.hostname) {
        (Protocol::Tcp, _) => {}
        (_, Some(_)) => state.named.inc(),
        (Protocol::Tls, None) => state.peek.inc("no_sni"),
        (Protocol::Http, None) => state.peek.inc("no_host"),
    }
}

/// Carries an established flow on the best tier it is fit for, until it ends.
async fn run_relay(
    worker: &Rc<Worker>,
    flow: &Rc<super::flow::Flow>,
    mut relay: Relay,
    mut policy: TierPolicy,
) -> FlowEnd {
    let mut timer = pin!(sleep_until((Instant::now() + policy.idle).into()));
    let end = loop {
        match relay.run(timer.as_mut()).await {
            RelayOutcome::Ended(end) => break end,
            RelayOutcome::Quiet => {}
        }
        let Some(joiner) = &worker.sockmap else {
            break FlowEnd::Failed;
        };
        if !receive_queues_empty(&relay) {
            // Bytes have just come whose event tokio has not seen yet: let its driver poll.
            tokio::task::yield_now().await;
            continue;
        }
        let moved = relay.leg_bytes();
        // Deregisters both sockets from tokio's epoll, which would wake for every packet.
        let (Ok(client), Ok(host)) = (relay.client.into_std(), relay.host.into_std()) else {
            return FlowEnd::Failed;
        };
        match SockmapFlow::join(joiner, &worker.sockmap_watch, flow, (client, host), moved, policy.idle) {
            Ok(joint) => return joint.run().await,
            Err(refused) => {
                tracing::debug!(error = %refused.error, "A flow could not be moved to tier sockmap.");
                let (Ok(client), Ok(host)) = (TcpStream::from_std(refused.client), TcpStream::from_std(refused.host))
                else {
                    return FlowEnd::Failed;
                };
                policy.sockmap_available = false;
                relay = Relay::resume(client, host, Rc::clone(flow), policy, moved);
                flow.tier_reason.set("the socket map refused it");
            }
        }
    };
    if matches!(end, FlowEnd::ClientReset | FlowEnd::HostReset | FlowEnd::Failed) {
        sys::reset_on_close(relay.client.as_raw_fd());
        sys::reset_on_close(relay.host.as_raw_fd());
    }
    end
}

/// Returns whether both receive queues are empty. The socket map would replay a queue that has been read in part.
fn receive_queues_empty(relay: &Relay) -> bool {
    with_scratch(|scratch| {
        [&relay.client, &relay.host].iter().all(|stream| {
            sys::recv(stream.as_raw_fd(), &mut scratch[..1], libc::MSG_PEEK)
                .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        })
    })
}
