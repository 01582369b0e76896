//! Tier `sockmap` as userspace sees it: two joined sockets, their credits, and the ends of the streams.
//!
//! The kernel carries the bytes. Userspace extends a direction's credit as the far end acknowledges bytes. Once the
//! credit is exhausted, the program passes bytes up; userspace relays them, and tells the program when all are relayed.
//! When a sender has finished and all its bytes are queued on the far leg, userspace shuts that leg. It also detects
//! resets and idle flows.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use signalbox_common::credit::Credit;
use signalbox_core::model::Tier;

use super::flow::Flow;
use super::passed_up::stays_blocked;
use super::relay::LegBytes;
use super::scratch::with_scratch;
use super::sockmap_watch::{SockmapWatch, WatchedFlow};
use crate::kernel::sockmap::{JoinOutcome as Outcome, SockmapPair};
use crate::state::outcome::{Direction, FlowEnd};
use crate::sys;

/// Credit of a direction: bytes in flight that the far end has not acknowledged.
const CREDIT_WINDOW_BYTES: u64 = 1024 * 1024;

/// Interval of checks while something is unfinished. It doubles after each check without progress.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(1);
const MAX_RETRY_INTERVAL: Duration = Duration::from_millis(64);

/// Interval of checks of a flow that carries bytes, and of one that does not.
const BUSY_INTERVAL: Duration = Duration::from_millis(250);
const QUIET_INTERVAL: Duration = Duration::from_secs(2);

/// Maximum number of attempts to count a leg's bytes between two acknowledgements.
const MAX_READINGS: usize = 1000;

const EPOLLIN: u32 = libc::EPOLLIN as u32;
const EPOLLOUT: u32 = libc::EPOLLOUT as u32;
const EPOLLRDHUP: u32 = libc::EPOLLRDHUP as u32;
const EPOLLERR: u32 = libc::EPOLLERR as u32;
const EPOLLHUP: u32 = libc::EPOLLHUP as u32;

/// Direction of a flow of tier `sockmap`, and the leg that its bytes come from.
struct SockmapDirection {
    direction: Direction,
    from: TcpStream,
    credit: u32,
    cookie: u64,
    /// Bytes of the sender that userspace read before the join.
    preread: u64,
    /// Bytes that userspace has read out of those that the program passed up.
    consumed: u64,
    /// Bytes of `consumed` that were written to the far leg.
    relayed: u64,
    pending: Vec<u8>,
    /// Bytes counted into the flow so far.
    counted: u64,
    /// True if the program sees the packets that arrive on this leg. False for a second leg that the socket map refused
    /// because its sender had already finished: userspace reads such a leg to its end.
    in_kernel: bool,
    hung_up: bool,
    done: bool,
    /// Bytes acknowledged plus bytes queued on this leg (as a target) before the join.
    queued_before: u64,
}

/// A flow of tier `sockmap`, and its state in userspace.
pub struct SockmapFlow {
    sockmap: Arc<SockmapPair>,
    sockmap_watch: Rc<SockmapWatch>,
    watched: WatchedFlow,
    flow: Rc<Flow>,
    directions: [SockmapDirection; 2],
    idle: Duration,
    pause: Duration,
}

/// The sockets of a flow that could not be joined, returned with the error.
pub struct JoinError {
    pub client: TcpStream,
    pub host: TcpStream,
    pub error: io::Error,
}

impl SockmapFlow {
    /// Joins the legs. Both receive queues must be empty, and userspace must not hold any bytes.
    pub fn join(
        sockmap: &Arc<SockmapPair>,
        watch: &Rc<SockmapWatch>,
        flow: &Rc<Flow>,
        (client, host): (TcpStream, TcpStream),
        moved: LegBytes,
        idle: Duration,
    ) -> Result<Self, Box<JoinError>> {
        let prepared = match PreparedPair::new(sockmap, watch, &client, &host) {
            Ok(prepared) => prepared,
            Err(error) => {
                watch.remove(&client);
                watch.remove(&host);
                return Err(Box::new(JoinError { client, host, error }));
            }
        };
        let new_direction = |direction: Direction, from, leg: LegStart, preread| SockmapDirection {
            direction,
            from,
            credit: leg.credit,
            cookie: leg.cookie,
            preread,
            consumed: 0,
            relayed: 0,
            pending: Vec::new(),
            counted: 0,
            in_kernel: direction == Direction::In || !prepared.half_joined,
            hung_up: false,
            done: false,
            queued_before: leg.queued,
        };
        let [c, h] = prepared.legs;
        let directions = [
            new_direction(Direction::In, client, c, moved.from_client),
            new_direction(Direction::Out, host, h, moved.from_host),
        ];
        flow.set_tier(
            Tier::Sockmap,
            if prepared.half_joined { "half joined" } else { "joined" },
        );
        Ok(Self {
            sockmap: Arc::clone(sockmap),
            sockmap_watch: Rc::clone(watch),
            watched: prepared.watched,
            flow: Rc::clone(flow),
            directions,
            idle,
            pause: MIN_RETRY_INTERVAL,
        })
    }

