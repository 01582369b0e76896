//! Tier `sockmap`, seen from userspace: two joined sockets, the gates, and the ends.
//!
//! The kernel carries the bytes. Userspace raises the gates' limits as far ends acknowledge; carries by hand what a
//! closed gate passes up, and opens it again when all of that is relayed; shuts the far leg when a sender has finished
//! and all its bytes have been queued there; notices resets and idle flows.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use signalbox_core::model::Tier;

use super::flow::{Direction, Flow};
use super::half::with_scratch;
use super::relay::{End, Moved};
use super::sys;
use super::watch::{Watch, Watched};
use crate::kernel::sockmap::{Joined as Outcome, Joiner};

/// Bytes that may be under way in one direction without the far end's acknowledgement.
const WINDOW: u64 = 1024 * 1024;

/// Interval of the next look while something is unfinished; doubled each time that nothing came of it.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(1);
const MAX_RETRY_INTERVAL: Duration = Duration::from_millis(64);

/// Interval of looks at a flow that carries bytes, and at one that does not.
const BUSY_INTERVAL: Duration = Duration::from_millis(250);
const QUIET_INTERVAL: Duration = Duration::from_secs(2);

const EPOLLIN: u32 = libc::EPOLLIN as u32;
const EPOLLOUT: u32 = libc::EPOLLOUT as u32;
const EPOLLRDHUP: u32 = libc::EPOLLRDHUP as u32;
const EPOLLERR: u32 = libc::EPOLLERR as u32;
const EPOLLHUP: u32 = libc::EPOLLHUP as u32;

/// Direction of a joined flow, and the leg that its bytes come from.
struct Half {
    direction: Direction,
    from: TcpStream,
    gate: u32,
    cookie: u64,
    /// Bytes of the sender that userspace had read before the join.
    preread: u64,
    /// Bytes that userspace has read, of those that the gate passed up.
    consumed: u64,
    /// Bytes of `consumed` that are written to the far leg.
    relayed: u64,
    kept: Vec<u8>,
    /// Bytes counted into the flow so far.
    counted: u64,
    /// True if the program sees the packets that arrive on this leg. False for a second leg that the socket map refused
    /// (its sender had finished by then): such a leg is read by hand to its end.
    in_kernel: bool,
    hung_up: bool,
    done: bool,
    /// Bytes acknowledged plus bytes queued on this leg (as a target) when it was joined.
    queued_before: u64,
}

/// A flow joined in the kernel, and what userspace keeps about it.
pub struct Joint {
    joiner: Arc<Joiner>,
    watch: Rc<Watch>,
    watched: Watched,
    flow: Rc<Flow>,
    halves: [Half; 2],
    idle: Duration,
    pause: Duration,
}

/// The sockets of a flow that could not be joined, given back with the error.
pub struct Refused {
    pub client: TcpStream,
    pub host: TcpStream,
    pub error: io::Error,
}

impl Joint {
    /// Joins the legs. Both receive queues must have been read empty, and nothing may be kept in userspace.
    pub fn join(
        joiner: &Arc<Joiner>,
        watch: &Rc<Watch>,
        flow: &Rc<Flow>,
        (client, host): (TcpStream, TcpStream),
        moved: Moved,
        idle: Duration,
    ) -> Result<Self, Box<Refused>> {
        let prepared = match Prepared::new(joiner, watch, &client, &host) {
            Ok(prepared) => prepared,
            Err(error) => {
                watch.remove(&client);
                watch.remove(&host);
                return Err(Box::new(Refused { client, host, error }));
            }
        };
        let half = |direction: Direction, from, leg: Leg, preread| Half {
            direction,
            from,
            gate: leg.gate,
            cookie: leg.cookie,
            preread,
            consumed: 0,
            relayed: 0,
            kept: Vec::new(),
            counted: 0,
            in_kernel: direction == Direction::In || !prepared.half_joined,
            hung_up: false,
            done: false,
            queued_before: leg.queued,
        };
        let [c, h] = prepared.legs;
        let halves = [
            half(Direction::In, client, c, moved.from_client),
            half(Direction::Out, host, h, moved.from_host),
        ];
        flow.moved_to(
            Tier::Sockmap,
            if prepared.half_joined { "half joined" } else { "joined" },
        );
        Ok(Self {
            joiner: Arc::clone(joiner),
            watch: Rc::clone(watch),
            watched: prepared.watched,
            flow: Rc::clone(flow),
            halves,
            idle,
            pause: MIN_RETRY_INTERVAL,
        })
    }

    /// Carries the flow to its end.
    pub async fn run(mut self) -> End {
        let end = loop {
            let wait = match self.step() {
                Ok(Some(wait)) => wait,
                Ok(None) => break End::Finished,
                Err(end) => break end,
            };
            if self.flow.last.get().elapsed() >= self.idle {
                break End::Idle;
            }
            // An event or the timer: in either case both directions are examined again.
            let _ = tokio::time::timeout(wait, self.watched.event()).await;
        };
        match end {
            End::Finished | End::Idle => {}
            End::ClientReset | End::HostReset | End::Failed | End::Drained => {
                for half in &self.halves {
                    sys::reset_on_close(half.from.as_raw_fd());
                }
            }
        }
        end
    }

