//! TLS of a client at a listener with `protocol: https`. Its ClientHello, still in the socket, decides whether TLS ends
//! here or at the host.

use std::sync::Arc;
use std::time::Instant;

use signalbox_core::limits::handshake_queue::HandshakeWait;
use signalbox_core::model::Protocol;
use signalbox_core::model::tls::Termination;
use signalbox_core::routing::tls::offer::Http2Offer;
use signalbox_core::wire::hostname::Hostname;
use signalbox_tls::accept::{HandshakeFacts, HandshakeFailure, accept};
use signalbox_tls::server::{Alpn, HandshakeConfig};
use tokio::time::timeout;

use super::handshake_slots::HandshakeSlot;
use super::serve_leg;
use crate::datapath::arrival::Arrival;
use crate::datapath::conn_guard::ConnGuard;
use crate::datapath::http::leg::Leg;
use crate::datapath::refuse::RefuseReason;
use crate::datapath::route::{ConnectedHost, count_and_refuse, count_name};
use crate::datapath::socket::Socket;
use crate::state::ListenerState;
use crate::state::outcome::Ineligible;
use crate::state::tls::HandshakeStats;

/// Serves a client of a listener with `protocol: https`. If its TLS ends at the host, the host is connected, and the
/// caller carries the flow. If its TLS ends here, the connection is served until it ends.
pub(in crate::datapath) async fn serve_https(
    arrival: Arrival<'_>,
    guard: &mut ConnGuard,
) -> Option<(Socket, ConnectedHost)> {
    arrival.admit(guard)?;
    let mut arrival = arrival;
    let identity = arrival.identify(guard).await?;
    let terminated = identity.request.as_ref().ok().and_then(|request| {
        let name = request.hostname.as_ref();
        (arrival.termination(name) != Termination::Passthrough).then(|| name.cloned())
    });
    match terminated {
        None => Box::pin(arrival.route(identity, guard)).await,
        Some(name) => {
            terminate(arrival, name, guard).await;
            None
        }
    }
}

/// Ends a client's TLS and serves its requests.
async fn terminate(mut arrival: Arrival<'_>, name: Option<Hostname>, guard: &mut ConnGuard) {
    let (shared, listener) = (&arrival.worker.shared, Arc::clone(arrival.listener()));
    count_name(&listener, Protocol::Tls, name.as_ref());
    arrival.ends_tls = true;
    let Some(handshake) = begin(&arrival).await else { return };
    listener.not_cut[Ineligible::Terminated.index()].inc();
    let client = std::mem::replace(&mut arrival.client, Socket::Closed);
    let Some(config) = server_config(&arrival, name.as_ref()) else {
        drop(handshake);
        listener.handshakes.failed.inc(RefuseReason::NoCertificate.label());
        let why = RefuseReason::NoCertificate;
        arrival.log().log_refused(name.as_ref(), None, why.label());
        return count_and_refuse(shared, &listener, client, Protocol::Tls, why, None).await;
    };
    let Ok(client) = client.into_registered() else { return };
    let began = Instant::now();
    let limit = arrival.peek_timeout();
    let accepted = timeout(limit, Box::pin(accept(config, client))).await;
    drop(handshake);
    let (stream, facts) = match accepted.unwrap_or(Err(HandshakeFailure("timeout"))) {
        Ok(accepted) => accepted,
        Err(HandshakeFailure(label)) => {
            listener.handshakes.failed.inc(label);
            arrival.log().log_refused(name.as_ref(), None, label);
            return;
        }
    };
    listener.handshakes.seconds.observe(began.elapsed());
    count(&listener.handshakes, facts);
    // The ClientHello has been counted already.
    serve_leg(arrival, Leg::Tls(Box::new(stream)), true, guard).await;
}

/// A handshake in progress, counted in its listener's figures and in its worker's slots.
struct CountedHandshake {
    listener: Arc<ListenerState>,
    _slot: HandshakeSlot,
}

impl CountedHandshake {
    fn new(listener: &Arc<ListenerState>, slot: HandshakeSlot) -> Self {
        listener.handshakes.in_progress.enter();
        let listener = Arc::clone(listener);
        Self { listener, _slot: slot }
    }
}

impl Drop for CountedHandshake {
    fn drop(&mut self) {
        self.listener.handshakes.in_progress.leave();
    }
}

/// Waits for the turn of a client's handshake. `None`: it waited too long and was refused.
async fn begin(arrival: &Arrival<'_>) -> Option<CountedHandshake> {
    let (slots, limits, listener) = (
        &arrival.worker.handshakes,
        arrival.handshake_limits(),
        arrival.listener(),
    );
    listener.handshakes.waiting.enter();
    let turn = slots.begin(arrival.true_client.ip(), limits, arrival.peek_timeout());
    let turn = turn.await;
    listener.handshakes.waiting.leave();
    match turn {
        Ok(slot) => Some(CountedHandshake::new(listener, slot)),
        Err(HandshakeWait::Worker) => arrival.reset("worker_handshakes"),
        Err(HandshakeWait::Source) => arrival.reset("source_handshakes"),
    }
}

/// Configuration of the handshake; `None` if there is no certificate for the name.
fn server_config(arrival: &Arrival<'_>, name: Option<&Hostname>) -> Option<HandshakeConfig> {
    let snapshot = arrival.worker.shared.snapshot.load();
    let tls = snapshot.tls.listeners.get(&arrival.listener().name)?;
    if tls.resolver.refuses(name) {
        return None;
    }
    // Only the handshake decides which of the certificates is used.
    let store = arrival.worker.shared.tls.certificates.load();
    let offer = snapshot.http2.get(&arrival.listener().name);
    let may_use = |offer: &Http2Offer| {
        let mut candidates = tls.resolver.candidates(&store, name);
        candidates.all(|certificate| offer.is_offered(&certificate.covers))
    };
    let alpn = if offer.is_some_and(may_use) {
        Alpn::Http2
    } else {
        Alpn::Http1
    };
    Some(Arc::clone(tls.configs.get(alpn)))
}

fn count(stats: &HandshakeStats, facts: HandshakeFacts) {
    stats.done[usize::from(facts.is_tls13)][usize::from(facts.is_resumed)].inc();
}
