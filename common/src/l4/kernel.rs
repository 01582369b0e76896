//! What the kernel provides to the body of the programs.

use super::abi::{Config, Flow, Fragment, Host, Key, PortBit, Service, Target};
use super::packet::Seen;
use crate::shield;

/// What the kernel provides: the maps of the programs, and the packet's circumstances. References into maps are not
/// exclusive: other CPUs write the same flow's fields, each whole.
#[allow(clippy::mut_from_ref, reason = "elements of maps; see above")]
pub trait Kernel: shield::Kernel {
    /// Ticks of 2^20 ns.
    fn now(&self) -> u32;
    /// What all services have in common.
    fn config(&self) -> Option<&Config>;
    /// A flow that both sides have confirmed.
    fn established(&self, key: &Key) -> Option<&mut Flow>;
    /// A flow that has begun.
    fn opening(&self, key: &Key) -> Option<&mut Flow>;
    /// Remembers a flow that has begun; with `fresh` only where the key is free.
    fn open(&self, key: &Key, flow: &Flow, fresh: bool) -> bool;
    /// Moves both directions of a flow, or its only one, among the established, as long as there is room for its kind.
    fn promote(&self, key: &Key, flow: &Flow, reverse: Option<(&Key, &Flow)>) -> bool;
    /// Removes an established flow's direction.
    fn end(&self, key: &Key);
    /// The service that listens on a target.
    fn service(&self, target: &Target) -> Option<&Service>;
    /// What a slot of a table holds.
    fn slot(&self, table: u32, slot: u32) -> Option<u16>;
    /// A host.
    fn host(&self, index: u32) -> Option<&Host>;
    /// The host's port for a service, where it is not the one listened on.
    fn port(&self, service: u16, host: u32) -> Option<u16>;
    /// An address that mode `nat` writes as the source.
    fn source(&self, index: u32) -> Option<[u32; 4]>;
    /// Whether a socket of this machine has a connection on which such packets arrive.
    fn is_local(&self, key: &Key) -> bool;
    /// The ports of a datagram whose first fragment has been seen.
    fn fragment(&self, fragment: &Fragment) -> Option<u32>;
    /// Remembers them.
    fn learn_fragment(&self, fragment: &Fragment, ports: u32);
    /// Counts a packet.
    fn tally(&self, service: u16, bytes: u32, direction: Direction);
    /// Whether anybody may want packets to a port: a service, or a host that answers a source port of ours.
    fn is_wanted(&self, port_protocol: PortBit) -> bool;
    /// The Ethernet addresses for packets back to where this one came from, as they stand in a header.
    fn way_back(&self) -> [u32; 3];
    /// Whether the frame is addressed to this machine. Switches flood, bridges and promiscuous interfaces overhear.
    fn is_for_us(&self) -> bool;
    /// The interface and VLAN that it came in by.
    fn arrival(&self) -> (u32, u16);
    /// Length of the largest IP packet in it: a packet of the network card's or ours, or several put together.
    fn largest(&self, seen: &Seen) -> u32;
}

/// What is counted of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From a client, of a known flow.
    In,
    /// From a client, the first of a flow.
    First,
    /// From a host.
    Out,
}
