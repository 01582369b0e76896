//! Interface of the programs' common code to maps and packet context.

use super::abi::{Config, Flow, Fragment, Host, Key, PortBit, Service, Target};
use super::packet::Seen;
use crate::shield;

/// Access to the programs' maps and to the packet's context. References into maps are not exclusive: other CPUs write
/// the same flow's fields, each whole.
#[allow(clippy::mut_from_ref, reason = "elements of maps; see above")]
pub trait Kernel: shield::Kernel {
    /// Current time, in ticks of 2^20 ns.
    fn now(&self) -> u32;
    /// Settings common to all services.
    fn config(&self) -> Option<&Config>;
    /// Looks up a flow that both sides have confirmed.
    fn established(&self, key: &Key) -> Option<&mut Flow>;
    /// Looks up a flow that has begun.
    fn opening(&self, key: &Key) -> Option<&mut Flow>;
    /// Remembers a flow that has begun; with `fresh` only where the key is free.
    fn open(&self, key: &Key, flow: &Flow, fresh: bool) -> bool;
    /// Moves both directions of a flow, or its only one, among the established, as long as there is room for its kind.
    fn promote(&self, key: &Key, flow: &Flow, reverse: Option<(&Key, &Flow)>) -> bool;
    /// Removes one direction of an established flow.
    fn end(&self, key: &Key);
    /// The service that listens on a target.
    fn service(&self, target: &Target) -> Option<&Service>;
    /// Number of the host in a slot of a table.
    fn slot(&self, table: u32, slot: u32) -> Option<u16>;
    /// The host at an index of `L4_HOSTS`.
    fn host(&self, index: u32) -> Option<&Host>;
    /// Port of a host for a service, where it differs from the one listened on.
    fn port(&self, service: u16, host: u32) -> Option<u16>;
    /// Source address of mode `nat` at an index of `L4_SOURCES`.
    fn source(&self, index: u32) -> Option<[u32; 4]>;
    /// Whether a socket of this machine has a connection on which packets with this key arrive.
    fn is_local(&self, key: &Key) -> bool;
    /// Ports of a datagram whose first fragment has been seen.
    fn fragment(&self, fragment: &Fragment) -> Option<u32>;
    /// Remembers the ports of a datagram, from its first fragment.
    fn learn_fragment(&self, fragment: &Fragment, ports: u32);
    /// Counts a packet of a service.
    fn tally(&self, service: u16, bytes: u32, direction: Direction);
    /// Whether anybody may want packets to a port: a service, or a host that answers a source port of ours.
    fn is_wanted(&self, port_protocol: PortBit) -> bool;
    /// The Ethernet addresses for packets back to where this one came from, as they stand in a header.
    fn way_back(&self) -> [u32; 3];
    /// Whether the frame is addressed to this machine. Switches flood, bridges and promiscuous interfaces overhear.
    fn is_for_us(&self) -> bool;
    /// Interface and VLAN by which the packet came in.
    fn arrival(&self) -> (u32, u16);
    /// Length of the largest IP packet in the frame, which several may have been merged into (GRO, GSO).
    fn largest(&self, seen: &Seen) -> u32;
}

/// Direction in which a packet is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From a client, of a known flow.
    In,
    /// From a client, the first of a flow.
    First,
    /// From a host.
    Out,
}
