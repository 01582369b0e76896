//! Direction of a flow in userspace: reads from one leg, writes to the other, and keeps the bytes that the other does
//! not take.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsRawFd as _;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead as _, Interest, ReadBuf};
use tokio::net::TcpStream;

use super::pipe::Pipe;
use super::sys;

/// Size of the scratch buffer: the most bytes of one read.
pub const SCRATCH: usize = 64 * 1024;

/// Reads in one direction before other tasks get their turn.
const TURN: usize = 16;

/// Bytes of one direction after which it is bulk, if its reads are also as large as `BULK_READ`.
const BULK_TOTAL: u64 = 128 * 1024;
const BULK_READ: usize = 16 * 1024;

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into());
}

/// Lends the worker's scratch buffer to a closure.
pub fn with_scratch<T>(use_it: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| use_it(buffer))
}

#[derive(Default)]
pub(super) struct Half {
    /// Bytes read that the far leg has not taken yet.
    pub(super) kept: Vec<u8>,
    pub(super) at: usize,
    pub(super) pipe: Option<Pipe>,
    /// True once the sender has finished (FIN).
    pub(super) eof: bool,
    /// True once the far leg has been shut for writing.
    pub(super) shut: bool,
    pub(super) total: u64,
    pub(super) last_read: usize,
    pub(super) splicing: bool,
}

/// State of a direction after one pump.
pub(super) enum Step {
    /// Nothing to read: the direction waits for bytes.
    Waiting,
    /// The far leg is full: the direction waits for it to take the kept bytes.
    Stalled,
    /// The turn is over, and there may be more to read.
    Yielded,
    Done,
}

#[derive(PartialEq, Eq)]
pub(super) enum Side {
    From,
    To,
}

pub(super) type Stopped = (Side, io::Error);

impl Half {
    pub(super) fn is_bulk(&self) -> bool {
        self.total >= BULK_TOTAL && self.last_read >= BULK_READ
    }

    pub(super) fn pump(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut TcpStream,
        to: &mut TcpStream,
        last: bool,
    ) -> Result<Step, Stopped> {
        for _ in 0..TURN {
            if !self.flush(cx, to).map_err(|e| (Side::To, e))? {
                return Ok(Step::Stalled);
            }
            if self.eof {
                // No shutdown for the direction that ends last: the sockets are closed in a moment, which sends the
                // FIN.
                if !self.shut && !last {
                    self.shut = true;
                    // ENOTCONN: the far end is gone already, which its own direction reports.
                    match sys::shutdown_write(to.as_raw_fd()) {
                        Err(error) if error.raw_os_error() != Some(libc::ENOTCONN) => return Err((Side::To, error)),
                        _ => {}
                    }
                }
                return Ok(Step::Done);
            }
            let read = if self.splicing {
                self.read_pipe(cx, from)
            } else {
                self.read_copy(cx, from, to)?
            };
            match read {
                Ok(true) => {}
                Ok(false) => return Ok(Step::Waiting),
                Err(error) => return Err((Side::From, error)),
            }
        }
        Ok(Step::Yielded)
    }

    /// Writes the kept bytes. Returns false where some are left; the task is woken when the far leg has room.
    fn flush(&mut self, cx: &mut Context<'_>, to: &TcpStream) -> io::Result<bool> {
        loop {
            let written = if self.at < self.kept.len() {
                to.try_write(&self.kept[self.at..]).inspect(|n| self.at += n)
            } else if let Some(pipe) = self.pipe.as_mut().filter(|pipe| pipe.held() > 0) {
                to.try_io(Interest::WRITABLE, || pipe.drain(to))
            } else {
                self.kept = Vec::new();
                self.at = 0;
                return Ok(true);
            };
            match written {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match to.poll_write_ready(cx) {
                    Poll::Pending => return Ok(false),
                    Poll::Ready(ready) => ready?,
                },
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads once into the scratch buffer and writes at once what the far leg takes. `Ok(false)`: nothing to read.
    fn read_copy(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut TcpStream,
        to: &TcpStream,
    ) -> Result<io::Result<bool>, Stopped> {
        with_scratch(|scratch| {
            let mut buf = ReadBuf::new(scratch);
            match Pin::new(from).poll_read(cx, &mut buf) {
                Poll::Pending => return Ok(Ok(false)),
                Poll::Ready(Err(error)) => return Ok(Err(error)),
                Poll::Ready(Ok(())) => {}
            }
            let bytes = buf.filled();
            self.eof = bytes.is_empty();
            self.last_read = bytes.len();
            self.total += bytes.len() as u64;
            if self.eof {
                return Ok(Ok(true));
            }
            let written = match to.try_write(bytes) {
                Ok(n) => n,
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
                Err(error) => return Err((Side::To, error)),
            };
            if written < bytes.len() {
                self.kept = bytes[written..].to_vec();
                self.at = 0;
            }
            Ok(Ok(true))
        })
    }

    /// Reads once into the pipe. `Ok(false)`: nothing to read, and the pipe has been given back.
    fn read_pipe(&mut self, cx: &mut Context<'_>, from: &TcpStream) -> io::Result<bool> {
        if self.pipe.is_none() {
            match Pipe::take() {
                Ok(pipe) => self.pipe = Some(pipe),
                // Out of descriptors: this direction goes on copying.
                Err(_) => {
                    self.splicing = false;
                    return Ok(true);
                }
            }
        }
        let Some(pipe) = self.pipe.as_mut() else {
            return Ok(true);
        };
        loop {
            // The pipe is empty here, so EAGAIN can only mean that the socket has nothing.
            let mut urgent = Vec::new();
            let filled = from.try_io(Interest::READABLE, || {
                let spliced = pipe.fill(from);
                let stopped = match &spliced {
                    Ok(n) => *n == 0,
                    Err(error) => error.kind() == io::ErrorKind::WouldBlock,
                };
                if !stopped {
                    return spliced;
                }
                // The socket is empty, at its end, or has urgent data, which splice never gets past and reports as
                // either of these. Only a read tells them apart.
                with_scratch(|scratch| {
                    sys::recv(from.as_raw_fd(), scratch, 0).inspect(|&n| urgent.extend_from_slice(&scratch[..n]))
                })
            });
            match filled {
                Ok(n) => {
                    if !urgent.is_empty() {
                        self.kept = urgent;
                        self.at = 0;
                    }
                    self.eof = n == 0;
                    self.last_read = n;
                    self.total += n as u64;
                    return Ok(true);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match from.poll_read_ready(cx) {
                    Poll::Pending => {
                        self.pipe = None;
                        return Ok(false);
                    }
                    Poll::Ready(ready) => ready?,
                },
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
