//! Looks at a connection's first bytes without taking them.
//!
//! The bytes stay in the socket (MSG_PEEK): a slow client costs no buffer here, and the tier that carries the flow
//! later finds the whole stream. The exception is an HTTP/2 client that waits for the server's SETTINGS: its bytes are
//! taken (`greet.rs`).

use std::io;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use signalbox_core::model::Protocol;
use signalbox_core::wire::peek::h2::GreetedClient;
use signalbox_core::wire::peek::proxy::{self, ProxiedConnection, ProxyHeader};
use signalbox_core::wire::peek::{ClientRequest, Peek, PeekParseError, http, tls};
use tokio::io::Interest;
use tokio::time::timeout;

use super::greet::converse;
use super::scratch::with_scratch;
use super::socket::Socket;
use crate::sys;

/// Reason why a client's first bytes do not show what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeekError {
    /// The time limit passed before the request was complete.
    Timeout,
    /// The request is complete, but the client has not acknowledged our SETTINGS in time (HTTP/2).
    Unacknowledged,
    /// The client closed the connection before its request was complete.
    Closed,
    /// The client closed the connection without sending a byte. Mostly this is a port check.
    Silent,
    /// The client's bytes cannot be parsed, and more bytes would not help.
    Malformed(PeekParseError),
}

impl PeekError {
    pub const fn label(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Unacknowledged => "settings_timeout",
            Self::Closed => "closed",
            Self::Silent => "silent",
            Self::Malformed(fault) => fault.label(),
        }
    }
}

/// Peeks until `look` returns an answer.
async fn peek_until<T>(client: &mut Socket, mut look: impl FnMut(&[u8]) -> Option<T>) -> Result<T, PeekError> {
    // Usually the bytes have arrived already.
    let at_once = with_scratch(|scratch| match sys::recv(client.as_raw_fd(), scratch, libc::MSG_PEEK) {
        Ok(n) if n > 0 => look(&scratch[..n]),
        _ => None,
    });
    if let Some(answer) = at_once {
        return Ok(answer);
    }
    let stream = client.registered().map_err(|_| PeekError::Closed)?;
    loop {
        let ready = stream.ready(Interest::READABLE).await.map_err(|_| PeekError::Closed)?;
        let answer = stream.try_io(Interest::READABLE, || {
            with_scratch(|scratch| {
                let n = sys::recv(stream.as_raw_fd(), scratch, libc::MSG_PEEK)?;
                match look(&scratch[..n]) {
                    Some(answer) => Ok(Ok(answer)),
                    None if n == 0 => Ok(Err(PeekError::Silent)),
                    None if ready.is_read_closed() => Ok(Err(PeekError::Closed)),
                    // WouldBlock clears tokio's readiness, so that the next wait ends only when more bytes arrive.
                    None => Err(io::ErrorKind::WouldBlock.into()),
                }
            })
        });
        match answer {
            Ok(answer) => return answer,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Err(PeekError::Closed),
        }
    }
}

/// Finds out what the client asks for, in the listener's protocol. An HTTP/2 client that needed the server's SETTINGS
/// first is left in `greeted`, with the bytes taken off its stream.
pub async fn peek_request(
    client: &mut Socket,
    protocol: Protocol,
    limit: Duration,
    greeted: &mut Option<GreetedClient>,
) -> Result<ClientRequest, PeekError> {
    let look: fn(&[u8]) -> Peek = match protocol {
        Protocol::Tcp => return Ok(ClientRequest::default()),
        Protocol::Http => http::peek,
        Protocol::Tls => tls::peek,
    };
    let answer = async {
        let peeked = peek_until(client, |bytes| match look(bytes) {
            Peek::Incomplete => None,
            Peek::Greet => Some(Ok(None)),
            Peek::Found(asked) => Some(Ok(Some(asked))),
            Peek::Invalid(fault) => Some(Err(PeekError::Malformed(fault))),
        });
        match peeked.await?? {
            Some(asked) => Ok(asked),
            None => converse(client, greeted.get_or_insert_default()).await,
        }
    };
    let answered = timeout(limit, answer).await;
    answered.unwrap_or_else(|_| {
        let has_asked = greeted
            .as_ref()
            .is_some_and(|greeted| greeted.client_request().is_some());
        Err(if has_asked {
            PeekError::Unacknowledged
        } else {
            PeekError::Timeout
        })
    })
}

/// Time limit for a PROXY header from a trusted client of a `tcp` listener. A client without a header may wait for the
/// server to speak first. A proxy sends its header at once.
const PROXY_HEADER_TIMEOUT: Duration = Duration::from_millis(300);

/// Takes a PROXY header off the stream, if there is one. Returns its length and the connection that it names.
pub async fn proxy_header(
    client: &mut Socket,
    protocol: Protocol,
    limit: Duration,
) -> Result<(u64, Option<ProxiedConnection>), PeekError> {
    let look = peek_until(client, |bytes| match proxy::peek(bytes) {
        ProxyHeader::Incomplete => None,
        ProxyHeader::Absent => Some(Ok((0, None))),
        ProxyHeader::Header { len, named } => Some(Ok((len, named))),
        ProxyHeader::Malformed => Some(Err(PeekError::Malformed(PeekParseError::Malformed(
            "a broken PROXY header",
        )))),
    });
    let (wait, silent) = match protocol {
        Protocol::Tcp => (PROXY_HEADER_TIMEOUT.min(limit), Ok(Ok((0, None)))),
        Protocol::Http | Protocol::Tls => (limit, Err(PeekError::Timeout)),
    };
    let (len, named) = match timeout(wait, look).await {
        Ok(found) => found?,
        Err(_) => silent?,
    }?;
    if len > 0 {
        // The header was just seen in the queue, so one read returns it.
        let read = with_scratch(|scratch| sys::recv(client.as_raw_fd(), &mut scratch[..len], 0));
        if read.ok() != Some(len) {
            return Err(PeekError::Closed);
        }
    }
    Ok((len as u64, named))
}
