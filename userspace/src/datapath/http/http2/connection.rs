//! A client's HTTP/2 connection: its limits, and when it ends.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hyper::server::conn::http2::{Builder, Connection};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Semaphore;

use super::super::client::HttpConnection;
use super::super::head::{DRAIN_GRACE_TIMEOUT, wait_until};
use super::super::leg::Leg;
use super::super::linger;
use super::io::SharedLeg;
use super::pipe::ROOM;
use super::service::{LocalExecutor, StreamOrigin, StreamService};
use super::streams::Streams;

/// Interval of PING, by which dead connections are noticed.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(30);

/// Time for the answer to a PING.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Most streams at a time.
const MAX_STREAMS: u32 = 128;

/// Bytes that a client may send ahead, on a stream and on all.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Bytes of a request's fields before compression, each with 32 of overhead.
const MAX_FIELD_BYTES: u32 = 32 * 1024;

/// Streams that a client may reset before they were looked at (CVE-2023-44487), and have reset for its mistakes.
const MAX_PENDING_RESETS: usize = 20;
const MAX_LOCAL_RESETS: usize = 1024;

type Http2Connection = Connection<TokioIo<SharedLeg>, StreamService, LocalExecutor>;

impl HttpConnection<'_> {
    /// Serves a connection that speaks HTTP/2 until it ends. What was read of it waits in `bytes`.
    pub(in crate::datapath::http) async fn http2(&mut self, client: Leg) {
        let streams = Streams::new(&self.listener);
        let origin = StreamOrigin {
            worker: Rc::clone(self.worker),
            listener: Arc::clone(&self.listener),
            client: self.peer,
            local: self.local,
            is_tls: self.is_tls,
            is_by_name: self.is_by_name,
            streams: Rc::clone(&streams),
            exchanges: Arc::new(Semaphore::new(MAX_STREAMS as usize)),
        };
        let leg = SharedLeg::new(client, std::mem::take(&mut self.bytes));
        let service = StreamService(Rc::new(origin));
        let connection = builder().serve_connection(TokioIo::new(leg.clone()), service);
        self.drive_http2(Box::pin(connection), &streams).await;
        if let Some(leg) = leg.take() {
            // Bytes that cross the end, such as WINDOW_UPDATE, would have the kernel reset the connection.
            linger::linger(leg).await;
        }
    }

    /// Drives a connection, and ends it when it is idle or its listener drains.
    async fn drive_http2(&mut self, mut connection: Pin<Box<Http2Connection>>, streams: &Streams) {
        let mut closing = None;
        loop {
            let until = match (streams.idle_since(), closing) {
                (None, _) => None,
                (Some(idle), None) => Some(idle + self.idle_timeout(streams.has_begun())),
                (Some(idle), Some(closing)) => Some(idle.max(closing) + DRAIN_GRACE_TIMEOUT),
            };
            let is_over = until.is_some_and(|until| until <= Instant::now());
            if is_over && closing.is_some() {
                return;
            }
            if closing.is_none() && (is_over || self.drains()) {
                closing = Some(Instant::now());
                connection.as_mut().graceful_shutdown();
                continue;
            }
            tokio::select! {
                biased;
                _ = connection.as_mut() => return,
                () = streams.become_idle() => {}
                () = wait_until(until.unwrap_or_else(Instant::now), self.timer.as_mut()), if until.is_some() => {}
                () = self.worker.drain.wait_change() => {}
            }
        }
    }

    /// Whether the listener or process takes no new requests.
    fn drains(&self) -> bool {
        let shared = &self.worker.shared;
        let snapshot = shared.snapshot.load();
        let listener = snapshot.binds.find(self.local).map(|at| &snapshot.model.listeners[at]);
        shared.stopping.load(Relaxed) || self.worker.drain.is_set() || !self.is_served_by(listener, None)
    }

    /// Time that a connection has without a stream.
    fn idle_timeout(&self, has_begun: bool) -> Duration {
        let timeouts = self.worker.shared.snapshot.load().model.timeouts;
        if has_begun {
            timeouts.http.keep_alive
        } else {
            timeouts.peek_http
        }
    }
}

fn builder() -> Builder<LocalExecutor> {
    let mut builder = Builder::new(LocalExecutor);
    builder
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(MAX_FIELD_BYTES)
        .max_send_buf_size(ROOM)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_LOCAL_RESETS)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}
