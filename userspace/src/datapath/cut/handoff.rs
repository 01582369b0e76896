//! Hands a cut flow over from its sockets to the programs: delivers the sockets' bytes, then closes them silently.
//!
//! Every byte that leg A's socket has acknowledged was in its receive queue before the flow was cut, because the
//! programs hold back later acknowledgements. So reading that queue once after the cut finds all bytes to hand off.
//! Leg B's socket sends these bytes, in their place in the stream, and retransmits them until the host has acknowledged
//! them. Then both sockets are reset, and the programs drop these RSTs.

use std::io;
use std::os::fd::AsRawFd as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use signalbox_common::cut::flow::{EARLY_FIN, EARLY_FIN_UNKNOWN, OWNS_CONN, RESET, state};
use signalbox_common::net::seq;
use tokio::io::AsyncWriteExt as _;

use super::attempt::EntryOwner;
use super::{CutAttempt, Cutter};
use crate::datapath::conn_guard::{ConnGuard, SocketGuard};
use crate::datapath::scratch::{SCRATCH_BYTES, with_scratch};
use crate::datapath::socket::Socket;
use crate::state::ListenerState;
use crate::sys;

/// Interval of the check whether hosts have acknowledged the handed-off bytes.
const HANDOFF_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// Number of bytes that the send buffer of a new socket always accepts (`net.ipv4.tcp_wmem`).
const MAX_INLINE_BYTES: usize = 8192;

/// Time without an acknowledgement of the handed-off bytes after which a host counts as dead.
const ACKNOWLEDGEMENT_TIMEOUT: Duration = Duration::from_secs(120);

/// The sockets of a cut flow whose handed-off bytes the host has not acknowledged yet.
pub(super) struct Handoff {
    index: u32,
    handoff_end: u32,
    since: Instant,
    client: Socket,
    host: Socket,
    /// Counts the connection for the process while it has sockets.
    _guard: Option<SocketGuard>,
    /// True if leg A's queue was read until empty: only SO_LINGER 0 makes its close an RST then.
    is_queue_empty: bool,
    queued: QueuedBytes,
}

/// Treatment of the bytes in leg A's queue.
pub enum QueuedBytes {
    /// The bytes are sent to the host, after the bytes that go first.
    Forwarded,
    /// The bytes follow the client's last request. They are dropped, and counted at the listener.
    Dropped(Arc<ListenerState>),
}

impl QueuedBytes {
    fn count_dropped(&self, bytes: u64) {
        if let Self::Dropped(listener) = self {
            listener.bytes_behind_request.add(bytes);
        }
    }
}

impl CutAttempt {
    /// Sends `preamble` to the host, then the bytes that leg A's socket has received unless they are to be dropped.
    /// From now on the flow is cut, lives on its own, and holds the connection's counts. Fails if a leg is dead
    /// already: then both ends are reset, and the flow holds no counts.
    pub fn hand_off(
        mut self,
        client: Socket,
        host: Socket,
        preamble: &[u8],
        queued: QueuedBytes,
        guard: &mut ConnGuard,
    ) -> io::Result<()> {
        self.owner = EntryOwner::CutFlow;
        let greeted = self.greeted;
        let cutter = Rc::clone(&self.cutter);
        let (index, first) = (self.index, cutter.kernel.table.isn_b(self.index));
        drop(self);
        let has_counts = cutter.note_counts(index, guard.marks());
        // Until `record_greeting`, the programs did not know the sequence number of this client's FIN. Only reading
        // shows it for certain.
        let sent = if greeted {
            Ok(None)
        } else {
            cutter.send_inline(index, first, (&client, &host), preamble, &queued)
        };
        let sent = match sent {
            Ok(sent) => Some(sent),
            Err(error) => {
                let still_ours = !has_counts || cutter.kernel.table.take_marks(index) & OWNS_CONN != 0;
                cutter.abort(index, &client, &host);
                if still_ours {
                    return Err(error);
                }
                // The flow had ended already, and the flow GC has counted that.
                None
            }
        };
        let guard = guard.detach();
        match sent {
            Some(Some(handoff_end)) => cutter.watch_handoff(Handoff {
                index,
                handoff_end,
                since: Instant::now(),
                client,
                host,
                _guard: guard,
                is_queue_empty: matches!(queued, QueuedBytes::Dropped(_)),
                queued,
            }),
            Some(None) => {
                let preamble = preamble.to_vec();
                let sockets = (client, host);
                tokio::task::spawn_local(cutter.send_streaming(index, first, sockets, preamble, queued, guard));
            }
            None => {}
        }
        Ok(())
    }
}

impl Cutter {
    /// Sends all bytes to hand off at once, and leaves those of leg A unread there. `None` if that is not possible;
    /// then no bytes are sent.
    fn send_inline(
        &self,
        index: u32,
        first: u32,
        (client, host): (&Socket, &Socket),
        preamble: &[u8],
        queued: &QueuedBytes,
    ) -> io::Result<Option<u32>> {
        if preamble.len() > MAX_INLINE_BYTES || self.kernel.table.flags(index, 0) & (EARLY_FIN | EARLY_FIN_UNKNOWN) != 0
        {
            return Ok(None);
        }
        with_scratch(|scratch| {
            let (before, room) = scratch.split_at_mut(preamble.len());
            before.copy_from_slice(preamble);
            let n = match (sys::recv(client.as_raw_fd(), room, libc::MSG_PEEK), queued) {
                // An empty queue would be closed with a FIN, unless the socket is told to reset.
                (Err(error), QueuedBytes::Forwarded) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                (Err(error), QueuedBytes::Dropped(_)) if error.kind() == io::ErrorKind::WouldBlock => 0,
                (Err(error), _) => return Err(error),
                // The client's FIN must be handed off.
                (Ok(0), _) => return Ok(None),
                (Ok(n), QueuedBytes::Forwarded) => n,
                (Ok(_), QueuedBytes::Dropped(_)) => 0,
            };
            // Too many bytes may not fit the send buffer, and more may follow.
            let all = preamble.len() + n;
            if all > MAX_INLINE_BYTES {
                return Ok(None);
            }
            let handoff_end = first.wrapping_add(all as u32);
            self.kernel.table.set_handoff_end(index, handoff_end);
            match sys::send(host.as_raw_fd(), &scratch[..all]) {
                Ok(sent) if sent == all => Ok(Some(handoff_end)),
                // The program has seen the host's SYN-ACK, but the socket has not yet.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                Ok(_) => Err(io::ErrorKind::WriteZero.into()),
                Err(error) => Err(error),
            }
        })
    }

