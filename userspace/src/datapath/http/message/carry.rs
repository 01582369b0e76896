//! Passes a request and its answer on, both at the same time, in one future.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use signalbox_core::model::HttpTimeouts;
use signalbox_core::wire::http1::turn::{NextStep, Turn, TurnEvent};
use tokio::time::Sleep;

use super::answer::{Asked, HostSide};
use super::request::ClientSide;
use crate::datapath::flow::Flow;
use crate::state::outcome::Direction;

/// Number of reads in one direction before other tasks get their turn.
pub(in crate::datapath::http) const MAX_READS_IN_A_ROW: usize = 16;

/// State of a direction after one pump.
#[derive(PartialEq, Eq)]
pub(super) enum Pumped {
    /// The direction waits for bytes, for room, or for the other direction.
    Waiting,
    /// The turn is over, but there may be more to read.
    Yielded,
}

/// An exchange in progress, on one connection to a host.
pub(in crate::datapath::http) struct Carry<'a> {
    pub(in crate::datapath::http) client: &'a mut ClientSide,
    pub(in crate::datapath::http) host: &'a mut HostSide,
    pub(in crate::datapath::http) turn: &'a mut Turn,
    pub(in crate::datapath::http) asked: &'a Asked,
    pub(in crate::datapath::http) flow: &'a Flow,
    pub(in crate::datapath::http) timeouts: HttpTimeouts,
    /// Whether the client waits for a 100 (Continue) before it sends the body.
    pub(in crate::datapath::http) awaits_continue: bool,
    /// Bytes written so far, to the host and to the client.
    pub(in crate::datapath::http) written: (u64, u64),
    /// Whether to return as soon as the final answer has begun.
    pub(in crate::datapath::http) until_answer: bool,
    /// Whether the process is stopping: an answer that begins then is the connection's last.
    pub(in crate::datapath::http) stopping: &'a AtomicBool,
}

impl Carry<'_> {
    /// Carries bytes until the turn asks for another step, or the answer has begun.
    pub(in crate::datapath::http) async fn run(mut self, mut timer: Pin<&mut Sleep>) -> NextStep {
        let mut active = Instant::now();
        poll_fn(|cx| self.poll(cx, timer.as_mut(), &mut active)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>, mut timer: Pin<&mut Sleep>, active: &mut Instant) -> Poll<NextStep> {
        loop {
            let mut yielded = self.client.pump(cx, &mut self.host.leg, self.turn) == Pumped::Yielded;
            if self.until_answer && self.stopping.load(Relaxed) {
                self.turn.on(TurnEvent::Drain);
            }
            if matches!(self.turn.next(), NextStep::Exchange { .. }) {
                yielded |= self.host.pump(cx, &mut self.client.leg, self.turn, self.asked) == Pumped::Yielded;
            }
            if self.count() {
                *active = Instant::now();
            }
            match self.turn.next() {
                NextStep::Exchange { .. } if !(self.until_answer && self.turn.has_answered()) => {}
                step => return Poll::Ready(step),
            }
            if yielded {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let (limit, event) = self.limit();
            let until = *active + limit;
            if until <= Instant::now() {
                self.turn.on(event);
                continue;
            }
            // The timer is only moved when it has fired or must fire sooner: most exchanges never touch it.
            if timer.is_elapsed() || timer.deadline().into_std() > until {
                timer.as_mut().reset(until.into());
            }
            ready!(timer.as_mut().poll(cx));
        }
    }

    /// Adds the bytes written since the last call to the figures. Returns whether there were any.
    fn count(&mut self) -> bool {
        let written = (self.host.leg.outbox.written(), self.client.leg.outbox.written());
        let (inward, outward) = (written.0 - self.written.0, written.1 - self.written.1);
        self.written = written;
        if inward > 0 {
            self.flow.add_bytes(Direction::In, inward);
        }
        if outward > 0 {
            self.flow.add_bytes(Direction::Out, outward);
        }
        inward + outward > 0
    }

    /// Time allowed without progress, and the event when it is over.
    fn limit(&self) -> (Duration, TurnEvent) {
        let HttpTimeouts {
            body, answer, tunnel, ..
        } = self.timeouts;
        let client_stalls = !self.client.leg.outbox.is_empty();
        // HTTP/2 streams may be silent for long, as with gRPC. PINGs show whether both peers are alive.
        let are_streams = self.client.leg.stream.is_stream() && self.host.leg.stream.is_stream();
        let may_rest = are_streams && !client_stalls && self.host.leg.outbox.is_empty();
        if self.turn.has_answered() {
            if may_rest && self.host.is_open_ended() {
                return (tunnel, TurnEvent::HostTimedOut);
            }
            return (
                body,
                if client_stalls {
                    TurnEvent::ClientFailed
                } else {
                    TurnEvent::HostTimedOut
                },
            );
        }
        let passes = matches!(self.turn.next(), NextStep::Exchange { passes_request: true });
        // A client that waits for a 100 (Continue) and has not got one is not at fault.
        let holds_back = self.awaits_continue && self.client.leg.outbox.written() == 0;
        if self.client.is_sent()
            || !passes
            || (may_rest && self.client.is_open_ended())
            || (holds_back && !self.client.has_body_begun())
        {
            return (answer, TurnEvent::HostTimedOut);
        }
        let host_stalls = !self.host.leg.outbox.is_empty();
        (
            body,
            if host_stalls {
                TurnEvent::HostTimedOut
            } else {
                TurnEvent::ClientTimedOut
            },
        )
    }
}
