//! Hosts that the configuration gives by a hostname: each of its addresses is one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde::Serialize;

use super::{Cluster, Host, Protocol};
use crate::wire::hostname::Hostname;

/// Prefix of the sources that hostnames are: `dns:CLUSTER/HOSTNAME`.
pub const DNS_PREFIX: &str = "dns:";

/// Default of [`Cluster::resolve`].
pub const DEFAULT_RESOLVE_INTERVAL: Duration = Duration::from_secs(60);

/// Host that is known by a hostname, with the settings that its addresses share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamedHost {
    /// Name that the names of the hosts begin with.
    pub name: String,
    /// Hostname that is resolved.
    pub hostname: Hostname,
    /// Port for `http` listeners.
    pub http: Option<u16>,
    /// Port for `tls` listeners.
    pub https: Option<u16>,
    /// Port for `tcp` listeners.
    pub tcp: Option<u16>,
    /// Ports for layer-4 services, by the services' names.
    pub ports: BTreeMap<String, u16>,
    /// Weight of each host.
    pub weight: u32,
    /// Whether the hosts are backups.
    pub backup: bool,
}

impl NamedHost {
    /// Host by a hostname, with the settings of another.
    #[must_use]
    pub fn new(host: Host, hostname: Hostname) -> Self {
        Self {
            name: host.name,
            hostname,
            http: host.http,
            https: host.https,
            tcp: host.tcp,
            ports: host.ports,
            weight: host.weight,
            backup: host.backup,
        }
    }

    /// Port of the hosts for a listener's protocol.
    #[must_use]
    pub const fn port(&self, protocol: Protocol) -> Option<u16> {
        match protocol {
            Protocol::Http => self.http,
            Protocol::Tls => self.https,
            Protocol::Tcp => self.tcp,
        }
    }

    /// Name of the host at an address: it stays the same while others come and go.
    #[must_use]
    pub fn name_at(&self, address: IpAddr) -> String {
        // Colons separate parts of names elsewhere.
        format!("{}-{}", self.name, address.to_string().replace(':', "-"))
    }

    /// Host at an address.
    #[must_use]
    pub fn at(&self, address: IpAddr) -> Host {
        Host {
            name: self.name_at(address),
            address,
            http: self.http,
            https: self.https,
            tcp: self.tcp,
            ports: self.ports.clone(),
            weight: self.weight,
            backup: self.backup,
            health_page: None,
        }
    }

    /// Whether a host is at one of the hostname's addresses.
    #[must_use]
    pub fn has(&self, host: &Host) -> bool {
        host.name == self.name_at(host.address)
    }
}

impl Cluster {
    /// Source that reports the addresses of a hostname.
    #[must_use]
    pub fn dns_source(&self, hostname: &Hostname) -> String {
        format!("{DNS_PREFIX}{}/{hostname}", self.name)
    }

    /// Hosts of the file whose addresses a source reports.
    pub fn named_by<'a>(&'a self, source: &str) -> impl Iterator<Item = &'a NamedHost> + use<'a> {
        let hostname = source
            .strip_prefix(DNS_PREFIX)
            .and_then(|rest| rest.strip_prefix(self.name.as_str())?.strip_prefix('/'))
            .map(str::to_owned);
        let named = self.named_hosts.iter();
        named.filter(move |named| Some(named.hostname.as_str()) == hostname.as_deref())
    }

    /// Hosts of the file whose hostname has no address yet.
    pub fn unresolved(&self) -> impl Iterator<Item = &NamedHost> {
        let named = self.named_hosts.iter();
        named.filter(|named| !self.hosts.iter().any(|host| named.has(host)))
    }
}
