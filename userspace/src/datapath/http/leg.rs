//! A connection that carries HTTP, to a client or to a host: plain, or in TLS that ends here.

pub(super) mod buffered;
pub(super) mod http2;
pub(super) mod linger;
pub(super) mod outbox;

use std::io;
use std::os::fd::AsRawFd as _;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use signalbox_core::model::tls::HttpVersion;
use signalbox_tls::stream::TlsStream;
use tokio::io::{AsyncRead as _, AsyncWrite as _, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::sys;
use http2::{HostStreamLeg, StreamLeg};

/// A connection that carries HTTP, or a stream of one. Written bytes may wait in TLS records: see [`Self::poll_flush`].
pub(super) enum Leg {
    Plain(TcpStream),
    /// A connection in TLS, of a client or to a host.
    Tls(Box<TlsStream>),
    /// A stream of a client's HTTP/2 connection.
    Stream(Box<StreamLeg>),
    /// A stream of an HTTP/2 connection to a host.
    HostStream(Box<HostStreamLeg>),
}

impl Leg {
    /// Socket of a connection; `None` for a stream.
    pub(super) fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Plain(stream) => Some(stream),
            Self::Tls(stream) => Some(stream.tcp()),
            Self::Stream(_) | Self::HostStream(_) => None,
        }
    }

    /// Whether the socket alone does not show if there are bytes to read.
    pub(super) const fn is_layered(&self) -> bool {
        !matches!(self, Self::Plain(_))
    }

    /// Whether the leg is a stream, of a client's connection or to a host.
    pub(super) const fn is_stream(&self) -> bool {
        matches!(self, Self::Stream(_) | Self::HostStream(_))
    }

    /// Version that the peers have agreed upon by ALPN (RFC 7301).
    pub(super) fn alpn(&self) -> Option<HttpVersion> {
        match self {
            Self::Tls(stream) => stream.alpn(),
            Self::Plain(_) | Self::Stream(_) | Self::HostStream(_) => None,
        }
    }

    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Stream(stream) => stream.poll_read(cx, buf),
            Self::HostStream(stream) => stream.poll_read(cx, buf),
        }
    }

    /// Writes as many bytes as are accepted at once; 0 if there is no room. The task is not woken when there is room.
    pub(super) fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let cx = &mut Context::from_waker(Waker::noop());
        match self {
            Self::Plain(stream) => match stream.try_write(bytes) {
                Err(error) if is_temporary(&error) => Ok(0),
                written => written,
            },
            Self::Tls(stream) => not_pending(Pin::new(stream).poll_write(cx, bytes)),
            Self::Stream(stream) => not_pending(stream.poll_write(cx, bytes)),
            Self::HostStream(stream) => not_pending(stream.poll_write(cx, bytes)),
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
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Stream(stream) => stream.poll_write(cx, bytes),
            Self::HostStream(stream) => stream.poll_write(cx, bytes),
        }
    }

    /// Writes several pieces at once. The task is woken when there is room.
    pub(super) fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
            Self::Stream(_) | Self::HostStream(_) => {
                let first = pieces.iter().find(|piece| !piece.is_empty());
                self.poll_write(cx, first.map_or(&[], |piece| piece))
            }
        }
    }

    /// Passes the bytes that wait in TLS records to the socket.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(_) | Self::Stream(_) | Self::HostStream(_) => Poll::Ready(Ok(())),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    /// Ends the sending side with a FIN, in TLS with `close_notify` first.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Stream(stream) => {
                stream.end();
                Poll::Ready(Ok(()))
            }
            Self::HostStream(_) => Poll::Ready(Ok(())),
        }
    }

    /// Tells a TLS peer that the stream ends (`close_notify`, RFC 8446, section 6.1), as far as the socket accepts it
    /// at once.
    pub(super) fn notify_close(&mut self) {
        match self {
            Self::Plain(_) | Self::HostStream(_) => {}
            Self::Stream(stream) => stream.end(),
            Self::Tls(stream) => stream.notify_close(),
        }
    }

    /// Whether the peer has neither closed the connection nor sent a byte. `is_sure`: asks the socket even if tokio has
    /// seen no event.
    pub(super) fn is_quiet(&mut self, is_sure: bool) -> bool {
        // Reads records without data, such as session tickets, from the socket.
        if self.is_layered() && self.has_decrypted() {
            return false;
        }
        let Some(stream) = self.tcp() else { return true };
        let look = || sys::recv(stream.as_raw_fd(), &mut [0], libc::MSG_PEEK);
        let read = if is_sure {
            look()
        } else {
            stream.try_io(Interest::READABLE, look)
        };
        read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Whether a client has closed or reset its connection or stream, and so does not wait for an answer.
    pub(super) fn is_gone(&mut self) -> bool {
        if let Self::Stream(stream) = self {
            return stream.poll_gone(&mut Context::from_waker(Waker::noop())).is_ready();
        }
        let info = self.tcp().map(|stream| sys::tcp_info(stream.as_raw_fd()));
        info.is_some_and(|info| info.map_or(true, |info| info.peer_finished()))
    }

    /// Whether decrypted bytes, or the end of the connection, wait to be read.
    fn has_decrypted(&mut self) -> bool {
        let mut byte = [0];
        let cx = &mut Context::from_waker(Waker::noop());
        self.poll_read(cx, &mut ReadBuf::new(&mut byte)).is_ready()
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
