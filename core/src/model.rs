//! What a configuration means, once it is known to be right. Built by `signalbox::config`, never half valid.
//!
//! Names stand where a person wrote them; indices (`usize` into [`Model::clusters`]) where a program looks things up.

pub mod agent;
mod expose;
mod learnt;
pub mod observe;
mod page;
mod routing_events;
pub mod services;
pub mod shield;
mod subset;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::join::Join;
use crate::labels::Labels;
use crate::name::{Depth, HostPattern};
use crate::subset::Size;

pub mod kubernetes;

pub use expose::Expose;
use kubernetes::KubernetesSource;
pub use observe::{ConnectionLog, ENDS, Ends, LogTarget, Metrics};
pub use page::Page;
pub use routing_events::{ApplicationSettings, Broker, BrokerTls, Login, RoutingEvents};
pub use services::{Layer4, Service};
pub use shield::Shield;
pub use subset::Subset;

/// The whole configuration.
#[derive(Clone, Debug)]
pub struct Model {
    /// Where signalbox shows its state.
    pub admin: Admin,
    /// Where clients come in.
    pub listeners: Vec<Listener>,
    /// Where traffic goes.
    pub clusters: Vec<Cluster>,
    /// Which name goes where.
    pub routes: Vec<Route>,
    /// What happens to a name without a route.
    pub unmatched: Unmatched,
    /// Time limits.
    pub timeouts: Timeouts,
    /// Limits against greedy clients.
    pub limits: Limits,
    /// How bytes are carried, where a listener says nothing else.
    pub datapath: Datapath,
    /// Where what arrives by API, event and rotation is kept.
    pub store: PathBuf,
    /// A table that several balancers share; `None`: each has its own.
    pub etcd: Option<EtcdStore>,
    /// The other balancers of the set, which serve the same addresses or names.
    pub balancers: Vec<Balancer>,
    /// What part of each cluster's hosts this balancer uses.
    pub subset: Subset,
    /// What tells of OpenShift's applications; `None`: nothing does.
    pub routing_events: Option<RoutingEvents>,
    /// Ports without a name to peek at.
    pub services: Vec<Service>,
    /// What they have in common.
    pub layer4: Layer4,
    /// What guards listeners and services, as far as it holds for all.
    pub shield: Shield,
    /// What `/metrics` shows.
    pub metrics: Metrics,
    /// The log of connections; `None`: there is none.
    pub connection_log: Option<ConnectionLog>,
}

impl Model {
    /// Whether there are layer-4 services, or may be as soon as routing events tell of applications.
    #[must_use]
    pub fn has_services(&self) -> bool {
        let exposes = |events: &RoutingEvents| !events.expose.is_empty();
        !self.services.is_empty() || self.routing_events.as_ref().is_some_and(exposes)
    }
}

/// An etcd that holds what several balancers share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdStore {
    /// Its members: `http://HOST:PORT` or `https://HOST:PORT`.
    pub endpoints: Vec<String>,
    /// What all keys begin with; ends in `/`.
    pub prefix: String,
    /// PEM file with the authorities that have signed the members' certificates.
    pub ca: Option<PathBuf>,
    /// PEM files with our certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Another balancer's admin API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balancer {
    /// Its name in [`Subset`].
    pub name: Option<String>,
    /// `http://HOST:PORT` or `https://HOST:PORT`.
    pub url: String,
    /// File with its token.
    pub token_file: Option<PathBuf>,
    /// PEM file with the authorities that have signed its certificate.
    pub ca: Option<PathBuf>,
    /// PEM files with our certificate and its key, in place of the token.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The admin API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Read-only HTTP; `None` for none.
    pub listen: Option<std::net::SocketAddr>,
    /// The unix socket (mode 0600) that takes changes.
    pub socket: PathBuf,
    /// File with the token that allows changes over `listen`.
    pub token_file: Option<PathBuf>,
    /// `listen` speaks TLS.
    pub tls: Option<AdminTls>,
    /// Connections to `listen` at once.
    pub max_connections: u32,
}

