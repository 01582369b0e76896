//! The client's side of an exchange: the request's body on its way to the host, and bytes that wait for the client.

use std::io;
use std::os::fd::AsRawFd as _;
use std::task::{Context, Poll};

use signalbox_core::wire::http1::turn::{NextStep, Turn, TurnEvent};
use tokio::io::{Interest, ReadBuf};

use super::body::Body;
use super::carry::{MAX_READS_IN_A_ROW, Pumped};
use crate::datapath::http::leg::Leg;
use crate::datapath::http::leg::buffered::BufferedLeg;
use crate::datapath::scratch::with_scratch;
use crate::sys;

/// Maximum number of bytes of a further request that are read while waiting for an answer.
const MAX_READ_AHEAD_BYTES: usize = 4096;

/// The client's side of an exchange.
pub(in crate::datapath::http) struct ClientSide {
    /// Bytes that were read and are not used yet are of the body, or after the request.
    pub(in crate::datapath::http) leg: BufferedLeg,
    body: Body,
    /// The part of the body passed on so far, for another attempt.
    replay: Vec<u8>,
    /// Whether the whole request has been written to the host.
    is_sent: bool,
    /// Whether the connection is watched for its end while waiting for the host.
    is_watched: bool,
    has_body_begun: bool,
}

impl ClientSide {
    pub(in crate::datapath::http) fn new(stream: Leg, body: Body, ahead: Vec<u8>) -> Self {
        Self {
            is_watched: ahead.is_empty(),
            leg: BufferedLeg::new(stream, ahead),
            body,
            replay: Vec::new(),
            is_sent: false,
            has_body_begun: false,
        }
    }

    /// Begins an attempt at a host: sends the head, and the part of the body that was sent before.
    pub(in crate::datapath::http) fn begin(&mut self, head: &[u8], host: &mut BufferedLeg, turn: &mut Turn) {
        host.outbox.push(head);
        host.outbox.push(&self.replay);
        self.is_sent = false;
        turn.on(TurnEvent::RequestBegun);
        if !self.replay.is_empty() {
            turn.on(TurnEvent::RequestBody(self.replay.len() as u64));
        }
    }

    pub(super) const fn is_sent(&self) -> bool {
        self.is_sent
    }

    /// Whether any bytes of the body have arrived.
    pub(super) const fn has_body_begun(&self) -> bool {
        self.has_body_begun
    }

    /// Whether the body has no known length.
    pub(super) const fn is_open_ended(&self) -> bool {
        matches!(self.body, Body::Chunked(_))
    }

    /// Passes the request on as far as possible.
    pub(super) fn pump(&mut self, cx: &mut Context<'_>, host: &mut BufferedLeg, turn: &mut Turn) -> Pumped {
        for _ in 0..MAX_READS_IN_A_ROW {
            match host.flush(cx) {
                Ok(true) => {}
                Ok(false) => {
                    self.watch_reset(cx, turn);
                    return Pumped::Waiting;
                }
                Err(_) => {
                    stop(host, turn);
                    return Pumped::Waiting;
                }
            }
            if self.body.is_ended() {
                if !std::mem::replace(&mut self.is_sent, true) {
                    self.is_watched = self.leg.ahead.is_empty();
                    turn.on(TurnEvent::RequestEnded);
                }
                self.watch(cx, turn);
                return Pumped::Waiting;
            }
            let passes = matches!(turn.next(), NextStep::Exchange { passes_request: true });
            if !passes || !self.read(cx, host, turn) {
                return Pumped::Waiting;
            }
        }
        Pumped::Yielded
    }

    /// Reads once. Returns false if there is nothing to read or the exchange ends.
    fn read(&mut self, cx: &mut Context<'_>, host: &mut BufferedLeg, turn: &mut Turn) -> bool {
        if !self.leg.ahead.is_empty() {
            let mut bytes = std::mem::take(&mut self.leg.ahead);
            let used = self.pass(&bytes, host, turn);
            bytes.drain(..used);
            self.leg.ahead = bytes;
            return used > 0;
        }
        if let Some(is_read) = self.splice(cx, host, turn) {
            return is_read;
        }
        with_scratch(|scratch| {
            let room = self.body.room(scratch.len());
            let mut buf = ReadBuf::new(&mut scratch[..room]);
            let event = match self.leg.stream.poll_read(cx, &mut buf) {
                Poll::Pending => return false,
                Poll::Ready(Err(_)) => TurnEvent::ClientFailed,
                Poll::Ready(Ok(())) if buf.filled().is_empty() => TurnEvent::ClientClosed,
                Poll::Ready(Ok(())) => {
                    let used = self.pass(buf.filled(), host, turn);
                    self.leg.ahead.extend_from_slice(&buf.filled()[used..]);
                    return used > 0;
                }
            };
            turn.on(event);
            false
        })
    }

