//! The answer of an exchange: written as HTTP/1.1, sent as frames of a stream.

use std::io;
use std::task::{Context, Poll};

use h2::Reason;
use h2::server::SendResponse;
use http::{HeaderMap, Response, StatusCode};
use hyper::body::Bytes;
use signalbox_core::wire::http1::framing::{self, AnswerKind, BodyLength};
use signalbox_core::wire::http1::head::ResponseHead;
use signalbox_core::wire::http1::method::Method;
use signalbox_core::wire::http1::parse;

use super::body_writer::BodyWriter;
use super::fields::{grown_limits, stream_fields};

/// Sends an answer. Resets the stream if dropped before the answer is complete.
pub(in crate::datapath::http) struct AnswerWriter {
    respond: SendResponse<Bytes>,
    /// The body, once the final head is sent.
    body: Option<BodyWriter>,
    method: Method,
    /// Bytes of an incomplete head.
    head: Vec<u8>,
    /// Whether the client has asked for a WebSocket, and whether the stream has become one: a tunnel.
    asks_websocket: bool,
    is_tunnel: bool,
    /// Trailers for a body that has not begun.
    trailers: Option<Box<HeaderMap>>,
    /// Error code for resetting the stream if the answer breaks off.
    reason: Reason,
}

impl AnswerWriter {
    pub(in crate::datapath::http) const fn new(
        respond: SendResponse<Bytes>,
        method: Method,
        asks_websocket: bool,
    ) -> Self {
        Self {
            respond,
            body: None,
            method,
            head: Vec::new(),
            asks_websocket,
            is_tunnel: false,
            trailers: None,
            reason: Reason::INTERNAL_ERROR,
        }
    }

    /// Writes as much as fits the client's windows. Bytes after a complete answer are dropped.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.body {
            None => Poll::Ready(self.take_head(bytes)),
            Some(body) => body.poll_write(cx, bytes),
        }
    }

    /// Takes bytes of interim heads and the final one, and sends complete heads. Returns how many bytes it took: all,
    /// or those up to the body.
    fn take_head(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.head.extend_from_slice(bytes);
        let limits = grown_limits();
        while let Some(head) = parse::response(&self.head, &limits).map_err(io::Error::other)? {
            let kind = framing::answer(&head, &self.head, self.method).map_err(io::Error::other)?;
            let response = response(&head, &self.head, kind)?;
            self.head.drain(..head.range.end());
            let length = match kind {
                AnswerKind::Interim => {
                    self.respond.send_informational(response).map_err(io::Error::other)?;
                    continue;
                }
                AnswerKind::Final(length) => length,
                AnswerKind::SwitchingProtocols if self.asks_websocket => {
                    self.is_tunnel = true;
                    BodyLength::UntilClose
                }
                AnswerKind::SwitchingProtocols | AnswerKind::Tunnel => return Err(io::ErrorKind::InvalidData.into()),
            };
            let trailers = self.trailers.take().filter(|trailers| !trailers.is_empty());
            let is_empty = matches!(length, BodyLength::None | BodyLength::Known(0));
            let stream = self.respond.send_response(response, is_empty && trailers.is_none());
            let body = BodyWriter::new(stream.map_err(io::Error::other)?, length);
            let body = self.body.insert(body);
            match trailers {
                Some(trailers) if is_empty => body.end_empty(*trailers)?,
                Some(trailers) => body.set_trailers(trailers),
                None => {}
            }
            return Ok(bytes.len() - std::mem::take(&mut self.head).len());
        }
        Ok(bytes.len())
    }

    /// Sets the trailers after a body of known length, before its last bytes are written.
    pub(super) fn set_trailers(&mut self, trailers: Box<HeaderMap>) {
        match &mut self.body {
            Some(body) => body.set_trailers(trailers),
            None => self.trailers = Some(trailers),
        }
    }

    /// Waits until the client has reset the stream before its answer was complete.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.body {
            Some(body) if body.is_whole() => Poll::Pending,
            Some(body) => body.poll_reset(cx),
            None => self.respond.poll_reset(cx).map(drop),
        }
    }

    /// Whether the answer started a tunnel.
    pub(super) const fn is_tunnel(&self) -> bool {
        self.is_tunnel
    }

    /// Ends an answer without a known length.
    pub(super) fn end(&mut self) {
        if let Some(body) = &mut self.body {
            body.end();
        }
    }

    /// Notes why the answer breaks off, if the balancer is not the cause.
    pub(super) const fn set_reason(&mut self, reason: Reason) {
        self.reason = reason;
    }

    /// Resets the stream of an answer that breaks off.
    pub(super) fn reset(&mut self) {
        // The end of a tunnel follows the bytes that wait to be sent, and is a CANCEL (RFC 8441, section 5).
        if let Some(body) = &mut self.body
            && !self.is_tunnel
        {
            body.reset(self.reason);
        }
    }
}

impl Drop for AnswerWriter {
    fn drop(&mut self) {
        // If the answer has begun, h2 resets the stream after the waiting bytes, once the last handle is dropped.
        if self.body.is_none() {
            self.respond.send_reset(Reason::INTERNAL_ERROR);
        }
    }
}

fn response(head: &ResponseHead, bytes: &[u8], kind: AnswerKind) -> io::Result<Response<()>> {
    let mut response = Response::new(());
    let (status, drops): (u16, &[&str]) = match kind {
        //= https://www.rfc-editor.org/rfc/rfc8441#section-5
        //# the server ... replying with a 2xx series status code
        AnswerKind::SwitchingProtocols => (200, &["te", "sec-websocket-accept"]),
        _ => (head.status, &["te"]),
    };
    *response.status_mut() = StatusCode::from_u16(status).map_err(io::Error::other)?;
    *response.headers_mut() = stream_fields(&head.fields, bytes, drops)?;
    Ok(response)
}
