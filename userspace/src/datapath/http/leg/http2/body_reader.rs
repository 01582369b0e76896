//! A body that arrives as DATA frames and trailers of a stream, read in the framing of HTTP/1.1.

use std::io;
use std::task::{Context, Poll, ready};

use h2::RecvStream;
use http::HeaderMap;
use hyper::body::Bytes;
use signalbox_core::wire::http1::framing::BodyLength;
use tokio::io::ReadBuf;

use super::fields::write_fields;

/// Reads a body. For each byte read, the peer may send another.
pub(super) struct BodyReader {
    stream: RecvStream,
    left: UnreadBody,
    /// Bytes that come next: framing, data, and more framing.
    before: Vec<u8>,
    data: Bytes,
    behind: &'static [u8],
    /// Whether the last bytes of a body of known length wait for the end of the stream, so that it is not reset.
    awaits_end: bool,
    /// Trailers after a body of known length, if its framing has no place for them.
    trailers: Option<Box<HeaderMap>>,
    /// Whether a reset without an error is the end of the body: h2 does not distinguish them.
    may_end_by_reset: bool,
}

/// The unread rest of a body.
enum UnreadBody {
    /// A known number of bytes.
    Known(u64),
    /// Data of unknown length, which becomes chunks.
    Chunked,
    /// Data of unknown length, unchanged.
    Raw,
    /// The last bytes, which wait for the end of the stream.
    End(Bytes),
    Ended,
}

impl BodyReader {
    pub(super) fn new(stream: RecvStream, length: BodyLength) -> Self {
        Self {
            stream,
            left: match length {
                BodyLength::Known(bytes @ 1..) => UnreadBody::Known(bytes),
                BodyLength::Chunked => UnreadBody::Chunked,
                BodyLength::UntilClose => UnreadBody::Raw,
                BodyLength::None | BodyLength::Known(0) => UnreadBody::Ended,
            },
            before: Vec::new(),
            data: Bytes::new(),
            behind: b"",
            awaits_end: false,
            trailers: None,
            may_end_by_reset: false,
        }
    }

    /// Makes the last bytes of a body wait for the end of the stream, if the length is known.
    pub(super) fn await_end(mut self, length: BodyLength) -> Self {
        self.awaits_end = true;
        if length == BodyLength::Known(0) && !self.stream.is_end_stream() {
            self.left = UnreadBody::End(Bytes::new());
        }
        self
    }

    /// Sets whether the sender may end its body with a reset, because it does not want the rest of a request (RFC 9113,
    /// section 8.1).
    pub(super) const fn set_may_end_by_reset(&mut self, may: bool) {
        self.may_end_by_reset = may;
    }

    /// Reads the rest unchanged, up to the end of the stream.
    pub(super) fn become_raw(&mut self) {
        self.left = UnreadBody::Raw;
    }

    /// Reads. Returns false at the end of the body.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<bool>> {
        loop {
            if self.copy(buf) {
                return Poll::Ready(Ok(true));
            }
            if matches!(self.left, UnreadBody::Ended) {
                return Poll::Ready(Ok(false));
            }
            ready!(self.poll_next(cx))?;
        }
    }

    /// Waits for the end of the stream if the body is empty and trailers may follow.
    pub(super) fn poll_end_of_empty(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while matches!(&self.left, UnreadBody::End(last) if last.is_empty()) {
            ready!(self.poll_next(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Takes the next data, or the end.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match ready!(self.poll_data(cx)) {
            Some(Ok(data)) => self.take_data(data),
            // The body is complete.
            Some(Err(_)) if matches!(self.left, UnreadBody::End(_)) => self.take_end(None),
            Some(Err(error)) => Err(error),
            None => {
                let trailers = ready!(self.stream.poll_trailers(cx)).map_err(io::Error::other)?;
                // RST_STREAM with NO_ERROR looks like an end.
                let is_ended = trailers.is_some() || self.stream.is_end_stream() || self.may_end_by_reset;
                if !is_ended && !matches!(self.left, UnreadBody::End(_)) {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                self.take_end(trailers)
            }
        })
    }

    /// Copies waiting bytes, as far as there is room. Returns whether there were any.
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
            UnreadBody::Known(left) => {
                let rest = left.checked_sub(data.len() as u64);
                *left = rest.ok_or(io::ErrorKind::InvalidData)?;
                if *left > 0 {
                    self.data = data;
                } else if self.awaits_end && !self.stream.is_end_stream() {
                    self.left = UnreadBody::End(data);
                } else {
                    self.left = UnreadBody::Ended;
                    self.data = data;
                }
            }
            UnreadBody::Chunked if !data.is_empty() => {
                self.before = format!("{:x}\r\n", data.len()).into_bytes();
                self.behind = b"\r\n";
                self.data = data;
            }
            UnreadBody::Raw => self.data = data,
            UnreadBody::End(_) if !data.is_empty() => return Err(io::ErrorKind::InvalidData.into()),
            UnreadBody::Chunked | UnreadBody::End(_) | UnreadBody::Ended => {}
        }
        Ok(())
    }

    /// Trailers without a place in the body's framing. They are known before the last bytes of the body are read.
    pub(super) const fn take_trailers(&mut self) -> Option<Box<HeaderMap>> {
        self.trailers.take()
    }

    /// Takes the end of the body. The framing allows trailers only after chunks.
    fn take_end(&mut self, trailers: Option<HeaderMap>) -> io::Result<()> {
        match std::mem::replace(&mut self.left, UnreadBody::Ended) {
            UnreadBody::Known(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            UnreadBody::End(data) => {
                self.data = data;
                self.trailers = trailers.map(Box::new);
            }
            UnreadBody::Chunked => {
                self.before = b"0\r\n".to_vec();
                trailers
                    .iter()
                    .for_each(|trailers| write_fields(trailers, &mut self.before));
                self.behind = b"\r\n";
            }
            UnreadBody::Raw | UnreadBody::Ended => {}
        }
        Ok(())
    }

    /// Reads data, and lets the peer send the same amount again.
    pub(super) fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        self.stream.poll_data(cx).map(|data| {
            let data = data?.map_err(io::Error::other);
            if let Ok(data) = &data {
                // An error is ignored: the stream no longer exists.
                let _ = self.stream.flow_control().release_capacity(data.len());
            }
            Some(data)
        })
    }

    /// Whether the peer has ended the stream.
    pub(super) fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }
}
