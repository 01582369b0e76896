//! A stream of a client's HTTP/2 connection as a leg of an exchange: its request's body is read in the framing of
//! HTTP/1.1, and what is written is the answer.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::HeaderMap;
use hyper::body::{Body as _, Bytes, Incoming};
use signalbox_core::http1::framing::BodyLength;
use tokio::io::ReadBuf;

use super::pipe::PipeWriter;

/// A stream of a client's HTTP/2 connection.
pub(in crate::datapath::http) struct StreamLeg {
    body: Incoming,
    left: BodyLeft,
    /// Bytes that come next: framing, data, and framing behind it.
    before: Vec<u8>,
    data: Bytes,
    behind: &'static [u8],
    answer: PipeWriter,
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
    pub(super) fn new(body: Incoming, length: BodyLength, answer: PipeWriter) -> Self {
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
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.take_data(data)?,
                    Err(frame) => self.take_end(frame.trailers_ref())?,
                },
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                // A reset may look like an end: hyper ends the body at RST_STREAM with NO_ERROR.
                None if !self.body.is_end_stream() => {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                None => self.take_end(None)?,
            }
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

    pub(in crate::datapath::http) fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.answer.try_write(bytes)
    }

    pub(in crate::datapath::http) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.answer.poll_write(cx, bytes)
    }

    pub(in crate::datapath::http) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.answer.poll_flush(cx)
    }

    /// Reads and drops the rest of the request's body, at most so many bytes.
    pub(in crate::datapath::http) async fn discard(&mut self, mut left: usize) {
        while left > 0 {
            match poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await {
                Some(Ok(frame)) => left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len)),
                Some(Err(_)) | None => return,
            }
        }
    }

    /// Ends the answer. Without it, the stream is reset when the leg goes.
    pub(in crate::datapath::http) fn end(&mut self) {
        self.answer.end();
    }
}
