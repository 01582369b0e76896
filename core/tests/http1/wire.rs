//! A connection that is a script: hyper polls it without a runtime.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};

/// Bytes that come in pieces; what is written is dropped.
pub(crate) struct Wire {
    pub(crate) input: Vec<u8>,
    pub(crate) at: usize,
    pub(crate) piece: usize,
    /// Whether the sender waits until something was written.
    pub(crate) waits: bool,
    /// Whether the sender closes behind its bytes.
    pub(crate) closes: bool,
}

impl Read for Wire {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, mut buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let wire = self.get_mut();
        let left = &wire.input[wire.at..];
        if wire.waits || (left.is_empty() && !wire.closes) {
            return Poll::Pending;
        }
        let length = left.len().min(wire.piece).min(buf.remaining());
        buf.put_slice(&left[..length]);
        wire.at += length;
        Poll::Ready(Ok(()))
    }
}

impl Write for Wire {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().waits = false;
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Fields by lower-case name, those of one name in the order they came in.
pub(crate) fn sorted(fields: impl Iterator<Item = (String, Vec<u8>)>) -> Vec<(String, Vec<u8>)> {
    let mut fields: Vec<_> = fields.map(|(name, value)| (name.to_lowercase(), value)).collect();
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    fields
}

/// Fields of hyper's map.
pub(crate) fn of_map(map: &hyper::HeaderMap) -> Vec<(String, Vec<u8>)> {
    sorted(
        map.iter()
            .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())),
    )
}