/// Connections to the admin API over TCP, where the configuration says nothing.
pub const DEFAULT_ADMIN_CONNECTIONS: u32 = 128;

/// How the admin API proves who it is, and who may change something without a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminTls {
    /// PEM file with its certificate, and those between it and an authority.
    pub cert: PathBuf,
    /// PEM file with the key.
    pub key: PathBuf,
    /// PEM file with authorities: whoever shows a certificate of theirs may change what the token allows.
    pub client_ca: Option<PathBuf>,
}

/// What a listener expects a client to say first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1 or HTTP/2 with prior knowledge: routed by Host or `:authority`.
    Http,
    /// TLS: routed by SNI, not decrypted.
    Tls,
    /// Anything: not peeked at.
    Tcp,
}

impl Protocol {
    /// Its name in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Tls => "tls",
            Self::Tcp => "tcp",
        }
    }
}

/// An address or prefix, and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bind {
    /// One address (/32, /128) or many.
    pub prefix: IpNet,
    /// The port, not 0.
    pub port: u16,
}

impl Bind {
    /// The single address, where it is one.
    #[must_use]
    pub fn single(&self) -> Option<std::net::SocketAddr> {
        (self.prefix.prefix_len() == self.prefix.max_prefix_len())
            .then(|| std::net::SocketAddr::new(self.prefix.addr(), self.port))
    }
}

impl std::fmt::Display for Bind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.single(), self.prefix) {
            (Some(addr), _) => write!(f, "{addr}"),
            (None, IpNet::V4(net)) => write!(f, "{net}:{}", self.port),
            (None, IpNet::V6(net)) => write!(f, "[{net}]:{}", self.port),
        }
    }
}

/// A place where clients come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its name.
    pub name: String,
    /// What clients speak.
    pub protocol: Protocol,
    /// Its addresses.
    pub listen: Vec<Bind>,
    /// The cluster of a `tcp` listener; of another, the one for names without a route.
    pub cluster: Option<usize>,
    /// Prefixes whose PROXY headers are believed; empty for none.
    pub trusted_proxies: Vec<IpNet>,
    /// How bytes are carried.
    pub datapath: Datapath,
    /// What it is guarded by; `None`: by nothing.
    pub shield: Option<shield::Policy>,
}

/// How an established flow's bytes are carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Userspace buffers.
    Copy,
    /// Pipes, `splice(2)`.
    Splice,
    /// Sockets joined in the kernel.
    Sockmap,
    /// Packets rewritten and forwarded by TC, without sockets.
    Cut,
}

impl Tier {
    /// All tiers, slowest first.
    pub const ALL: [Self; 4] = [Self::Copy, Self::Splice, Self::Sockmap, Self::Cut];

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Splice => "splice",
            Self::Sockmap => "sockmap",
            Self::Cut => "cut",
        }
    }
}

/// Which tiers flows may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datapath {
    /// `Some`: this tier as soon as it can be had. `None`: chosen per flow by what it does.
    pub tier: Option<Tier>,
    /// Whether flows that are fit for it are cut through. A forced tier means that they are not.
    pub cut: bool,
}

/// A cluster: the router hosts that serve the same applications.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Its name.
    pub name: String,
    /// How a host is chosen.
    pub balance: Balance,
    /// How hosts are checked.
    pub health: HealthCheck,
    /// When real failures set a host aside.
    pub ejection: Ejection,
    /// Whether hosts are sent a PROXY protocol v2 header.
    pub proxy_protocol: bool,
    /// How long what is taken out of rotation may keep its flows; `None`: [`Timeouts::drain`].
    pub drain: Option<Duration>,
    /// The hosts that the configuration names.
    pub hosts: Vec<Host>,
    /// Whether hosts and names may also be told by an agent or the API.
    pub learn: bool,
    /// The API server that signalbox itself watches for hosts and names.
    pub kubernetes: Option<KubernetesSource>,
    /// How many of its hosts this balancer uses; `None`: [`Subset::size`].
    pub subset: Option<Size>,
    /// What share the cluster gets of a learnt host name that another cluster has served before.
    pub join: Join,
}

