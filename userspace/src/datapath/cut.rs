//! Tier `cut` on the path of a connection.
//!
//! Userspace claims an entry of the flow table, fills in who talks to whom, and connects leg B from a port of its own
//! choice. The programs see both handshakes and cut the flow on the host's SYN-ACK: from then on they forward every
//! packet. Userspace then sends on leg B what the kernel's sockets had received by then, and closes both sockets
//! without FIN or RST on the wire once the host has acknowledged it.

mod attempt;
mod handoff;
mod ports;
mod source_address;

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use signalbox_common::cut::flow::{Tuple, ineligible};

pub use attempt::{ConnectingLegB, CutAttempt};
use handoff::Handoff;
use ports::SourcePorts;
pub use ports::{kernel_ports, service_ports};
use source_address::SourceAddresses;

use crate::kernel::Cut;

/// State of tier `cut` in one worker.
pub struct Cutter {
    kernel: Arc<Cut>,
    ports: SourcePorts,
    sources: SourceAddresses,
    /// Entries of the flow table that this worker may claim: those given back, and from `next` to `end`.
    returned: RefCell<Vec<u32>>,
    next: Cell<u32>,
    end: u32,
    /// Flows whose sockets still have bytes to deliver on leg B.
    handoffs: RefCell<Vec<Handoff>>,
    polling: Cell<bool>,
    /// False until the flow GC has adopted the flows of an earlier process.
    may_claim: Cell<bool>,
}

/// Reason why a connection is not cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ineligible {
    Disabled,
    /// The kernel or missing rights rule out tier `cut`: `signalbox doctor` says why.
    NotAvailable,
    FamilyMismatch,
    TakingOver,
    TableFull,
    NoPort,
    NoSourceAddress,
    /// A program found the reason: one of [`ineligible`].
    FoundByProgram(u8),
    /// No program saw leg B's handshake unchanged: the packets used an interface without programs, or NAT rewrote them.
    NoHook,
    /// The source has a limit on its connections and is named by a PROXY header only.
    NamedSource,
}

impl Ineligible {
    /// Labels of the reasons in metrics and in `signalbox flows`.
    pub const LABELS: [&'static str; 16] = [
        "off",
        "not_available",
        "address_families_differ",
        "taking_over",
        "table_full",
        "no_source_port",
        "no_source_address",
        "host_handshake_not_seen",
        "source_named_by_proxy",
        "client_handshake_not_seen",
        "timestamps_differ",
        "sack_differs",
        "segment_size_differs",
        "handshake_not_understood",
        "window_scales_differ",
        "may_be_fragmented",
    ];

    /// Index of the reason in [`Self::LABELS`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Disabled => 0,
            Self::NotAvailable => 1,
            Self::FamilyMismatch => 2,
            Self::TakingOver => 3,
            Self::TableFull | Self::FoundByProgram(ineligible::TABLE_FULL) => 4,
            Self::NoPort | Self::FoundByProgram(ineligible::PORT_BUSY) => 5,
            Self::NoSourceAddress => 6,
            Self::NoHook => 7,
            Self::NamedSource => 8,
            Self::FoundByProgram(ineligible::NO_HANDSHAKE) => 9,
            Self::FoundByProgram(ineligible::TIMESTAMPS) => 10,
            Self::FoundByProgram(ineligible::SACK) => 11,
            Self::FoundByProgram(ineligible::MSS) => 12,
            Self::FoundByProgram(ineligible::WINDOW_SCALE) => 14,
            Self::FoundByProgram(ineligible::FRAGMENTS) => 15,
            Self::FoundByProgram(_) => 13,
        }
    }

    #[must_use]
    pub const fn label(self) -> &'static str {
        Self::LABELS[self.index()]
    }
}

