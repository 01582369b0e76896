//! Greets an HTTP/2 client that waits for the server's SETTINGS: talks to the client until it has sent its request and
//! has acknowledged the SETTINGS.
//!
//! The bytes that the client sends during that time are taken off its socket. Its acknowledgement is dropped. The rest
//! goes to the host before all other bytes, as a PROXY header does.

use std::io;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use signalbox_core::wire::peek::ClientRequest;
use signalbox_core::wire::peek::h2::GreetedClient;
use tokio::io::Interest;

use super::peek::PeekError;
use super::scratch::with_scratch;
use super::socket::Socket;
use crate::sys;

/// Interval of the check whether the client's TCP has acknowledged the SETTINGS.
const SETTLE_INTERVAL: Duration = Duration::from_millis(2);

/// Reads from a client whose first bytes are in its socket, and answers. Returns the client's request.
pub(super) async fn converse(client: &mut Socket, greeted: &mut GreetedClient) -> Result<ClientRequest, PeekError> {
    let stream = client.registered().map_err(|_| PeekError::Closed)?;
    let fd = stream.as_raw_fd();
    loop {
        stream.readable().await.map_err(|_| PeekError::Closed)?;
        let read = stream.try_io(Interest::READABLE, || {
            with_scratch(|scratch| {
                let n = sys::recv(fd, scratch, 0)?;
                Ok((n > 0).then(|| greeted.receive(&scratch[..n])))
            })
        });
        match read {
            Ok(Some(heard)) => heard.map_err(PeekError::Malformed)?,
            // The client has sent its FIN: all further bytes are for the host.
            Ok(None) if greeted.client_request().is_some() => break,
            Ok(None) => return Err(PeekError::Closed),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => return Err(PeekError::Closed),
        }
        let answer = greeted.take_output();
        // The answer has a few hundred bytes at most. A send buffer always has room for them.
        if !answer.is_empty() && sys::send(fd, &answer).ok() != Some(answer.len()) {
            return Err(PeekError::Closed);
        }
        if greeted.is_complete() {
            break;
        }
    }
    // Once the flow is cut, a lost answer would never be retransmitted, so wait until it is acknowledged.
    while sys::unacknowledged(fd).map_err(|_| PeekError::Closed)? > 0 {
        if sys::is_dead(fd) {
            return Err(PeekError::Closed);
        }
        tokio::time::sleep(SETTLE_INTERVAL).await;
    }
    greeted.client_request().cloned().ok_or(PeekError::Closed)
}
