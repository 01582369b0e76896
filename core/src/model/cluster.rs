//! Clusters and their hosts, where traffic goes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::kubernetes::KubernetesSource;
use super::tls::BackendTls;
use super::{ClusterRole, Ejection, HealthCheck, HealthPage, JoinPolicy, NamedHost, Protocol, SubsetSize, word_of};
use crate::wire::peek::proxy::ProxyTlvs;

/// Cluster: the router hosts that serve the same applications.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cluster {
    /// Name of the cluster.
    pub name: String,
    /// Role of the hosts.
    pub role: ClusterRole,
    /// Balancing algorithm among the hosts.
    pub balance: Balance,
    /// Health check of the hosts.
    pub health: HealthCheck,
    /// Ejection of hosts whose real connects fail.
    pub ejection: Ejection,
    /// TLVs of the PROXY protocol v2 header that hosts are sent; `None`: they get no header.
    pub proxy_protocol: Option<ProxyTlvs>,
    /// Drain time of flows when the cluster or a host is taken out of rotation; `None`: [`Timeouts::drain`].
    pub drain: Option<Duration>,
    /// Hosts that the configuration names.
    pub hosts: Vec<Host>,
    /// Hosts that the configuration gives by hostnames.
    pub named_hosts: Vec<NamedHost>,
    /// Longest time from one resolution of a hostname to the next.
    pub resolve: Duration,
    /// Whether an agent or the API may also report hosts and names.
    pub learn: bool,
    /// API server that signalbox itself watches for hosts and names.
    pub kubernetes: Option<KubernetesSource>,
    /// Number of hosts that this balancer uses; `None`: [`Subset::size`].
    pub subset: Option<SubsetSize>,
    /// Share that the cluster gets of a discovered hostname that another cluster has served before.
    pub join: JoinPolicy,
    /// TLS to the hosts, for names whose TLS is [`Termination::Reencrypt`].
    pub backend_tls: BackendTls,
    /// Whether requests without TLS go to its hosts in HTTP/2 with prior knowledge (RFC 9113, section 3.3).
    pub h2c: bool,
    /// Whether answers of its hosts are repaired ([`crate::wire::http1::repair`]) rather than refused.
    #[serde(rename = "answers", serialize_with = "reading")]
    pub repairs_answers: bool,
    /// Most connections that a host has at once, and requests where they are routed one by one; `None`: any number.
    pub max_host_connections: Option<u32>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn reading<S: serde::Serializer>(repairs_answers: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if *repairs_answers { "lenient" } else { "strict" })
}

impl Cluster {
    /// Whether the cluster may have hosts and names that the configuration does not know.
    #[must_use]
    pub const fn accepts_discovery(&self) -> bool {
        self.learn || self.kubernetes.is_some()
    }
}

/// Cluster of a listener or service, and the cluster that takes over while it cannot serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterWithBackup {
    /// Index of the cluster.
    pub cluster: usize,
    /// Index of the backup, which is another cluster; `None`: there is none.
    pub backup: Option<usize>,
}

impl ClusterWithBackup {
    /// Both clusters, the backup last.
    pub fn both(self) -> impl Iterator<Item = usize> {
        [self.cluster].into_iter().chain(self.backup)
    }

    /// The one of both that a given one is not.
    #[must_use]
    pub fn other(self, than: usize) -> Option<usize> {
        self.both().find(|cluster| *cluster != than)
    }
}

/// Host: a router host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Host {
    /// Name of the host.
    pub name: String,
    /// Address of the host.
    pub address: IpAddr,
    /// Port for `http` listeners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<u16>,
    /// Port for `tls` listeners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub https: Option<u16>,
    /// Port for `tcp` listeners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<u16>,
    /// Ports for layer-4 services, by the services' names; for other services the port is the one listened on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ports: BTreeMap<String, u16>,
    /// Weight of the host, 1 to 100.
    pub weight: u32,
    /// Whether the host gets nothing new while another host of the cluster, which is no backup, is usable.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub backup: bool,
    /// Page that a check by HTTP asks for, where the source knows better than the cluster's check. An API never sets
    /// this field, because the page goes into requests as it is.
    #[serde(skip)]
    pub health_page: Option<HealthPage>,
}

impl Host {
    /// Port of the host for a listener's protocol.
    #[must_use]
    pub const fn port(&self, protocol: Protocol) -> Option<u16> {
        match protocol {
            Protocol::Http => self.http,
            Protocol::Tls => self.https,
            Protocol::Tcp => self.tcp,
        }
    }
}

/// Balancing algorithm: how a host of a cluster is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    /// Host with the fewest established connections for its weight.
    LeastConnections,
    /// Hosts in weighted turns.
    RoundRobin,
    /// Better of two hosts drawn at random.
    RandomTwo,
    /// Host by the hash of the client's address: a client stays with its host while that is up.
    Maglev,
}

impl Balance {
    /// All algorithms, with their names in the configuration.
    pub const ALL: [(&'static str, Self); 4] = [
        ("least-connections", Self::LeastConnections),
        ("round-robin", Self::RoundRobin),
        ("random-two", Self::RandomTwo),
        ("maglev", Self::Maglev),
    ];

    /// Name of the algorithm in the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        word_of(&Self::ALL, &self)
    }
}
