//! The connection under HTTP/2, shared with hyper so that it can be taken back and ended well.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::super::leg::Leg;

/// A client's connection that hyper speaks HTTP/2 on.
#[derive(Clone)]
pub(super) struct SharedLeg(Rc<RefCell<Inner>>);

struct Inner {
    leg: Option<Leg>,
    /// Bytes that were read before.
    before: Vec<u8>,
}

impl SharedLeg {
    pub(super) fn new(leg: Leg, before: Vec<u8>) -> Self {
        Self(Rc::new(RefCell::new(Inner { leg: Some(leg), before })))
    }

    /// Takes the connection back: hyper finds it closed.
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
        self.with(|leg| leg.poll_read(cx, buf))
    }
}

impl AsyncWrite for SharedLeg {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.with(|leg| leg.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.with(|leg| leg.poll_write_vectored(cx, pieces))
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
