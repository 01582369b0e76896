//! Tier `cut` on the path of a connection.
//!
//! Userspace claims an entry of the flow table, fills in who talks to whom, and connects leg B from a port of its own
//! choice. The programs see both handshakes and cut the flow on the host's SYN-ACK: from then on they forward every
//! packet. Userspace then sends on leg B what the kernel's sockets had received by then, and closes both sockets
//! without FIN or RST on the wire once the host has acknowledged it.

mod attempt;
mod drain;
mod ports;
mod source;

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use signalbox_common::cut::flow::{Tuple, why};

pub use attempt::{Attempt, Connecting};
use drain::Draining;
use ports::Ports;
pub use ports::{for_services, for_the_kernel};
use source::Sources;

use crate::kernel::Cut;

/// State of tier `cut` in one worker.
pub struct Cutter {
    kernel: Arc<Cut>,
    ports: Ports,
    sources: Sources,
    /// Entries of the flow table that this worker may claim: those given back, and from `next` to `end`.
    returned: RefCell<Vec<u32>>,
    next: Cell<u32>,
    end: u32,
    /// Flows whose sockets still have bytes to deliver on leg B.
    draining: RefCell<Vec<Draining>>,
    ticking: Cell<bool>,
    /// False until the keeper has adopted the flows of an earlier process.
    ready: Cell<bool>,
}

/// Reason why a connection is not cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    Off,
    /// The kernel or missing rights rule out tier `cut`: `signalbox doctor` says why.
    NotAvailable,
    Families,
    TakingOver,
    TableFull,
    NoPort,
    NoSource,
    /// A program found the reason: one of [`why`].
    Seen(u8),
    /// No program saw leg B's handshake unchanged: the packets used an interface without programs, or NAT rewrote them.
    NoHook,
    /// The source has a limit on its connections and is named by a PROXY header only.
    NamedSource,
}

impl Unfit {
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
            Self::Off => 0,
            Self::NotAvailable => 1,
            Self::Families => 2,
            Self::TakingOver => 3,
            Self::TableFull | Self::Seen(why::TABLE_FULL) => 4,
            Self::NoPort | Self::Seen(why::PORT_BUSY) => 5,
            Self::NoSource => 6,
            Self::NoHook => 7,
            Self::NamedSource => 8,
            Self::Seen(why::NO_HANDSHAKE) => 9,
            Self::Seen(why::STAMPS) => 10,
            Self::Seen(why::SACK) => 11,
            Self::Seen(why::SEGMENT) => 12,
            Self::Seen(why::WINDOW) => 14,
            Self::Seen(why::FRAGMENTS) => 15,
            Self::Seen(_) => 13,
        }
    }

    #[must_use]
    pub const fn label(self) -> &'static str {
        Self::LABELS[self.index()]
    }
}

/// Parameters of a flow that shall be cut: its addresses and what userspace has already done on leg A.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub client: SocketAddr,
    pub vip: SocketAddr,
    pub backend: SocketAddr,
    /// Bytes that go to the host in front of the client's.
    pub injected: u32,
    /// Bytes that userspace has taken off the client's stream.
    pub consumed: u32,
    /// True if the balancer has sent bytes to the client: [`Cutter::has_spoken`].
    pub greeted: bool,
    /// Timestamp clock of leg A: see [`sys::stamp_clock`](super::sys::stamp_clock).
    pub clock: u32,
    /// The client's window scale, where it differs from ours: leg B's windows are then told in its units, exactly.
    pub scale: Option<u8>,
    /// Number of the host in the map `NAMES`; `route` and `listener` likewise.
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
            ports: Ports::new(index, workers),
            sources: Sources::default(),
            returned: RefCell::default(),
            next: Cell::new(first),
            end: (first + share).min(kernel.table.len()),
            draining: RefCell::default(),
            ticking: Cell::new(false),
            ready: Cell::new(false),
            kernel,
        })
    }

    /// Starts claiming entries, once the keeper has adopted the flows of an earlier process. `taken`: (host, source
    /// port) pairs that those flows use.
    pub fn start(&self, taken: &[(SocketAddr, u16)]) {
        for (host, port) in taken {
            self.ports.mark(*host, *port);
        }
        self.ready.set(true);
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
    pub fn has_spoken(&self, client: SocketAddr, vip: SocketAddr, bytes: u32) -> Result<(), Unfit> {
        let tuple = Tuple {
            source: words(client.ip()),
            destination: words(vip.ip()),
            ports: u32::from(client.port()) << 16 | u32::from(vip.port()),
        };
        match self.kernel.advance_vip(&tuple, bytes) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Unfit::Seen(why::NO_HANDSHAKE)),
            Err(error) => {
                tracing::debug!(%error, "A handshake could not be changed.");
                Err(Unfit::NotAvailable)
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
pub fn words(addr: IpAddr) -> [u32; 4] {
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
pub fn from_words(words: [u32; 4]) -> IpAddr {
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
            assert_eq!(from_words(words(addr)), addr);
        }
        assert_eq!(words("1.2.3.4".parse().unwrap()), [0, 0, 0xffff, 0x0102_0304]);
    }
}
