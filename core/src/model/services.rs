//! Layer-4 services: ports without a name to peek at.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::{Ipv4Net, Ipv6Net};
use serde::Serialize;

use super::{ClusterWithBackup, Host, word_of};

/// Service: addresses and ports whose packets go to the hosts of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Service {
    /// Name of the service, unique among all: [`Service::with_further_protocol`] may have extended the configured one.
    pub name: String,
    /// Transport protocol of the service's packets.
    pub protocol: Transport,
    /// Addresses and ports of the service.
    pub listen: Vec<ServiceBind>,
    /// Cluster whose hosts take the service's flows.
    pub cluster: usize,
    /// Cluster whose hosts take new flows while no host of [`Self::cluster`] can; `None`: there is none.
    pub backup: Option<usize>,
    /// Forwarding mode of packets to a host.
    pub mode: Mode,
    /// Affinity of clients to hosts.
    pub affinity: Affinity,
    /// Time without a packet after which a flow has ended.
    pub idle: Duration,
    /// Shield of the service; `None`: there is none.
    pub shield: Option<super::shield::ShieldPolicy>,
}

impl Service {
    /// Cluster of the service, with its backup.
    #[must_use]
    pub const fn clusters(&self) -> ClusterWithBackup {
        ClusterWithBackup {
            cluster: self.cluster,
            backup: self.backup,
        }
    }

    /// Copy of the service for a further protocol, as `NAME:PROTOCOL`: no name in the configuration has a colon.
    #[must_use]
    pub fn with_further_protocol(&self, protocol: Transport, idle: Duration) -> Self {
        Self {
            name: format!("{}:{}", self.name, protocol.as_str()),
            protocol,
            idle,
            ..self.clone()
        }
    }

    /// Port of a host that differs from the service's; `None`: packets keep their port.
    #[must_use]
    pub fn port_at(&self, host: &Host) -> Option<u16> {
        let port = host.ports.get(self.configured_name()).copied();
        port.filter(|_| self.mode.changes_ports())
    }

    /// Name of the service in the configuration.
    #[must_use]
    pub fn configured_name(&self) -> &str {
        configured_name(&self.name)
    }

    /// Whether the service, `NAMESPACE/APP:PORTNAME`, comes from routing events: no other name has a slash.
    #[must_use]
    pub fn is_exposed(&self) -> bool {
        self.name.contains('/')
    }
}

/// Name in the configuration of the service with a unique name.
#[must_use]
pub fn configured_name(unique: &str) -> &str {
    match unique.split_once(':') {
        Some((name, _)) if !name.contains('/') => name,
        _ => unique,
    }
}

/// Address and ports of a service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceBind {
    /// Address of the service.
    pub address: IpAddr,
    /// Ports of the service, none of them 0.
    pub ports: RangeInclusive<u16>,
}

impl Serialize for ServiceBind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
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

/// Transport protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// TCP, whose flows are connections.
    Tcp,
    /// UDP, whose flows are known by their packets alone.
    Udp,
}

impl Transport {
    /// All protocols, with their names in the configuration.
    pub const ALL: [(&'static str, Self); 2] = [("tcp", Self::Tcp), ("udp", Self::Udp)];

    /// Name of the protocol in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    /// Number of the protocol in an IP header.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}

/// Forwarding mode: how packets get to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// NAT: source and destination are translated; answers come back through the balancer.
    Nat,
    /// Direct server return by Ethernet address: the host answers the client itself.
    DsrL2,
    /// Direct server return through an IPv4 or IPv6 tunnel: the host answers the client itself.
    DsrIpip,
}

impl Mode {
    /// Whether a host may get packets at another port than the service's.
    #[must_use]
    pub const fn changes_ports(self) -> bool {
        matches!(self, Self::Nat)
    }

    /// All modes, with their names in the configuration.
    pub const ALL: [(&'static str, Self); 3] =
        [("nat", Self::Nat), ("dsr-l2", Self::DsrL2), ("dsr-ipip", Self::DsrIpip)];

    /// Name of the mode in the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        word_of(&Self::ALL, &self)
    }
}

/// Affinity: which flows of a client stay with one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Affinity {
    /// Each flow is placed separately.
    Flow,
    /// All flows of a source address stay with one host.
    Source,
}

impl Affinity {
    /// All affinities, with their names in the configuration.
    pub const ALL: [(&'static str, Self); 2] = [("flow", Self::Flow), ("source", Self::Source)];

    /// Name of the affinity in the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        word_of(&Self::ALL, &self)
    }
}

/// Hook to which the programs of services are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Hook {
    /// XDP in the drivers where all of them have it and no other traffic pays for it; otherwise TC.
    Auto,
    /// XDP in the drivers (native mode), or no hook at all.
    Native,
    /// TC only.
    Tc,
}

impl Hook {
    /// All hooks, with their names in the configuration.
    pub const ALL: [(&'static str, Self); 3] = [("auto", Self::Auto), ("native", Self::Native), ("tc", Self::Tc)];
}

/// First of the source ports that cut-through may take for connections to hosts; services have those below by default.
pub const FIRST_CUT_PORT: u16 = 16_384;

/// Settings that all services have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Layer4 {
    /// Hook of the programs.
    pub hook: Hook,
    /// Most connections that can be known at once.
    pub flows: u32,
    /// Source addresses of mode `nat`; empty: the address that the route to each host prefers.
    #[serde(rename = "nat.sources")]
    pub nat_sources: Vec<IpAddr>,
    /// Source ports of mode `nat`; `None`: those outside the kernel's own range.
    #[serde(rename = "nat.ports")]
    pub nat_ports: Option<RangeInclusive<u16>>,
    /// Outer IPv4 source addresses of tunnels.
    pub tunnel_v4: Ipv4Net,
    /// Outer IPv6 source addresses of tunnels: /96 or shorter.
    pub tunnel_v6: Ipv6Net,
}

impl Default for Layer4 {
    fn default() -> Self {
        Self {
            hook: Hook::Auto,
            flows: signalbox_common::l4::abi::DEFAULT_FLOWS,
            nat_sources: Vec::new(),
            nat_ports: None,
            // IPv4: private, and hardly any host's own. IPv6: the discard-only prefix (RFC 6666).
            tunnel_v4: Ipv4Net::new_assert(std::net::Ipv4Addr::new(172, 16, 0, 0), 16),
            tunnel_v6: Ipv6Net::new_assert(std::net::Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0), 64),
        }
    }
}