    /// Reads once as [`Self::read`] does, but into a pipe. `None` if the body must be parsed, or may have to be sent
    /// again.
    fn splice(&mut self, cx: &mut Context<'_>, host: &mut BufferedLeg, turn: &mut Turn) -> Option<bool> {
        let most = self.body.unseen().filter(|_| !turn.keeps_replay())?;
        let event = match host.poll_splice(cx, &self.leg.stream, most)? {
            Poll::Pending => return Some(false),
            Poll::Ready(Err(_)) => TurnEvent::ClientFailed,
            Poll::Ready(Ok(0)) => TurnEvent::ClientClosed,
            Poll::Ready(Ok(n)) => {
                self.has_body_begun = true;
                self.replay = Vec::new();
                self.body.count_unseen(n as u64);
                turn.on(TurnEvent::RequestBody(n as u64));
                return Some(true);
            }
        };
        turn.on(event);
        Some(false)
    }

    /// Passes bytes of the body on. Returns how many belong to the body: none if the body breaks the rules.
    fn pass(&mut self, bytes: &[u8], host: &mut BufferedLeg, turn: &mut Turn) -> usize {
        let Ok(piece) = self.body.take(bytes) else {
            turn.on(TurnEvent::ClientMalformed);
            return 0;
        };
        self.has_body_begun = true;
        let trailers = piece.trailers.unwrap_or_default();
        turn.on(TurnEvent::RequestBody((piece.pass + trailers.len()) as u64));
        if turn.keeps_replay() {
            self.replay.extend_from_slice(&bytes[..piece.pass]);
            self.replay.extend_from_slice(&trailers);
        } else {
            self.replay = Vec::new();
        }
        if host.send(&bytes[..piece.pass]).is_err() {
            stop(host, turn);
        } else {
            host.outbox.push(&trailers);
        }
        piece.used
    }

    /// Detects that the client resets its stream while the host accepts nothing and the stream is therefore not read.
    fn watch_reset(&mut self, cx: &mut Context<'_>, turn: &mut Turn) {
        if let Leg::Stream(stream) = &mut self.leg.stream
            && stream.poll_gone(cx).is_ready()
        {
            turn.on(TurnEvent::ClientFailed);
        }
    }

    /// Detects that the client leaves while waiting for the host. A further request stays in the socket.
    fn watch(&mut self, cx: &mut Context<'_>, turn: &mut Turn) {
        let Leg::Plain(stream) = &self.leg.stream else {
            self.watch_layered(cx, turn);
            return;
        };
        while self.is_watched {
            match stream.poll_read_ready(cx) {
                Poll::Pending => return,
                Poll::Ready(_) => {
                    let look = || sys::recv(stream.as_raw_fd(), &mut [0], libc::MSG_PEEK);
                    let event = match stream.try_io(Interest::READABLE, look) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                        Err(_) => Some(TurnEvent::ClientFailed),
                        Ok(0) => Some(TurnEvent::ClientClosed),
                        Ok(_) => None,
                    };
                    self.is_watched = false;
                    if let Some(event) = event {
                        turn.on(event);
                    }
                }
            }
        }
    }

    /// Detects that the client leaves. TLS and streams show this only when read, so part of a further request is kept.
    fn watch_layered(&mut self, cx: &mut Context<'_>, turn: &mut Turn) {
        if !self.is_watched {
            return;
        }
        with_scratch(|scratch| {
            let mut buf = ReadBuf::new(&mut scratch[..MAX_READ_AHEAD_BYTES]);
            let event = match self.leg.stream.poll_read(cx, &mut buf) {
                Poll::Pending => return,
                Poll::Ready(Err(_)) => Some(TurnEvent::ClientFailed),
                Poll::Ready(Ok(())) if buf.filled().is_empty() => Some(TurnEvent::ClientClosed),
                Poll::Ready(Ok(())) => {
                    self.leg.ahead.extend_from_slice(buf.filled());
                    None
                }
            };
            self.is_watched = false;
            if let Some(event) = event {
                turn.on(event);
            }
        });
    }
}

/// Stops sending the request, because the host no longer reads it. Its answer may be on its way.
fn stop(host: &mut BufferedLeg, turn: &mut Turn) {
    host.stop();
    turn.on(TurnEvent::HostStopped);
}
