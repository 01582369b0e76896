//! Bytes that the far end has not taken yet.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use super::leg::Leg;

/// Bytes that wait to be written. While there are some, their direction does not read: that bounds them.
pub(super) struct Outbox {
    bytes: Vec<u8>,
    start: usize,
    /// Whether nothing waits in TLS records.
    is_flushed: bool,
    /// Bytes written so far.
    written: u64,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            start: 0,
            is_flushed: true,
            written: 0,
        }
    }
}

impl Outbox {
    pub(super) const fn is_empty(&self) -> bool {
        self.has_none() && self.is_flushed
    }

    pub(super) const fn written(&self) -> u64 {
        self.written
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes what is taken at once and keeps the rest. Behind bytes that wait, the new ones wait too.
    pub(super) fn send(&mut self, bytes: &[u8], to: &mut Leg) -> io::Result<()> {
        let written = if self.has_none() && !bytes.is_empty() {
            self.is_flushed = false;
            to.try_write(bytes)?
        } else {
            0
        };
        self.written += written as u64;
        self.push(&bytes[written..]);
        Ok(())
    }

    /// Writes what waits. Returns false where some is left; the task is woken when there is room for it.
    pub(super) fn flush(&mut self, cx: &mut Context<'_>, to: &mut Leg) -> io::Result<bool> {
        while !self.has_none() {
            match to.poll_write(cx, &self.bytes[self.start..]) {
                Poll::Pending => return Ok(false),
                Poll::Ready(written) => {
                    let written = written?;
                    self.start += written;
                    self.written += written as u64;
                }
            }
            self.is_flushed = false;
        }
        self.drop_bytes();
        if !self.is_flushed {
            match to.poll_flush(cx) {
                Poll::Pending => return Ok(false),
                Poll::Ready(flushed) => flushed?,
            }
            self.is_flushed = true;
        }
        Ok(true)
    }

    /// Writes all that waits.
    pub(super) async fn write_all(&mut self, to: &mut Leg) -> io::Result<()> {
        poll_fn(|cx| match self.flush(cx, to) {
            Ok(true) => Poll::Ready(Ok(())),
            Ok(false) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        })
        .await
    }

    /// Bytes that wait; none wait afterwards.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let start = std::mem::take(&mut self.start);
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.drain(..start);
        bytes
    }

    /// Drops what waits, and its memory.
    pub(super) fn clear(&mut self) {
        self.drop_bytes();
        self.is_flushed = true;
    }

    const fn has_none(&self) -> bool {
        self.start == self.bytes.len()
    }

    fn drop_bytes(&mut self) {
        self.bytes = Vec::new();
        self.start = 0;
    }
}
