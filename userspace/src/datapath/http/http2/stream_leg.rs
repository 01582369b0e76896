//! A stream of a client's HTTP/2 connection as a leg of an exchange: its request's body is read in the framing of
//! HTTP/1.1, and what is written is the answer.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

use h2::{Reason, RecvStream};
use http::HeaderMap;
use signalbox_core::http1::framing::BodyLength;
use tokio::io::ReadBuf;

use super::answer::AnswerWriter;
use super::body_reader::BodyReader;

/// A stream of a client's HTTP/2 connection.
pub(in crate::datapath::http) struct StreamLeg {
    body: BodyReader,
    answer: AnswerWriter,
    /// Whether what is read is a tunnel's.
    is_tunnel: bool,
}

impl StreamLeg {
    pub(super) fn new(body: RecvStream, length: BodyLength, answer: AnswerWriter) -> Self {
        Self {
            body: BodyReader::new(body, length),
            answer,
            is_tunnel: false,
        }
    }

    /// Reads the body, or a tunnel. A body that has ended is followed by nothing: who reads on learns when the stream
    /// is reset.
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

    /// Waits until the client has reset the stream, before its answer was whole.
    pub(in crate::datapath::http) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.answer.poll_gone(cx)
    }

    /// Reads and drops the rest of the request's body, at most so many bytes.
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

    /// Sets the trailers behind an answer of known length, before the last of it is written.
    pub(in crate::datapath::http) fn set_trailers(&mut self, trailers: Box<HeaderMap>) {
        self.answer.set_trailers(trailers);
    }

    /// Ends the answer. Without it, the stream is reset when the leg goes.
    pub(in crate::datapath::http) fn end(&mut self) {
        self.answer.end();
    }

    /// Notes that the host has reset its stream: the client's will be for the same reason, where that says nothing of
    /// the request having been left alone.
    pub(in crate::datapath::http) const fn set_reset_reason(&mut self, reason: Reason) {
        if matches!(reason, Reason::CANCEL | Reason::ENHANCE_YOUR_CALM) {
            self.answer.set_reason(reason);
        }
    }

    /// Resets the stream: its client must see that the answer is not whole.
    pub(in crate::datapath::http) async fn reset(mut self: Box<Self>) {
        // The connection's task sends what waits first, as far as the windows go: a reset drops it.
        tokio::task::yield_now().await;
        self.answer.reset();
    }
}
