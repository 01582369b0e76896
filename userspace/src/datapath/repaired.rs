//! Connections that the kernel peek passes up without a socket: a worker makes it in repair mode, and serves the
//! connection as one that it has accepted.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use signalbox_common::cut::flow::{Handshake, OFFERED_SACK, OFFERED_TIMESTAMPS};
use signalbox_common::net::Tuple;
use signalbox_common::peek::abi::PassedUp;
use tokio::sync::mpsc;

use super::accept::admit;
use super::socket::Socket;
use super::worker::{WorkerCommand, WorkerHandle};
use super::worker_state::Worker;
use crate::kernel::address::from_words;
use crate::kernel::peek::{PassedUpConnection, PassedUpRing};
use crate::state::Shared;
use crate::sys::{self, RepairedConnection};

/// Connections that wait for a worker; the clients of further ones repeat their data.
const MAX_WAITING: usize = 1024;

/// Connections made in a row before other tasks of the worker get their turn.
const MAX_IN_A_ROW: usize = 4;

/// Gives the connections of the ring to workers, in turns.
pub fn follow(ring: PassedUpRing, workers: &[WorkerHandle], shared: Arc<Shared>) {
    let mut queues = Vec::with_capacity(workers.len());
    for worker in workers {
        let (queue, waiting) = mpsc::channel(MAX_WAITING);
        worker.send(WorkerCommand::Repair(waiting, ring.hold()));
        queues.push(queue);
    }
    tokio::spawn(async move {
        let mut ring = sys::async_readable(ring)?;
        loop {
            let mut ready = ring.readable_mut().await?;
            while let Some(connection) = ready.get_inner_mut().next() {
                // Those of one client's port go to one worker, which knows what it has made.
                let queue = (connection.about.client.ports >> 16) as usize % queues.len().max(1);
                if queues
                    .get(queue)
                    .is_none_or(|queue| queue.try_send(connection).is_err())
                {
                    shared.totals.not_repaired.inc("busy");
                }
            }
            ready.clear_ready();
        }
        #[expect(unreachable_code, reason = "gives the block its error type")]
        Ok::<(), io::Error>(())
    });
}

/// Time for which a connection is remembered whose socket was made. Its first data may be in the queue again, because
/// the client repeated it or a link duplicated it, and the socket may be gone: the flow is cut.
const MADE_TTL: Duration = Duration::from_secs(1);

/// Connections whose sockets were made a moment ago: the sequence number of the client's first byte, and the time.
#[derive(Default)]
struct Made {
    numbers: HashMap<Tuple, u32>,
    times: VecDeque<(Instant, Tuple)>,
}

impl Made {
    fn has(&mut self, about: &PassedUp, now: Instant) -> bool {
        while let Some((made, client)) = self.times.front()
            && now.saturating_duration_since(*made) > MADE_TTL
        {
            self.numbers.remove(client);
            self.times.pop_front();
        }
        self.numbers.get(&about.client) == Some(&about.handshake.isn_client)
    }

    fn insert(&mut self, about: &PassedUp, now: Instant) {
        self.numbers.insert(about.client, about.handshake.isn_client);
        self.times.push_back((now, about.client));
    }
}

/// Serves a worker's share of the connections.
pub async fn run(worker: Rc<Worker>, mut waiting: mpsc::Receiver<PassedUpConnection>, hold: Arc<OwnedFd>) {
    let (mut in_a_row, mut made) = (0, Made::default());
    while let Some(connection) = waiting.recv().await {
        let now = Instant::now();
        if !made.has(&connection.about, now) && serve(&worker, &connection, hold.as_fd()) {
            made.insert(&connection.about, now);
        }
        in_a_row += 1;
        if in_a_row == MAX_IN_A_ROW {
            in_a_row = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// Serves a connection if there is room. Otherwise its client repeats its data. Returns whether it has a socket.
fn serve(worker: &Rc<Worker>, connection: &PassedUpConnection, hold: BorrowedFd<'_>) -> bool {
    let Some(place) = worker.place() else {
        worker.shared.totals.not_repaired.inc("max_connections");
        return false;
    };
    match repair(worker, connection, hold) {
        Ok((client, peer, local)) => admit(worker, place, client, peer, Some(local)),
        Err(error) => {
            count_failure(worker, &error);
            return false;
        }
    }
    true
}

/// Makes the socket of a connection. Its client repeats its data if that fails.
fn repair(
    worker: &Worker,
    connection: &PassedUpConnection,
    hold: BorrowedFd<'_>,
) -> io::Result<(Socket, SocketAddr, SocketAddr)> {
    let about = &connection.about;
    let ports = about.client.ports;
    let peer = SocketAddr::new(from_words(about.client.source), (ports >> 16) as u16);
    let local = SocketAddr::new(from_words(about.client.destination), ports as u16);
    let handshake = &about.handshake;
    let has = |option| handshake.agreed & option != 0;
    // The socket's clock may be ahead of the program's by the bit that the kernel uses otherwise.
    let clock = handshake.ts_clock.wrapping_add(1);
    if let Some((cutter, _)) = &worker.cut {
        let handshake = Handshake {
            ts_clock: clock,
            ..*handshake
        };
        cutter.record_handshake(&about.client, &handshake);
    }
    let connection = RepairedConnection {
        local,
        peer,
        first_sent: handshake.isn_vip,
        first_received: handshake.isn_client,
        bytes: &connection.bytes,
        mss: handshake.mss_client,
        scales: (handshake.scale_client, handshake.scale_vip),
        has_sack: has(OFFERED_SACK),
        timestamp: has(OFFERED_TIMESTAMPS)
            .then(|| handshake.ts_clock.wrapping_add(sys::monotonic().as_millis() as u32)),
        windows: (about.window << handshake.scale_client, about.room),
    };
    let stream = sys::connect_repaired(&connection, hold)?;
    worker.shared.totals.repaired.inc();
    Ok((Socket::Plain(stream), peer, local))
}

fn count_failure(worker: &Worker, error: &io::Error) {
    // The client has repeated its data before the socket was there.
    if error.kind() == io::ErrorKind::AddrNotAvailable {
        return;
    }
    let why = if sys::is_out_of_resources(error) {
        "resources"
    } else {
        "refused"
    };
    worker.shared.totals.not_repaired.inc(why);
    tracing::debug!(%error, "The kernel made no socket of a connection that was passed up.");
}
