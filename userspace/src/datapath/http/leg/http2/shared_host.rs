//! An HTTP/2 connection to a host, whose streams requests share.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use h2::SendStream;
use h2::client::{Builder, ResponseFuture, SendRequest};
use http::Request;
use http::uri::{Authority, Scheme};
use hyper::body::Bytes;
use signalbox_core::model::HeadLimits;
use signalbox_core::wire::http2::malformed::FieldGuard;

use super::host_drive::drive;
use super::host_leg::HostStreamLeg;
use super::io::SharedLeg;
use crate::datapath::http::leg::Leg;
use crate::datapath::http::leg::outbox::Outbox;
use crate::state::ClusterState;

/// Maximum number of concurrent streams, even if the host allows more.
const MAX_STREAMS: usize = 100;

/// Bytes that a host may send ahead on a stream. The connection's window has room for all streams, so streams with slow
/// clients do not block the others.
const STREAM_WINDOW: u32 = 128 * 1024;
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MAX_STREAMS as u32;

/// Bytes of a request that wait on a stream until the socket accepts them.
const STREAM_BUFFER: usize = 64 * 1024;

/// Number of streams that h2 resets for a host's errors before it ends the connection.
const MAX_LOCAL_RESETS: usize = 1024;

/// An HTTP/2 connection to a host. Ends when the last of its handles and streams is dropped.
pub(in crate::datapath::http) struct SharedHost {
    sender: SendRequest<Bytes>,
    scheme: Scheme,
    authority: Authority,
    streams: Rc<HostStreams>,
}

/// Streams of a connection to a host.
pub(super) struct HostStreams {
    cluster: Arc<ClusterState>,
    active: Cell<usize>,
    /// Time at which the last stream ended, or the first one after a pause began.
    changed_at: Cell<Instant>,
    /// Time of the last head or data of an answer.
    heard_at: Cell<Instant>,
    is_over: Cell<bool>,
}

/// Counts a stream for its lifetime.
pub(super) struct HostStreamCount(Rc<HostStreams>);

/// Error of a host that does not speak HTTP/2 though it should.
#[derive(Debug, thiserror::Error)]
#[error("the host does not speak HTTP/2: {0}")]
pub(super) struct NotHttp2(String);

/// Error of a request that could not be passed to a connection.
#[derive(Debug, thiserror::Error)]
#[error("the connection takes no more requests: {0}")]
pub(super) struct Unsent(h2::Error);

impl SharedHost {
    /// Starts HTTP/2 on a connection, and waits for the host's SETTINGS, which limit its streams. `before`: bytes to
    /// send first, a PROXY header.
    pub(in crate::datapath::http) async fn begin(
        mut leg: Leg,
        before: Vec<u8>,
        host: SocketAddr,
        cluster: &Arc<ClusterState>,
        limits: HeadLimits,
    ) -> io::Result<Rc<Self>> {
        let scheme = if leg.is_layered() { Scheme::HTTPS } else { Scheme::HTTP };
        let mut preamble = Outbox::default();
        preamble.push(&before);
        preamble.write_all(&mut leg).await?;
        let leg = SharedLeg::new(leg, Vec::new(), FieldGuard::default());
        let not_http2 = |why: String| io::Error::other(NotHttp2(why));
        let authority = Authority::try_from(host.to_string()).map_err(io::Error::other)?;
        let handshake = builder(2 * limits.bytes).handshake(leg.clone()).await;
        let (sender, mut connection) = handshake.map_err(|error| not_http2(error.to_string()))?;
        {
            let mut connection = pin!(&mut connection);
            std::future::poll_fn(|cx| match connection.as_mut().poll(cx) {
                Poll::Ready(Ok(())) => Poll::Ready(Err(not_http2("the connection was closed".to_owned()))),
                Poll::Ready(Err(error)) => Poll::Ready(Err(not_http2(error.to_string()))),
                Poll::Pending if sender.current_max_send_streams() > 0 => Poll::Ready(Ok(())),
                Poll::Pending => Poll::Pending,
            })
            .await?;
        }
        let now = Instant::now();
        let streams = Rc::new(HostStreams {
            cluster: Arc::clone(cluster),
            active: Cell::new(0),
            changed_at: Cell::new(now),
            heard_at: Cell::new(now),
            is_over: Cell::new(false),
        });
        cluster.http2.connections.inc();
        cluster.pool_idle.enter();
        tokio::task::spawn_local(drive(connection, leg, Rc::clone(&streams)));
        Ok(Rc::new(Self {
            sender,
            scheme,
            authority,
            streams,
        }))
    }

