//! Tiers `copy` and `splice`: two sockets and two directions, each pumped as far as possible.
//!
//! An idle flow holds no buffer: bytes go through one scratch buffer per worker. Only bytes that the far end does not
//! accept at once are kept (at most [`super::scratch::SCRATCH_BYTES`] bytes, or a pipe's worth). A direction with kept
//! bytes does not read. This is the back-pressure, and it bounds the memory.

use std::future::poll_fn;
use std::os::fd::AsRawFd as _;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use signalbox_core::model::Tier;
use tokio::net::TcpStream;
use tokio::time::Sleep;

use super::flow::Flow;
use super::pump::{PumpState, RelayDirection, Side};
use crate::state::outcome::{Direction, FlowEnd};
use crate::sys;

/// Interval at which a stalled direction checks whether its sender is still there.
const STALL_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Time limit for delivering the bytes that a reset leg had sent, and the interval of the checks for that.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(30);
const DELIVERY_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Result of pumping.
pub enum RelayOutcome {
    Ended(FlowEnd),
    /// No bytes are under way in userspace: the flow may move to a tier in the kernel.
    Quiet,
}

/// Tiers that a flow may use.
#[derive(Clone, Copy, Debug)]
pub struct TierPolicy {
    /// Tier that the configuration forces: used as soon as it is available.
    pub forced: Option<Tier>,
    /// True if the kernel can carry flows (tier `sockmap`).
    pub sockmap_available: bool,
    pub idle: Duration,
}

/// Bytes that userspace has read from and written to each leg. A kernel tier counts from these.
#[derive(Clone, Copy, Debug, Default)]
pub struct LegBytes {
    pub from_client: u64,
    pub to_host: u64,
    pub from_host: u64,
    pub to_client: u64,
}

/// A flow that userspace carries (tiers `copy` and `splice`).
pub struct Relay {
    pub client: TcpStream,
    pub host: TcpStream,
    flow: Rc<Flow>,
    policy: TierPolicy,
    inward: RelayDirection,
    outward: RelayDirection,
    stalled: bool,
    /// Set when a leg was reset: how and when. Bytes that its peer had sent before are still delivered, then the other
    /// leg is reset too.
    reset: Option<(FlowEnd, Instant)>,
    /// Bytes taken off the client's stream before the relay began.
    pub preread: u64,
}

impl Relay {
    pub fn new(client: TcpStream, host: TcpStream, flow: Rc<Flow>, policy: TierPolicy, preread: u64) -> Self {
        flow.tier_reason.set(match policy.forced {
            Some(Tier::Copy) => "configured",
            Some(Tier::Sockmap) if !policy.sockmap_available => "the kernel's socket maps are not available",
            _ => "not bulk",
        });
        let half = || RelayDirection {
            splicing: policy.forced == Some(Tier::Splice),
            ..RelayDirection::default()
        };
        Self {
            client,
            host,
            flow,
            policy,
            inward: half(),
            outward: half(),
            stalled: false,
            reset: None,
            preread,
        }
    }

    /// Queues bytes for the host before all others.
    pub fn with_preamble(mut self, preamble: Vec<u8>) -> Self {
        self.inward.pending = preamble;
        self
    }

    /// Queues bytes for the client before all others.
    pub fn with_answer(mut self, bytes: Vec<u8>) -> Self {
        self.outward.pending = bytes;
        self
    }

    /// Takes a flow back that the kernel could not carry.
    pub fn resume(client: TcpStream, host: TcpStream, flow: Rc<Flow>, policy: TierPolicy, moved: LegBytes) -> Self {
        let mut relay = Self::new(client, host, flow, policy, moved.from_client - moved.to_host);
        relay.inward.total_bytes = moved.to_host;
        relay.outward.total_bytes = moved.to_client;
        relay
    }

    /// Returns the bytes carried so far, by leg.
    pub fn leg_bytes(&self) -> LegBytes {
        LegBytes {
            from_client: self.preread + self.inward.total_bytes,
            to_host: self.inward.total_bytes,
            from_host: self.outward.total_bytes,
            to_client: self.outward.total_bytes,
        }
    }

