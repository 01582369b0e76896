//! Layer-4 services: ports without a name to peek at.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::{Ipv4Net, Ipv6Net};
use serde::Serialize;

/// A service: addresses and ports whose packets go to the hosts of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// What its packets carry.
    pub protocol: Transport,
    /// Its addresses.
    pub listen: Vec<ServiceBind>,
    /// The cluster whose hosts take its flows.
    pub cluster: usize,
    /// How packets get to a host.
    pub mode: Mode,
    /// What of a client stays with a host.
    pub affinity: Affinity,
    /// Without a packet, after which a flow has ended.
    pub idle: Duration,
    /// What it is guarded by; `None`: by nothing.
    pub shield: Option<super::shield::Policy>,
}

impl Service {
    /// Whether routing events have told of it, `NAMESPACE/APP:PORTNAME`: no other name has a slash.
    #[must_use]
    pub fn is_exposed(&self) -> bool {
        self.name.contains('/')
    }
}

/// An address and its ports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceBind {
    /// The address.
    pub address: IpAddr,
    /// The ports, none of them 0.
    pub ports: RangeInclusive<u16>,
}

impl std::fmt::Display for ServiceBind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.address {
            IpAddr::V4(v4) => write!(f, "{v4}:")?,
            IpAddr::V6(v6) => write!(f, "[{v6}]:")?,
        }
        write!(f, "{}", self.ports.start())?;
        if self.ports.end() != self.ports.start() {
            write!(f, "-{}", self.ports.end())?;
        }
        Ok(())
    }
}

/// What packets carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// All, with their names in the configuration.
    pub const ALL: [(&'static str, Self); 2] = [("tcp", Self::Tcp), ("udp", Self::Udp)];

    /// Its number in an IP header.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}

/// How packets get to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Source and destination are translated; answers come back through us.
    Nat,
    /// To the host's Ethernet address; the host answers the client itself.
    DsrL2,
    /// In an IPv4 or IPv6 tunnel; the host answers the client itself.
    DsrIpip,
}

impl Mode {
    /// All, with their names in the configuration.
    pub const ALL: [(&'static str, Self); 3] =
        [("nat", Self::Nat), ("dsr-l2", Self::DsrL2), ("dsr-ipip", Self::DsrIpip)];
}

/// What of a client stays with a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Affinity {
    /// Each flow by itself.
    Flow,
    /// All flows of its address.
    Source,
}

impl Affinity {
    /// All, with their names in the configuration.
    pub const ALL: [(&'static str, Self); 2] = [("flow", Self::Flow), ("source", Self::Source)];
}

/// Where the programs of services stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Hook {
    /// In the drivers where all of them have XDP and it costs nothing elsewhere; in TC where not.
    Auto,
    /// In the drivers (native XDP), or nowhere.
    Native,
    /// In TC.
    Tc,
}

impl Hook {
    /// All, with their names in the configuration.
    pub const ALL: [(&'static str, Self); 3] = [("auto", Self::Auto), ("native", Self::Native), ("tc", Self::Tc)];
}

/// What all services have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer4 {
    /// Where the programs stand.
    pub hook: Hook,
    /// Connections that can be known at once.
    pub flows: u32,
    /// Source addresses of mode `nat`; empty: the address that the route to each host prefers.
    pub nat_sources: Vec<IpAddr>,
    /// Source ports of mode `nat`; `None`: those outside the kernel's own range.
    pub nat_ports: Option<RangeInclusive<u16>>,
    /// Outer IPv4 sources of tunnels.
    pub tunnel_v4: Ipv4Net,
    /// Outer IPv6 sources of tunnels: /96 or shorter.
    pub tunnel_v6: Ipv6Net,
}

impl Default for Layer4 {
    fn default() -> Self {
        Self {
            hook: Hook::Auto,
            flows: signalbox_common::l4::abi::DEFAULT_FLOWS,
            nat_sources: Vec::new(),
            nat_ports: None,
            // Private, and hardly any host's own; what is thrown away anyway (RFC 6666).
            tunnel_v4: Ipv4Net::new_assert(std::net::Ipv4Addr::new(172, 16, 0, 0), 16),
            tunnel_v6: Ipv6Net::new_assert(std::net::Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0), 64),
        }
    }
}