impl Cluster {
    /// Whether it may have hosts and names that the configuration does not know.
    #[must_use]
    pub const fn learns(&self) -> bool {
        self.learn || self.kubernetes.is_some()
    }
}

/// A router host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Its address.
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
    /// Its ports for layer-4 services, by their names; for others it is the one listened on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ports: BTreeMap<String, u16>,
    /// 1 to 100.
    pub weight: u32,
    /// What a check by HTTP asks for, where the source knows better than the cluster's check. Never told by an API: it goes
    /// into requests as it is.
    #[serde(skip)]
    pub page: Option<Page>,
}

impl Host {
    /// Its port for a listener's protocol.
    #[must_use]
    pub const fn port(&self, protocol: Protocol) -> Option<u16> {
        match protocol {
            Protocol::Http => self.http,
            Protocol::Tls => self.https,
            Protocol::Tcp => self.tcp,
        }
    }
}

/// How a host of a cluster is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    /// The fewest established connections for its weight.
    LeastConnections,
    /// Weighted turns.
    RoundRobin,
    /// The better of two drawn at random.
    RandomTwo,
    /// By the client's address: a client stays with its host while that is up.
    Maglev,
}

impl Balance {
    /// All, with their names in the configuration.
    pub const ALL: [(&'static str, Self); 4] = [
        ("least-connections", Self::LeastConnections),
        ("round-robin", Self::RoundRobin),
        ("random-two", Self::RandomTwo),
        ("maglev", Self::Maglev),
    ];
}

/// How a host is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// What is asked.
    pub probe: Probe,
    /// Within this time a check begins and ends: [`HealthCheck::until_next`].
    pub interval: Duration,
    /// From one check's beginning to the next's while `rise` or `fall` is being counted; `None`: as at all other times.
    pub fast_interval: Option<Duration>,
    /// Time limit of one check; at most `interval`.
    pub timeout: Duration,
    /// Successes in a row that bring a host back.
    pub rise: u32,
    /// Failures in a row that take it out.
    pub fall: u32,
    /// On which of its connections a PROXY v2 header goes first.
    pub header: CheckHeader,
}

/// Which connections of checks begin with a PROXY v2 header, by which HAProxy knows a check (its LOCAL command).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckHeader {
    /// None.
    Never,
    /// Those to the host's `http`, `https` and `tcp` ports, which expect it of clients' connections too.
    HostPorts,
    /// All.
    Always,
}

impl HealthCheck {
    /// Where nothing else is said.
    pub const DEFAULT: Self = Self {
        probe: Probe::Router,
        interval: Duration::from_secs(5),
        fast_interval: None,
        timeout: Duration::from_secs(2),
        rise: 2,
        fall: 1,
        header: CheckHeader::Never,
    };
}

/// What a check asks of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The host accepts a TCP connection.
    Tcp {
        /// `None`: the first of the host's https, http and tcp ports.
        port: Option<u16>,
    },
    /// The host answers a GET with 200 to 399.
    Http(HttpProbe),
    /// What the host shows: a host with an `http` or `https` port is asked for [`ROUTER_HEALTH_PATH`] at
    /// [`ROUTER_HEALTH_PORT`] where something answers HTTP there, and every other host as by [`Probe::Tcp`].
    Router,
    /// What an application's endpoint speaks: one with an `http` port and a [`Page`] is asked for that and is well with
    /// every answer below 500, and every other as by [`Probe::Tcp`].
    Endpoint,
}

/// Where OpenShift's routers say whether they are well.
pub const ROUTER_HEALTH_PORT: u16 = 1936;
/// The path for which they are asked there.
pub const ROUTER_HEALTH_PATH: &str = "/healthz";

