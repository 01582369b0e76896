//! Transport of a connection's bytes: a socket, or TLS over it.

use std::io::{Error, ErrorKind, Read, Result, Write};

use rustls::{ClientConnection, HandshakeKind};
use socket2::Socket;

/// A socket that does not block, and the state of TLS.
pub(super) struct Wire {
    socket: Socket,
    tls: Option<Box<ClientConnection>>,
}

impl Wire {
    pub(super) fn new(socket: Socket, tls: Option<ClientConnection>) -> Self {
        Self {
            socket,
            tls: tls.map(Box::new),
        }
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Sends all bytes. TLS begins its handshake, and keeps the bytes until that is over: they then go with its last
    /// flight. Requests are far smaller than a send buffer, so a short write is a failure.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(tls) = &mut self.tls else {
            return match (&self.socket).write(bytes)? {
                n if n == bytes.len() => Ok(()),
                _ => Err(ErrorKind::WriteZero.into()),
            };
        };
        tls.writer().write_all(bytes)?;
        flush(tls, &self.socket)
    }

    /// Receives some bytes; 0 at the end of the connection, which TLS must have announced by then.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let Some(tls) = &mut self.tls else {
            return (&self.socket).read(buffer);
        };
        loop {
            match tls.reader().read(buffer) {
                Ok(0) => return (&self.socket).read(buffer),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                result => return result,
            }
            tls.read_tls(&mut &self.socket)?;
            tls.process_new_packets()
                .map_err(|e| Error::new(ErrorKind::InvalidData, e))?;
            flush(tls, &self.socket)?;
        }
    }

    /// Whether the handshake is over, and was a full one: no session was resumed.
    pub(super) fn was_full_handshake(&self) -> bool {
        let kind = self.tls.as_ref().and_then(|tls| tls.handshake_kind());
        kind.is_some_and(|kind| kind != HandshakeKind::Resumed)
    }

    /// Whether a read that did not fill its buffer has emptied the socket.
    pub(super) fn short_is_all(&self) -> bool {
        self.tls.is_none()
    }
}

fn flush(tls: &mut ClientConnection, mut socket: &Socket) -> Result<()> {
    while tls.wants_write() {
        tls.write_tls(&mut socket)?;
    }
    Ok(())
}
