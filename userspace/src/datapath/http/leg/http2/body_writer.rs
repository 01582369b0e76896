//! A body in the framing of HTTP/1.1, sent as DATA frames and trailers of a stream.

use std::io;
use std::task::{Context, Poll, ready};

use h2::{Reason, SendStream};
use http::HeaderMap;
use hyper::body::Bytes;
use signalbox_core::wire::http1::chunked::ChunkedBody;
use signalbox_core::wire::http1::framing::BodyLength;
use signalbox_core::wire::http1::limits::MessageLimits;

use super::fields::stream_fields;

/// Sends a body. If dropped before the body is complete, resets the stream after the waiting bytes.
pub(super) struct BodyWriter {
    stream: SendStream<Bytes>,
    left: UnsentBody,
    /// Trailers after a body of known length.
    trailers: Option<Box<HeaderMap>>,
}

/// The unsent rest of a body.
enum UnsentBody {
    Known(u64),
    Chunked(Box<ChunkedBody>),
    UntilClose,
    Nothing,
}

impl BodyWriter {
    pub(super) fn new(stream: SendStream<Bytes>, length: BodyLength) -> Self {
        let left = match length {
            BodyLength::None | BodyLength::Known(0) => UnsentBody::Nothing,
            BodyLength::Known(bytes) => UnsentBody::Known(bytes),
            BodyLength::Chunked => UnsentBody::Chunked(Box::new(ChunkedBody::new(&MessageLimits::default()))),
            BodyLength::UntilClose => UnsentBody::UntilClose,
        };
        Self {
            stream,
            left,
            trailers: None,
        }
    }

    /// Sends as many bytes of the body as fit the windows, at least one. Bytes after a complete body are dropped.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut used = 0;
        while used < bytes.len() {
            let waiting = bytes.len() - used;
            let due = match &mut self.left {
                UnsentBody::UntilClose => waiting,
                UnsentBody::Known(left) => waiting.min(usize::try_from(*left).unwrap_or(usize::MAX)),
                UnsentBody::Chunked(body) => waiting.min(usize::try_from(body.data_ahead()).unwrap_or(usize::MAX)),
                UnsentBody::Nothing => return Poll::Ready(Ok(bytes.len())),
            };
            if due == 0 {
                self.scan(&bytes[used..=used])?;
                used += 1;
                continue;
            }
            let room = match self.poll_room(cx, due)? {
                Poll::Ready(room) => room,
                Poll::Pending if used > 0 => break,
                Poll::Pending => return Poll::Pending,
            };
            let data = Bytes::copy_from_slice(&bytes[used..used + due.min(room)]);
            used += data.len();
            let is_last = self.skip(data.len() as u64);
            self.send(data, is_last)?;
        }
        Poll::Ready(Ok(used))
    }

    /// Sets the trailers of a body of known length, before its last bytes are written.
    pub(super) fn set_trailers(&mut self, trailers: Box<HeaderMap>) {
        self.trailers = Some(trailers).filter(|trailers| !trailers.is_empty());
    }

    /// Ends an empty body with trailers.
    pub(super) fn end_empty(&mut self, trailers: HeaderMap) -> io::Result<()> {
        self.stream.send_trailers(trailers).map_err(io::Error::other)
    }

    /// Waits until the peer has reset the stream.
    pub(super) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.stream.poll_reset(cx).map(drop)
    }

    /// Ends a body without a known length.
    pub(super) fn end(&mut self) {
        if matches!(self.left, UnsentBody::UntilClose) {
            // An error is ignored: the peer has reset the stream.
            let _ = self.send(Bytes::new(), true);
        }
    }

    /// Resets the stream. Bytes that wait to be sent are lost.
    pub(super) fn reset(&mut self, reason: Reason) {
        self.stream.send_reset(reason);
    }

    pub(super) const fn is_whole(&self) -> bool {
        matches!(self.left, UnsentBody::Nothing)
    }

    /// Reads one of the few bytes between chunks, and sends the end after the last chunk.
    fn scan(&mut self, byte: &[u8]) -> io::Result<()> {
        let UnsentBody::Chunked(body) = &mut self.left else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        body.scan(byte).map_err(io::Error::other)?;
        if !body.is_done() {
            return Ok(());
        }
        let trailers = stream_fields(body.trailer_fields(), body.trailers(), &["te"])?;
        if trailers.is_empty() {
            return self.send(Bytes::new(), true);
        }
        self.stream.send_trailers(trailers).map_err(io::Error::other)?;
        self.left = UnsentBody::Nothing;
        Ok(())
    }

    /// Counts sent data. Returns whether the body ends with it.
    fn skip(&mut self, bytes: u64) -> bool {
        match &mut self.left {
            UnsentBody::Known(left) => {
                *left -= bytes;
                *left == 0
            }
            UnsentBody::Chunked(body) => {
                body.skip(bytes);
                false
            }
            UnsentBody::UntilClose | UnsentBody::Nothing => false,
        }
    }

    fn send(&mut self, data: Bytes, is_last: bool) -> io::Result<()> {
        let trailers = self.trailers.take_if(|_| is_last);
        let ends_stream = is_last && trailers.is_none();
        self.stream.send_data(data, ends_stream).map_err(io::Error::other)?;
        if let Some(trailers) = trailers {
            self.stream.send_trailers(*trailers).map_err(io::Error::other)?;
        }
        if is_last {
            self.left = UnsentBody::Nothing;
        }
        Ok(())
    }

    /// Waits for the windows of stream and connection. Returns how many bytes may be sent, at least one.
    fn poll_room(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<usize>> {
        self.stream.reserve_capacity(wanted);
        loop {
            if self.stream.capacity() > 0 {
                return Poll::Ready(Ok(self.stream.capacity()));
            }
            match ready!(self.stream.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
    }
}
