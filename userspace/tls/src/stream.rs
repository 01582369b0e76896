//! TLS over a TCP connection, once its handshake is done.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustls::pki_types::CertificateDer;
use signalbox_core::model::tls::HttpVersion;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// TLS over a TCP connection, with a client or with a host. What is written may wait in records until it is flushed.
#[derive(Debug)]
pub struct TlsStream(tokio_rustls::TlsStream<TcpStream>);

impl TlsStream {
    pub(crate) fn new(stream: impl Into<tokio_rustls::TlsStream<TcpStream>>) -> Self {
        Self(stream.into())
    }

    /// The TCP connection below.
    #[must_use]
    pub fn tcp(&self) -> &TcpStream {
        self.0.get_ref().0
    }

    /// Returns the certificate that the peer has shown.
    #[must_use]
    pub fn peer_certificate(&self) -> Option<&CertificateDer<'static>> {
        self.0.get_ref().1.peer_certificates()?.first()
    }

    /// Version of HTTP that the peers have agreed upon by ALPN (RFC 7301).
    #[must_use]
    pub fn alpn(&self) -> Option<HttpVersion> {
        let chosen = self.0.get_ref().1.alpn_protocol()?;
        let mut known = [HttpVersion::Http11, HttpVersion::Http2].into_iter();
        known.find(|version| version.as_str().as_bytes() == chosen)
    }

    /// Says to the peer that nothing more comes (`close_notify`, RFC 8446, section 6.1), as far as the socket takes it
    /// at once.
    pub fn notify_close(&mut self) {
        // The connection ends anyhow.
        let _ = match &mut self.0 {
            tokio_rustls::TlsStream::Client(stream) => {
                let (socket, session) = stream.get_mut();
                session.send_close_notify();
                session.write_tls(&mut TryWriter(socket))
            }
            tokio_rustls::TlsStream::Server(stream) => {
                let (socket, session) = stream.get_mut();
                session.send_close_notify();
                session.write_tls(&mut TryWriter(socket))
            }
        };
    }
}

/// Writer that does not wait.
struct TryWriter<'a>(&'a TcpStream);

impl io::Write for TryWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
