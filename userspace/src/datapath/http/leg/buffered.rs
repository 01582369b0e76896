//! A leg of an exchange with the bytes that wait on it. Request and answer know each other's leg by this alone.

use std::io;
use std::os::fd::AsRawFd as _;
use std::task::{Context, Poll};

use signalbox_core::routing::last_request::LastRequestObstacle;

use super::Leg;
use super::outbox::Outbox;
use crate::sys;

/// A leg of an exchange, and the bytes that wait on it.
pub(in crate::datapath::http) struct BufferedLeg {
    pub(in crate::datapath::http) stream: Leg,
    /// Bytes that wait to be written.
    pub(in crate::datapath::http) outbox: Outbox,
    /// Bytes that were read and are not used yet.
    pub(in crate::datapath::http) ahead: Vec<u8>,
    /// Of a host's leg: whether the host has stopped reading.
    has_stopped: bool,
}

impl BufferedLeg {
    pub(in crate::datapath::http) fn new(stream: Leg, ahead: Vec<u8>) -> Self {
        Self {
            stream,
            outbox: Outbox::default(),
            ahead,
            has_stopped: false,
        }
    }

    /// Writes the bytes that are accepted at once. The rest waits.
    pub(in crate::datapath::http) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.outbox.send(bytes, &mut self.stream)
    }

    /// Writes the waiting bytes, as [`Outbox::flush`] does.
    pub(in crate::datapath::http) fn flush(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        self.outbox.flush(cx, &mut self.stream)
    }

    /// Moves bytes of another leg here, as [`Outbox::poll_splice`] does.
    pub(in crate::datapath::http) fn poll_splice(
        &mut self,
        cx: &mut Context<'_>,
        from: &Leg,
        most: u64,
    ) -> Option<Poll<io::Result<usize>>> {
        self.outbox.poll_splice(cx, from, &self.stream, most)
    }

    /// Stops writing, because the peer no longer reads. Its bytes may still be on their way.
    pub(in crate::datapath::http) fn stop(&mut self) {
        self.outbox.clear();
        self.has_stopped = true;
    }

    /// Whether [`Self::stop`] was called: then a reset may look like the end of what the peer sends.
    pub(in crate::datapath::http) const fn has_stopped(&self) -> bool {
        self.has_stopped
    }

    /// Reason why the kernel cannot get a client's connection: bytes after the request, or the end of the stream.
    pub(in crate::datapath::http) fn said_more(&self) -> Option<LastRequestObstacle> {
        let unread = self.stream.tcp().map(|client| sys::unread(client.as_raw_fd()));
        if !self.ahead.is_empty() || !matches!(unread, Some(Ok(0))) {
            return Some(LastRequestObstacle::BytesBehind);
        }
        let info = self.stream.tcp().map(|client| sys::tcp_info(client.as_raw_fd()));
        match info {
            Some(Ok(info)) if !info.peer_finished() => None,
            _ => Some(LastRequestObstacle::HalfClosed),
        }
    }

    /// Returns the connection, the bytes that wait to be written, and those that were read and not used.
    pub(in crate::datapath::http) fn into_parts(self) -> (Leg, Outbox, Vec<u8>) {
        // An empty vector may still have its capacity; a connection that waits holds none.
        let ahead = if self.ahead.is_empty() { Vec::new() } else { self.ahead };
        (self.stream, self.outbox, ahead)
    }
}
