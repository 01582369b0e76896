//! Which endpoints of applications become layer-4 services, and at which addresses and ports.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::services::{Affinity, Mode, ServiceBind};
use super::{HealthCheck, Probe, shield};
use crate::learned::Reachable;
use crate::spi::{AppPattern, glob};

/// A rule that exposes endpoints of applications. Of several rules the first that takes an endpoint counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expose {
    /// Which applications.
    pub pattern: AppPattern,
    /// Patterns of port names, `*` for any text; empty: all.
    pub port_names: Vec<String>,
    /// What the endpoints speak, one of these; empty: anything but HTTP, TLS and UDP.
    pub protocols: BTreeSet<String>,
    /// The addresses of the services: at least one.
    pub addresses: Vec<IpAddr>,
    /// The ports, none of them 0: each application's port name gets one of them, the same at all addresses.
    pub ports: RangeInclusive<u16>,
    /// How packets get to an endpoint.
    pub mode: Mode,
    /// What of a client stays with an endpoint.
    pub affinity: Affinity,
    /// Without a packet, after which a flow has ended.
    pub idle: Duration,
    /// How endpoints are checked.
    pub health: HealthCheck,
    /// What the services are guarded by; `None`: by nothing.
    pub shield: Option<shield::Policy>,
}

/// What is routed by name, or is no TCP.
const NOT_PLAIN_TCP: [&str; 6] = ["http", "ws", "https", "tls", "wss", "udp"];

impl Expose {
    /// How endpoints are checked, where nothing is said: by a connection to their port.
    pub const HEALTH: HealthCheck = HealthCheck {
        probe: Probe::Tcp { port: None },
        ..HealthCheck::DEFAULT
    };

    /// Whether the rule is for this endpoint of an application, `NAMESPACE/APP`.
    #[must_use]
    pub fn takes(&self, application: &str, endpoint: &Reachable) -> bool {
        let speaks = if self.protocols.is_empty() {
            let is_plain = |protocol: &String| !NOT_PLAIN_TCP.contains(&protocol.as_str());
            // Of an endpoint that does not say what it speaks, nothing is known but that it is TCP.
            endpoint.protocols.is_empty() || endpoint.protocols.iter().any(is_plain)
        } else {
            !self.protocols.is_disjoint(&endpoint.protocols)
        };
        let is_named = |pattern: &String| glob(pattern, &endpoint.port_name);
        speaks
            && self.pattern.matches(application)
            && (self.port_names.is_empty() || self.port_names.iter().any(is_named))
    }

    /// The addresses with these ports.
    pub fn binds(&self, ports: &RangeInclusive<u16>) -> impl Iterator<Item = ServiceBind> {
        let bind = |address: &IpAddr| ServiceBind {
            address: *address,
            ports: ports.clone(),
        };
        self.addresses.iter().map(bind)
    }

    /// The addresses with all ports, as the configuration has them.
    #[must_use]
    pub fn shown(&self) -> String {
        let all: Vec<_> = self.binds(&self.ports).map(|bind| bind.to_string()).collect();
        all.join(", ")
    }
}
