//! Bytes that the far end has not accepted yet: in memory, or in a pipe.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use tokio::io::Interest;

use super::Leg;
use crate::datapath::pipe::{Filled, Pipe};

/// Bytes that wait to be written. Their direction does not read while there are any, which bounds them.
pub(in crate::datapath::http) struct Outbox {
    bytes: Vec<u8>,
    start: usize,
    /// Whether no bytes wait in TLS records.
    is_flushed: bool,
    /// Bytes written so far.
    written: u64,
    /// Bytes that never were in userspace. [`Self::bytes`] is empty then.
    pipe: Option<Pipe>,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            start: 0,
            is_flushed: true,
            written: 0,
            pipe: None,
        }
    }
}

impl Outbox {
    pub(in crate::datapath::http) fn is_empty(&self) -> bool {
        self.has_none() && self.is_flushed
    }

    pub(in crate::datapath::http) const fn written(&self) -> u64 {
        self.written
    }

    pub(in crate::datapath::http) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes the bytes that are accepted at once and keeps the rest. New bytes wait after bytes that already wait.
    pub(in crate::datapath::http) fn send(&mut self, bytes: &[u8], to: &mut Leg) -> io::Result<()> {
        // The rest of a body that was moved through a pipe may be slow, so its empty pipe is given back.
        self.pipe = self.pipe.take().filter(|pipe| pipe.buffered() > 0);
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

    /// Moves at most `most` bytes between two connections without copying them to userspace. `None` if other bytes wait
    /// or one of the connections is not plain.
    pub(super) fn poll_splice(
        &mut self,
        cx: &mut Context<'_>,
        from: &Leg,
        to: &Leg,
        most: u64,
    ) -> Option<Poll<io::Result<usize>>> {
        let (Leg::Plain(from), Leg::Plain(_), true) = (from, to, self.is_empty()) else {
            return None;
        };
        if self.pipe.is_none() {
            // Without a free descriptor the bytes are copied as before.
            self.pipe = Some(Pipe::take().ok()?);
        }
        let filled = self.pipe.as_mut()?.poll_fill(cx, from, most);
        if filled.is_pending() {
            self.pipe = None;
        }
        Some(filled.map_ok(|filled| match filled {
            Filled::Pipe(n) => n,
            Filled::Bytes(bytes) => {
                self.push(&bytes);
                bytes.len()
            }
            Filled::End => 0,
        }))
    }

    /// Writes the waiting bytes. Returns false if some are left; the task is woken when there is room for them.
    pub(in crate::datapath::http) fn flush(&mut self, cx: &mut Context<'_>, to: &mut Leg) -> io::Result<bool> {
        if !self.flush_pipe(cx, to)? {
            return Ok(false);
        }
        while self.start < self.bytes.len() {
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

    /// Writes the bytes in the pipe, as [`Self::flush`] does.
    fn flush_pipe(&mut self, cx: &mut Context<'_>, to: &Leg) -> io::Result<bool> {
        let (Some(pipe), Leg::Plain(to)) = (&mut self.pipe, to) else {
            return Ok(true);
        };
        while pipe.buffered() > 0 {
            match to.try_io(Interest::WRITABLE, || pipe.flush(to)) {
                Ok(n) => self.written += n as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match to.poll_write_ready(cx) {
                    Poll::Pending => return Ok(false),
                    Poll::Ready(ready) => ready?,
                },
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Writes all waiting bytes.
    pub(in crate::datapath::http) async fn write_all(&mut self, to: &mut Leg) -> io::Result<()> {
        poll_fn(|cx| match self.flush(cx, to) {
            Ok(true) => Poll::Ready(Ok(())),
            Ok(false) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        })
        .await
    }

    /// Takes the waiting bytes.
    pub(in crate::datapath::http) fn take(&mut self) -> Vec<u8> {
        let start = std::mem::take(&mut self.start);
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.drain(..start);
        bytes
    }

    /// Drops the waiting bytes, and frees their memory.
    pub(super) fn clear(&mut self) {
        self.drop_bytes();
        self.pipe = None;
        self.is_flushed = true;
    }

    fn has_none(&self) -> bool {
        self.start == self.bytes.len() && self.pipe.as_ref().is_none_or(|pipe| pipe.buffered() == 0)
    }

    fn drop_bytes(&mut self) {
        self.bytes = Vec::new();
        self.start = 0;
    }
}