    /// Whether no byte is under way in userspace and neither sender has finished.
    pub fn is_empty(&self) -> bool {
        let is_open = |half: &RelayDirection| half.is_empty() && !half.eof;
        self.reset.is_none() && is_open(&self.inward) && is_open(&self.outward)
    }

    /// Makes both legs send a reset when they are closed, unless the flow finished normally.
    pub fn reset_unless_finished(&self, end: FlowEnd) {
        if matches!(end, FlowEnd::ClientReset | FlowEnd::HostReset | FlowEnd::Failed) {
            sys::reset_on_close(self.client.as_raw_fd());
            sys::reset_on_close(self.host.as_raw_fd());
        }
    }

    /// Carries bytes until the flow ends, or until it is quiet and may move to a kernel tier.
    pub async fn run(&mut self, mut timer: Pin<&mut Sleep>) -> RelayOutcome {
        poll_fn(|cx| self.poll(cx, timer.as_mut())).await
    }

    fn poll(&mut self, cx: &mut Context<'_>, mut timer: Pin<&mut Sleep>) -> Poll<RelayOutcome> {
        loop {
            if self.reset.is_some() {
                return self.poll_reset(cx, timer);
            }
            let inward = self.pump(cx, Direction::In);
            let outward = if inward.is_ok() {
                self.pump(cx, Direction::Out)
            } else {
                Ok(PumpState::Waiting)
            };
            let (inward, outward) = match (inward, outward) {
                (Ok(inward), Ok(outward)) => (inward, outward),
                (Err(end), _) | (_, Err(end)) => {
                    self.reset = Some((end, Instant::now()));
                    continue;
                }
            };
            match (&inward, &outward) {
                (PumpState::Done, PumpState::Done) => return Poll::Ready(RelayOutcome::Ended(FlowEnd::Finished)),
                (PumpState::Yielded, _) | (_, PumpState::Yielded) => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                (PumpState::Waiting, PumpState::Waiting) if self.wants_sockmap() => {
                    return Poll::Ready(RelayOutcome::Quiet);
                }
                _ => {}
            }
            self.stalled = matches!(inward, PumpState::Stalled) || matches!(outward, PumpState::Stalled);
            match self.deadline() {
                Err(FlowEnd::Idle) => return Poll::Ready(RelayOutcome::Ended(FlowEnd::Idle)),
                Err(end) => {
                    self.reset = Some((end, Instant::now()));
                    continue;
                }
                Ok(at) if at < timer.deadline().into_std() || timer.is_elapsed() => timer.as_mut().reset(at.into()),
                Ok(_) => {}
            }
            // The timer is only moved when it fires or must fire sooner: most flows never touch it again.
            ready!(timer.as_mut().poll(cx));
        }
    }

    /// Delivers the bytes that a reset leg had sent to the other leg, and ends the flow once they are acknowledged.
    ///
    /// An immediate reset would discard bytes that the balancer has acknowledged to their sender. An example is the
    /// answer of a server that then closes with an unread request.
    fn poll_reset(&mut self, cx: &mut Context<'_>, mut timer: Pin<&mut Sleep>) -> Poll<RelayOutcome> {
        let Some((end, since)) = self.reset else {
            return Poll::Pending;
        };
        let (direction, target) = match end {
            FlowEnd::ClientReset => (Direction::In, self.host.as_raw_fd()),
            FlowEnd::HostReset => (Direction::Out, self.client.as_raw_fd()),
            FlowEnd::Finished | FlowEnd::Idle | FlowEnd::Failed | FlowEnd::Drained | FlowEnd::Moved => {
                return Poll::Ready(RelayOutcome::Ended(end));
            }
        };
        loop {
            let half = match direction {
                Direction::In => &mut self.inward,
                Direction::Out => &mut self.outward,
            };
            // The reset ends this direction, without a FIN.
            half.write_shut = true;
            let delivered = match self.pump(cx, direction) {
                Ok(PumpState::Done) => sys::unacknowledged(target).map_or(true, |left| left == 0),
                Ok(PumpState::Yielded) => continue,
                Ok(PumpState::Waiting | PumpState::Stalled) => false,
                // The reset leg has no more bytes. Or the other leg is dead too, so the bytes cannot be delivered.
                Err(again) => {
                    let half = match direction {
                        Direction::In => &mut self.inward,
                        Direction::Out => &mut self.outward,
                    };
                    if again != end || half.eof {
                        return Poll::Ready(RelayOutcome::Ended(end));
                    }
                    half.eof = true;
                    continue;
                }
            };
            if delivered || since.elapsed() >= DELIVERY_TIMEOUT {
                return Poll::Ready(RelayOutcome::Ended(end));
            }
            timer.as_mut().reset((Instant::now() + DELIVERY_CHECK_INTERVAL).into());
            ready!(timer.as_mut().poll(cx));
        }
    }

