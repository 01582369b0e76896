//! Drives a client's HTTP/2 connection: accepts its streams, checks that the client is alive, and ends the connection.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::{Duration, Instant};

use h2::server::{Connection, SendResponse};
use h2::{Ping, PingPong, RecvStream};
use http::Request;
use hyper::body::Bytes;

use super::stream::{StreamOrigin, serve};
use crate::datapath::http::exchange::connection::HttpConnection;
use crate::datapath::http::leg::http2::io::SharedLeg;
use crate::datapath::http::message::head::{DRAIN_GRACE_TIMEOUT, wait_until};

/// Interval of PINGs while nothing arrives, to detect dead connections.
const PING_INTERVAL: Duration = Duration::from_secs(30);

/// Time for the answer to a PING.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection being driven.
pub(super) struct Driver {
    connection: Connection<SharedLeg, Bytes>,
    leg: SharedLeg,
    origin: Rc<StreamOrigin>,
    ping: Option<PingPong>,
    pinged: Option<Instant>,
    /// Time since when there has been no stream; `None` while there is one.
    idle_since: Option<Instant>,
    closing: Option<Instant>,
}

/// Event of a connection.
#[expect(
    clippy::large_enum_variant,
    reason = "a box would be an allocation for each stream, and no event is kept"
)]
enum Event {
    Stream(Request<RecvStream>, SendResponse<Bytes>),
    Ended,
    /// Streams have begun or ended.
    Changed,
    Pong,
}

impl Driver {
    pub(super) fn new(mut connection: Connection<SharedLeg, Bytes>, leg: SharedLeg, origin: Rc<StreamOrigin>) -> Self {
        Self {
            ping: connection.ping_pong(),
            connection,
            leg,
            origin,
            pinged: None,
            idle_since: Some(Instant::now()),
            closing: None,
        }
    }

    /// Drives the connection until it ends.
    pub(super) async fn run(mut self, http: &mut HttpConnection<'_>) {
        loop {
            if self.is_busy() {
                self.idle_since = None;
            } else if self.idle_since.is_none() {
                self.idle_since = Some(Instant::now());
            }
            let now = Instant::now();
            let end = self.end(http);
            let is_over = end.is_some_and(|end| end <= now);
            if self.closing.is_none() && (http.drains() || (is_over && self.idle_since.is_some())) {
                self.closing = Some(now);
                self.connection.graceful_shutdown();
                continue;
            }
            if is_over || !self.check_alive(now) {
                return;
            }
            let alive = self.alive_until();
            let until = end.map_or(alive, |end| end.min(alive));
            let origin = Rc::clone(&self.origin);
            tokio::select! {
                biased;
                event = self.next() => match event {
                    Event::Stream(request, respond) => {
                        let count = origin.streams.enter();
                        tokio::task::spawn_local(serve(origin, request, respond, count));
                    }
                    Event::Ended => return,
                    Event::Changed => {}
                    Event::Pong => self.pinged = None,
                },
                () = origin.streams.become_idle() => {}
                () = wait_until(until, http.timer.as_mut()) => {}
                () = http.worker.drain.wait_change() => {}
            }
        }
    }

    /// Waits for something to happen.
    async fn next(&mut self) -> Event {
        let was_busy = self.idle_since.is_none();
        poll_fn(|cx| {
            let accepted = self.connection.poll_accept(cx);
            self.origin.streams.count_malformed(self.leg.take_malformed());
            if let Poll::Ready(accepted) = accepted {
                return Poll::Ready(match accepted {
                    Some(Ok((request, respond))) => Event::Stream(request, respond),
                    Some(Err(_)) | None => Event::Ended,
                });
            }
            if let Some(ping) = self.ping.as_mut().filter(|_| self.pinged.is_some())
                && let Poll::Ready(answer) = ping.poll_pong(cx)
            {
                return Poll::Ready(answer.map_or(Event::Ended, |_| Event::Pong));
            }
            if self.is_busy() == was_busy {
                Poll::Pending
            } else {
                Poll::Ready(Event::Changed)
            }
        })
        .await
    }

    /// Whether there are exchanges, or streams with unsent bytes.
    fn is_busy(&self) -> bool {
        self.origin.streams.are_active() || self.connection.has_streams()
    }

    /// Time at which the connection is ended unless something happens before.
    fn end(&self, http: &HttpConnection<'_>) -> Option<Instant> {
        let timeouts = http.worker.shared.snapshot.load().model.timeouts;
        match (self.idle_since, self.closing) {
            (Some(idle), None) if self.origin.streams.has_begun() => Some(idle + timeouts.http.keep_alive),
            (Some(idle), None) => Some(idle + timeouts.peek_http),
            (Some(idle), Some(closing)) => Some(idle.max(closing) + DRAIN_GRACE_TIMEOUT),
            // All exchanges have ended, but the client has not received all bytes.
            (None, _) if !self.origin.streams.are_active() => {
                let last = self.leg.written_at().max(self.origin.streams.ended_at());
                Some(last + timeouts.http.body)
            }
            (None, _) => None,
        }
    }

    /// Time at which a PING, or its answer, is due.
    fn alive_until(&self) -> Instant {
        match self.pinged {
            Some(pinged) => pinged + PING_TIMEOUT,
            None => self.leg.read_at() + PING_INTERVAL,
        }
    }

    /// Sends a PING if nothing has arrived for a while. Returns false if a PING was not answered.
    fn check_alive(&mut self, now: Instant) -> bool {
        if now < self.alive_until() {
            return true;
        }
        if self.pinged.is_some() {
            return false;
        }
        self.pinged = Some(now);
        self.ping
            .as_mut()
            .is_some_and(|ping| ping.send_ping(Ping::opaque()).is_ok())
    }
}

impl HttpConnection<'_> {
    /// Whether the listener or process takes no new requests.
    fn drains(&self) -> bool {
        let shared = &self.worker.shared;
        let snapshot = shared.snapshot.load();
        let listener = snapshot.binds.find(self.local).map(|at| &snapshot.model.listeners[at]);
        shared.life.stopping.load(Relaxed) || self.worker.drain.is_set() || !self.is_served_by(listener, None)
    }
}