    /// Carries the flow to its end.
    pub async fn run(mut self) -> FlowEnd {
        let end = loop {
            let wait = match self.advance_both() {
                Ok(Some(wait)) => wait,
                Ok(None) => break FlowEnd::Finished,
                Err(end) => break end,
            };
            if self.flow.last_active.get().elapsed() >= self.idle {
                break FlowEnd::Idle;
            }
            // An event, or the timer: either way, both directions are examined again.
            let _ = tokio::time::timeout(wait, self.watched.next_event()).await;
        };
        match end {
            FlowEnd::Finished | FlowEnd::Idle => {}
            FlowEnd::ClientReset | FlowEnd::HostReset | FlowEnd::Failed | FlowEnd::Drained | FlowEnd::Moved => {
                for direction in &self.directions {
                    sys::reset_on_close(direction.from.as_raw_fd());
                }
            }
        }
        end
    }

    /// Advances both directions. Returns the maximum time to wait, or `None` if the flow has ended.
    fn advance_both(&mut self) -> Result<Option<Duration>, FlowEnd> {
        let (mut moved, mut unfinished) = (false, false);
        let events = [self.watched.take_events(0), self.watched.take_events(1)];
        let mut wants = [0u32; 2];
        for at in [0, 1] {
            let (first, second) = self.directions.split_at_mut(1);
            let (direction, far) = if at == 0 {
                (&mut first[0], &second[0])
            } else {
                (&mut second[0], &first[0])
            };
            direction.hung_up |= events[at] & (EPOLLRDHUP | EPOLLERR | EPOLLHUP) != 0 || direction.is_finished();
            if events[at] & EPOLLERR != 0
                && let Some(error) = sys::take_error(direction.from.as_raw_fd())
            {
                return Err(direction.end_of_error(&error));
            }
            if self.sockmap.credits.read(direction.credit).failed != 0 {
                return Err(FlowEnd::Failed);
            }
            let did = direction
                .advance(&self.sockmap, far, &self.flow)
                .map_err(|error| direction.end_of_error(&error))?;
            moved |= did.moved;
            unfinished |= did.unfinished;
            wants[at] |= did.wants & EPOLLIN;
            wants[1 - at] |= did.wants & EPOLLOUT;
        }
        for (at, direction) in self.directions.iter().enumerate() {
            // Events are one-shot (EPOLLONESHOT) and are rearmed here. A leg that is closed both ways would report
            // EPOLLHUP forever.
            if (events[at] | wants[at]) != 0 && events[at] & EPOLLHUP == 0 {
                let hang_up = if direction.hung_up { 0 } else { EPOLLRDHUP };
                let key = self.watched.key(at);
                self.sockmap_watch
                    .rearm(&direction.from, wants[at] | hang_up, key)
                    .map_err(|_| FlowEnd::Failed)?;
            }
        }
        if self.directions.iter().all(|direction| direction.done) {
            return Ok(None);
        }
        if unfinished {
            self.pause = if moved {
                MIN_RETRY_INTERVAL
            } else {
                (self.pause * 2).min(MAX_RETRY_INTERVAL)
            };
            return Ok(Some(self.pause));
        }
        self.pause = MIN_RETRY_INTERVAL;
        let until_idle = self
            .idle
            .saturating_sub(self.flow.last_active.get().elapsed())
            .max(MIN_RETRY_INTERVAL);
        Ok(Some(if moved { BUSY_INTERVAL } else { QUIET_INTERVAL }.min(until_idle)))
    }
}

impl Drop for SockmapFlow {
    fn drop(&mut self) {
        let [a, b] = &self.directions;
        self.sockmap.remove(a.cookie, b.cookie);
    }
}

/// Result of advancing one direction.
#[derive(Default)]
struct Advance {
    moved: bool,
    /// True if the direction must be checked again soon, without waiting for an event.
    unfinished: bool,
    /// Events to wait for: EPOLLIN of the source, EPOLLOUT of the target.
    wants: u32,
}

/// Numbers of one leg at the moment of the join.
struct LegStart {
    credit: u32,
    cookie: u64,
    queued: u64,
}

