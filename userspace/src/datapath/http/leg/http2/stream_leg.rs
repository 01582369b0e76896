//! A stream of a client's HTTP/2 connection as a leg of an exchange. The body of its request is read in the framing of
//! HTTP/1.1, and the answer is written to it.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

use h2::{Reason, RecvStream};
use http::HeaderMap;
use signalbox_core::wire::http1::framing::BodyLength;
use tokio::io::ReadBuf;

use super::answer::AnswerWriter;
use super::body_reader::BodyReader;

/// A stream of a client's HTTP/2 connection.
pub(in crate::datapath::http) struct StreamLeg {
    body: BodyReader,
    answer: AnswerWriter,
    /// Whether the bytes read belong to a tunnel.
    is_tunnel: bool,
}

impl StreamLeg {
    pub(in crate::datapath::http) fn new(body: RecvStream, length: BodyLength, answer: AnswerWriter) -> Self {
        Self {
            body: BodyReader::new(body, length),
            answer,
            is_tunnel: false,
        }
    }

    /// Reads the body, or a tunnel. Reading after the end of the body returns when the stream is reset.
    pub(in crate::datapath::http) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.answer.is_tunnel() && !self.is_tunnel {
            self.is_tunnel = true;
            self.body.become_raw();
        }
        if ready!(self.body.poll_read(cx, buf))? || self.is_tunnel {
            return Poll::Ready(Ok(()));
        }
        ready!(self.answer.poll_gone(cx));
        Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
    }

    pub(in crate::datapath::http) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.answer.poll_write(cx, bytes)
    }

    /// Waits until the client has reset the stream before its answer was complete.
    pub(in crate::datapath::http) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.answer.poll_gone(cx)
    }

    /// Reads and drops the rest of the request's body, up to a limit.
    pub(in crate::datapath::http) async fn discard(&mut self, mut left: usize) {
        while left > 0 {
            match poll_fn(|cx| self.body.poll_data(cx)).await {
                Some(Ok(data)) => left = left.saturating_sub(data.len()),
                Some(Err(_)) | None => return,
            }
        }
    }

    /// Whether the client has ended its request.
    pub(in crate::datapath::http) fn is_request_ended(&self) -> bool {
        self.body.is_end_stream()
    }

    /// Sets the trailers after an answer of known length, before its last bytes are written.
    pub(in crate::datapath::http) fn set_trailers(&mut self, trailers: Box<HeaderMap>) {
        self.answer.set_trailers(trailers);
    }

    /// Ends the answer. Otherwise the stream is reset when the leg is dropped.
    pub(in crate::datapath::http) fn end(&mut self) {
        self.answer.end();
    }

    /// Notes that the host has reset its stream. The client's stream gets the same error code, unless it could mean
    /// that the request was not processed.
    pub(in crate::datapath::http) const fn set_reset_reason(&mut self, reason: Reason) {
        if matches!(reason, Reason::CANCEL | Reason::ENHANCE_YOUR_CALM) {
            self.answer.set_reason(reason);
        }
    }

    /// Resets the stream, so that its client sees that the answer is incomplete.
    pub(in crate::datapath::http) async fn reset(mut self: Box<Self>) {
        // The connection's task first sends waiting bytes, as far as they fit the windows: a reset drops them.
        tokio::task::yield_now().await;
        self.answer.reset();
    }
}
