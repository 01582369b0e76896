//! Bytes that the far end has not taken yet.

use std::io;
use std::task::{Context, Poll};

use tokio::net::TcpStream;

/// Bytes that wait to be written. While there are some, their direction does not read: that bounds them.
#[derive(Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    start: usize,
    /// Bytes written so far.
    written: u64,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    pub(super) const fn written(&self) -> u64 {
        self.written
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes what is taken at once and keeps the rest. Behind bytes that wait, the new ones wait too.
    pub(super) fn send(&mut self, bytes: &[u8], to: &TcpStream) -> io::Result<()> {
        let written = if self.is_empty() && !bytes.is_empty() {
            match to.try_write(bytes) {
                Ok(written) => written,
                Err(error) if is_temporary(&error) => 0,
                Err(error) => return Err(error),
            }
        } else {
            0
        };
        self.written += written as u64;
        self.push(&bytes[written..]);
        Ok(())
    }

    /// Writes what waits. Returns false where some is left; the task is woken when there is room for it.
    pub(super) fn flush(&mut self, cx: &mut Context<'_>, to: &TcpStream) -> io::Result<bool> {
        while !self.is_empty() {
            match to.try_write(&self.bytes[self.start..]) {
                Ok(written) => {
                    self.start += written;
                    self.written += written as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match to.poll_write_ready(cx) {
                    Poll::Pending => return Ok(false),
                    Poll::Ready(ready) => ready?,
                },
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.clear();
        Ok(true)
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
        self.bytes = Vec::new();
        self.start = 0;
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
