//! Layer-4 services: a packet in, a packet out, by consistent hashing; no socket, no connection to accept.
//!
//! A packet to a [`Target`] belongs to a service. A flow that is known keeps its host; a new one gets the host of its
//! slot in the service's table (Maglev, `signalbox_core::routing::maglev`), and is remembered. What happens then is the
//! service's [`mode`]: source and destination are translated, or the packet goes on as it is, to the host's Ethernet
//! address or in a tunnel, and the host answers the client itself.
//!
//! The code is generic over the packet's bytes ([`crate::net::Buffer`]) and over what the kernel provides ([`Maps`]):
//! an XDP program and a TC program run it on packets and maps, host tests on arrays and a model of the maps. Minimum
//! kernel: 5.12.
//!
//! [`Target`]: crate::net::Target

pub mod abi;
pub mod decide;
pub mod icmp;
pub mod maps;
mod nat_ports;
pub mod parse;
pub mod rewrite;
pub mod scratch;
pub mod track;
pub mod verdict;

#[cfg(any(test, feature = "model"))]
pub mod model;
#[cfg(test)]
mod tests;

pub use abi::{Fragment, Host, L4Config, L4Flow, Service, ServiceStats, mode};
pub use decide::{balance, forward};
pub use maps::Maps;
pub use parse::{FastPath, fast_path, parse_and_admit};
pub use scratch::PacketScratch;
