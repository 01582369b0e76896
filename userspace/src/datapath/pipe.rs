//! Pipes for `splice(2)`: taken when bytes flow, given back when empty.
//!
//! A flow without bytes in flight holds no pipe: descriptors are the scarcest thing a balancer has.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use signalbox_core::limits::descriptors::PIPE_CAPACITY_BYTES;
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::scratch::with_scratch;
use crate::sys;

/// Maximum number of pipes in the process, set at the start from the descriptor limit. A flow that gets no pipe
/// continues to copy. The maximum bounds descriptors, and memory that stalled readers pin.
pub static MAX_PIPES: AtomicUsize = AtomicUsize::new(256);

/// Number of pipes in the process.
static LIVE_PIPES: AtomicUsize = AtomicUsize::new(0);

/// Maximum number of empty pipes that each worker keeps for its next flows.
const MAX_POOLED_PIPES: usize = 32;

thread_local! {
    static POOL: RefCell<Vec<(OwnedFd, OwnedFd)>> = const { RefCell::new(Vec::new()) };
}

/// Outcome of filling a pipe.
pub enum Filled {
    /// Number of bytes in the pipe.
    Pipe(usize),
    /// Bytes that cannot go through a pipe.
    Bytes(Vec<u8>),
    /// The sender has finished.
    End,
}

/// A pipe and the number of bytes in it.
pub struct Pipe {
    ends: Option<(OwnedFd, OwnedFd)>,
    len: usize,
}

impl Pipe {
    /// Takes a pipe from the pool, or makes a new one. Fails without free descriptors.
    pub fn take() -> io::Result<Self> {
        let pooled = POOL.with_borrow_mut(Vec::pop);
        let ends = match pooled {
            Some(ends) => ends,
            None => {
                if LIVE_PIPES.fetch_add(1, Relaxed) >= MAX_PIPES.load(Relaxed) {
                    LIVE_PIPES.fetch_sub(1, Relaxed);
                    return Err(io::ErrorKind::QuotaExceeded.into());
                }
                sys::pipe(PIPE_CAPACITY_BYTES).inspect_err(|_| {
                    LIVE_PIPES.fetch_sub(1, Relaxed);
                })?
            }
        };
        Ok(Self {
            ends: Some(ends),
            len: 0,
        })
    }

    pub fn buffered(&self) -> usize {
        self.len
    }

    /// Moves at most `most` bytes from a socket into the empty pipe. The task is woken when bytes arrive.
    pub fn poll_fill(&mut self, cx: &mut Context<'_>, from: &TcpStream, most: u64) -> Poll<io::Result<Filled>> {
        let most = usize::try_from(most).map_or(PIPE_CAPACITY_BYTES, |most| most.min(PIPE_CAPACITY_BYTES));
        loop {
            // The pipe is empty here, so EAGAIN can only mean that the socket has no bytes.
            match from.try_io(Interest::READABLE, || self.fill(from, most)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(from.poll_read_ready(cx))?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                filled => return Poll::Ready(filled),
            }
        }
    }

    fn fill(&mut self, from: &TcpStream, most: usize) -> io::Result<Filled> {
        let Some((_, write)) = &self.ends else {
            return Ok(Filled::End);
        };
        let spliced = sys::splice(from.as_raw_fd(), write.as_raw_fd(), most);
        let stopped = match &spliced {
            Ok(n) => *n == 0,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        if !stopped {
            let n = spliced?;
            self.len += n;
            return Ok(Filled::Pipe(n));
        }
        // The socket is empty, at its end, or has urgent data. Splice never gets past urgent data, and reports it as
        // one of the other two. Only a read tells them apart.
        with_scratch(|scratch| {
            let room = most.min(scratch.len());
            Ok(match sys::recv(from.as_raw_fd(), &mut scratch[..room], 0)? {
                0 => Filled::End,
                n => Filled::Bytes(scratch[..n].to_vec()),
            })
        })
    }

    /// Moves bytes from the pipe to a socket.
    pub fn flush(&mut self, to: &impl AsRawFd) -> io::Result<usize> {
        let Some((read, _)) = &self.ends else { return Ok(0) };
        let n = sys::splice(read.as_raw_fd(), to.as_raw_fd(), self.len)?;
        self.len -= n;
        Ok(n)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // A pipe with bytes would hand them to another flow, so it is closed instead.
        let Some(ends) = self.ends.take() else { return };
        let kept = self.len == 0
            && POOL.with_borrow_mut(|pool| {
                let room = pool.len() < MAX_POOLED_PIPES;
                if room {
                    pool.push(ends);
                }
                room
            });
        if !kept {
            LIVE_PIPES.fetch_sub(1, Relaxed);
        }
    }
}
