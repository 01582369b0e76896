//! Late cut of a long answer. Leg B has the same options as leg A. Userspace passes on the head and the start of the
//! body, then makes the host pause. When all bytes have arrived, the kernel carries the rest.
//!
//! Client and host have both been told that their connection ends with the answer, so when one ends, the other follows.
//! The programs drop bytes that the client sends after its request.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use signalbox_core::model::Tier;
use signalbox_core::wire::http1::turn::{NextStep, Turn};
use tokio::time::sleep;

use super::after::AfterRequest;
use super::attempt::Attempt;
use super::connection::HttpConnection;
use super::reached::{LongAnswer, Reached};
use crate::datapath::conn_guard::ConnGuard;
use crate::datapath::cut::{CarriedFlow, HeldFlow, LateCutError};
use crate::datapath::http::leg::Leg;
use crate::datapath::http::message::answer::Asked;
use crate::datapath::http::message::carry::Carry;
use crate::datapath::http::message::request::ClientSide;
use crate::state::outcome::Ineligible;
use crate::sys;

/// Number of remaining bytes below which an answer is not worth a cut.
const MIN_LEFT_BYTES: u64 = 1 << 20;

/// Time for which a host may be slowed down while its client receives the bytes already on their way.
const BACKLOG_TIMEOUT: Duration = Duration::from_secs(20);

/// Backlog to the client, in bytes, that is more than a host sends when its persist timer fires.
const MIN_BACKLOG_BYTES: u64 = 16 << 10;

/// Time for a quiet moment once the backlog is below that.
const QUIET_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest round trip of a client whose answer is cut. A host that waits for a window sends a few bytes five times a
/// second (`TCP_RTO_MIN`). A more distant client has not acknowledged them before the next ones arrive.
const MAX_ROUND_TRIP_MS: u128 = 100;

/// Shortest and longest interval between two checks for a quiet moment: a quarter of the time since the first, within
/// these limits.
const MIN_LOOK_INTERVAL: Duration = Duration::from_millis(1);
const MAX_LOOK_INTERVAL: Duration = Duration::from_millis(100);

