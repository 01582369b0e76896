//! An attempt to cut a flow: an entry of the flow table, a source port, and leg B's connection from it.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use signalbox_common::cut::PendingFlow;
use signalbox_common::cut::flow::{LAST_REQUEST, PAIRED, ineligible, state};
use signalbox_common::cut::pending::HOLD;
use signalbox_core::availability::ha::floating::FloatingSources;

use super::late::HeldFlow;
use super::ports::PortPool;
use super::{CutKind, CutRequest, Cutter};
use crate::datapath::socket::Socket;
use crate::kernel::address::to_words;
use crate::kernel::cut::table::tick;
use crate::state::outcome::Ineligible;
use crate::sys;

/// Maximum number of ports tried for one connection: a port may be in use by a new connection to another host, or by a
/// socket of another process.
const MAX_PORTS_TRIED: usize = 256;

/// Interval of the check whether a program that has started to cut a flow is done.
const PAIRING_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Time after which a flow counts as paired without a program reporting it: programs of an older version never do.
const PAIRING_TIMEOUT: Duration = Duration::from_secs(1);

/// Guard of an entry and a source port until the flow is cut. If dropped before that, it gives both back.
pub struct CutAttempt {
    pub(super) cutter: Rc<Cutter>,
    pub(super) index: u32,
    /// Leg B's source port, and the pool that it comes from.
    pool: PortPool,
    port: u16,
    /// True if the balancer has sent bytes to the client.
    pub(super) greeted: bool,
    pub(super) owner: EntryOwner,
}

/// Owner of an attempt's entry and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryOwner {
    /// The attempt: both are given back when it is dropped.
    Attempt,
    /// The next attempt, with another port: the entry stays allocated, but the port is given back.
    NextAttempt,
    /// The cut flow: it keeps both until the flow GC removes it.
    CutFlow,
    /// The held flow: [`HeldFlow`] has both.
    HeldFlow,
}

impl Drop for CutAttempt {
    fn drop(&mut self) {
        self.cutter.kernel.pending.give_back(self.port);
        match self.owner {
            EntryOwner::NextAttempt | EntryOwner::CutFlow | EntryOwner::HeldFlow => return,
            EntryOwner::Attempt => {}
        }
        if self.give_up() {
            self.cutter.give_back(vec![self.index], &[(self.pool, self.port)]);
        }
    }
}

/// Leg B while it is being connected.
pub struct ConnectingLegB {
    pub attempt: CutAttempt,
    pub host: Socket,
}

impl Cutter {
    /// Starts connecting leg B of a flow that is to be cut.
    ///
    /// Leg B uses an address that moves together with the client's virtual address, if there is one, so that another
    /// node can carry the flow.
    pub fn connect(
        self: &Rc<Self>,
        wanted: &CutRequest,
        floating: &FloatingSources,
    ) -> Result<io::Result<ConnectingLegB>, Ineligible> {
        if !self.may_claim.get() {
            return Err(Ineligible::TakingOver);
        }
        if wanted.client.is_ipv4() != wanted.backend.is_ipv4() {
            return Err(Ineligible::FamilyMismatch);
        }
        let sources = self
            .sources
            .for_host(floating, wanted.vip.ip(), wanted.backend.ip())
            .ok_or(Ineligible::NoSourceAddress)?;
        let index = self.claim().ok_or(Ineligible::TableFull)?;
        let moving = sources.floating.iter().filter(|_| wanted.may_float);
        for &source in moving.chain([&sources.ordinary]) {
            let is_floating = floating.moves(source);
            let pool = PortPool {
                source,
                is_floating,
                host: wanted.backend,
            };
            match self.connect_from(pool, index, wanted) {
                Some(Err(error)) if is_floating && error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => {}
                Some(done) => return Ok(done),
                None => {}
            }
        }
        self.kernel.table.set_state(index, state::FREE);
        self.returned.borrow_mut().push(index);
        Err(Ineligible::NoPort)
    }

