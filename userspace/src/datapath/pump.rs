//! One direction of a flow in userspace: reads from one leg, writes to the other, and keeps the bytes that the other
//! leg does not accept yet.

use std::io;
use std::os::fd::AsRawFd as _;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead as _, Interest, ReadBuf};
use tokio::net::TcpStream;

use super::pipe::{Filled, Pipe};
use super::scratch::with_scratch;
use crate::sys;

/// Number of reads in one direction before other tasks get their turn.
const MAX_READS_IN_A_ROW: usize = 16;

/// Number of bytes in one direction after which it is bulk, if its reads have at least `MIN_BULK_READ_BYTES` too.
const MIN_BULK_TOTAL_BYTES: u64 = 128 * 1024;
const MIN_BULK_READ_BYTES: usize = 16 * 1024;

#[derive(Default)]
pub(super) struct RelayDirection {
    /// Bytes that were read but not yet accepted by the far leg.
    pub(super) pending: Vec<u8>,
    pub(super) pending_start: usize,
    pub(super) pipe: Option<Pipe>,
    /// True once the sender has finished (FIN).
    pub(super) eof: bool,
    /// True once the far leg has been shut for writing.
    pub(super) write_shut: bool,
    pub(super) total_bytes: u64,
    pub(super) last_read: usize,
    pub(super) splicing: bool,
}

/// State of a direction after one pump.
pub(super) enum PumpState {
    /// Nothing to read: waiting for bytes.
    Waiting,
    /// The far leg is full: waiting until it accepts the kept bytes.
    Stalled,
    /// The turn is over, but there may be more to read.
    Yielded,
    Done,
}

#[derive(PartialEq, Eq)]
pub(super) enum Side {
    From,
    To,
}

pub(super) type PumpError = (Side, io::Error);

impl RelayDirection {
    /// Whether no bytes are kept.
    pub(super) fn is_empty(&self) -> bool {
        self.pending_start == self.pending.len() && self.pipe.as_ref().is_none_or(|pipe| pipe.buffered() == 0)
    }

    pub(super) fn is_bulk(&self) -> bool {
        self.total_bytes >= MIN_BULK_TOTAL_BYTES && self.last_read >= MIN_BULK_READ_BYTES
    }

    pub(super) fn pump(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut TcpStream,
        to: &mut TcpStream,
        last: bool,
    ) -> Result<PumpState, PumpError> {
        for _ in 0..MAX_READS_IN_A_ROW {
            if !self.flush(cx, to).map_err(|e| (Side::To, e))? {
                return Ok(PumpState::Stalled);
            }
            if self.eof {
                // No shutdown for the direction that ends last: the sockets are about to be closed, which sends the
                // FIN.
                if !self.write_shut && !last {
                    self.write_shut = true;
                    // ENOTCONN: the far end is gone already. Its own direction reports that.
                    match sys::shutdown_write(to.as_raw_fd()) {
                        Err(error) if error.raw_os_error() != Some(libc::ENOTCONN) => return Err((Side::To, error)),
                        _ => {}
                    }
                }
                return Ok(PumpState::Done);
            }
            let read = if self.splicing {
                self.read_pipe(cx, from)
            } else {
                self.read_copy(cx, from, to)?
            };
            match read {
                Ok(true) => {}
                Ok(false) => return Ok(PumpState::Waiting),
                Err(error) => return Err((Side::From, error)),
            }
        }
        Ok(PumpState::Yielded)
    }

    /// Writes the kept bytes. Returns false if some are left. The task is woken when the far leg has room.
    fn flush(&mut self, cx: &mut Context<'_>, to: &TcpStream) -> io::Result<bool> {
        loop {
            let written = if self.pending_start < self.pending.len() {
                to.try_write(&self.pending[self.pending_start..])
                    .inspect(|n| self.pending_start += n)
            } else if let Some(pipe) = self.pipe.as_mut().filter(|pipe| pipe.buffered() > 0) {
                to.try_io(Interest::WRITABLE, || pipe.flush(to))
            } else {
                self.pending = Vec::new();
                self.pending_start = 0;
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

    /// Reads once into the scratch buffer, and writes at once what the far leg accepts. `Ok(false)`: nothing to read.
    fn read_copy(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut TcpStream,
        to: &TcpStream,
    ) -> Result<io::Result<bool>, PumpError> {
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
            self.total_bytes += bytes.len() as u64;
            if self.eof {
                return Ok(Ok(true));
            }
            let written = match to.try_write(bytes) {
                Ok(n) => n,
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
                Err(error) => return Err((Side::To, error)),
            };
            if written < bytes.len() {
                self.pending = bytes[written..].to_vec();
                self.pending_start = 0;
            }
            Ok(Ok(true))
        })
    }

    /// Reads once into the pipe. `Ok(false)`: nothing to read, and the pipe was given back.
    fn read_pipe(&mut self, cx: &mut Context<'_>, from: &TcpStream) -> io::Result<bool> {
        if self.pipe.is_none() {
            match Pipe::take() {
                Ok(pipe) => self.pipe = Some(pipe),
                // No descriptor is free: this direction continues to copy.
                Err(_) => {
                    self.splicing = false;
                    return Ok(true);
                }
            }
        }
        let Some(pipe) = self.pipe.as_mut() else {
            return Ok(true);
        };
        match pipe.poll_fill(cx, from, u64::MAX) {
            Poll::Pending => {
                self.pipe = None;
                return Ok(false);
            }
            Poll::Ready(filled) => {
                self.last_read = match filled? {
                    Filled::Pipe(n) => n,
                    Filled::Bytes(urgent) => {
                        self.pending = urgent;
                        self.pending_start = 0;
                        self.pending.len()
                    }
                    Filled::End => 0,
                };
            }
        }
        self.eof = self.last_read == 0;
        self.total_bytes += self.last_read as u64;
        Ok(true)
    }
}
