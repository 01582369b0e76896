//! A tunnel with a leg in TLS that ends here, or an HTTP/2 stream: all bytes go through userspace.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::ReadBuf;
use tokio::time::{Sleep, sleep_until};

use crate::datapath::flow::Flow;
use crate::datapath::http::leg::Leg;
use crate::datapath::http::leg::linger::reset;
use crate::datapath::http::leg::outbox::Outbox;
use crate::datapath::http::message::carry::MAX_READS_IN_A_ROW;
use crate::datapath::scratch::with_scratch;
use crate::state::outcome::{Direction, FlowEnd};

/// A tunnel between two legs.
pub(super) struct TlsTunnel<'a> {
    client: Leg,
    host: Leg,
    inward: TunnelDirection,
    outward: TunnelDirection,
    flow: &'a Flow,
}

/// One direction of a tunnel.
#[derive(Default)]
struct TunnelDirection {
    /// Bytes that the receiver has not accepted yet. The sender is not read while there are any.
    unsent: Outbox,
    /// Whether the sender has ended its stream.
    is_ended: bool,
    /// Whether the receiver has been told so.
    is_shut: bool,
}

/// Leg that failed.
enum FailedLeg {
    Sender,
    Receiver,
}

impl<'a> TlsTunnel<'a> {
    /// A tunnel that begins with bytes of client and host that were read before.
    pub(super) fn new(
        (client, host): (Leg, Leg),
        (from_client, from_host): (Vec<u8>, Vec<u8>),
        flow: &'a Flow,
    ) -> Self {
        let mut tunnel = Self {
            client,
            host,
            inward: TunnelDirection::default(),
            outward: TunnelDirection::default(),
            flow,
        };
        tunnel.inward.unsent.push(&from_client);
        tunnel.outward.unsent.push(&from_host);
        tunnel
    }

    /// Carries bytes both ways until both senders have ended, one leg has failed, or no byte has arrived for `idle`.
    pub(super) async fn run(mut self, idle: Duration) -> FlowEnd {
        let mut timer = pin!(sleep_until((Instant::now() + idle).into()));
        let end = poll_fn(|cx| self.poll(cx, idle, timer.as_mut())).await;
        if matches!(end, FlowEnd::ClientReset | FlowEnd::HostReset) {
            reset(self.client);
            reset(self.host);
        }
        end
    }

    fn poll(&mut self, cx: &mut Context<'_>, idle: Duration, mut timer: Pin<&mut Sleep>) -> Poll<FlowEnd> {
        let inward = self.inward.pump(cx, &mut self.client, &mut self.host, |n| {
            self.flow.add_bytes(Direction::In, n);
        });
        let outward = self.outward.pump(cx, &mut self.host, &mut self.client, |n| {
            self.flow.add_bytes(Direction::Out, n);
        });
        match (inward, outward) {
            (Poll::Ready(Err(FailedLeg::Sender)), _) | (_, Poll::Ready(Err(FailedLeg::Receiver))) => {
                return Poll::Ready(FlowEnd::ClientReset);
            }
            (Poll::Ready(Err(FailedLeg::Receiver)), _) | (_, Poll::Ready(Err(FailedLeg::Sender))) => {
                return Poll::Ready(FlowEnd::HostReset);
            }
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => return Poll::Ready(FlowEnd::Finished),
            _ => {}
        }
        loop {
            let until = self.flow.last_active.get() + idle;
            if until <= Instant::now() {
                return Poll::Ready(FlowEnd::Idle);
            }
            if timer.is_elapsed() || timer.deadline().into_std() > until {
                timer.as_mut().reset(until.into());
            }
            ready!(timer.as_mut().poll(cx));
        }
    }
}

impl TunnelDirection {
    /// Passes bytes on as far as possible. Ready: the direction has ended, or a leg has failed.
    fn pump(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Leg,
        to: &mut Leg,
        mut passed: impl FnMut(u64),
    ) -> Poll<Result<(), FailedLeg>> {
        for _ in 0..MAX_READS_IN_A_ROW {
            match self.unsent.flush(cx, to) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(_) => return Poll::Ready(Err(FailedLeg::Receiver)),
            }
            if self.is_ended {
                if !self.is_shut {
                    ready!(to.poll_shutdown(cx)).map_err(|_| FailedLeg::Receiver)?;
                    self.is_shut = true;
                }
                return Poll::Ready(Ok(()));
            }
            let read = with_scratch(|scratch| {
                let mut buf = ReadBuf::new(scratch);
                ready!(from.poll_read(cx, &mut buf)).map_err(|_: io::Error| FailedLeg::Sender)?;
                let sent = self.unsent.send(buf.filled(), to);
                sent.map_err(|_| FailedLeg::Receiver)?;
                Poll::Ready(Ok(buf.filled().len()))
            });
            match ready!(read)? {
                0 => self.is_ended = true,
                n => passed(n as u64),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
