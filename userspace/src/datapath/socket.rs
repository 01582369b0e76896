//! A connection's socket, which is registered with epoll only when a task must wait for it.
//!
//! A client's first bytes, and a host's answer, have often arrived when they are first read. A connection that never
//! waits saves four calls of `epoll_ctl(2)`: two sockets, each added and removed.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use tokio::net::TcpStream;

/// A non-blocking socket.
pub enum Socket {
    Plain(std::net::TcpStream),
    /// Registered with tokio.
    Registered(TcpStream),
    /// Closed: the socket could not be registered with tokio.
    Closed,
}

impl Socket {
    /// Registers the socket with tokio.
    pub fn registered(&mut self) -> io::Result<&mut TcpStream> {
        if let Self::Plain(_) = self {
            *self = match std::mem::replace(self, Self::Closed) {
                Self::Plain(plain) => Self::Registered(TcpStream::from_std(plain)?),
                other => other,
            };
        }
        match self {
            Self::Registered(stream) => Ok(stream),
            Self::Plain(_) | Self::Closed => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    pub fn into_registered(mut self) -> io::Result<TcpStream> {
        self.registered()?;
        match self {
            Self::Registered(stream) => Ok(stream),
            Self::Plain(_) | Self::Closed => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Plain(plain) => plain.as_raw_fd(),
            Self::Registered(stream) => stream.as_raw_fd(),
            Self::Closed => -1,
        }
    }
}