impl HttpConnection<'_> {
    /// Passes a long answer on, until it is cut or ends.
    pub(in crate::datapath::http) async fn long_answer(
        &mut self,
        answer: LongAnswer,
        guard: &mut ConnGuard,
    ) -> AfterRequest {
        let LongAnswer {
            request,
            asked,
            mut reached,
        } = answer;
        let held = reached.attempt.as_mut().and_then(|attempt| attempt.link.held.take());
        if let Some(mut held) = held {
            let result = self.carry_until_cut(&mut held, &asked, &mut reached, guard).await;
            self.listener.late_cut.inc(result);
            if result == "cut" {
                self.leave(held, reached, guard);
                return AfterRequest::Closed;
            }
            if let Some(attempt) = &reached.attempt {
                attempt.link.listed.flow.tier_reason.set(result);
            }
        }
        self.pass(&request, &asked, reached).await
    }

    /// Passes an answer on until its rest is cut. Returns the label of the result.
    async fn carry_until_cut(
        &mut self,
        held: &mut HeldFlow,
        asked: &Asked,
        reached: &mut Reached,
        guard: &ConnGuard,
    ) -> &'static str {
        let Some(attempt) = &mut reached.attempt else {
            return "ended";
        };
        let sockets = (reached.client.leg.stream.tcp(), attempt.host.leg.stream.tcp());
        let (Some(client), Some(host)) = (sockets.0.map(AsRawFd::as_raw_fd), sockets.1.map(AsRawFd::as_raw_fd)) else {
            return "failed";
        };
        if let Err(why) = may_pause(client, host) {
            return why;
        }
        let began = Instant::now();
        let mut last_backlog = began;
        let result = loop {
            if !is_worth_a_cut(attempt, &reached.turn) || has_finished(host) {
                break "ended";
            }
            if let Some(why) = reached.client.leg.said_more() {
                break Ineligible::LastRequest(why).label();
            }
            if self.worker.shared.life.stopping.load(Relaxed) {
                break "stopping";
            }
            if has_backlog(&reached.client, client) {
                last_backlog = Instant::now();
            }
            if held.is_overdue() || began.elapsed() >= BACKLOG_TIMEOUT {
                break "never_quiet";
            }
            // Set again each time: the kernel lifts the limit when it enlarges the buffer.
            if sys::limit_window(host).is_err() {
                break "failed";
            }
            let flow = &attempt.link.listed.flow;
            let carry = Carry {
                awaits_continue: false,
                written: (attempt.host.leg.outbox.written(), reached.client.leg.outbox.written()),
                client: &mut reached.client,
                host: &mut attempt.host,
                turn: &mut reached.turn,
                asked,
                flow,
                timeouts: reached.timeouts,
                until_answer: false,
                stopping: &self.worker.shared.life.stopping,
            };
            let interval = (began.elapsed() / 4).clamp(MIN_LOOK_INTERVAL, MAX_LOOK_INTERVAL);
            tokio::select! {
                biased;
                _ = carry.run(self.timer.as_mut()) => break "ended",
                () = flow.close.notified() => {
                    // Signalled again for the code that passes the answer on.
                    flow.close.notify_one();
                    break "stopping";
                }
                () = sleep(interval) => {}
            }
            if !reached.client.leg.outbox.is_empty() {
                continue;
            }
            match self.cut_answer(held, reached.timeouts.body, &reached.client.leg.stream, attempt, guard) {
                Ok(()) => return "cut",
                Err(LateCutError::Busy) if last_backlog.elapsed() >= QUIET_TIMEOUT => break "never_quiet",
                Err(LateCutError::Busy) => {}
                Err(LateCutError::Failed(error)) => {
                    tracing::debug!(%error, "A long answer is not cut.");
                    break "failed";
                }
            }
        };
        // A failed socket has no window.
        let _ = sys::unlimit_window(host);
        result
    }

    fn cut_answer(
        &self,
        held: &mut HeldFlow,
        idle: Duration,
        client: &Leg,
        attempt: &Attempt,
        guard: &ConnGuard,
    ) -> Result<(), LateCutError> {
        let (Some(client), Some(host)) = (client.tcp(), attempt.host.leg.stream.tcp()) else {
            return Err(LateCutError::Busy);
        };
        let flow = &attempt.link.listed.flow;
        let carried = CarriedFlow {
            bytes: [flow.bytes_in.get(), flow.bytes_out.get()],
            idle,
            marks: guard.marks(),
            is_last_request: true,
        };
        let leave = |key| {
            let cluster = &flow.context.cluster;
            cluster.opened[Tier::Cut as usize].inc();
            cluster.active[Tier::Cut as usize].enter();
            if let Some(log) = &attempt.link.log {
                log.keep_details(&self.worker.shared, flow.context.client, key);
            }
        };
        if let Some(status) = attempt.host.status {
            attempt.link.set_status(status);
        }
        held.try_cut((client, host), carried, leave)
    }

    /// Leaves an answer to the kernel. The flow GC gives the counts back when the flow ends.
    fn leave(&self, held: HeldFlow, reached: Reached, guard: &mut ConnGuard) {
        let Reached {
            client,
            attempt: Some(attempt),
            leased,
            ..
        } = reached
        else {
            return;
        };
        let status = attempt.host.status.unwrap_or(200);
        self.listener.requests.count(&leased.lease.cluster.name, status);
        if let Some(share) = &leased.lease.stats {
            share.quality.answered(status);
        }
        let (client, host) = (client.leg.stream, attempt.host.leg.stream);
        if let (Leg::Plain(client), Leg::Plain(host)) = (client, host) {
            held.close(client, host);
        }
        leased.lease.detach();
        drop(guard.detach());
    }
}

/// Whether a small window makes the host pause, and the client is near enough for a quiet moment then. Otherwise the
/// label of the obstacle.
fn may_pause(client: RawFd, host: RawFd) -> Result<(), &'static str> {
    let (Ok(client), Ok(host)) = (sys::tcp_info(client), sys::tcp_info(host)) else {
        return Err("ended");
    };
    if client.round_trip.as_millis() > MAX_ROUND_TRIP_MS {
        return Err("far_client");
    }
    let unit = 1 << host.scales.map_or(0, |(_, ours)| ours);
    // The host's segments are at most as large as the client's: leg B's SYN announced that size.
    if sys::MIN_LIMITED_WINDOW.next_multiple_of(unit) >= client.send_mss {
        return Err("small_segments");
    }
    Ok(())
}

/// Whether the answer goes on, for so many bytes that a cut pays.
fn is_worth_a_cut(attempt: &Attempt, turn: &Turn) -> bool {
    let is_long = attempt.host.left().is_some_and(|left| left >= MIN_LEFT_BYTES);
    is_long && matches!(turn.next(), NextStep::Exchange { .. })
}

fn has_finished(host: RawFd) -> bool {
    sys::tcp_info(host).is_ok_and(|info| info.peer_finished())
}

/// Whether more bytes are on their way to the client than a paused host adds.
fn has_backlog(client: &ClientSide, socket: RawFd) -> bool {
    !client.leg.outbox.is_empty() || sys::unacknowledged(socket).is_ok_and(|bytes| bytes > MIN_BACKLOG_BYTES)
}