/// A GET.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpProbe {
    /// `None`: the host's http (or https) port.
    pub port: Option<u16>,
    /// The path asked for.
    pub path: String,
    /// The Host header; `None`: the host's address.
    pub host: Option<String>,
    /// Over TLS.
    pub tls: Option<TlsProbe>,
}

/// What a TLS check says and demands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsProbe {
    /// The name in the ClientHello; `None`: the Host header, or none for an address.
    pub sni: Option<String>,
    /// PEM file with the authorities that must have signed the certificate; `None`: any certificate will do.
    pub ca: Option<PathBuf>,
}

/// When real failures set a host aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// Failures in a row; 0 for never.
    pub failures: u32,
    /// For how long, the first time; longer with each repetition.
    pub time: Duration,
    /// Most of a cluster's hosts that may be set aside at once, in percent.
    pub max_percent: u8,
}

impl Ejection {
    /// Where nothing else is said.
    pub const DEFAULT: Self = Self {
        failures: 3,
        time: Duration::from_secs(10),
        max_percent: 50,
    };
}

/// A name and the clusters that serve it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The name.
    pub host: HostPattern,
    /// How many labels its star stands for, if it has one.
    pub depth: Depth,
    /// Clusters with their weights, 0 to 100: 0 gets nothing. Empty in a configuration that only says who prefers what.
    pub clusters: Vec<(usize, u32)>,
    /// How long it may keep its flows when it is taken out of rotation; `None`: [`Timeouts::drain`].
    pub drain: Option<Duration>,
    /// Clusters that these clients get before all others, whatever the weights: testers reach a new version first.
    pub prefer: Vec<Preference>,
    /// Labels that the configuration gives it. Those of the objects that claim it are in [`crate::learned::Claim::labels`].
    pub labels: Labels,
}

/// Clients that are sent to a cluster as long as it has a usable host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preference {
    /// The cluster.
    pub cluster: usize,
    /// The clients' addresses.
    pub clients: Vec<IpNet>,
}

impl Route {
    /// The clusters that a client gets before all others, in their order.
    pub fn preferred(&self, client: IpAddr) -> impl Iterator<Item = usize> + '_ {
        let is_meant = move |preference: &&Preference| preference.clients.iter().any(|net| net.contains(&client));
        self.prefer.iter().filter(is_meant).map(|preference| preference.cluster)
    }

    /// Whether the configuration leaves it to sources which clusters have it.
    #[must_use]
    pub fn is_learnt(&self) -> bool {
        self.clusters.is_empty()
    }
}

/// What happens to a name without a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmatched {
    /// Refused, properly for the protocol.
    Reject,
    /// Sent to this cluster.
    Cluster(usize),
    /// Sent to any healthy host of any cluster.
    Any,
}

/// Time limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For one connect to a host.
    pub connect: Duration,
    /// For the head of an HTTP request.
    pub peek_http: Duration,
    /// For a ClientHello.
    pub peek_tls: Duration,
    /// Without a byte either way, after which a flow is ended.
    pub idle: Duration,
    /// For flows to end by themselves when signalbox is told to stop.
    pub shutdown: Duration,
    /// For flows to end by themselves when what they go to is taken out of rotation.
    pub drain: Duration,
    /// From the start, for clusters that are watched to be read: until then nothing says that we are ready.
    pub first_read: Duration,
}

/// Limits against greedy clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once in all; `None`: what the descriptor limit allows.
    pub max_connections: Option<u32>,
    /// Entries of the flow table of tier `cut`.
    pub cut_flows: u32,
    /// For each source address.
    pub per_source: PerSource,
}

/// Limits for each source address (/32, /64); 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerSource {
    /// Connections at once.
    pub concurrent: u32,
    /// New connections in a second.
    pub per_second: u32,
    /// Connections at once that have not yet said where they want to go.
    pub peeking: u32,
}

/// An address as 16 bytes, IPv4 in its mapped form.
#[must_use]
pub fn mapped(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