    /// Returns when the flow must be examined next. An error means that it ends now.
    fn deadline(&self) -> Result<Instant, FlowEnd> {
        let now = Instant::now();
        let idle = self.flow.last_active.get() + self.policy.idle;
        if idle <= now {
            return Err(FlowEnd::Idle);
        }
        if !self.stalled {
            return Ok(idle);
        }
        // A stalled direction does not read, so reading cannot show a reset of its sender.
        let gone = |stream: &TcpStream| sys::is_dead(stream.as_raw_fd());
        if !self.inward.eof && gone(&self.client) {
            return Err(FlowEnd::ClientReset);
        }
        if !self.outward.eof && gone(&self.host) {
            return Err(FlowEnd::HostReset);
        }
        Ok(idle.min(now + STALL_CHECK_INTERVAL))
    }

    /// Returns whether the kernel should carry a quiet flow from now on (tier `sockmap`).
    ///
    /// Used only where the listener asks for it. Each message wakes a kernel thread, so two joined sockets are slower
    /// than copying, except when one conversation has the machine to itself (bench/results/latest.md).
    fn wants_sockmap(&self) -> bool {
        self.policy.forced == Some(Tier::Sockmap)
            && self.policy.sockmap_available
            && !self.inward.eof
            && !self.outward.eof
    }

    fn pump(&mut self, cx: &mut Context<'_>, direction: Direction) -> Result<PumpState, FlowEnd> {
        let (from, to, half, last) = match direction {
            Direction::In => (
                &mut self.client,
                &mut self.host,
                &mut self.inward,
                self.outward.write_shut,
            ),
            Direction::Out => (
                &mut self.host,
                &mut self.client,
                &mut self.outward,
                self.inward.write_shut,
            ),
        };
        let before = half.total_bytes;
        let step = half.pump(cx, from, to, last);
        let carried = half.total_bytes - before;
        if half.eof {
            self.flow.set_finished(direction);
        }
        if carried > 0 {
            self.flow.add_bytes(direction, carried);
            if self.policy.forced.is_none() && !half.splicing && half.is_bulk() {
                half.splicing = true;
            }
            if half.splicing {
                self.flow.set_tier(
                    Tier::Splice,
                    if self.policy.forced.is_some() {
                        "configured"
                    } else {
                        "bulk"
                    },
                );
            }
        }
        step.map_err(|(side, error)| {
            let at_source = side == Side::From;
            tracing::debug!(%error, ?direction, at_source, "A flow was cut short.");
            match (error.raw_os_error(), at_source == (direction == Direction::In)) {
                (Some(libc::ECONNRESET | libc::EPIPE | libc::ETIMEDOUT | libc::ECONNABORTED), true) => {
                    FlowEnd::ClientReset
                }
                (Some(libc::ECONNRESET | libc::EPIPE | libc::ETIMEDOUT | libc::ECONNABORTED), false) => {
                    FlowEnd::HostReset
                }
                _ => FlowEnd::Failed,
            }
        })
    }
}
