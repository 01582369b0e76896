//! A client's HTTP/2 connection, and its limits.

use std::rc::Rc;
use std::sync::Arc;

use h2::server::Builder;
use signalbox_core::wire::http2::malformed::FieldGuard;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::drive::Driver;
use super::stream::StreamOrigin;
use super::streams::Streams;
use crate::datapath::http::exchange::connection::HttpConnection;
use crate::datapath::http::host_room::HostRoom;
use crate::datapath::http::leg::Leg;
use crate::datapath::http::leg::http2::io::SharedLeg;
use crate::datapath::http::leg::linger;

/// Maximum number of concurrent streams.
const MAX_STREAMS: u32 = 128;

/// Bytes that a client may send ahead, on a stream and on all: a stream whose host accepts nothing blocks no other.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MAX_STREAMS;

/// Bytes of an answer that wait on a stream until the socket accepts them.
const STREAM_BUFFER: usize = 64 * 1024;

/// Streams that a client may reset before they are processed (CVE-2023-44487), or have reset for its errors.
const MAX_PENDING_RESETS: usize = 20;
const MAX_LOCAL_RESETS: usize = 1024;

impl HttpConnection<'_> {
    /// Serves an HTTP/2 connection until it ends. Bytes already read wait in `bytes`.
    pub(in crate::datapath::http::client) async fn http2(&mut self, client: Leg) {
        let streams = Streams::new(&self.listener);
        let origin = StreamOrigin {
            worker: Rc::clone(self.worker),
            listener: Arc::clone(&self.listener),
            client: self.peer,
            local: self.local,
            destination: self.destination,
            is_tls: self.is_tls,
            is_by_name: self.is_by_name,
            counted_for: Rc::clone(&self.counted_for),
            streams,
            certificate_fields: self.certificate_fields.clone(),
            host_room: HostRoom::new(&self.worker.shared),
            limits: self.limits,
            exchanges: Arc::new(Semaphore::new(MAX_STREAMS as usize)),
        };
        let leg = SharedLeg::new(client, std::mem::take(&mut self.bytes), FieldGuard::of_client());
        let limit = self.worker.shared.snapshot.load().model.timeouts.peek_http;
        if let Ok(Ok(connection)) = timeout(limit, builder(self.limits.head_bytes).handshake(leg.clone())).await {
            Driver::new(connection, leg.clone(), Rc::new(origin)).run(self).await;
        }
        if let Some(leg) = leg.take() {
            // Late frames, such as WINDOW_UPDATE, would make the kernel reset the connection.
            linger::linger(leg).await;
        }
    }
}

/// Settings of a connection. `field_bytes`: maximum size of a request's uncompressed fields, each with 32 bytes more.
fn builder(field_bytes: usize) -> Builder {
    let mut builder = Builder::new();
    builder
        .enable_connect_protocol()
        .max_concurrent_streams(MAX_STREAMS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(u32::try_from(field_bytes).unwrap_or(u32::MAX))
        .max_send_buffer_size(STREAM_BUFFER)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(Some(MAX_LOCAL_RESETS));
    builder
}