    /// Starts connecting leg B from a port of a pool. `None` if no port of the pool can be used, or if the source
    /// address is not this machine's. The entry stays allocated then.
    fn connect_from(
        self: &Rc<Self>,
        pool: PortPool,
        index: u32,
        wanted: &CutRequest,
    ) -> Option<io::Result<ConnectingLegB>> {
        for _ in 0..MAX_PORTS_TRIED {
            let port = self.ports.take(pool)?;
            if !self.kernel.pending.take(port, index) {
                self.ports.give_back(pool, port);
                continue;
            }
            let attempt = CutAttempt {
                cutter: Rc::clone(self),
                index,
                pool,
                port,
                greeted: wanted.greeted,
                owner: EntryOwner::Attempt,
            };
            let local = SocketAddr::new(pool.source, port);
            self.kernel.table.request(index, &flow_entry(wanted, local));
            match sys::connect_from(local, wanted.backend, wanted.window_scale) {
                Ok(socket) if attempt.ineligible() == Some(Ineligible::FoundByProgram(ineligible::PORT_BUSY)) => {
                    drop(socket);
                    attempt.release_port();
                }
                Ok(socket) => {
                    self.tracking.loosen(local, wanted.backend);
                    return Some(Ok(ConnectingLegB {
                        attempt,
                        host: Socket::Plain(socket),
                    }));
                }
                Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => attempt.release_port(),
                Err(error) => {
                    if pool.is_floating && error.raw_os_error() == Some(libc::EADDRNOTAVAIL) {
                        attempt.release_port();
                    }
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

impl CutAttempt {
    /// Returns the flow's index in the table, and its creation tick.
    #[must_use]
    pub fn key(&self) -> (u32, u32) {
        (self.index, self.cutter.kernel.table.read(self.index).started)
    }

    /// Returns whether the programs have left the flow to its sockets.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.cutter.kernel.table.state(self.index) == state::HELD
    }

    /// Returns whether another node can carry the flow: its source address moves together with the virtual address.
    #[must_use]
    pub const fn can_move(&self) -> bool {
        self.pool.is_floating
    }

    /// Gives the entry up. Returns whether it is free. Otherwise the flow was cut just now: packets find it, so the
    /// flow GC must remove it.
    fn give_up(&self) -> bool {
        let table = &self.cutter.kernel.table;
        loop {
            match table.state(self.index) {
                state::CUT if table.change_state(self.index, state::CUT, state::CLOSING) => return false,
                // A program on another CPU is at work for a microsecond, and then sets the flow's next state.
                state::CUT | state::PAIRING => std::thread::yield_now(),
                other if table.change_state(self.index, other, state::FREE) => return true,
                _ => {}
            }
        }
    }

    /// Leaves entry and port to a held flow.
    #[must_use]
    pub fn hold(mut self) -> HeldFlow {
        self.owner = EntryOwner::HeldFlow;
        HeldFlow::new(Rc::clone(&self.cutter), self.index, self.pool, self.port)
    }

    /// Gives the port back and leaves the entry to the next attempt.
    fn release_port(mut self) {
        self.owner = EntryOwner::NextAttempt;
        self.cutter.ports.give_back(self.pool, self.port);
        self.cutter.kernel.table.set_state(self.index, state::ALLOCATED);
    }

    /// Returns why the flow was not cut, once leg B is connected. `None` if it was cut, or if that is not known yet.
    #[must_use]
    pub fn ineligible(&self) -> Option<Ineligible> {
        let table = &self.cutter.kernel.table;
        match table.state(self.index) {
            state::INELIGIBLE => Some(Ineligible::FoundByProgram(table.ineligible(self.index))),
            _ => None,
        }
    }

    /// Returns whether the flow is cut and may be handed off, or is held.
    #[must_use]
    pub fn is_paired(&self) -> bool {
        let table = &self.cutter.kernel.table;
        match table.state(self.index) {
            state::CUT => table.flags(self.index, 0) & PAIRED != 0,
            state::CLOSING | state::HELD => true,
            _ => false,
        }
    }

    /// Returns whether the flow is cut or held, once leg B is connected, or why not. If the program has only started to
    /// cut it, this waits: the CPU that runs the program may itself wait for its hypervisor.
    pub async fn outcome(&self) -> Result<(), Ineligible> {
        let table = &self.cutter.kernel.table;
        let began = Instant::now();
        loop {
            match table.state(self.index) {
                state::CLOSING | state::HELD => return Ok(()),
                state::CUT if self.is_paired() || began.elapsed() > PAIRING_TIMEOUT => return Ok(()),
                state::PAIRING | state::CUT => tokio::time::sleep(PAIRING_CHECK_INTERVAL).await,
                state::INELIGIBLE => return Err(Ineligible::FoundByProgram(table.ineligible(self.index))),
                _ => return Err(Ineligible::NoHook),
            }
        }
    }
}

fn flow_entry(wanted: &CutRequest, local: SocketAddr) -> PendingFlow {
    let ports = |from: u16, to: u16| u32::from(from) << 16 | u32::from(to);
    let mut flow = PendingFlow {
        ports_a: ports(wanted.client.port(), wanted.vip.port()),
        ports_b: ports(wanted.backend.port(), local.port()),
        injected: wanted.injected,
        consumed: wanted.consumed,
        ts_clock_a: wanted.timestamp_clock,
        agreed: match wanted.kind {
            CutKind::Tunnel | CutKind::LongAnswer => HOLD,
            CutKind::Connection | CutKind::LastRequest => 0,
        },
        host: wanted.host,
        route: wanted.route,
        listener: wanted.listener,
        started: tick(),
        client: to_words(wanted.client.ip()),
        vip: to_words(wanted.vip.ip()),
        local: to_words(local.ip()),
        host_addr: to_words(wanted.backend.ip()),
        ..PendingFlow::default()
    };
    if wanted.kind == CutKind::LastRequest {
        flow.dirs[0].flags = LAST_REQUEST;
    }
    flow
}