    /// Sends the bytes to hand off in pieces, as the host accepts them.
    async fn send_streaming(
        self: Rc<Self>,
        index: u32,
        first: u32,
        (client, mut host): (Socket, Socket),
        preamble: Vec<u8>,
        queued: QueuedBytes,
        guard: Option<SocketGuard>,
    ) {
        let mut total = preamble.len() as u32;
        let mut piece = preamble;
        let outcome = async {
            loop {
                let more = match queued {
                    QueuedBytes::Forwarded => sys::unread(client.as_raw_fd())?,
                    QueuedBytes::Dropped(_) => 0,
                };
                self.kernel
                    .table
                    .extend_handoff(index, first.wrapping_add(total).wrapping_add(more));
                host.registered()?.write_all(&piece).await?;
                piece.resize(SCRATCH_BYTES, 0);
                match sys::recv(client.as_raw_fd(), &mut piece, 0) {
                    Ok(0) => {
                        // The FIN may have passed the program on one CPU while the flow was cut on another. Then only
                        // this socket has seen it.
                        self.kernel.table.set_early_fin(index);
                        // The FIN takes a sequence number too. The table gets it before it is sent, so that the
                        // programs know that it belongs to the hand-off.
                        total = total.wrapping_add(1);
                        self.kernel.table.set_handoff_end(index, first.wrapping_add(total));
                        // `shutdown` would disconnect a socket that has not processed the host's SYN-ACK yet.
                        host.registered()?.writable().await?;
                        return sys::shutdown_write(host.as_raw_fd());
                    }
                    Ok(n) => match queued {
                        QueuedBytes::Forwarded => piece.truncate(n),
                        QueuedBytes::Dropped(_) => {
                            queued.count_dropped(n as u64);
                            piece.clear();
                        }
                    },
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.kernel.table.set_handoff_end(index, first.wrapping_add(total));
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                }
                total = total.wrapping_add(piece.len() as u32);
            }
        };
        match tokio::time::timeout(ACKNOWLEDGEMENT_TIMEOUT, outcome).await {
            Ok(Ok(())) => self.watch_handoff(Handoff {
                index,
                handoff_end: first.wrapping_add(total),
                since: Instant::now(),
                client,
                host,
                _guard: guard,
                is_queue_empty: true,
                queued,
            }),
            _ => self.abort(index, &client, &host),
        }
    }

    /// Ends a flow whose bytes cannot be handed off: both ends are reset.
    fn abort(&self, index: u32, client: &Socket, host: &Socket) {
        self.kernel.table.set_state(index, state::CLOSING);
        sys::reset_on_close(client.as_raw_fd());
        sys::reset_on_close(host.as_raw_fd());
    }

    fn watch_handoff(self: &Rc<Self>, handoff: Handoff) {
        self.handoffs.borrow_mut().push(handoff);
        if !self.polling.replace(true) {
            tokio::task::spawn_local(Rc::clone(self).poll_handoffs());
        }
    }

    /// Checks the flows being handed off, while there are any.
    async fn poll_handoffs(self: Rc<Self>) {
        loop {
            tokio::time::sleep(HANDOFF_CHECK_INTERVAL).await;
            let now = Instant::now();
            let mut handoffs = self.handoffs.borrow_mut();
            let mut at = 0;
            while at < handoffs.len() {
                if self.is_done(&handoffs[at], now) {
                    let Handoff { index, .. } = handoffs.swap_remove(at);
                    // The flow's sockets are closed: a SYN with the same ports now reaches the listening socket.
                    self.kernel.table.set_sockets_closed(index);
                } else {
                    at += 1;
                }
            }
            drop(handoffs);
            if self.handoffs.borrow().is_empty() {
                self.polling.set(false);
                return;
            }
        }
    }

    fn is_done(&self, handoff: &Handoff, now: Instant) -> bool {
        let table = &self.kernel.table;
        let index = handoff.index;
        // The host's acknowledgement may have arrived before the programs knew `handoff_end`.
        let acknowledged = table.is_handed_off(index) || seq::reaches(table.acked_by_host(index), handoff.handoff_end);
        let reset = (table.flags(index, 0) | table.flags(index, 1)) & RESET != 0;
        if acknowledged || reset {
            table.set_handed_off(index);
            sys::reset_on_close(handoff.host.as_raw_fd());
            if matches!(handoff.queued, QueuedBytes::Dropped(_)) {
                let unread = sys::unread(handoff.client.as_raw_fd()).unwrap_or_default();
                handoff.queued.count_dropped(u64::from(unread));
            }
            if handoff.is_queue_empty {
                sys::reset_on_close(handoff.client.as_raw_fd());
            }
            return true;
        }
        if now.duration_since(handoff.since) > ACKNOWLEDGEMENT_TIMEOUT || table.state(index) != state::CUT {
            self.abort(index, &handoff.client, &handoff.host);
            return true;
        }
        false
    }
}
