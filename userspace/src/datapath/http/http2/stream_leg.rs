//! A stream of a client's HTTP/2 connection as a leg of an exchange: its request's body is read in the framing of
//! HTTP/1.1, and what is written is the answer.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

use h2::RecvStream;
use http::HeaderMap;
use hyper::body::Bytes;
use signalbox_core::http1::framing::BodyLength;
use tokio::io::ReadBuf;

use super::answer::AnswerWriter;

/// A stream of a client's HTTP/2 connection.
pub(in crate::datapath::http) struct StreamLeg {
    body: RecvStream,
    left: BodyLeft,
    /// Bytes that come next: framing, data, and framing behind it.
    before: Vec<u8>,
    data: Bytes,
    behind: &'static [u8],
    answer: AnswerWriter,
}

/// Rest of a request's body.
enum BodyLeft {
    /// So many bytes.
    Known(u64),
    /// Data of a length that only its end tells: it becomes chunks.
    Chunked,
    Ended,
}

impl StreamLeg {
    pub(super) fn new(body: RecvStream, length: BodyLength, answer: AnswerWriter) -> Self {
        Self {
            body,
            left: match length {
                BodyLength::Known(bytes @ 1..) => BodyLeft::Known(bytes),
                BodyLength::Chunked => BodyLeft::Chunked,
                _ => BodyLeft::Ended,
            },
            before: Vec::new(),
            data: Bytes::new(),
            behind: b"",
            answer,
        }
    }

    /// Reads the body. A body that has ended is followed by nothing: who reads on learns when the stream is reset.
    pub(in crate::datapath::http) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.copy(buf) {
                return Poll::Ready(Ok(()));
            }
            if matches!(self.left, BodyLeft::Ended) {
                ready!(self.answer.poll_gone(cx));
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            if let Some(data) = ready!(self.poll_data(cx)) {
                self.take_data(data?)?;
                continue;
            }
            let trailers = ready!(self.body.poll_trailers(cx)).map_err(io::Error::other)?;
            // A reset may look like an end: RST_STREAM with NO_ERROR is none to h2.
            if trailers.is_none() && !self.body.is_end_stream() {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.take_end(trailers.as_ref())?;
        }
    }

    /// Copies bytes that wait, as far as there is room. Returns whether there were any.
    fn copy(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let start = buf.filled().len();
        let taken = self.before.len().min(buf.remaining());
        buf.put_slice(&self.before[..taken]);
        self.before.drain(..taken);
        let data = self.data.split_to(self.data.len().min(buf.remaining()));
        buf.put_slice(&data);
        let (now, later) = self.behind.split_at(self.behind.len().min(buf.remaining()));
        buf.put_slice(now);
        self.behind = later;
        buf.filled().len() > start
    }

    fn take_data(&mut self, data: Bytes) -> io::Result<()> {
        match &mut self.left {
            BodyLeft::Known(left) => {
                let rest = left.checked_sub(data.len() as u64);
                *left = rest.ok_or(io::ErrorKind::InvalidData)?;
                if *left == 0 {
                    self.left = BodyLeft::Ended;
                }
                self.data = data;
            }
            BodyLeft::Chunked if !data.is_empty() => {
                self.before = format!("{:x}\r\n", data.len()).into_bytes();
                self.behind = b"\r\n";
                self.data = data;
            }
            BodyLeft::Chunked | BodyLeft::Ended => {}
        }
        Ok(())
    }

    /// Takes the end of the body. Trailers have a place behind chunks only.
    fn take_end(&mut self, trailers: Option<&HeaderMap>) -> io::Result<()> {
        if matches!(self.left, BodyLeft::Known(_)) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.before = b"0\r\n".to_vec();
        for (name, value) in trailers.into_iter().flatten() {
            for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                self.before.extend_from_slice(part);
            }
        }
        self.behind = b"\r\n";
        self.left = BodyLeft::Ended;
        Ok(())
    }

    pub(in crate::datapath::http) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.answer.poll_write(cx, bytes)
    }

    /// Reads and drops the rest of the request's body, at most so many bytes.
    pub(in crate::datapath::http) async fn discard(&mut self, mut left: usize) {
        while left > 0 {
            match poll_fn(|cx| self.poll_data(cx)).await {
                Some(Ok(data)) => left = left.saturating_sub(data.len()),
                Some(Err(_)) | None => return,
            }
        }
    }

    /// Whether the client has ended its request.
    pub(in crate::datapath::http) fn is_request_ended(&self) -> bool {
        self.body.is_end_stream()
    }

    /// Reads data, and lets the client send as much again.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        self.body.poll_data(cx).map(|data| {
            let data = data?.map_err(io::Error::other);
            if let Ok(data) = &data {
                // An error is ignored: there is no such stream any more.
                let _ = self.body.flow_control().release_capacity(data.len());
            }
            Some(data)
        })
    }

    /// Ends the answer. Without it, the stream is reset when the leg goes.
    pub(in crate::datapath::http) fn end(&mut self) {
        self.answer.end();
    }
}
