//! Interface of the programs' common code to maps and packet context.

use super::abi::{Fragment, Host, L4Config, L4Flow, Service};
use crate::net::target::PortBit;
use crate::net::{Key, ParsedHeaders, Target};
use crate::shield;

/// Access to the programs' maps and to the packet's context. References into maps are not exclusive: other CPUs write
/// the same flow's fields, each whole.
#[allow(clippy::mut_from_ref, reason = "elements of maps; see above")]
pub trait Maps: shield::ShieldMaps {
    /// Current time, in ticks of 2^20 ns.
    fn now(&self) -> u32;
    /// Settings common to all services.
    fn config(&self) -> Option<&L4Config>;
    /// Looks up a flow that both sides have confirmed.
    fn established(&self, key: &Key) -> Option<&mut L4Flow>;
    /// Looks up a flow that has begun.
    fn half_open(&self, key: &Key) -> Option<&mut L4Flow>;
    /// Remembers a flow that has begun; with `fresh` only where the key is free.
    fn insert_half_open(&self, key: &Key, flow: &L4Flow, fresh: bool) -> bool;
    /// Moves both directions of a flow, or its only one, among the established, as long as there is room for its kind.
    fn promote(&self, key: &Key, flow: &L4Flow, reverse: Option<(&Key, &L4Flow)>) -> bool;
    /// Removes one direction of an established flow.
    fn remove_established(&self, key: &Key);
    /// The service that listens on a target.
    fn service(&self, target: &Target) -> Option<&Service>;
    /// Number of the host in a slot of a table.
    fn slot(&self, table: u32, slot: u32) -> Option<u16>;
    /// The host at an index of `L4_HOSTS`.
    fn host(&self, index: u32) -> Option<&Host>;
    /// Port of a host for a service, where it differs from the one listened on.
    fn host_port(&self, service: u16, host: u32) -> Option<u16>;
    /// Source address of mode `nat` at an index of `L4_NAT_SOURCES`.
    fn nat_source(&self, index: u32) -> Option<[u32; 4]>;
    /// The socket of this machine that packets with this key arrive at.
    fn local_socket(&self, key: &Key) -> LocalSocket;
    /// Whether the kernel would route the packet on to another machine.
    fn is_forwarded(&self, seen: &ParsedHeaders) -> bool;
    /// Ports of a datagram whose first fragment has been seen.
    fn fragment(&self, fragment: &Fragment) -> Option<u32>;
    /// Remembers the ports of a datagram, from its first fragment.
    fn record_fragment(&self, fragment: &Fragment, ports: u32);
    /// Counts a packet of a service.
    fn count_packet(&self, service: u16, bytes: u32, direction: Direction);
    /// Whether packets to a port may be wanted: by a service, or by a host that answers a source port of ours.
    fn is_service_port(&self, port_protocol: PortBit) -> bool;
    /// The Ethernet addresses for packets back to where this one came from, as in a header.
    fn reply_macs(&self) -> [u32; 3];
    /// Whether the frame is addressed to this machine. Switches flood, bridges and promiscuous interfaces overhear.
    fn is_for_us(&self) -> bool;
    /// Interface and VLAN by which the packet came in.
    fn ingress(&self) -> (u32, u16);
    /// Length of the largest IP packet in the frame, which several may have been merged into (GRO, GSO).
    fn largest_packet(&self, seen: &ParsedHeaders) -> u32;
}

/// Socket of this machine that a packet arrives at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalSocket {
    /// None, or one that waits for connections.
    #[default]
    None,
    /// A UDP socket that receives from any sender.
    Unconnected,
    /// A socket whose peer is the packet's sender.
    Connected,
}

/// Direction in which a packet is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From a client, of a known flow.
    In,
    /// From a client, the first of a flow.
    NewFlow,
    /// From a host.
    Out,
}
