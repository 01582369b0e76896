//! Life of one connection from accept to close. It is admitted and identified ([`super::arrival`]), routed and dialled
//! ([`super::route`]), and then carried.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, RawFd};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use signalbox_core::model::{Protocol, Routing, Tier};
use tokio::net::TcpStream;
use tokio::time::sleep_until;

use super::arrival::Arrival;
use super::conn_guard::ConnGuard;
use super::cut::{CutAttempt, QueuedBytes};
use super::flow::{Flow, FlowContext};
use super::relay::{Relay, RelayOutcome, TierPolicy};
use super::route::ConnectedHost;
use super::scratch::with_scratch;
use super::socket::Socket;
use super::sockmap::SockmapFlow;
use super::worker_state::Worker;
use crate::state::outcome::{Direction, FlowEnd, Ineligible};
use crate::sys;

/// Serves one accepted connection.
pub async fn serve(
    worker: Rc<Worker>,
    client: Socket,
    peer: SocketAddr,
    local: Option<SocketAddr>,
    mut guard: ConnGuard,
) {
    let Some(local) = local.or_else(|| sys::local_addr(&client).ok()) else {
        return;
    };
    let snapshot = worker.shared.snapshot.load_full();
    let Some(index) = snapshot.binds.find(local) else {
        // The address of the connection was removed from the configuration after the connection was accepted.
        worker.shared.totals.refused.inc();
        return;
    };
    let listener = Arc::clone(&snapshot.listeners[index]);
    guard.enter_listener(&listener);
    let arrival = Arrival::new(&worker, snapshot, index, client, (sys::canonical(peer), local));
    if arrival.configured().routing == Routing::Request {
        return Box::pin(super::http::serve(arrival, &mut guard)).await;
    }
    // Boxed, so that the memory for finding a host is freed before the flow's long life begins.
    let configured = arrival.configured();
    let connected = if configured.tls.is_some() {
        Box::pin(super::http::serve_https(arrival, &mut guard)).await
    } else if configured.protocol == Protocol::Http {
        Box::pin(super::http::serve_http(arrival, &mut guard)).await
    } else {
        Box::pin(arrival.connect(&mut guard)).await
    };
    let Some((client, mut pair)) = connected else {
        return;
    };
    match std::mem::replace(&mut pair.attempt, Err(Ineligible::Disabled)) {
        Ok(attempt) => cut(&worker, attempt, client, pair, guard),
        Err(ineligible) => {
            listener.not_cut[ineligible.index()].inc();
            // Boxed, so that a connection that serves requests does not hold this memory.
            Box::pin(carry(&worker, client, pair, ineligible)).await;
        }
    }
}

/// Carries a flow that is not cut between its two sockets, until it ends.
async fn carry(worker: &Rc<Worker>, client: Socket, pair: ConnectedHost, ineligible: Ineligible) {
    let ConnectedHost {
        host,
        lease,
        context,
        policy,
        consumed,
        preamble,
        preamble_from_client,
        log,
        ..
    } = pair;
    let log_end = |context: &FlowContext, flow: Option<&Rc<Flow>>, tier, end| {
        if let Some(log) = &log {
            log.log_end(&worker.shared, context, flow, tier, end);
        }
    };
    let (Ok(client), Ok(host)) = (client.into_registered(), host.into_registered()) else {
        lease.cluster.closed[FlowEnd::Failed as usize].inc();
        log_end(&context, None, Tier::Copy, FlowEnd::Failed);
        return;
    };
    let listed = worker.flows.open(worker.index, context);
    listed.flow.not_cut.set(ineligible.label());
    if preamble_from_client > 0 {
        listed.flow.add_bytes(Direction::In, preamble_from_client);
    }
    let descriptors = [client.as_raw_fd(), host.as_raw_fd()];
    let relay = Relay::new(client, host, Rc::clone(&listed.flow), policy, consumed).with_preamble(preamble);
    let carried = pin!(run_relay(worker, &listed.flow, relay, policy));
    let end = until_closed(&listed.flow, descriptors, carried).await;
    lease.cluster.closed[end as usize].inc();
    if let Some(share) = &listed.flow.context.stats {
        let (bytes_in, bytes_out) = (listed.flow.bytes_in.get(), listed.flow.bytes_out.get());
        share.quality.flow_ended(end, bytes_in, bytes_out);
    }
    log_end(&listed.flow.context, Some(&listed.flow), listed.flow.tier(), end);
}

/// Waits until a flow carried between two sockets ends, or is told to end. The caller owns the future: a copy here
/// would add its size to every flow.
pub(super) async fn until_closed<T: From<FlowEnd>>(
    flow: &Flow,
    descriptors: [RawFd; 2],
    carried: Pin<&mut impl Future<Output = T>>,
) -> T {
    tokio::select! {
        end = carried => end,
        () = flow.close.notified() => {
            // Reset rather than FIN: undelivered bytes are lost, and an orderly close would hide that. The flow still
            // owns its sockets.
            for fd in descriptors {
                sys::reset_on_close(fd);
            }
            FlowEnd::Drained.into()
        }
    }
}

/// Detaches a cut flow from its sockets. [`CutAttempt::hand_off`] empties the sockets.
fn cut(worker: &Worker, attempt: CutAttempt, client: Socket, pair: ConnectedHost, mut guard: ConnGuard) {
    let ConnectedHost {
        host,
        lease,
        context,
        preamble,
        log,
        ..
    } = pair;
    if let Some(log) = &log {
        log.keep_details(&worker.shared, context.client, attempt.key());
    }
    let cluster = Arc::clone(&lease.cluster);
    match attempt.hand_off(client, host, &preamble, QueuedBytes::Forwarded, &mut guard) {
        Ok(()) => {
            cluster.opened[Tier::Cut as usize].inc();
            cluster.active[Tier::Cut as usize].enter();
            lease.detach();
        }
        Err(error) => {
            tracing::debug!(%error, "A flow ended while it was being cut.");
            cluster.closed[FlowEnd::ClientReset as usize].inc();
            if let Some(log) = &log {
                log.log_end(&worker.shared, &context, None, Tier::Cut, FlowEnd::ClientReset);
            }
        }
    }
}

/// Carries an established flow on the best tier that it can use, until it ends.
pub(super) async fn run_relay(
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
            // Bytes have arrived whose event tokio has not seen yet: let tokio's driver poll.
            tokio::task::yield_now().await;
            continue;
        }
        let moved = relay.leg_bytes();
        // Deregisters both sockets from tokio's epoll instance, which would wake up for every packet.
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
    relay.reset_unless_finished(end);
    end
}

/// Returns whether both receive queues are empty. The socket map would replay a queue that was only partly read.
fn receive_queues_empty(relay: &Relay) -> bool {
    with_scratch(|scratch| {
        [&relay.client, &relay.host].iter().all(|stream| {
            sys::recv(stream.as_raw_fd(), &mut scratch[..1], libc::MSG_PEEK)
                .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        })
    })
}
