//! A client's connection at a listener that routes requests: one request after another.

mod certificate;
mod handshake;
pub(in crate::datapath) mod handshake_slots;
mod http2;

pub(in crate::datapath) use handshake::serve_https;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use signalbox_core::model::Protocol;
use signalbox_core::model::tls::{CertificateFields, HttpVersion};
use signalbox_core::routing::obstacle::PeekObstacle;
use tokio::time::sleep_until;

use super::exchange::after::AfterRequest;
use super::exchange::attempt::Request;
use super::exchange::connection::HttpConnection;
use super::exchange::refusal::Refusal;
use super::leg::Leg;
use super::message::head::{self, HeadRead, HeadTimeouts};
use super::pages;
use crate::datapath::arrival::Arrival;
use crate::datapath::conn_guard::ConnGuard;
use crate::datapath::peek::PeekError;
use crate::datapath::refuse::{RefuseReason, refuse_after};
use crate::datapath::route::{ConnectedHost, count_and_refuse, count_name};
use crate::datapath::socket::Socket;
use crate::state::outcome::Ineligible;

/// Serves a client's connection until it ends.
pub(in crate::datapath) async fn serve(mut arrival: Arrival<'_>, guard: &mut ConnGuard) {
    if arrival.admit(guard).is_none() {
        return;
    }
    let Some(named) = arrival.introduce(guard).await else {
        return;
    };
    let listener = Arc::clone(arrival.listener());
    let client = std::mem::replace(&mut arrival.client, Socket::Closed);
    if let Err(error) = named {
        listener.peek.inc(error.label());
        arrival.log().log_refused(None, None, error.label());
        let why = RefuseReason::Peek(error);
        // Boxed, like everything that only few connections need: the others do not hold the memory for it.
        let refusal = count_and_refuse(&arrival.worker.shared, &listener, client, Protocol::Http, why, None);
        return Box::pin(refusal).await;
    }
    let Ok(client) = client.into_registered() else { return };
    serve_leg(arrival, Leg::Plain(client), false, guard).await;
}

/// Serves a client of a plain listener with `routing: connection`. If its name needs per-request routing, the
/// connection is served here until it ends. Otherwise a host is connected, and the caller carries the flow.
pub(in crate::datapath) async fn serve_http(
    mut arrival: Arrival<'_>,
    guard: &mut ConnGuard,
) -> Option<(Socket, ConnectedHost)> {
    arrival.admit(guard)?;
    let identity = arrival.identify(guard).await?;
    let named = identity.request.as_ref().ok();
    let name = named.map(|request| request.hostname.clone());
    let Some(name) = name.filter(|name| arrival.routes_requests(name.as_ref())) else {
        return Box::pin(arrival.route(identity, guard)).await;
    };
    let listener = Arc::clone(arrival.listener());
    count_name(&listener, Protocol::Http, name.as_ref());
    guard.count_path(Some(PeekObstacle::PerRequest));
    let client = std::mem::replace(&mut arrival.client, Socket::Closed);
    if identity.greeted.is_some() {
        // The client has been sent the start of a connection that only a host could continue.
        let why = RefuseReason::Http2;
        arrival.log().log_refused(name.as_ref(), None, why.label());
        let shared = &arrival.worker.shared;
        Box::pin(count_and_refuse(
            shared,
            &listener,
            client,
            Protocol::Http,
            why,
            identity.greeted,
        ))
        .await;
        return None;
    }
    let client = client.into_registered().ok()?;
    serve_leg(arrival, Leg::Plain(client), true, guard).await;
    None
}

/// Serves the requests of a client's connection until it ends. `is_identified`: the client's name has been counted.
async fn serve_leg(arrival: Arrival<'_>, client: Leg, is_identified: bool, guard: &mut ConnGuard) {
    let clients = arrival.configured().tls.as_ref().and_then(|tls| tls.clients.as_ref());
    let told = clients.map_or(CertificateFields::Off, |clients| clients.fields);
    let limits = arrival.worker.shared.snapshot.load().model.limits.heads.of_messages();
    let mut connection = HttpConnection {
        certificate_fields: certificate::fields(&client, told),
        is_tls: client.is_layered(),
        is_http2: false,
        host_room: None,
        is_by_name: is_identified && !client.is_layered(),
        timer: Box::pin(sleep_until((Instant::now() + arrival.peek_timeout()).into())),
        worker: arrival.worker,
        counted_for: Rc::default(),
        peer: arrival.true_client,
        client: arrival.true_client,
        local: arrival.local,
        destination: arrival.destination,
        listener: Arc::clone(arrival.listener()),
        limits,
        bytes: Vec::new(),
        cuts_no_answer: false,
        is_first: true,
        consumed: arrival.consumed as u32,
        // Connections whose TLS ends here are counted as such instead.
        is_undecided: matches!(client, Leg::Plain(_)),
    };
    drop(arrival);
    if client.alpn() == Some(HttpVersion::Http2) {
        return Box::pin(connection.http2(client)).await;
    }
    let mut after = connection.first_request(client, is_identified, guard).await;
    if !matches!(after, AfterRequest::Cut(_)) {
        connection.decide_cut(Some(Ineligible::PerRequest));
    }
    loop {
        after = match after {
            AfterRequest::Closed => return,
            AfterRequest::Kept(client) => connection.next_request(client).await,
            // Boxed, because few connections become a tunnel.
            AfterRequest::Tunnel(tunnel) => return Box::pin(connection.tunnel(*tunnel, guard)).await,
            AfterRequest::LongAnswer(answer) => Box::pin(connection.long_answer(*answer, guard)).await,
            AfterRequest::Cut(exchange) => return connection.hand_off(*exchange, guard),
        };
    }
}

