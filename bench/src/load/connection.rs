//! One connection of the load: connect, ask, take the answer; then ask again, or wait for the end and begin anew.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddrV4;
use std::time::Instant;

use socket2::Socket;

use super::response::Response;
use super::source;

/// What it is about to do.
#[derive(PartialEq)]
enum State {
    Connecting,
    Asking,
    /// Answered in full; the other side is to close, so that TIME_WAIT is always its own.
    Ending,
}

/// What came of an event.
#[derive(Debug)]
pub(crate) enum Step {
    /// Nothing yet.
    Wait,
    /// A response is complete; its request began at the given moment.
    Answered(Instant),
    /// The other side closed after its last response.
    Ended,
    /// It is of no use any more.
    Failed(String),
}

/// One that is open or being opened.
pub(crate) struct Connection {
    socket: Socket,
    state: State,
    began: Instant,
    response: Response,
}

impl Connection {
    /// Begins to connect.
    pub(crate) fn open(to: SocketAddrV4) -> std::io::Result<Self> {
        let began = Instant::now();
        let socket = source::socket()?;
        match socket.connect(&to.into()) {
            Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => return Err(e),
            _ => {}
        }
        Ok(Self {
            socket,
            state: State::Connecting,
            began,
            response: Response::default(),
        })
    }

    /// The socket, for epoll.
    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// When the present request began, connecting included.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// Asks (again). Requests are far smaller than a send buffer, so a short write is a failure.
    pub(crate) fn ask(&mut self, request: &[u8], now: Instant) -> Step {
        if self.state != State::Connecting {
            self.began = now;
        }
        self.state = State::Asking;
        self.response.reset();
        match (&self.socket).write(request) {
            Ok(n) if n == request.len() => Step::Wait,
            Ok(_) => Step::Failed("send: short".into()),
            Err(e) => Step::Failed(format!("send: {}", e.kind())),
        }
    }

    /// Whether the event is the end of connecting.
    pub(crate) fn is_connecting(&self) -> bool {
        self.state == State::Connecting
    }

    /// Takes what has come. `to_the_end`: the other side has closed, so there is no need to wait for another event.
    pub(crate) fn receive(&mut self, buffer: &mut [u8], once: bool, to_the_end: bool) -> Step {
        loop {
            let n = match (&self.socket).read(buffer) {
                Ok(0) if self.state == State::Ending => return Step::Ended,
                Ok(0) => return Step::Failed("closed before the response was complete".into()),
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Step::Wait,
                Err(e) => return Step::Failed(format!("receive: {}", e.kind())),
            };
            if self.state == State::Ending {
                return Step::Failed("more than the response".into());
            }
            match self.response.take(&buffer[..n]) {
                Ok(true) => {
                    if once {
                        self.state = State::Ending;
                    }
                    return Step::Answered(self.began);
                }
                // Less than there was room for is all there is; the next event brings the rest.
                Ok(false) if n < buffer.len() && !to_the_end => return Step::Wait,
                Ok(false) => {}
                Err(what) => return Step::Failed(format!("response: {what}")),
            }
        }
    }

    /// What it waits for.
    pub(crate) fn stage(&self) -> &'static str {
        match self.state {
            State::Connecting => "connect",
            State::Asking => "response",
            State::Ending => "end of the connection",
        }
    }
}
