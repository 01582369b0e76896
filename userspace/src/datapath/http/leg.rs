//! A connection that carries HTTP, to a client or to a host: in plain, or in TLS that ends here.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead as _, AsyncWrite as _, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{client, server};

use crate::sys;

/// A connection that carries HTTP. What is written to TLS may wait in its records: see [`Self::poll_flush`].
pub(super) enum Leg {
    Plain(TcpStream),
    /// A client's connection, whose TLS ends here.
    Client(Box<server::TlsStream<TcpStream>>),
    /// A connection to a host, whose TLS begins here.
    Host(Box<client::TlsStream<TcpStream>>),
}

impl Leg {
    pub(super) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Client(stream) => stream.get_ref().0,
            Self::Host(stream) => stream.get_ref().0,
        }
    }

    pub(super) const fn is_tls(&self) -> bool {
        !matches!(self, Self::Plain(_))
    }

    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Client(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Host(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }

    /// Writes what is taken at once: 0 bytes, if none is. Nobody is woken when there is room.
    pub(super) fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let cx = &mut Context::from_waker(Waker::noop());
        match self {
            Self::Plain(stream) => match stream.try_write(bytes) {
                Err(error) if is_temporary(&error) => Ok(0),
                written => written,
            },
            Self::Client(stream) => not_pending(Pin::new(stream).poll_write(cx, bytes)),
            Self::Host(stream) => not_pending(Pin::new(stream).poll_write(cx, bytes)),
        }
    }

    /// Writes. The task is woken when there is room.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(stream) => loop {
                match stream.try_write(bytes) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(stream.poll_write_ready(cx))?,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    written => return Poll::Ready(written),
                }
            },
            Self::Client(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Host(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    /// Passes to the socket what waits in TLS records.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Client(stream) => Pin::new(stream).poll_flush(cx),
            Self::Host(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    /// Ends the sending side: with `close_notify` in TLS, and FIN.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Client(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Host(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    /// Says to a TLS peer that nothing more comes (`close_notify`, RFC 8446, section 6.1), as far as the socket takes
    /// it at once.
    pub(super) fn notify_close(&mut self) {
        match self {
            Self::Plain(_) => {}
            Self::Client(stream) => {
                let (socket, session) = stream.get_mut();
                session.send_close_notify();
                let _ = session.write_tls(&mut TryWriter(socket));
            }
            Self::Host(stream) => {
                let (socket, session) = stream.get_mut();
                session.send_close_notify();
                let _ = session.write_tls(&mut TryWriter(socket));
            }
        }
    }

    /// Whether the peer has neither closed the connection nor sent a byte. `is_sure`: asks the socket even where tokio
    /// has seen no event.
    pub(super) fn is_quiet(&mut self, is_sure: bool) -> bool {
        // Takes records that are no data, such as session tickets, off the socket.
        if self.is_tls() && self.has_decrypted() {
            return false;
        }
        let stream = self.tcp();
        let look = || sys::recv(stream.as_raw_fd(), &mut [0], libc::MSG_PEEK);
        let read = if is_sure {
            look()
        } else {
            stream.try_io(Interest::READABLE, look)
        };
        read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Whether decrypted bytes wait to be read, or the end of the connection.
    fn has_decrypted(&mut self) -> bool {
        let mut byte = [0];
        let cx = &mut Context::from_waker(Waker::noop());
        self.poll_read(cx, &mut ReadBuf::new(&mut byte)).is_ready()
    }
}

impl AsRawFd for Leg {
    fn as_raw_fd(&self) -> RawFd {
        self.tcp().as_raw_fd()
    }
}

/// Writer that does not wait, for what has to be said before a close.
struct TryWriter<'a>(&'a TcpStream);

impl io::Write for TryWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn not_pending(written: Poll<io::Result<usize>>) -> io::Result<usize> {
    match written {
        Poll::Ready(written) => written,
        Poll::Pending => Ok(0),
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
