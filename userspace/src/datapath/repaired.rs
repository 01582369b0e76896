//! Connections that the kernel peek passes up without a socket: a worker makes it in repair mode, and serves the
//! connection as one that it has accepted.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
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

/// Gives the connections of the ring to workers.
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
                let queue = queue_of(&connection.about.client, queues.len());
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

/// Worker that gets a connection: always the same one, which knows what it has made. Linux connects from ports of one
/// parity, so all bits of the client's address and port count.
fn queue_of(client: &Tuple, queues: usize) -> usize {
    const ODD: u32 = 0x9e37_79b1;
    let ends = client.source.into_iter().chain([client.ports >> 16]);
    let hash = ends.fold(0u32, |hash, word| (hash ^ word).wrapping_mul(ODD).rotate_left(15));
    hash as usize % queues.max(1)
}

/// Time for which a connection is remembered whose socket was made. Its first data may be in the queue again, because
/// the client repeated it or a link duplicated it, and the socket may be gone: the flow is cut.
const MADE_TTL: Duration = Duration::from_secs(1);

/// Connections whose sockets were made a moment ago: the sequence number of the client's first byte, and the time.
#[derive(Default)]
struct Made {
    numbers: HashMap<Tuple, u32>,
    times: VecDeque<(Instant, Tuple, u32)>,
}

impl Made {
    fn has(&mut self, about: &PassedUp, now: Instant) -> bool {
        while let Some((made, client, number)) = self.times.front()
            && now.saturating_duration_since(*made) > MADE_TTL
        {
            // The client's port may have begun another connection since.
            if self.numbers.get(client) == Some(number) {
                self.numbers.remove(client);
            }
            self.times.pop_front();
        }
        self.numbers.get(&about.client) == Some(&about.handshake.isn_client)
    }

    fn insert(&mut self, about: &PassedUp, now: Instant) {
        self.numbers.insert(about.client, about.handshake.isn_client);
        self.times.push_back((now, about.client, about.handshake.isn_client));
    }
}

/// Serves a worker's share of the connections.
pub async fn run(worker: Rc<Worker>, mut waiting: mpsc::Receiver<PassedUpConnection>, hold: Arc<OwnedFd>) {
    let mut maker = SocketMaker {
        worker,
        hold,
        made: Made::default(),
    };
    let mut in_a_row = 0;
    while let Some(connection) = waiting.recv().await {
        maker.serve(&connection);
        in_a_row += 1;
        if in_a_row == MAX_IN_A_ROW {
            in_a_row = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// Makes the sockets of a worker's connections.
struct SocketMaker {
    worker: Rc<Worker>,
    /// Filter of sockets that are not whole.
    hold: Arc<OwnedFd>,
    made: Made,
}

impl SocketMaker {
    /// Serves a connection if it is new and there is room. Otherwise its client repeats its data.
    fn serve(&mut self, connection: &PassedUpConnection) {
        let now = Instant::now();
        let totals = &self.worker.shared.totals;
        if self.made.has(&connection.about, now) {
            return;
        }
        let Some(place) = self.worker.place() else {
            totals.not_repaired.inc("max_connections");
            return;
        };
        match self.repair(connection) {
            Ok((client, peer, local)) => {
                self.worker.shared.totals.repaired.inc();
                self.made.insert(&connection.about, now);
                admit(&self.worker, place, client, peer, Some(local));
            }
            Err(error) => count_failure(&self.worker, &error),
        }
    }

    /// Makes the socket of a connection.
    fn repair(&self, connection: &PassedUpConnection) -> io::Result<(Socket, SocketAddr, SocketAddr)> {
        let about = &connection.about;
        let ports = about.client.ports;
        let peer = SocketAddr::new(from_words(about.client.source), (ports >> 16) as u16);
        let local = SocketAddr::new(from_words(about.client.destination), ports as u16);
        let handshake = &about.handshake;
        let has = |option| handshake.agreed & option != 0;
        if let Some((cutter, _)) = &self.worker.cut {
            let handshake = Handshake {
                // The socket's clock may be ahead of the program's by the bit that the kernel uses otherwise.
                ts_clock: handshake.ts_clock.wrapping_add(1),
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
        let track = || self.worker.tracking.establish(peer, local);
        let stream = sys::connect_repaired(&connection, self.hold.as_fd(), track)?;
        Ok((Socket::Plain(stream), peer, local))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_gets_connections_from_ports_of_one_parity() {
        let mut counts = [0; 4];
        for port in (32_768..60_998u32).step_by(2) {
            let client = Tuple {
                source: [0, 0, 0xffff, 0x0a01_0002],
                ports: port << 16 | 443,
                ..Tuple::default()
            };
            counts[queue_of(&client, 4)] += 1;
        }
        assert!(counts.iter().all(|count| (3000..4100).contains(count)), "{counts:?}");
    }

    #[test]
    fn passed_up_first_data_is_remembered_by_connection_for_a_while() {
        let about = |isn_client: u32| PassedUp {
            client: Tuple::default(),
            handshake: Handshake {
                isn_client,
                ..Handshake::default()
            },
            window: 0,
            room: 0,
        };
        let (begun, mut made) = (Instant::now(), Made::default());
        made.insert(&about(1), begun);
        assert!(made.has(&about(1), begun) && !made.has(&about(2), begun));
        made.insert(&about(2), begun + MADE_TTL / 2);
        let later = begun + MADE_TTL + Duration::from_millis(1);
        assert!(made.has(&about(2), later) && !made.has(&about(1), later));
        assert!(!made.has(&about(2), later + MADE_TTL));
    }
}
