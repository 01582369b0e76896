//! Tier `cut` on the path of a connection.
//!
//! Userspace claims an entry of the flow table, fills in the addresses of client and host, and connects leg B from a
//! port that it chooses. The programs see both handshakes and cut the flow on the host's SYN-ACK. From then on they
//! forward every packet. Userspace then sends the bytes that the kernel's sockets had received by then to the host, on
//! leg B. Once the host has acknowledged them, it closes both sockets without a FIN or RST on the wire.

mod attempt;
pub(crate) mod eligibility;
mod handoff;
mod late;
mod ports;
pub mod registry;
pub(crate) mod source_address;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use signalbox_common::cut::flow::{Handshake, ineligible};
use signalbox_common::net::Tuple;

pub use attempt::{ConnectingLegB, CutAttempt};
use handoff::Handoff;
pub use handoff::QueuedBytes;
pub use late::{CarriedFlow, HeldFlow, LateCutError};
use ports::SourcePorts;
pub use ports::{
    FLOATING_SERVICE_PORTS, PortPool, PortShare, kernel_ports, program_ports, service_ports, uncut_socket,
};
use source_address::SourceAddresses;

use crate::datapath::tracking::Tracking;
use crate::kernel::Cut;
use crate::kernel::address::arriving;
use crate::kernel::cut::free_entry::FreeEntrySearch;
use crate::state::outcome::Ineligible;

/// Age at which an entry that never became a flow is freed: its process has ended.
pub const UNFINISHED_TTL: Duration = Duration::from_secs(180);

/// Number of entries that one connection checks when its worker has none left: this takes some microseconds.
const MAX_ENTRIES_SEARCHED: u32 = 256;

/// State of tier `cut` in one worker.
pub struct Cutter {
    kernel: Arc<Cut>,
    tracking: Rc<Tracking>,
    ports: SourcePorts,
    sources: SourceAddresses,
    /// Entries of the flow table that this worker claims first: returned entries, and entries from `next` to `end`.
    returned: RefCell<Vec<u32>>,
    next: Cell<u32>,
    end: u32,
    /// Number of entries in this worker's share.
    share_len: u32,
    /// Search for entries of other workers: idle workers get the connections, so one may get most of them.
    others: RefCell<FreeEntrySearch>,
    /// Flows whose sockets still have bytes to deliver on leg B.
    handoffs: RefCell<Vec<Handoff>>,
    polling: Cell<bool>,
    /// False until the flow GC has adopted the flows of an earlier process.
    may_claim: Cell<bool>,
    /// True once another process counts the flows of the table.
    is_handed_over: Cell<bool>,
}

/// Parameters of a flow to cut: its addresses, and what userspace has already done on leg A.
#[derive(Clone, Copy, Debug)]
pub struct CutRequest {
    pub client: SocketAddr,
    pub vip: SocketAddr,
    pub backend: SocketAddr,
    /// Number of bytes that the host gets before the client's bytes.
    pub injected: u32,
    /// Bytes that userspace has taken off the client's stream.
    pub consumed: u32,
    /// True if the balancer has sent bytes to the client: [`Cutter::record_greeting`].
    pub greeted: bool,
    /// Timestamp clock of leg A: see [`sys::timestamp_clock`](crate::sys::timestamp_clock).
    pub timestamp_clock: u32,
    /// The client's window scale, if it differs from ours: leg B's windows are then announced in its units, exactly.
    pub window_scale: Option<u8>,
    /// Number of the host in the map `ID_NAMES`. `route` and `listener` are numbers of the same map.
    pub host: u32,
    pub route: u32,
    pub listener: u16,
    pub kind: CutKind,
    /// True if leg B may come from an address that moves between nodes. This node has the address now.
    pub may_float: bool,
}

/// Part of a connection that is to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutKind {
    /// The whole connection.
    Connection,
    /// The rest of a tunnel: the flow is held, carried by its sockets, and cut late, if at all.
    Tunnel,
    /// The rest of a long answer: like a tunnel, except that no further bytes of the client are forwarded.
    LongAnswer,
    /// The last request of a connection: no further bytes of the client are forwarded.
    LastRequest,
}

