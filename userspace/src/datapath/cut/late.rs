//! Late cut: a flow whose legs are paired is carried by its sockets until userspace has seen enough of it. It is cut at
//! a moment when no bytes are under way on either socket.

use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use signalbox_common::cut::flow::state;
use signalbox_common::cut::late::{LateCut, SocketNumbers};
use tokio::net::TcpStream;

use super::Cutter;
use super::UNFINISHED_TTL;
use super::ports::PortPool;
use crate::kernel::cut::late::ClientWindow;
use crate::kernel::cut::table::{duration_between, tick, ticks_of};
use crate::state::access_log::FlowKey;
use crate::sys;

/// Time for which a flow is held. The flow GC frees an entry after [`UNFINISHED_TTL`]. From a while before that, a held
/// flow no longer touches its entry.
const HELD_TTL: Duration = UNFINISHED_TTL.saturating_sub(Duration::from_secs(30));

/// Flow that its sockets carry and that may be cut. If dropped without a cut, it gives its entry and source port back.
pub struct HeldFlow {
    pub(super) cutter: Rc<Cutter>,
    pub(super) index: u32,
    pub(super) pool: PortPool,
    pub(super) port: u16,
    /// Creation tick of the entry, and its time.
    pub(super) started: u32,
    pub(super) since: Instant,
    pub(super) is_cut: bool,
    /// The client's window, if it must be announced to the host.
    pub(super) window: Option<ClientWindow>,
}

/// Facts that only the carrier of a flow knows.
#[derive(Clone, Copy)]
pub struct CarriedFlow {
    /// Bytes of the client and of the host that were carried and counted.
    pub bytes: [u64; 2],
    /// Time without a packet after which the flow ends.
    pub idle: Duration,
    /// Marks that say which counts the flow holds.
    pub marks: u8,
    /// Whether the flow carries the rest of an answer. Then no further bytes of the client reach the host, which waits
    /// for a window.
    pub is_last_request: bool,
}

/// Reason why a held flow is not cut now.
#[derive(Debug)]
pub enum LateCutError {
    /// Bytes are under way: another moment may be better.
    Busy,
    /// The flow can never be cut.
    Failed(io::Error),
}

impl From<io::Error> for LateCutError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl Drop for HeldFlow {
    fn drop(&mut self) {
        if self.is_cut || !self.has_entry() {
            return;
        }
        self.cutter.kernel.table.set_state(self.index, state::FREE);
        self.cutter.give_back(vec![self.index], &[(self.pool, self.port)]);
    }
}

impl HeldFlow {
    /// Holds the flow of an attempt that the programs have paired.
    pub(super) fn new(cutter: Rc<Cutter>, index: u32, pool: PortPool, port: u16) -> Self {
        let started = cutter.kernel.table.read(index).started;
        let age = duration_between(started, tick());
        let now = Instant::now();
        Self {
            cutter,
            index,
            pool,
            port,
            started,
            since: now.checked_sub(age).unwrap_or(now),
            is_cut: false,
            window: None,
        }
    }

    /// Whether the flow has been held too long to be cut.
    #[must_use]
    pub fn is_overdue(&self) -> bool {
        self.since.elapsed() >= HELD_TTL
    }

    /// Whether the entry still belongs to the flow.
    fn has_entry(&self) -> bool {
        let flow = self.cutter.kernel.table.read(self.index);
        !self.is_overdue() && flow.state == state::HELD && flow.started == self.started
    }

    /// Cuts the flow if no bytes are under way on either socket. From then on both are silent, and [`Self::close`] must
    /// close them. `leave` is called before packets are forwarded, because the flow may end at once.
    pub fn try_cut(
        &mut self,
        (client, host): (&TcpStream, &TcpStream),
        carried: CarriedFlow,
        leave: impl FnOnce(FlowKey),
    ) -> Result<(), LateCutError> {
        if !self.has_entry() {
            return Err(LateCutError::Failed(io::ErrorKind::TimedOut.into()));
        }
        let fds = [client.as_raw_fd(), host.as_raw_fd()];
        if !are_quiet(fds)? {
            return Err(LateCutError::Busy);
        }
        // After the cut no acknowledgement of a socket reaches its peer, so pending ones are sent first.
        for fd in fds {
            sys::send_due_acknowledgement(fd)?;
        }
        let numbers = |fd| {
            let (next_sent, next_expected) = sys::sequence_numbers(fd)?;
            io::Result::Ok(SocketNumbers {
                next_sent,
                next_expected,
            })
        };
        let late = LateCut {
            sockets: [numbers(fds[0])?, numbers(fds[1])?],
            clocks: fds.map(sys::timestamp_clock),
            carried: carried.bytes,
            idle_limit: ticks_of(carried.idle),
            is_last_request: carried.is_last_request,
            now: tick(),
        };
        if carried.is_last_request {
            let has_timestamps = sys::tcp_info(fds[1])?.has_timestamps;
            self.window = sys::tcp_info(fds[0])?.send_window.map(|bytes| ClientWindow {
                numbers: late.sockets[1],
                bytes,
                clock: has_timestamps.then_some(late.clocks[1]),
            });
        }
        let kernel = &self.cutter.kernel;
        kernel.close_in(self.index, &late)?;
        // Bytes that arrived before the programs shut the sockets off are in them now. Later bytes are not
        // acknowledged, and are retransmitted.
        match are_quiet(fds) {
            Ok(true) => {}
            busy => {
                kernel.release_held(self.index);
                return Err(busy.map_or_else(LateCutError::Failed, |_| LateCutError::Busy));
            }
        }
        self.cutter.note_counts(self.index, carried.marks);
        leave((self.index, self.started));
        self.is_cut = true;
        kernel.start_late(self.index);
        Ok(())
    }

    /// Closes the sockets of a flow that [`Self::try_cut`] has cut, without a packet to their peers. An end that has
    /// reset its socket at the last moment does not send the reset again, so the other end is reset here.
    pub fn close(&self, client: TcpStream, host: TcpStream) {
        let kernel = &self.cutter.kernel;
        let is_reset = |socket: &TcpStream| sys::tcp_info(socket.as_raw_fd()).is_ok_and(|i| i.state == sys::TCP_CLOSE);
        if is_reset(&client) || is_reset(&host) {
            kernel.reset_both(self.index, &kernel.table.read(self.index));
        }
        for socket in [client, host] {
            sys::reset_on_close(socket.as_raw_fd());
            drop(socket);
        }
        kernel.table.set_sockets_closed(self.index);
        if let Some(window) = &self.window {
            kernel.open_window(self.index, window);
        }
    }

    /// Returns the flow's key in the table.
    #[must_use]
    pub fn key(&self) -> FlowKey {
        (self.index, self.started)
    }
}

fn are_quiet(fds: [RawFd; 2]) -> io::Result<bool> {
    Ok(sys::is_quiet(fds[0])? && sys::is_quiet(fds[1])?)
}
