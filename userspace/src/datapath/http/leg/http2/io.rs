//! The connection below HTTP/2, shared with h2 so that it can be taken back and closed properly. Incoming bytes pass a
//! guard against malformed fields.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use signalbox_core::wire::http2::malformed::FieldGuard;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::datapath::http::leg::Leg;

/// A connection that h2 uses for HTTP/2.
#[derive(Clone)]
pub(in crate::datapath::http) struct SharedLeg(Rc<RefCell<Inner>>);

struct Inner {
    leg: Option<Leg>,
    guard: FieldGuard,
    /// Bytes for h2 to read before any others.
    waiting: Vec<u8>,
    /// Times at which bytes were last read and written.
    read_at: Instant,
    written_at: Instant,
}

impl SharedLeg {
    /// `before`: bytes already read.
    pub(in crate::datapath::http) fn new(leg: Leg, mut before: Vec<u8>, mut guard: FieldGuard) -> Self {
        let now = Instant::now();
        let mut rest = Vec::new();
        before.truncate(guard.take(&before, &mut rest));
        before.append(&mut rest);
        Self(Rc::new(RefCell::new(Inner {
            leg: Some(leg),
            guard,
            waiting: before,
            read_at: now,
            written_at: now,
        })))
    }

    /// Time at which bytes were last read.
    pub(in crate::datapath::http) fn read_at(&self) -> Instant {
        self.0.borrow().read_at
    }

    /// Time at which bytes were last written.
    pub(in crate::datapath::http) fn written_at(&self) -> Instant {
        self.0.borrow().written_at
    }

    /// Number of messages with malformed fields since the last call.
    pub(in crate::datapath::http) fn take_malformed(&self) -> u64 {
        std::mem::take(&mut self.0.borrow_mut().guard.malformed)
    }

    fn note_written(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if matches!(written, Poll::Ready(Ok(1..))) {
            self.0.borrow_mut().written_at = Instant::now();
        }
        written
    }

    /// Takes the connection back: h2 sees it as closed.
    pub(in crate::datapath::http) fn take(&self) -> Option<Leg> {
        self.0.borrow_mut().leg.take()
    }

    fn with<T>(&self, act: impl FnOnce(&mut Leg) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match &mut self.0.borrow_mut().leg {
            Some(leg) => act(leg),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl Inner {
    /// Gives waiting bytes to h2. Returns false if there are none.
    fn give_waiting(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let given = self.waiting.len().min(buf.remaining());
        buf.put_slice(&self.waiting[..given]);
        self.waiting.drain(..given);
        if self.waiting.is_empty() {
            self.waiting = Vec::new();
        }
        true
    }
}

impl AsyncRead for SharedLeg {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let inner = &mut *self.0.borrow_mut();
        if inner.give_waiting(buf) {
            return Poll::Ready(Ok(()));
        }
        let Some(leg) = &mut inner.leg else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        let start = buf.filled().len();
        loop {
            ready!(leg.poll_read(cx, buf))?;
            inner.read_at = Instant::now();
            let read = &buf.filled()[start..];
            let through = if read.is_empty() {
                inner.waiting = inner.guard.end();
                0
            } else {
                inner.guard.take(read, &mut inner.waiting)
            };
            let is_end = read.is_empty();
            buf.set_filled(start + through);
            if through > 0 || !inner.waiting.is_empty() || is_end {
                break;
            }
        }
        inner.give_waiting(buf);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SharedLeg {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.note_written(self.with(|leg| leg.poll_write(cx, bytes)))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.note_written(self.with(|leg| leg.poll_write_vectored(cx, pieces)))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|leg| leg.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|leg| leg.poll_shutdown(cx))
    }
}