impl Cutter {
    /// Makes the cutter of a worker.
    #[must_use]
    pub fn new(kernel: Arc<Cut>, share: PortShare, tracking: Rc<Tracking>) -> Rc<Self> {
        let own = kernel.table.worker_len();
        let entries = entries_per_worker(own, share.workers);
        let first = entries * share.worker as u32;
        Rc::new(Self {
            ports: SourcePorts::new(share),
            sources: SourceAddresses::default(),
            returned: RefCell::default(),
            next: Cell::new(first),
            end: (first + entries).min(own),
            share_len: entries,
            others: RefCell::default(),
            handoffs: RefCell::default(),
            polling: Cell::new(false),
            may_claim: Cell::new(false),
            is_handed_over: Cell::new(false),
            kernel,
            tracking,
        })
    }

    /// Allows claiming entries, once the flow GC has adopted the flows of an earlier process. The source ports of those
    /// flows are reserved.
    pub fn start(&self, taken: &[(PortPool, u16)]) {
        self.reserve(taken);
        self.may_claim.set(true);
    }

    /// Reserves source ports for flows of another process or another node.
    pub fn reserve(&self, taken: &[(PortPool, u16)]) {
        for (pool, port) in taken {
            self.ports.reserve(*pool, *port);
        }
    }

    /// Hands the flow table over to a successor. The successor has counted the flows that are cut by now, but does not
    /// count flows cut later.
    pub fn hand_over(&self) {
        self.is_handed_over.set(true);
    }

    /// Notes which counts a flow that is cut now gives back, and returns whether there are any. If a successor keeps
    /// the flow, the flow gives back the successor's counts: the successor has noted them if it has found the flow.
    fn note_counts(&self, index: u32, marks: u8) -> bool {
        let keeps_table = !self.is_handed_over.get();
        if keeps_table {
            self.kernel.table.set_marks(index, marks);
        }
        keeps_table
    }

    /// Takes back entries and source ports of ended flows.
    pub fn give_back(&self, entries: Vec<u32>, ports: &[(PortPool, u16)]) {
        // An entry that another worker had taken may be in the list already, so the list is limited to the share.
        let mut returned = self.returned.borrow_mut();
        let room = (self.share_len as usize).saturating_sub(returned.len());
        returned.extend(entries.into_iter().take(room));
        drop(returned);
        for (pool, port) in ports {
            self.ports.give_back(*pool, *port);
        }
    }

    /// Records the handshake of a client whose socket is about to be made. Without it, the connection is not cut.
    pub fn record_handshake(&self, client: &Tuple, handshake: &Handshake) {
        if let Err(error) = self.kernel.record_handshake(client, handshake) {
            tracing::debug!(%error, "A handshake could not be recorded.");
        }
    }

    /// Records that the balancer has sent `bytes` bytes to a client and that all are acknowledged. The host's first
    /// byte follows them in sequence. Called once, before any host is connected for the client.
    pub fn record_greeting(&self, client: SocketAddr, vip: SocketAddr, bytes: u32) -> Result<(), Ineligible> {
        let tuple = arriving(client, vip);
        match self.kernel.add_greeting_bytes(&tuple, bytes) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Ineligible::FoundByProgram(ineligible::NO_HANDSHAKE)),
            Err(error) => {
                tracing::debug!(%error, "A handshake could not be changed.");
                Err(Ineligible::NotAvailable)
            }
        }
    }

    fn claim(&self) -> Option<u32> {
        while let Some(index) = self.returned.borrow_mut().pop() {
            if self.kernel.table.claim(index) {
                return Some(index);
            }
        }
        while self.next.get() < self.end {
            let index = self.next.get();
            self.next.set(index + 1);
            if self.kernel.table.claim(index) {
                return Some(index);
            }
        }
        let table = &self.kernel.table;
        self.others
            .borrow_mut()
            .claim(table, 0..table.worker_len(), MAX_ENTRIES_SEARCHED)
    }
}

/// Number of flow table entries of each worker.
#[must_use]
pub fn entries_per_worker(entries: u32, workers: usize) -> u32 {
    entries.div_ceil(workers.max(1) as u32)
}