impl HttpConnection<'_> {
    /// Serves the first request, which decides how the connection is used.
    async fn first_request(&mut self, mut client: Leg, is_identified: bool, guard: &mut ConnGuard) -> AfterRequest {
        let began = Instant::now();
        let read = self.read_head(&mut client, true).await;
        guard.finish_peeking();
        if !is_identified {
            self.count_first(&read, began);
        }
        if matches!(read, HeadRead::Http2) && !self.is_tls {
            self.decide_cut(Some(Ineligible::PerRequest));
            Box::pin(self.http2(client)).await;
            return AfterRequest::Closed;
        }
        self.serve_head(client, read).await
    }

    fn count_first(&self, read: &HeadRead, began: Instant) {
        let listener = &self.listener;
        listener.peek_seconds.observe(began.elapsed());
        match read {
            HeadRead::Request(head) => {
                let name = head
                    .authority
                    .as_ref()
                    .and_then(|authority| authority.hostname.as_ref());
                count_name(listener, Protocol::Http, name);
            }
            HeadRead::Ended(0) => listener.peek.inc(PeekError::Silent.label()),
            HeadRead::Ended(_) => listener.peek.inc(PeekError::Closed.label()),
            HeadRead::Slow => listener.peek.inc(PeekError::Timeout.label()),
            HeadRead::Malformed(_) | HeadRead::Http2 => {}
        }
    }

    async fn next_request(&mut self, mut client: Leg) -> AfterRequest {
        let read = self.read_head(&mut client, false).await;
        self.serve_head(client, read).await
    }

    async fn read_head(&mut self, client: &mut Leg, is_first: bool) -> HeadRead {
        let timeouts = {
            let snapshot = self.worker.shared.snapshot.load();
            let (head, idle) = (
                snapshot.model.timeouts.peek_http,
                snapshot.model.timeouts.http.keep_alive,
            );
            let idle = if is_first { head } else { idle };
            HeadTimeouts { idle, head }
        };
        let (drain, timer) = (&self.worker.drain, self.timer.as_mut());
        head::read(client, &mut self.bytes, &self.limits, timeouts, drain, timer).await
    }

    /// Serves the request, or handles the event that came in its place.
    async fn serve_head(&mut self, client: Leg, read: HeadRead) -> AfterRequest {
        let fault = match read {
            HeadRead::Request(head) => {
                let mut bytes = std::mem::take(&mut self.bytes);
                let ahead = bytes.split_off(head.range.end());
                let request = Request {
                    head: *head,
                    taken: bytes.len(),
                    bytes,
                    began: Instant::now(),
                    id: None,
                };
                // Boxed: a connection that waits for a request does not hold the memory for serving one.
                return Box::pin(self.exchange(client, request, ahead)).await;
            }
            HeadRead::Ended(_) => return AfterRequest::Closed,
            HeadRead::Http2 => {
                let why = RefuseReason::Http2;
                self.count_refused(why.label(), 505, None, None);
                let first = std::mem::take(&mut self.bytes);
                if let Leg::Plain(client) = client {
                    Box::pin(refuse_after(
                        &self.worker.shared,
                        first,
                        client,
                        Protocol::Http,
                        why,
                        None,
                    ))
                    .await;
                }
                return AfterRequest::Closed;
            }
            HeadRead::Slow => Refusal::new(408, "head_timeout", pages::text(408)),
            HeadRead::Malformed(fault) => Refusal::new(fault.status(), fault.label(), pages::text(fault.status())),
        };
        self.count_refused(fault.reason, fault.status, None, None);
        Box::pin(fault.send(&self.worker.shared, client)).await;
        AfterRequest::Closed
    }
}