    /// Advances both directions. Returns the longest time to wait, or `None` when the flow has ended.
    fn step(&mut self) -> Result<Option<Duration>, End> {
        let (mut moved, mut unfinished) = (false, false);
        let events = [self.watched.take(0), self.watched.take(1)];
        let mut wants = [0u32; 2];
        for at in [0, 1] {
            let (first, second) = self.halves.split_at_mut(1);
            let (half, far) = if at == 0 {
                (&mut first[0], &second[0])
            } else {
                (&mut second[0], &first[0])
            };
            half.hung_up |= events[at] & (EPOLLRDHUP | EPOLLERR | EPOLLHUP) != 0 || half.is_finished();
            if events[at] & EPOLLERR != 0
                && let Some(error) = sys::take_error(half.from.as_raw_fd())
            {
                return Err(half.end(&error));
            }
            let did = half
                .advance(&self.joiner, far, &self.flow)
                .map_err(|error| half.end(&error))?;
            moved |= did.moved;
            unfinished |= did.unfinished;
            wants[at] |= did.wants & EPOLLIN;
            wants[1 - at] |= did.wants & EPOLLOUT;
        }
        for (at, half) in self.halves.iter().enumerate() {
            // Events are one-shot (EPOLLONESHOT): rearmed here. A leg that is closed both ways would report EPOLLHUP
            // for ever.
            if (events[at] | wants[at]) != 0 && events[at] & EPOLLHUP == 0 {
                let hang_up = if half.hung_up { 0 } else { EPOLLRDHUP };
                let key = self.watched.key(at);
                self.watch
                    .rearm(&half.from, wants[at] | hang_up, key)
                    .map_err(|_| End::Failed)?;
            }
        }
        if self.halves.iter().all(|half| half.done) {
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
            .saturating_sub(self.flow.last.get().elapsed())
            .max(MIN_RETRY_INTERVAL);
        Ok(Some(if moved { BUSY_INTERVAL } else { QUIET_INTERVAL }.min(until_idle)))
    }
}

impl Drop for Joint {
    fn drop(&mut self) {
        let [a, b] = &self.halves;
        self.joiner.forget(a.cookie, b.cookie);
    }
}

/// Result of advancing one direction.
#[derive(Default)]
struct Advance {
    moved: bool,
    /// True if the direction must be looked at again soon, without an event for it.
    unfinished: bool,
    /// Events to wait for: EPOLLIN of the source, EPOLLOUT of the target.
    wants: u32,
}

/// Numbers of one leg at the moment of the join.
struct Leg {
    gate: u32,
    cookie: u64,
    queued: u64,
}

struct Prepared {
    watched: Watched,
    legs: [Leg; 2],
    half_joined: bool,
}

impl Prepared {
    fn new(joiner: &Joiner, watch: &Rc<Watch>, client: &TcpStream, host: &TcpStream) -> io::Result<Self> {
        let watched = watch.register().ok_or_else(|| io::Error::other("no free gate"))?;
        let leg = |socket: &TcpStream, at| -> io::Result<Leg> {
            watch.add(socket, EPOLLRDHUP, watched.key(at))?;
            Ok(Leg {
                gate: watched.gate(at),
                cookie: sys::cookie(socket.as_raw_fd())?,
                queued: queued(socket)?,
            })
        };
        let (c, h) = (leg(client, 0)?, leg(host, 1)?);
        let outcome = joiner.join([(client, c.cookie, c.gate), (host, h.cookie, h.gate)], WINDOW)?;
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

impl Half {
    /// Returns which side an error on this direction comes from.
    fn end(&self, error: &io::Error) -> End {
        tracing::debug!(%error, direction = ?self.direction, hung_up = self.hung_up, done = self.done, relayed = self.relayed, "A joined flow was cut short.");
        let source_gone = sys::tcp_info(self.from.as_raw_fd()).is_ok_and(|i| i.state == sys::TCP_CLOSE);
        match (self.direction, source_gone) {
            (Direction::In, true) | (Direction::Out, false) => End::ClientReset,
            (Direction::Out, true) | (Direction::In, false) => End::HostReset,
        }
    }

    /// Returns whether the sender has finished and the far leg has not been told yet.
    fn is_finished(&self) -> bool {
        !self.done && sys::tcp_info(self.from.as_raw_fd()).is_ok_and(|info| info.peer_finished())
    }

    fn advance(&mut self, joiner: &Joiner, far: &Self, flow: &Flow) -> io::Result<Advance> {
        let mut did = Advance::default();
        if self.done {
            return Ok(did);
        }
        let gate = joiner.gates.read(self.gate);
        let carried = gate.sent + self.relayed;
        if carried > self.counted {
            flow.carried(self.direction, carried - self.counted);
            self.counted = carried;
            did.moved = true;
        }
        let by_hand = !self.in_kernel || joiner.gates.blocked(self.gate);
        if by_hand || self.consumed < gate.passed || !self.kept.is_empty() {
            self.carry_by_hand(joiner, far, &mut did)?;
        } else if gate.limit.saturating_sub(gate.sent) < WINDOW / 2 {
            // More than half of the credit is used.
            self.extend_credit(joiner, far)?;
        }
        if self.hung_up {
            self.finish(joiner, far, flow, &mut did)?;
        }
        Ok(did)
    }

    /// Raises the gate's limit to one `WINDOW` beyond what the far end has acknowledged.
    fn extend_credit(&self, joiner: &Joiner, far: &Self) -> io::Result<()> {
        let acked = sys::tcp_info(far.from.as_raw_fd())?.bytes_acked;
        let acked = acked.saturating_sub(far.queued_before).saturating_sub(self.relayed);
        joiner.gates.set_limit(self.gate, acked + WINDOW);
        Ok(())
    }

    /// Returns whether all bytes that the kernel took for the far leg are in its send queue or already acknowledged.
    fn far_has_all(&self, joiner: &Joiner, far: &Self) -> io::Result<bool> {
        let queued = queued(&far.from)?.saturating_sub(far.queued_before);
        Ok(queued >= joiner.gates.read(self.gate).sent + self.relayed)
    }

    /// Relays the bytes that a closed gate passed up; opens the gate when none of them is left.
    fn carry_by_hand(&mut self, joiner: &Joiner, far: &Self, did: &mut Advance) -> io::Result<()> {
        if !self.far_has_all(joiner, far)? {
            // Redirected bytes go first: writing now would overtake them.
            did.unfinished = true;
            return Ok(());
        }
        for _ in 0..32 {
            while !self.kept.is_empty() {
                match sys::send(far.from.as_raw_fd(), &self.kept) {
                    Ok(n) => {
                        self.kept.drain(..n);
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
                sys::recv(self.from.as_raw_fd(), scratch, 0).inspect(|&n| self.kept.extend_from_slice(&scratch[..n]))
            });
            match read {
                // End of the stream; `finish` finds out whether all of it is relayed.
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
                    joiner.gates.set_token(self.gate, self.consumed);
                    let gate = joiner.gates.read(self.gate);
                    if self.consumed == gate.passed {
                        self.extend_credit(joiner, far)?;
                        // All bytes that the gate passed up are relayed. The next segment opens the gate.
                        self.kept = Vec::new();
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

    /// Passes the sender's FIN on to the far leg, once every byte is queued there.
    fn finish(&mut self, joiner: &Joiner, far: &Self, flow: &Flow, did: &mut Advance) -> io::Result<()> {
        let info = sys::tcp_info(self.from.as_raw_fd())?;
        if info.state == sys::TCP_CLOSE
            && let Some(error) = sys::take_error(self.from.as_raw_fd())
        {
            return Err(error);
        }
        if !info.peer_finished() {
            // No FIN: the count below would be wrong by one. Either the event was not for this leg, or it came before
            // the new state could be read (`tcp_get_info` does not take the socket's lock): then no other event will
            // come, so look again.
            self.hung_up = false;
            did.unfinished = true;
            return Ok(());
        }
        let gate = joiner.gates.read(self.gate);
        // A FIN counts as one byte received.
        let expected = info.bytes_received.saturating_sub(1).saturating_sub(self.preread);
        let none_passed_over = !self.in_kernel || self.consumed == gate.passed;
        let all_taken = gate.sent + self.consumed >= expected && none_passed_over && self.kept.is_empty();
        if !all_taken || !self.far_has_all(joiner, far)? {
            if !all_taken {
                // Has the program run over bytes that it has not seen yet.
                sys::kick(self.from.as_raw_fd())?;
                self.carry_by_hand(joiner, far, did)?;
            }
            did.unfinished = true;
            return Ok(());
        }
        match sys::shutdown_write(far.from.as_raw_fd()) {
            Err(error) if error.raw_os_error() != Some(libc::ENOTCONN) => return Err(error),
            _ => {}
        }
        self.done = true;
        flow.finished(self.direction);
        did.moved = true;
        Ok(())
    }
}

/// Returns how many bytes a socket's TCP has taken for sending since it was connected.
fn queued(socket: &TcpStream) -> io::Result<u64> {
    // The acknowledged bytes are read first: an acknowledgement in between makes the sum too small, never too large.
    let acked = sys::tcp_info(socket.as_raw_fd())?.bytes_acked;
    Ok(acked + sys::unacknowledged(socket.as_raw_fd())?)
}
