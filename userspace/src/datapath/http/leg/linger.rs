//! Closes a client's connection so that its last answer arrives.

use std::io;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Leg;
use crate::datapath::scratch::with_scratch;
use crate::sys;

/// Time that a client has to read its last answer.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of bytes of a request that are read and dropped in that time.
const MAX_DISCARD_BYTES: usize = 16 * 1024 * 1024;

/// Closes the sending side, then reads and drops bytes for a while: a reset because of unread bytes would destroy the
/// answer (RFC 9112, section 9.6). A stream is not reset either: curl before 8 treats a reset while it still sends a
/// body as a failure, even after a complete answer.
pub(in crate::datapath::http) async fn linger(mut client: Leg) {
    client.notify_close();
    if let Leg::Stream(stream) = &mut client {
        let _ = timeout(LINGER_TIMEOUT, stream.discard(MAX_DISCARD_BYTES)).await;
        return;
    }
    let Some(stream) = client.tcp() else { return };
    if sys::shutdown_write(stream.as_raw_fd()).is_err() {
        return;
    }
    let until_closed = async {
        // The bytes are dropped, encrypted or not.
        let mut left = MAX_DISCARD_BYTES;
        while left > 0 {
            if stream.ready(Interest::READABLE).await.is_err() {
                return;
            }
            // A local buffer would be part of every connection's state, even of idle ones.
            match with_scratch(|scratch| stream.try_read(scratch)) {
                Ok(n) if n > 0 => left = left.saturating_sub(n),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => return,
            }
        }
    };
    let _ = timeout(LINGER_TIMEOUT, until_closed).await;
}

/// Closes a connection whose answers have been sent. Lingers if unread bytes would make the kernel reset it, or if it
/// is a stream whose client has not ended its request.
pub(in crate::datapath::http) async fn close(mut client: Leg, may_have_more: bool) {
    let is_unread = |stream: &TcpStream| sys::unread(stream.as_raw_fd()).is_ok_and(|bytes| bytes > 0);
    let is_begun = matches!(&client, Leg::Stream(stream) if !stream.is_request_ended());
    if may_have_more || is_begun || client.tcp().is_some_and(is_unread) {
        linger(client).await;
    } else {
        client.notify_close();
    }
}

/// Resets a connection or stream, so that its client sees that the answer is incomplete.
pub(in crate::datapath::http) fn reset(client: Leg) {
    if let Some(stream) = client.tcp() {
        sys::reset_on_close(stream.as_raw_fd());
    }
    match client {
        Leg::Stream(stream) => drop(tokio::task::spawn_local(stream.reset())),
        other => drop(other),
    }
}
