//! Speaks to an HTTP/2 client that waits for the server's SETTINGS, until it has said what it wants and has acknowledged them.
//!
//! What the client sends meanwhile is taken off its socket: its acknowledgement is not for the host, which is given the rest
//! first of all, as it is given a PROXY header.

use std::io;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use signalbox_core::peek::Asked;
use signalbox_core::peek::h2::Greeted;
use tokio::io::Interest;

use super::half::with_scratch;
use super::peek::Unanswered;
use super::socket::Socket;
use super::sys;

/// How often to look whether the client's TCP has acknowledged what was said to it.
const SETTLE_INTERVAL: Duration = Duration::from_millis(2);

/// Hears a client whose first bytes are in its socket, and answers. Returns what it asks for.
pub(super) async fn converse(client: &mut Socket, greeted: &mut Greeted) -> Result<Asked, Unanswered> {
    let stream = client.watched().map_err(|_| Unanswered::Closed)?;
    let fd = stream.as_raw_fd();
    loop {
        stream.readable().await.map_err(|_| Unanswered::Closed)?;
        let read = stream.try_io(Interest::READABLE, || {
            with_scratch(|scratch| {
                let n = sys::recv(fd, scratch, 0)?;
                Ok((n > 0).then(|| greeted.hear(&scratch[..n])))
            })
        });
        match read {
            Ok(Some(heard)) => heard.map_err(Unanswered::Bad)?,
            // It has finished: nothing can come any more that is not for the host.
            Ok(None) if greeted.asked().is_some() => break,
            Ok(None) => return Err(Unanswered::Closed),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => return Err(Unanswered::Closed),
        }
        let answer = greeted.answer();
        // Some hundred bytes at the most, for which a send buffer always has room.
        if !answer.is_empty() && sys::send(fd, &answer).ok() != Some(answer.len()) {
            return Err(Unanswered::Closed);
        }
        if greeted.is_complete() {
            break;
        }
    }
    // Nobody would repeat what is lost on its way once the flow is cut.
    while sys::unacknowledged(fd).map_err(|_| Unanswered::Closed)? > 0 {
        if sys::is_dead(fd) {
            return Err(Unanswered::Closed);
        }
        tokio::time::sleep(SETTLE_INTERVAL).await;
    }
    greeted.asked().cloned().ok_or(Unanswered::Closed)
}