/// Parameters of a flow that shall be cut: its addresses and what userspace has already done on leg A.
#[derive(Clone, Copy, Debug)]
pub struct CutRequest {
    pub client: SocketAddr,
    pub vip: SocketAddr,
    pub backend: SocketAddr,
    /// Bytes that go to the host in front of the client's.
    pub injected: u32,
    /// Bytes that userspace has taken off the client's stream.
    pub consumed: u32,
    /// True if the balancer has sent bytes to the client: [`Cutter::record_greeting`].
    pub greeted: bool,
    /// Timestamp clock of leg A: see [`sys::timestamp_clock`](super::sys::timestamp_clock).
    pub timestamp_clock: u32,
    /// The client's window scale, where it differs from ours: leg B's windows are then given in its units, exactly.
    pub window_scale: Option<u8>,
    /// Number of the host in the map `ID_NAMES`; `route` and `listener` likewise.
    pub host: u32,
    pub route: u32,
    pub listener: u16,
}

impl Cutter {
    /// Makes the cutter of worker `index` of `workers`.
    #[must_use]
    pub fn new(kernel: Arc<Cut>, index: usize, workers: usize) -> Rc<Self> {
        let share = entries_per_worker(kernel.table.len(), workers);
        let first = share * index as u32;
        Rc::new(Self {
            ports: SourcePorts::new(index, workers),
            sources: SourceAddresses::default(),
            returned: RefCell::default(),
            next: Cell::new(first),
            end: (first + share).min(kernel.table.len()),
            handoffs: RefCell::default(),
            polling: Cell::new(false),
            may_claim: Cell::new(false),
            kernel,
        })
    }

    /// Starts claiming entries, once the flow GC has adopted the flows of an earlier process. `taken`: (host, source
    /// port) pairs that those flows use.
    pub fn start(&self, taken: &[(SocketAddr, u16)]) {
        for (host, port) in taken {
            self.ports.reserve(*host, *port);
        }
        self.may_claim.set(true);
    }

    /// Takes back entries, and (host, source port) pairs, of flows that have ended.
    pub fn give_back(&self, entries: Vec<u32>, ports: &[(SocketAddr, u16)]) {
        self.returned.borrow_mut().extend(entries);
        for (host, port) in ports {
            self.ports.give_back(*host, *port);
        }
    }

    /// Records that the balancer has sent `bytes` bytes to a client, all of them acknowledged: the host's first byte
    /// then follows them in sequence. Called once, before any host is connected for the client.
    pub fn record_greeting(&self, client: SocketAddr, vip: SocketAddr, bytes: u32) -> Result<(), Ineligible> {
        let tuple = Tuple {
            source: addr_to_words(client.ip()),
            destination: addr_to_words(vip.ip()),
            ports: u32::from(client.port()) << 16 | u32::from(vip.port()),
        };
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
        None
    }
}

/// Number of flow table entries of each worker.
#[must_use]
pub fn entries_per_worker(entries: u32, workers: usize) -> u32 {
    entries.div_ceil(workers.max(1) as u32)
}

/// Converts an address to the words that the programs use (IPv4 mapped into IPv6).
#[must_use]
pub fn addr_to_words(addr: IpAddr) -> [u32; 4] {
    match addr {
        IpAddr::V4(v4) => Tuple::mapped(v4.into()),
        IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            [96, 64, 32, 0].map(|shift| (bits >> shift) as u32)
        }
    }
}

/// Converts the words that the programs use back to an address.
#[must_use]
pub fn addr_from_words(words: [u32; 4]) -> IpAddr {
    let bits = words.iter().fold(0u128, |bits, &word| bits << 32 | u128::from(word));
    IpAddr::V6(bits.into()).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back() {
        for text in ["192.0.2.7", "2001:db8::1:2", "::1"] {
            let addr: IpAddr = text.parse().unwrap();
            assert_eq!(addr_from_words(addr_to_words(addr)), addr);
        }
        assert_eq!(addr_to_words("1.2.3.4".parse().unwrap()), [0, 0, 0xffff, 0x0102_0304]);
    }
}
