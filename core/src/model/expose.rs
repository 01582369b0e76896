//! Rules by which endpoints of applications become layer-4 services, with their addresses and ports.

use serde::Serialize;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::app_pattern::{AppPattern, glob};
use super::services::{Affinity, Mode, ServiceBind};
use super::{HealthCheck, Probe, shield};

/// Rule that exposes endpoints of applications. Of several rules the first that takes an endpoint counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExposeRule {
    /// Pattern of applications.
    pub pattern: AppPattern,
    /// Patterns of port names, `*` for any text; empty: all.
    pub port_names: Vec<String>,
    /// Protocols, one of which an endpoint must speak; empty: anything but HTTP, TLS and UDP.
    pub protocols: BTreeSet<String>,
    /// Addresses of the services, at least one.
    pub addresses: Vec<IpAddr>,
    /// Port range, without 0: each application's port name gets one port, the same at all addresses.
    pub ports: RangeInclusive<u16>,
    /// Forwarding mode of packets to an endpoint.
    pub mode: Mode,
    /// Affinity of clients to endpoints.
    pub affinity: Affinity,
    /// Time without a packet after which a flow has ended.
    pub idle: Duration,
    /// Health check of endpoints.
    pub health: HealthCheck,
    /// Shield of the services; `None`: there is none.
    pub shield: Option<shield::ShieldPolicy>,
}

/// Protocols that are routed by name, or are not TCP.
const NON_TCP_PROTOCOLS: [&str; 6] = ["http", "ws", "https", "tls", "wss", "udp"];

impl ExposeRule {
    /// Check of endpoints, where nothing else is configured: a connection to their port.
    pub const HEALTH: HealthCheck = HealthCheck {
        probe: Probe::Tcp { port: None },
        ..HealthCheck::DEFAULT
    };

    /// Whether the rule is for this endpoint of an application, `NAMESPACE/APP`.
    #[must_use]
    pub fn matches(&self, application: &str, endpoint: &AppEndpoint) -> bool {
        let speaks = if self.protocols.is_empty() {
            let is_plain = |protocol: &String| !NON_TCP_PROTOCOLS.contains(&protocol.as_str());
            // An endpoint without protocols is only known to speak TCP.
            endpoint.protocols.is_empty() || endpoint.protocols.iter().any(is_plain)
        } else {
            !self.protocols.is_disjoint(&endpoint.protocols)
        };
        let is_named = |pattern: &String| glob(pattern, &endpoint.port_name);
        speaks
            && self.pattern.matches(application)
            && (self.port_names.is_empty() || self.port_names.iter().any(is_named))
    }

    /// Addresses of the rule with these ports.
    pub fn binds(&self, ports: &RangeInclusive<u16>) -> impl Iterator<Item = ServiceBind> {
        let bind = |address: &IpAddr| ServiceBind {
            address: *address,
            ports: ports.clone(),
        };
        self.addresses.iter().map(bind)
    }

    /// Addresses with the whole port range, as the configuration writes them.
    #[must_use]
    pub fn listen_text(&self) -> String {
        let all: Vec<_> = self.binds(&self.ports).map(|bind| bind.to_string()).collect();
        all.join(", ")
    }
}

/// Endpoint of an application, with any protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppEndpoint {
    /// Name of the endpoint's host.
    pub host: String,
    /// Address and port of the endpoint.
    pub addr: SocketAddr,
    /// Name of the port in its cartridge, `tcp` where it has none: only characters that names may have.
    pub port_name: String,
    /// Protocols that the endpoint speaks.
    pub protocols: BTreeSet<String>,
    /// Whether the endpoint is stopped and gets no connections.
    pub is_stopped: bool,
}