    /// Opens a stream; `None` if the connection accepts no more.
    pub(in crate::datapath::http) fn open(self: &Rc<Self>) -> Option<HostStreamLeg> {
        let most = self.sender.current_max_send_streams().min(MAX_STREAMS);
        let has_room = self.streams.active.get() < most;
        (has_room && self.is_good()).then(|| HostStreamLeg::new(Rc::clone(self), self.streams.enter()))
    }

    /// Whether the connection accepts requests, now or after others have ended.
    pub(in crate::datapath::http) fn is_good(&self) -> bool {
        let cx = &mut Context::from_waker(Waker::noop());
        // An error means that the connection has ended or that GOAWAY has arrived.
        !self.streams.is_over.get() && matches!(self.sender.clone().poll_ready(cx), Poll::Ready(Ok(())))
    }

    /// Time since when there has been no stream; `None` while there is one.
    pub(in crate::datapath::http) fn idle_since(&self) -> Option<Instant> {
        (self.streams.active.get() == 0).then(|| self.streams.changed_at.get())
    }

    pub(super) const fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    pub(super) const fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Sends the head of a request.
    pub(super) fn send(&self, head: Request<()>, is_ended: bool) -> io::Result<(ResponseFuture, SendStream<Bytes>)> {
        let sent = self.sender.clone().send_request(head, is_ended);
        sent.map_err(|error| io::Error::other(Unsent(error)))
    }
}

impl HostStreams {
    /// Counts answers that h2 rejects because a field is malformed.
    pub(super) fn count_malformed(&self, count: u64) {
        // Called at each wake-up, nearly always with 0: all workers share the counter, so skip it then.
        if count > 0 {
            self.cluster.http2.malformed.add(count);
        }
    }

    pub(super) const fn are_active(&self) -> bool {
        self.active.get() > 0
    }

    pub(super) const fn changed_at(&self) -> Instant {
        self.changed_at.get()
    }

    pub(super) const fn heard_at(&self) -> Instant {
        self.heard_at.get()
    }

    /// Notes that the connection has ended.
    pub(super) fn end(&self) {
        self.is_over.set(true);
        if self.are_active() {
            self.cluster.pool_active.leave();
        } else {
            self.cluster.pool_idle.leave();
        }
    }

    fn enter(self: &Rc<Self>) -> HostStreamCount {
        self.cluster.http2.streams.enter();
        self.active.set(self.active.get() + 1);
        if self.active.get() == 1 {
            self.changed_at.set(Instant::now());
            if !self.is_over.get() {
                self.cluster.pool_idle.leave();
                self.cluster.pool_active.enter();
            }
        }
        HostStreamCount(Rc::clone(self))
    }
}

impl HostStreamCount {
    /// Notes that part of the answer has arrived.
    pub(super) fn heard(&self) {
        self.0.heard_at.set(Instant::now());
    }
}

impl Drop for HostStreamCount {
    fn drop(&mut self) {
        let streams = &self.0;
        streams.cluster.http2.streams.leave();
        streams.active.set(streams.active.get() - 1);
        if !streams.are_active() {
            streams.changed_at.set(Instant::now());
            if !streams.is_over.get() {
                streams.cluster.pool_active.leave();
                streams.cluster.pool_idle.enter();
            }
        }
    }
}

/// Settings of a connection. `field_bytes`: maximum size of an answer's fields before compression, with 32 bytes of
/// overhead each. The text of the head has a separate limit.
fn builder(field_bytes: u32) -> Builder {
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        // None until the host's SETTINGS arrive.
        .initial_max_send_streams(0)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(field_bytes)
        .max_send_buffer_size(STREAM_BUFFER)
        .max_local_error_reset_streams(Some(MAX_LOCAL_RESETS));
    builder
}
