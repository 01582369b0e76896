//! Facts about the connections of a listener, which the rules are judged for.

use std::net::{IpAddr, SocketAddr};

/// Facts about the connections of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerFacts {
    /// Addresses of this machine with the listener's ports.
    pub binds: Vec<SocketAddr>,
    /// Hosts that its connections may get.
    pub hosts: Vec<HostWay>,
    /// Interfaces by which its clients come, and those that rules may see instead, such as their VRF. Empty: they are
    /// not known, but `lo` is none of them.
    pub interfaces: Vec<String>,
    /// Whether an interface belongs to another: where that is a VRF, types of addresses are those of other routes.
    pub has_masters: bool,
    /// First and last port that connections to hosts come from.
    pub own_ports: (u16, u16),
}

/// A host's address, and how connections get there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostWay {
    /// Address and port.
    pub address: SocketAddr,
    /// Addresses that connections to it come from.
    pub sources: Vec<IpAddr>,
    /// Interface to it, and those that rules may see instead. Empty: they are not known.
    pub interfaces: Vec<String>,
    /// Whether the only source is the interface's only address of this family.
    pub has_sole_address: bool,
}
