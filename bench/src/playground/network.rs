//! The namespaces and the links between them:
//!
//! ```text
//!                                          10.92.1.1 ──veth── 10.92.1.2 north-1
//! client 10.91.0.2 ──veth── 10.91.0.1 balancer 10.92.2.1 ──veth── 10.92.2.2 north-2
//!                                          10.93.1.1 ──veth── 10.93.1.2 south-1
//!                                          10.93.2.1 ──veth── 10.93.2.2 south-2
//! ```
//!
//! The balancer's namespace does not forward, so every packet that comes through came through signalbox.

use std::net::Ipv4Addr;

use anyhow::Result;
use signalbox_lab::Ns;

use super::site::{BALANCER, Site};
use crate::lab::{gateway, join};

/// Address that signalbox listens on. The addresses here are also in `signalbox.yaml`.
pub(super) const VIP: Ipv4Addr = Ipv4Addr::new(10, 91, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 91, 0, 2);
/// Router hosts, by name: two clusters of two.
pub(super) const HOSTS: [(&str, Ipv4Addr); 4] = [
    ("north-1", Ipv4Addr::new(10, 92, 1, 2)),
    ("north-2", Ipv4Addr::new(10, 92, 2, 2)),
    ("south-1", Ipv4Addr::new(10, 93, 1, 2)),
    ("south-2", Ipv4Addr::new(10, 93, 2, 2)),
];

/// Namespaces of the lab. [`Site`] removes them.
pub(super) struct Network {
    pub(super) client: Ns,
    pub(super) balancer: Ns,
    /// Namespaces of the router hosts, in the order of [`HOSTS`].
    pub(super) hosts: [Ns; 4],
}

impl Network {
    pub(super) fn new(site: &Site) -> Result<Self> {
        let create = |role: &str| -> Result<Ns> {
            let ns = Ns::try_create(&site.namespace(role))?;
            ns.ip("link set lo up")?;
            Ok(ns)
        };
        let network = Self {
            client: create("client")?,
            balancer: create(BALANCER)?,
            hosts: [
                create(HOSTS[0].0)?,
                create(HOSTS[1].0)?,
                create(HOSTS[2].0)?,
                create(HOSTS[3].0)?,
            ],
        };
        join(&network.balancer, "client", VIP, &network.client, &[CLIENT])?;
        for (ns, (name, address)) in network.hosts.iter().zip(HOSTS) {
            join(&network.balancer, name, gateway(address), ns, &[address])?;
        }
        Ok(network)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_knows_every_address() {
        let text = include_str!("signalbox.yaml");
        for (name, address) in HOSTS {
            assert!(text.contains(&format!("name: {name}, address: {address},")), "{name}");
        }
        assert!(text.contains(&format!("{VIP}:80")) && text.contains(&format!("{VIP}:443")));
    }
}
