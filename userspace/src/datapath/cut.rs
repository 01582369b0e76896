//! Tier `cut` on the path of a connection.
//!
//! Userspace claims an entry of the flow table, fills in who talks to whom, and connects leg B from a port of its own
//! choice. The programs see both handshakes and cut the flow on the host's SYN-ACK: from then on they forward every
//! packet. What is left to do here is what the kernel's sockets had received by then: it is sent on leg B, and once the
//! host has acknowledged it, both sockets are closed without a word.

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

/// A worker's part of tier `cut`.
pub struct Cutter {
    kernel: Arc<Cut>,
    ports: Ports,
    sources: Sources,
    /// Entries of the flow table that are this worker's to claim: those given back, and from `next` to `end`.
    returned: RefCell<Vec<u32>>,
    next: Cell<u32>,
    end: u32,
    /// Flows whose sockets still have a duty.
    draining: RefCell<Vec<Draining>>,
    ticking: Cell<bool>,
    /// False until the keeper has seen to what an earlier process has left.
    ready: Cell<bool>,
}

/// Why a connection is not even tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    Off,
    /// The kernel, or our rights, do not allow it: `signalbox doctor` says why.
    NotAvailable,
    Families,
    TakingOver,
    TableFull,
    NoPort,
    NoSource,
    /// The programs saw why: one of [`why`].
    Seen(u8),
    /// No program saw leg B's handshake as it is: it went by an interface without programs, or NAT rewrote it.
    NoHook,
    /// A limit on connections of a source that only a PROXY header names.
    NamedSource,
}

impl Unfit {
    /// For metrics, and for `signalbox flows`.
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

    /// Which of the labels.
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

/// Who a flow is to connect.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub client: SocketAddr,
    pub vip: SocketAddr,
    pub backend: SocketAddr,
    /// Bytes that go to the host in front of the client's.
    pub injected: u32,
    /// Bytes of the client's that have been taken off its stream.
    pub consumed: u32,
    /// The balancer has spoken to the client: [`Cutter::has_spoken`].
    pub greeted: bool,
    /// Of leg A: see [`sys::stamp_clock`](super::sys::stamp_clock).
    pub clock: u32,
    /// The client's window scale, where it is not ours: leg B's windows are then told in its units, exactly.
    pub scale: Option<u8>,
    /// Numbers of names.
    pub host: u32,
    pub route: u32,
    pub listener: u16,
}

impl Cutter {
    /// Worker `index` of `workers`.
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

    /// The table is ours alone now; these (host, port) have flows of an earlier process.
    pub fn start(&self, taken: &[(SocketAddr, u16)]) {
        for (host, port) in taken {
            self.ports.mark(*host, *port);
        }
        self.ready.set(true);
    }

    /// Entries and ports of flows that are gone.
    pub fn give_back(&self, entries: Vec<u32>, ports: &[(SocketAddr, u16)]) {
        self.returned.borrow_mut().extend(entries);
        for (host, port) in ports {
            self.ports.give_back(*host, *port);
        }
    }

    /// The balancer has sent a client so many bytes, all of which have been acknowledged. Said once, before any host is
    /// connected for it: the host's first byte comes to stand behind them.
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

/// How many entries each worker has.
#[must_use]
pub fn entries_per_worker(entries: u32, workers: usize) -> u32 {
    entries.div_ceil(workers.max(1) as u32)
}

/// An address as the programs write it.
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

/// The address that the programs have written.
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
