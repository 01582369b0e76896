//! Pipes for `splice(2)`: taken when bytes flow, given back when empty.
//!
//! A flow without bytes in flight holds no pipe: descriptors are the scarcest thing a balancer has.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::sys;

/// Capacity of a pipe in bytes: bounds the memory that a stalled reader costs.
pub const CAPACITY_BYTES: usize = 512 * 1024;

/// Pipes that may exist at once in the process. Set at the start from the descriptor limit; a flow that gets none goes
/// on copying. Bounds descriptors and what stopped readers pin.
pub static MAX_PIPES: AtomicUsize = AtomicUsize::new(256);

/// Number of pipes in the process.
static LIVE_PIPES: AtomicUsize = AtomicUsize::new(0);

/// Number of empty pipes that each worker keeps for its next flows.
const MAX_POOLED_PIPES: usize = 32;

thread_local! {
    static POOL: RefCell<Vec<(OwnedFd, OwnedFd)>> = const { RefCell::new(Vec::new()) };
}

/// A pipe and the number of bytes in it.
pub struct Pipe {
    ends: Option<(OwnedFd, OwnedFd)>,
    len: usize,
}

impl Pipe {
    /// Takes a pipe from the pool, or makes a new one. Fails where descriptors have run out.
    pub fn take() -> io::Result<Self> {
        let pooled = POOL.with_borrow_mut(Vec::pop);
        let ends = match pooled {
            Some(ends) => ends,
            None => {
                if LIVE_PIPES.fetch_add(1, Relaxed) >= MAX_PIPES.load(Relaxed) {
                    LIVE_PIPES.fetch_sub(1, Relaxed);
                    return Err(io::ErrorKind::QuotaExceeded.into());
                }
                sys::pipe(CAPACITY_BYTES).inspect_err(|_| {
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

    /// Moves bytes from a socket into the empty pipe; `Ok(0)` is the end of the stream.
    pub fn fill(&mut self, from: &impl AsRawFd) -> io::Result<usize> {
        let Some((_, write)) = &self.ends else { return Ok(0) };
        let n = sys::splice(from.as_raw_fd(), write.as_raw_fd(), CAPACITY_BYTES)?;
        self.len += n;
        Ok(n)
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
        // A pipe with bytes in it would hand them to another flow: such a pipe is closed instead.
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
