//! Reads the head of the next request from a client's connection.
//!
//! A connection that waits for a request holds no buffer. One that has begun to send a request holds the bytes that it
//! has sent, up to the limit for heads.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use signalbox_core::wire::http1::head::RequestHead;
use signalbox_core::wire::http1::head_error::HeadError;
use signalbox_core::wire::http1::limits::MessageLimits;
use signalbox_core::wire::http1::parse::{self, HeadArrival, ParsedRequest};
use tokio::io::ReadBuf;
use tokio::time::Sleep;

use crate::datapath::http::drain::DrainSignal;
use crate::datapath::http::leg::Leg;
use crate::datapath::scratch::with_scratch;

/// Maximum number of bytes of one read while a head arrives.
const MAX_READ_BYTES: usize = 16 * 1024;

/// Time that a kept connection has for a request sent just as its listener or process ends.
pub(in crate::datapath::http) const DRAIN_GRACE_TIMEOUT: Duration = Duration::from_secs(5);

/// Outcome of a read: the next head, or the event in its place.
pub(in crate::datapath::http) enum HeadRead {
    Request(Box<RequestHead>),
    /// The connection preface of HTTP/2.
    Http2,
    Malformed(HeadError),
    /// The head took too long.
    Slow,
    /// The connection ended, or stayed idle for too long, after this many bytes of a head.
    Ended(usize),
}

/// Time limits of a head.
#[derive(Clone, Copy)]
pub(in crate::datapath::http) struct HeadTimeouts {
    /// Time until the first byte.
    pub(in crate::datapath::http) idle: Duration,
    /// Time from the first byte to the end of the head.
    pub(in crate::datapath::http) head: Duration,
}

/// Reads the next head. `bytes` holds bytes that were read before; the head and the bytes after it are left there.
pub(in crate::datapath::http) async fn read(
    client: &mut Leg,
    bytes: &mut Vec<u8>,
    limits: &MessageLimits,
    timeouts: HeadTimeouts,
    drain: &DrainSignal,
    mut timer: Pin<&mut Sleep>,
) -> HeadRead {
    let mut arrival = HeadArrival::default();
    let mut began = (!bytes.is_empty()).then(Instant::now);
    let idle_since = Instant::now();
    let mut draining = None;
    loop {
        if !bytes.is_empty() && arrival.is_due(bytes, limits) {
            match parse::request(bytes, limits) {
                Ok(ParsedRequest::Head(head)) => return HeadRead::Request(head),
                Ok(ParsedRequest::Http2) => return HeadRead::Http2,
                Ok(ParsedRequest::Incomplete) => {}
                Err(fault) => return HeadRead::Malformed(fault),
            }
        }
        let until = match (began, draining) {
            (Some(began), _) => began + timeouts.head,
            (None, Some(draining)) => (idle_since + timeouts.idle).min(draining + DRAIN_GRACE_TIMEOUT),
            (None, None) => idle_since + timeouts.idle,
        };
        let read = tokio::select! {
            biased;
            read = poll_fn(|cx| poll_read(cx, client, bytes)) => read,
            () = wait_until(until, timer.as_mut()) => {
                return if began.is_some() { HeadRead::Slow } else { HeadRead::Ended(0) };
            }
            () = drain.wait(), if draining.is_none() => {
                draining = Some(Instant::now());
                continue;
            }
        };
        match read {
            Ok(n) if n > 0 => began = began.or_else(|| Some(Instant::now())),
            Ok(_) | Err(_) => return HeadRead::Ended(bytes.len()),
        }
    }
}

/// Waits with a timer that is moved only when it must fire sooner or has fired: most heads never touch it.
pub(in crate::datapath::http) async fn wait_until(until: Instant, mut timer: Pin<&mut Sleep>) {
    while Instant::now() < until {
        if timer.is_elapsed() || timer.deadline().into_std() > until {
            timer.as_mut().reset(until.into());
        }
        timer.as_mut().await;
    }
}

fn poll_read(cx: &mut Context<'_>, client: &mut Leg, bytes: &mut Vec<u8>) -> Poll<std::io::Result<usize>> {
    with_scratch(|scratch| {
        let mut buf = ReadBuf::new(&mut scratch[..MAX_READ_BYTES]);
        ready!(client.poll_read(cx, &mut buf))?;
        bytes.extend_from_slice(buf.filled());
        Poll::Ready(Ok(buf.filled().len()))
    })
}
