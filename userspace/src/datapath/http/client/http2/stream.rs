//! Serves a stream: its request becomes an exchange like one of HTTP/1.1, in a separate task.

use std::cell::Cell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use h2::RecvStream;
use h2::ext::Protocol;
use h2::server::SendResponse;
use http::Request;
use http::request::Parts;
use hyper::body::Bytes;
use signalbox_core::wire::http1::edit::FieldEdit;
use signalbox_core::wire::http1::framing::BodyLength;
use signalbox_core::wire::http1::head_error::HeadError;
use signalbox_core::wire::http1::limits::MessageLimits;
use signalbox_core::wire::http1::method::Method;
use signalbox_core::wire::http1::parse::{self, ParsedRequest};
use signalbox_core::wire::http2::fault::StreamFault;
use signalbox_core::wire::http2::request::{StreamHead, to_http1};
use tokio::sync::Semaphore;

use super::streams::{StreamCount, Streams};
use crate::datapath::http::exchange::after::AfterRequest;
use crate::datapath::http::exchange::connection::HttpConnection;
use crate::datapath::http::exchange::refusal::Refusal;
use crate::datapath::http::host_room::HostRoom;
use crate::datapath::http::leg::Leg;
use crate::datapath::http::leg::http2::StreamLeg;
use crate::datapath::http::leg::http2::answer::AnswerWriter;
use crate::datapath::http::leg::linger;
use crate::datapath::http::message::head::HeadRead;
use crate::datapath::http::message::websocket;
use crate::datapath::http::pages;
use crate::datapath::worker_state::Worker;
use crate::state::ListenerState;

/// Facts about a connection that its streams need.
pub(super) struct StreamOrigin {
    pub(super) worker: Rc<Worker>,
    pub(super) listener: Arc<ListenerState>,
    pub(super) client: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) is_tls: bool,
    /// As [`HttpConnection::is_by_name`].
    pub(super) is_by_name: bool,
    /// As [`HttpConnection::counted_for`].
    pub(super) counted_for: Rc<Cell<Option<u64>>>,
    pub(super) streams: Rc<Streams>,
    pub(super) host_room: Rc<HostRoom>,
    pub(super) limits: MessageLimits,
    /// As [`HttpConnection::certificate_fields`].
    pub(super) certificate_fields: Option<Rc<[FieldEdit]>>,
    /// Room for exchanges, including those that outlive the reset of their stream.
    pub(super) exchanges: Arc<Semaphore>,
}

/// Serves a stream to its end.
pub(super) async fn serve(
    origin: Rc<StreamOrigin>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    _count: StreamCount,
) {
    let room = Arc::clone(&origin.exchanges).acquire_owned();
    let _permit = tokio::select! {
        biased;
        _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
        permit = room => permit,
    };
    let (parts, body) = request.into_parts();
    let key = asks_websocket(&parts).then(|| websocket::new_key(&origin.worker.shared));
    let method = match &key {
        Some(_) => Method::Get,
        None => Method::parse(parts.method.as_str().as_bytes()),
    };
    let head = head(&parts, body.is_end_stream(), origin.is_tls, key.as_deref());
    let length = head.as_ref().map_or(BodyLength::None, |(_, length)| *length);
    let answer = AnswerWriter::new(respond, method, key.is_some());
    let leg = StreamLeg::new(body, length, answer);
    exchange(&origin, Leg::Stream(Box::new(leg)), head.map(|(bytes, _)| bytes)).await;
}

/// Whether a stream asks for a WebSocket, with an extended CONNECT.
fn asks_websocket(parts: &Parts) -> bool {
    let protocol = parts.extensions.get::<Protocol>();
    protocol.is_some_and(|protocol| protocol.as_str().eq_ignore_ascii_case("websocket"))
}

/// Head of a stream's request in HTTP/1.1. `websocket_key`: set if the stream asks for a WebSocket.
fn head(
    parts: &Parts,
    is_ended: bool,
    is_tls: bool,
    websocket_key: Option<&str>,
) -> Result<(Vec<u8>, BodyLength), StreamFault> {
    if websocket_key.is_none() && parts.extensions.get::<Protocol>().is_some() {
        return Err(StreamFault::Protocol);
    }
    let uri = &parts.uri;
    let head = StreamHead {
        method: parts.method.as_str().as_bytes(),
        scheme: uri.scheme_str().map(str::as_bytes),
        authority: uri.authority().map(|authority| authority.as_str().as_bytes()),
        path: uri.path_and_query().map_or(b"", |path| path.as_str().as_bytes()),
        is_tls,
        is_ended,
        websocket_key: websocket_key.map(str::as_bytes),
    };
    let fields = parts.headers.iter();
    to_http1(
        &head,
        fields.map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes())),
    )
}

async fn exchange(origin: &StreamOrigin, leg: Leg, head: Result<Vec<u8>, StreamFault>) {
    let mut connection = HttpConnection {
        cuts_no_answer: false,
        worker: &origin.worker,
        listener: Arc::clone(&origin.listener),
        peer: origin.client,
        client: origin.client,
        is_tls: origin.is_tls,
        certificate_fields: origin.certificate_fields.clone(),
        is_http2: true,
        host_room: Some(Rc::clone(&origin.host_room)),
        is_by_name: origin.is_by_name,
        counted_for: Rc::clone(&origin.counted_for),
        local: origin.local,
        destination: origin.destination,
        limits: origin.limits,
        bytes: Vec::new(),
        consumed: 0,
        is_undecided: false,
        is_first: false,
        timer: origin.worker.timers.take(),
    };
    let after = match head {
        Ok(bytes) => {
            let read = match parse::request(&bytes, &connection.limits) {
                Ok(ParsedRequest::Head(head)) => HeadRead::Request(head),
                Ok(_) => HeadRead::Malformed(HeadError::RequestLine),
                Err(fault) => HeadRead::Malformed(fault),
            };
            connection.bytes = bytes;
            connection.serve_head(leg, read).await
        }
        Err(fault) => {
            let refusal = Refusal::new(fault.status(), fault.label(), pages::text(fault.status()));
            connection.count_refused(refusal.reason, refusal.status, None, None);
            refusal.send(&connection.worker.shared, leg).await
        }
    };
    match after {
        // Streams share a socket, so none is cut.
        AfterRequest::Closed | AfterRequest::Cut(_) | AfterRequest::LongAnswer(_) => {}
        AfterRequest::Kept(leg) => linger::close(leg, false).await,
        AfterRequest::Tunnel(tunnel) => Box::pin(connection.stream_tunnel(*tunnel)).await,
    }
    origin.worker.timers.put(connection.timer);
}