struct PreparedPair {
    watched: WatchedFlow,
    legs: [LegStart; 2],
    half_joined: bool,
}

impl PreparedPair {
    fn new(sockmap: &SockmapPair, watch: &Rc<SockmapWatch>, client: &TcpStream, host: &TcpStream) -> io::Result<Self> {
        let watched = watch.register().ok_or_else(|| io::Error::other("no free credit"))?;
        let leg = |socket: &TcpStream, at| -> io::Result<LegStart> {
            watch.add(socket, EPOLLRDHUP, watched.key(at))?;
            Ok(LegStart {
                credit: watched.credit(at),
                cookie: sys::cookie(socket.as_raw_fd())?,
                queued: queued_exactly(socket)?,
            })
        };
        let (c, h) = (leg(client, 0)?, leg(host, 1)?);
        let outcome = sockmap.join(
            [(client, c.cookie, c.credit), (host, h.cookie, h.credit)],
            CREDIT_WINDOW_BYTES,
        )?;
        if let Outcome::FirstOnly(error) = &outcome {
            tracing::debug!(%error, "The second leg was refused by the socket map.");
        }
        Ok(Self {
            watched,
            legs: [c, h],
            half_joined: matches!(outcome, Outcome::FirstOnly(_)),
        })
    }
}

impl SockmapDirection {
    /// Returns which side caused an error on this direction.
    fn end_of_error(&self, error: &io::Error) -> FlowEnd {
        tracing::debug!(%error, direction = ?self.direction, hung_up = self.hung_up, done = self.done, relayed = self.relayed, "A flow of tier sockmap was aborted.");
        let source_gone = sys::tcp_info(self.from.as_raw_fd()).is_ok_and(|i| i.state == sys::TCP_CLOSE);
        match (self.direction, source_gone) {
            (Direction::In, true) | (Direction::Out, false) => FlowEnd::ClientReset,
            (Direction::Out, true) | (Direction::In, false) => FlowEnd::HostReset,
        }
    }

    /// Returns whether the sender has finished but the far leg has not sent a FIN yet.
    fn is_finished(&self) -> bool {
        !self.done && sys::tcp_info(self.from.as_raw_fd()).is_ok_and(|info| info.peer_finished())
    }

    fn advance(&mut self, sockmap: &SockmapPair, far: &Self, flow: &Flow) -> io::Result<Advance> {
        let mut did = Advance::default();
        if self.done {
            return Ok(did);
        }
        let credit = sockmap.credits.read(self.credit);
        let carried = credit.sent + self.relayed;
        if carried > self.counted {
            flow.add_bytes(self.direction, carried - self.counted);
            self.counted = carried;
            did.moved = true;
        }
        if self.may_relay(&credit) {
            self.relay_passed_up(sockmap, far, &mut did)?;
        } else {
            if credit.limit.saturating_sub(credit.sent) < CREDIT_WINDOW_BYTES / 2 {
                // More than half of the credit is used.
                self.extend_credit(sockmap, far)?;
            }
            if credit.blocked != 0 {
                // All bytes are consumed and no more have arrived. The next segment is redirected, and may soon need
                // credit.
                did.wants |= EPOLLIN;
            }
        }
        if self.hung_up {
            self.forward_fin(sockmap, far, flow, &mut did)?;
        }
        Ok(did)
    }

    /// Returns whether userspace may read from this leg: the program does not see it, or its credit stays blocked.
    fn may_relay(&self, credit: &Credit) -> bool {
        !self.in_kernel || stays_blocked(credit)
    }

    /// Raises the credit's limit to [`CREDIT_WINDOW_BYTES`] beyond what the far end has acknowledged.
    fn extend_credit(&self, sockmap: &SockmapPair, far: &Self) -> io::Result<()> {
        let acked = sys::tcp_info(far.from.as_raw_fd())?.bytes_acked;
        let acked = acked.saturating_sub(far.queued_before).saturating_sub(self.relayed);
        sockmap.credits.set_limit(self.credit, acked + CREDIT_WINDOW_BYTES);
        Ok(())
    }

    /// Returns whether all bytes that were redirected to the far leg are in its send queue or already acknowledged.
    fn far_took_all(&self, sockmap: &SockmapPair, far: &Self) -> io::Result<bool> {
        let queued = queued(&far.from)?.saturating_sub(far.queued_before);
        Ok(queued >= sockmap.credits.read(self.credit).sent + self.relayed)
    }

