//! The connection under HTTP/2, shared with h2 so that it can be taken back and ended well.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::super::leg::Leg;

/// A client's connection that h2 speaks HTTP/2 on.
#[derive(Clone)]
pub(super) struct SharedLeg(Rc<RefCell<Inner>>);

struct Inner {
    leg: Option<Leg>,
    /// Bytes that were read before.
    before: Vec<u8>,
    /// Times at which bytes were last read and written.
    read_at: Instant,
    written_at: Instant,
}

impl SharedLeg {
    pub(super) fn new(leg: Leg, before: Vec<u8>) -> Self {
        let now = Instant::now();
        Self(Rc::new(RefCell::new(Inner {
            leg: Some(leg),
            before,
            read_at: now,
            written_at: now,
        })))
    }

    /// Time at which bytes were last read.
    pub(super) fn read_at(&self) -> Instant {
        self.0.borrow().read_at
    }

    /// Time at which bytes were last written.
    pub(super) fn written_at(&self) -> Instant {
        self.0.borrow().written_at
    }

    fn note_written(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if matches!(written, Poll::Ready(Ok(1..))) {
            self.0.borrow_mut().written_at = Instant::now();
        }
        written
    }

    /// Takes the connection back: h2 finds it closed.
    pub(super) fn take(&self) -> Option<Leg> {
        self.0.borrow_mut().leg.take()
    }

    fn with<T>(&self, act: impl FnOnce(&mut Leg) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match &mut self.0.borrow_mut().leg {
            Some(leg) => act(leg),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncRead for SharedLeg {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        {
            let before = &mut self.0.borrow_mut().before;
            if !before.is_empty() {
                let taken = before.len().min(buf.remaining());
                buf.put_slice(&before[..taken]);
                before.drain(..taken);
                if before.is_empty() {
                    *before = Vec::new();
                }
                return Poll::Ready(Ok(()));
            }
        }
        let read = self.with(|leg| leg.poll_read(cx, buf));
        if read.is_ready() {
            self.0.borrow_mut().read_at = Instant::now();
        }
        read
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
