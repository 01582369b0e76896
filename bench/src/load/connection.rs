//! Connection of the load: connects, asks, reads the answer. Then it asks again, or waits for the end and starts over.

use std::io::{Error, ErrorKind};
use std::net::SocketAddrV4;
use std::time::Instant;

use socket2::Socket;

use super::response::Response;
use super::wire::Wire;
use super::{source, tls};

/// State of a connection: its next step.
#[derive(PartialEq)]
enum ConnectionState {
    Connecting,
    /// Idle, until a request is sent.
    Ready,
    Asking,
    /// Answered in full; the other side must close, so that TIME_WAIT is always on its side.
    Ending,
}

/// Outcome of an event on a connection.
#[derive(Debug)]
pub(crate) enum Step {
    /// No response yet: wait for the next event.
    Wait,
    /// A response is complete; its request began at the given moment.
    Answered(Instant),
    /// The other side closed after its last response.
    Ended,
    /// The connection has failed, for this reason.
    Failed(String),
}

/// A connection that is open or being opened.
pub(crate) struct Connection {
    wire: Wire,
    state: ConnectionState,
    began: Instant,
    response: Response,
}

impl Connection {
    /// Begins to connect.
    pub(crate) fn open(to: SocketAddrV4, tls: Option<&tls::Client>) -> std::io::Result<Self> {
        let began = Instant::now();
        let socket = source::socket()?;
        match socket.connect(&to.into()) {
            Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => return Err(e),
            _ => {}
        }
        let tls = tls.map(|client| client.connection().map_err(Error::other));
        Ok(Self {
            wire: Wire::new(socket, tls.transpose()?),
            state: ConnectionState::Connecting,
            began,
            response: Response::default(),
        })
    }

    /// The connection as one that was due at a moment, which its first request counts from.
    pub(crate) fn begun_at(self, began: Instant) -> Self {
        Self { began, ..self }
    }

    /// Socket of the connection, for epoll.
    pub(crate) fn socket(&self) -> &Socket {
        self.wire.socket()
    }

    /// Beginning of the present request. The first one begins when connecting does, unless [`Self::ask`] says
    /// otherwise.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// Whether the connection is still being opened.
    pub(crate) fn is_connecting(&self) -> bool {
        self.state == ConnectionState::Connecting
    }

    /// Whether a request could be sent.
    pub(crate) fn is_ready(&self) -> bool {
        self.state == ConnectionState::Ready
    }

    /// Ends connecting: with success, or with the reason why not.
    pub(crate) fn connected(&mut self) -> Result<(), String> {
        if let Ok(Some(e)) = self.socket().take_error() {
            return Err(format!("connect: {}", e.kind()));
        }
        self.state = ConnectionState::Ready;
        Ok(())
    }

    /// Sends a request; its latency counts from `began`.
    pub(crate) fn ask(&mut self, request: &[u8], began: Instant) -> Step {
        self.began = began;
        self.state = ConnectionState::Asking;
        self.response.reset();
        match self.wire.send(request) {
            Ok(()) => Step::Wait,
            Err(e) => Step::Failed(format!("send: {}", reason(&e))),
        }
    }

    /// Reads the bytes that have arrived. `to_the_end`: the other side has closed, so there is no need to wait for
    /// another event.
    pub(crate) fn receive(&mut self, buffer: &mut [u8], once: bool, to_the_end: bool) -> Step {
        loop {
            let n = match self.wire.receive(buffer) {
                Ok(0) if self.state == ConnectionState::Ending => return Step::Ended,
                Ok(0) => return Step::Failed("closed before the response was complete".into()),
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Step::Wait,
                Err(e) => return Step::Failed(format!("receive: {}", reason(&e))),
            };
            if self.state != ConnectionState::Asking {
                return Step::Failed("more than the response".into());
            }
            match self.response.take(&buffer[..n]) {
                Ok(true) => {
                    self.state = if once {
                        ConnectionState::Ending
                    } else {
                        ConnectionState::Ready
                    };
                    return Step::Answered(self.began);
                }
                // A read that does not fill the buffer has read everything; the next event brings the rest.
                Ok(false) if n < buffer.len() && !to_the_end && self.wire.short_is_all() => return Step::Wait,
                Ok(false) => {}
                Err(what) => return Step::Failed(format!("response: {what}")),
            }
        }
    }

    /// Whether the connection's TLS handshake was a full one.
    pub(crate) fn was_full_handshake(&self) -> bool {
        self.wire.was_full_handshake()
    }

    /// Phase that the connection waits in; `None` if it is ready.
    pub(crate) fn waits_for(&self) -> Option<&'static str> {
        match self.state {
            ConnectionState::Connecting => Some("connect"),
            ConnectionState::Ready => None,
            ConnectionState::Asking => Some("response"),
            ConnectionState::Ending => Some("end of the connection"),
        }
    }
}

/// Reason of an error, in words that are the same each time, so that errors can be counted. All kinds of TLS errors
/// count as one.
fn reason(e: &Error) -> String {
    match e.kind() {
        ErrorKind::InvalidData => e.to_string(),
        kind => kind.to_string(),
    }
}