    /// Relays the bytes that the program passed up without credit, and extends the credit when none of them is left.
    /// Called only if [`Self::may_relay`] returned true: by then, redirected bytes are counted in full.
    fn relay_passed_up(&mut self, sockmap: &SockmapPair, far: &Self, did: &mut Advance) -> io::Result<()> {
        if !self.far_took_all(sockmap, far)? {
            // Redirected bytes go first: a write now would overtake them.
            did.unfinished = true;
            return Ok(());
        }
        for _ in 0..32 {
            while !self.pending.is_empty() {
                match sys::send(far.from.as_raw_fd(), &self.pending) {
                    Ok(n) => {
                        self.pending.drain(..n);
                        self.relayed += n as u64;
                        did.moved = true;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        did.wants |= EPOLLOUT;
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                }
            }
            let read = with_scratch(|scratch| {
                sys::recv(self.from.as_raw_fd(), scratch, 0).inspect(|&n| self.pending.extend_from_slice(&scratch[..n]))
            });
            match read {
                // End of the stream. `forward_fin` checks whether everything was relayed.
                Ok(0) => {
                    self.hung_up = true;
                    return Ok(());
                }
                Ok(n) => {
                    self.consumed += n as u64;
                    did.moved = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !self.in_kernel => {
                    did.wants |= EPOLLIN;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    sockmap.credits.set_consumed(self.credit, self.consumed);
                    let credit = sockmap.credits.read(self.credit);
                    if self.consumed == credit.passed {
                        self.extend_credit(sockmap, far)?;
                        // All passed-up bytes are relayed: the program redirects again from the next segment on.
                        self.pending = Vec::new();
                    } else {
                        did.unfinished = true;
                    }
                    did.wants |= EPOLLIN;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        did.unfinished = true;
        Ok(())
    }

    /// Passes the sender's FIN on to the far leg, once all bytes are queued there.
    fn forward_fin(&mut self, sockmap: &SockmapPair, far: &Self, flow: &Flow, did: &mut Advance) -> io::Result<()> {
        let info = sys::tcp_info(self.from.as_raw_fd())?;
        if info.state == sys::TCP_CLOSE
            && let Some(error) = sys::take_error(self.from.as_raw_fd())
        {
            return Err(error);
        }
        if !info.peer_finished() {
            // No FIN yet, and the count below would be wrong by one. Either the event was for the other leg, or it came
            // before the new state was readable (`tcp_get_info` does not take the socket's lock). No other event will
            // come then, so check again.
            self.hung_up = false;
            did.unfinished = true;
            return Ok(());
        }
        let credit = sockmap.credits.read(self.credit);
        // A FIN counts as one byte received.
        let expected = info.bytes_received.saturating_sub(1).saturating_sub(self.preread);
        let none_passed_over = !self.in_kernel || self.consumed == credit.passed;
        let all_taken = credit.sent + self.consumed >= expected && none_passed_over && self.pending.is_empty();
        if !all_taken || !self.far_took_all(sockmap, far)? {
            if !all_taken {
                // Makes the program process bytes that it has not seen yet.
                sys::recheck_receive_queue(self.from.as_raw_fd())?;
                if self.may_relay(&sockmap.credits.read(self.credit)) {
                    self.relay_passed_up(sockmap, far, did)?;
                }
            }
            did.unfinished = true;
            return Ok(());
        }
        match sys::shutdown_write(far.from.as_raw_fd()) {
            Err(error) if error.raw_os_error() != Some(libc::ENOTCONN) => return Err(error),
            _ => {}
        }
        self.done = true;
        flow.set_finished(self.direction);
        did.moved = true;
        Ok(())
    }
}

/// Returns how many bytes a socket's TCP has accepted for sending since it was connected, or fewer.
fn queued(socket: &TcpStream) -> io::Result<u64> {
    // The acknowledged bytes are read first: a new acknowledgement makes the sum too small, but never too large.
    let acked = sys::tcp_info(socket.as_raw_fd())?.bytes_acked;
    Ok(acked + sys::unacknowledged(socket.as_raw_fd())?)
}

/// Returns the same number exactly, for a socket to which no other task writes at the moment.
///
/// Later sums are compared with this number. If it were too small, the far leg would seem to have extra bytes.
fn queued_exactly(socket: &TcpStream) -> io::Result<u64> {
    for _ in 0..MAX_READINGS {
        let acked = sys::tcp_info(socket.as_raw_fd())?.bytes_acked;
        let left = sys::unacknowledged(socket.as_raw_fd())?;
        if sys::tcp_info(socket.as_raw_fd())?.bytes_acked == acked {
            return Ok(acked + left);
        }
    }
    Err(io::Error::other(
        "acknowledgements come faster than they can be counted",
    ))
}
