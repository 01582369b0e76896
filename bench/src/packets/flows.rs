//! Flows of the client: each is known to both sides before it is measured, then it only sends.

use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, sendmmsg};
use nix::time::{ClockId, clock_gettime};
use signalbox_lab::Worker;

use super::{PORT, PORTS, SOCKETS};
use crate::interrupt;
use crate::lab::{CLIENTS, Lab};

/// Payload of a packet: as little as fills the shortest Ethernet frame.
pub(super) const PAYLOAD: [u8; 18] = [0x55; 18];
/// Time for every flow to be answered, in which a balancer starts.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Requests that each flow must have answered: the host has been heard, and the client again.
const REQUESTS_PER_FLOW: usize = 3;

/// Sockets of the client, and the targets that each of them sends to.
pub(super) struct Flows {
    sockets: Vec<UdpSocket>,
    targets: Vec<SocketAddrV4>,
}

impl Flows {
    /// Opens the sockets. Every turn has its own ports: nothing is left of the turn before.
    pub(super) fn open(lab: &Lab, targets: &[Ipv4Addr], turn: u16) -> Result<Self> {
        let first = 20_000 + turn % 1000 * SOCKETS;
        let bind = || -> Result<Vec<UdpSocket>> {
            let bind = |port| UdpSocket::bind((CLIENTS[0], port)).context("a socket of the client's");
            (first..first + SOCKETS).map(bind).collect()
        };
        let to = (PORT..PORT + PORTS).zip(targets.iter().cycle());
        Ok(Self {
            sockets: lab.client.run(bind)?,
            targets: to.map(|(port, address)| SocketAddrV4::new(*address, port)).collect(),
        })
    }

    /// Sends requests on every flow until it has been answered [`REQUESTS_PER_FLOW`] times; both hosts must have
    /// answered.
    pub(super) fn greet(&self, mut death: impl FnMut() -> Option<String>) -> Result<()> {
        let limit = Instant::now() + ANSWER_TIMEOUT;
        let mut by_host = [0; 2];
        for socket in &self.sockets {
            socket.set_read_timeout(Some(Duration::from_millis(100)))?;
            for _ in 0..REQUESTS_PER_FLOW {
                let mut waiting: Vec<_> = self.targets.clone();
                while !waiting.is_empty() {
                    interrupt::check()?;
                    if let Some(words) = death() {
                        bail!("it ended: {words}");
                    }
                    ensure!(Instant::now() < limit, "{} flows are not answered", waiting.len());
                    ask(socket, &mut waiting, &mut by_host);
                }
            }
        }
        ensure!(!by_host.contains(&0), "a host has sent no answer: {by_host:?}");
        Ok(())
    }

    /// Starts sending on all flows as fast as possible.
    pub(super) fn load(self) -> Load {
        let state = Arc::<FlowsState>::default();
        let its = Arc::clone(&state);
        Load {
            state,
            worker: Worker::start(move |stop| self.send(&its, stop)),
        }
    }

    fn send(&self, state: &FlowsState, stop: &AtomicBool) -> Result<()> {
        let to: Vec<_> = self.targets.iter().map(|to| Some(SockaddrIn::from(*to))).collect();
        let payloads = vec![[IoSlice::new(&PAYLOAD)]; to.len()];
        let mut headers = MultiHeaders::preallocate(to.len(), None);
        while !stop.load(Ordering::Relaxed) {
            let busy = Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?);
            state.busy.store(busy.as_nanos() as u64, Ordering::Relaxed);
            for socket in &self.sockets {
                match sendmmsg(socket.as_raw_fd(), &mut headers, &payloads, &to, [], MsgFlags::empty()) {
                    Ok(each) => state.sent.fetch_add(each.count() as u64, Ordering::Relaxed),
                    // A queue is full: packets lost there were not sent.
                    Err(Errno::ENOBUFS | Errno::EAGAIN) => 0,
                    Err(error) => return Err(error).context("sendmmsg"),
                };
            }
        }
        Ok(())
    }
}

/// Sends a request to each of `waiting`, and removes those that have answered. A balancer that is still starting
/// refuses, or says nothing.
fn ask(socket: &UdpSocket, waiting: &mut Vec<SocketAddrV4>, by_host: &mut [u32; 2]) {
    for to in &*waiting {
        let _ = socket.send_to(&PAYLOAD, to);
    }
    let mut answer = [0];
    for _ in 0..waiting.len() {
        let Ok((_, from)) = socket.recv_from(&mut answer) else {
            return;
        };
        waiting.retain(|to| from != (*to).into());
        if let Some(count) = by_host.get_mut(usize::from(answer[0])) {
            *count += 1;
        }
    }
}

/// State shared by a sender and its observer.
#[derive(Default)]
struct FlowsState {
    /// Packets sent so far.
    sent: AtomicU64,
    /// CPU time of the thread, in ns.
    busy: AtomicU64,
}

/// A sender at work.
pub(super) struct Load {
    state: Arc<FlowsState>,
    worker: Worker<Result<()>>,
}

impl Load {
    /// Packets sent so far.
    pub(super) fn sent(&self) -> u64 {
        self.state.sent.load(Ordering::Relaxed)
    }

    /// CPU time of the sender so far.
    pub(super) fn busy(&self) -> Duration {
        Duration::from_nanos(self.state.busy.load(Ordering::Relaxed))
    }

    /// Ends the sender; fails if it could not send.
    pub(super) fn end(self) -> Result<()> {
        self.worker.end()
    }
}
