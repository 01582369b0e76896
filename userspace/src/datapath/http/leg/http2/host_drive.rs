//! Drives an HTTP/2 connection to a host, and checks that the host is alive.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use h2::client::Connection;
use h2::{Ping, PingPong};
use hyper::body::Bytes;
use tokio::time::{Sleep, sleep_until};

use super::io::SharedLeg;
use super::shared_host::HostStreams;

/// Time without a byte from a host with streams after which it gets a PING.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the answer to a PING.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval of PINGs while all streams are silent. gRPC servers end a connection that sends more than one in five
/// minutes.
const QUIET_PING_INTERVAL: Duration = Duration::from_secs(310);

/// PINGs of a connection.
#[derive(Default)]
struct Pings {
    /// Time of the unanswered PING.
    pinged: Option<Instant>,
    last: Option<Instant>,
}

/// Times of a connection that decide when the next PING is due.
struct Quiet {
    /// Time of the last byte read.
    read_at: Instant,
    /// Time at which the first of the current streams began.
    began_at: Instant,
    /// Time at which a stream last received something.
    heard_at: Instant,
}

impl Pings {
    /// Time at which the next PING, or the answer to one, is due.
    fn due(&self, quiet: &Quiet) -> Instant {
        if let Some(pinged) = self.pinged {
            return pinged + PING_TIMEOUT;
        }
        let silent = quiet.read_at.max(quiet.began_at) + SILENCE_TIMEOUT;
        let last = self.last.filter(|last| quiet.heard_at < *last);
        last.map_or(silent, |last| silent.max(last + QUIET_PING_INTERVAL))
    }
}

/// Drives a connection until it ends.
pub(super) async fn drive(mut connection: Connection<SharedLeg, Bytes>, leg: SharedLeg, streams: Rc<HostStreams>) {
    let mut ping = connection.ping_pong();
    let mut pings = Pings::default();
    let mut timer = pin!(sleep_until((Instant::now() + SILENCE_TIMEOUT).into()));
    poll_fn(|cx| {
        // Errors are reported by the streams.
        let is_over = Pin::new(&mut connection).poll(cx).is_ready();
        streams.count_malformed(leg.take_malformed());
        if is_over {
            return Poll::Ready(());
        }
        match &mut ping {
            Some(ping) => poll_pings(cx, ping, &mut pings, timer.as_mut(), &leg, &streams),
            None => Poll::Pending,
        }
    })
    .await;
    streams.end();
}

/// Sends PINGs while nothing arrives. Ready: one was not answered.
fn poll_pings(
    cx: &mut Context<'_>,
    ping: &mut PingPong,
    pings: &mut Pings,
    mut timer: Pin<&mut Sleep>,
    leg: &SharedLeg,
    streams: &HostStreams,
) -> Poll<()> {
    loop {
        if pings.pinged.is_some() && ping.poll_pong(cx).is_ready() {
            pings.pinged = None;
        }
        if !streams.are_active() && pings.pinged.is_none() {
            return Poll::Pending;
        }
        let due = pings.due(&Quiet {
            read_at: leg.read_at(),
            began_at: streams.changed_at(),
            heard_at: streams.heard_at(),
        });
        let now = Instant::now();
        if due <= now {
            // The connection is polled again when the PING waits to be sent.
            if pings.pinged.is_some() || ping.send_ping(Ping::opaque()).is_err() {
                return Poll::Ready(());
            }
            (pings.pinged, pings.last) = (Some(now), Some(now));
            continue;
        }
        if timer.is_elapsed() || timer.deadline().into_std() > due {
            timer.as_mut().reset(due.into());
        }
        ready!(timer.as_mut().poll(cx));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_host_is_asked_and_a_quiet_one_is_not_asked_often() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let quiet = |read, began, heard| Quiet {
            read_at: at(read),
            began_at: at(began),
            heard_at: at(heard),
        };
        let mut pings = Pings::default();
        assert_eq!(pings.due(&quiet(3, 0, 3)), at(13));
        // A connection without streams is expected to be silent.
        assert_eq!(pings.due(&quiet(3, 50, 3)), at(60));
        pings = Pings {
            pinged: Some(at(60)),
            last: Some(at(60)),
        };
        assert_eq!(pings.due(&quiet(3, 50, 3)), at(70));
        pings.pinged = None;
        // Only the PING's answer has arrived.
        assert_eq!(pings.due(&quiet(61, 50, 3)), at(370));
        // Other bytes have arrived.
        assert_eq!(pings.due(&quiet(100, 50, 100)), at(110));
    }
}
