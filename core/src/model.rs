//! The model: the meaning of a configuration without mistakes. Built by `signalbox::config`, never half valid.
//!
//! References that a person wrote stay names; those that programs follow are indices into [`Model::clusters`].

pub mod agent;
pub mod claimed;
mod discovered;
mod expose;
pub mod ha;
mod health_check;
mod health_page;
pub mod http;
pub mod observe;
mod role;
mod routing_events;
pub mod services;
pub mod shield;
mod subset;
pub mod tls;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::hostname::{HostnamePattern, WildcardDepth};
use crate::labels::Labels;

pub mod kubernetes;

use claimed::ClaimedPolicy;
pub use discovered::JoinPolicy;
pub use expose::ExposeRule;
pub use ha::HighAvailability;
pub use health_check::{
    CheckProxyHeader, Ejection, HealthCheck, HttpProbe, Probe, ROUTER_HEALTH_PATH, ROUTER_HEALTH_PORT, TlsProbe,
};
pub use health_page::HealthPage;
use http::RequestPolicy;
use kubernetes::KubernetesSource;
pub use observe::{ConnectionLog, END_LABELS, EndSet, LogTarget, Metrics};
pub use role::ClusterRole;
pub use routing_events::{ApplicationSettings, Broker, BrokerTls, Login, RoutingEvents};
pub use services::{FIRST_CUT_PORT, Layer4, Service};
pub use shield::Shield;
pub use subset::{Subset, SubsetSize};
use tls::{BackendTls, ListenerTls, RouteTls, Termination, TlsSettings};

/// Meaning of a whole configuration.
#[derive(Clone, Debug)]
pub struct Model {
    /// Admin API, which shows signalbox's state.
    pub admin: Admin,
    /// Listeners, where clients come in.
    pub listeners: Vec<Listener>,
    /// Clusters, where traffic goes.
    pub clusters: Vec<Cluster>,
    /// Routes from names to clusters.
    pub routes: Vec<Route>,
    /// Treatment of a name without a route.
    pub unmatched: Unmatched,
    /// Time limits.
    pub timeouts: Timeouts,
    /// Limits against greedy clients.
    pub limits: Limits,
    /// Tiers that carry bytes, where a listener says nothing else.
    pub datapath: Datapath,
    /// Directory for whatever arrives by API, events and rotation.
    pub store: PathBuf,
    /// Table in an etcd that several balancers share; `None`: each has its own.
    pub etcd: Option<EtcdStore>,
    /// Other balancers of the set, which serve the same addresses or names.
    pub balancers: Vec<Balancer>,
    /// Part of each cluster's hosts that this balancer uses.
    pub subset: Subset,
    /// Source of events about OpenShift's applications; `None`: there is none.
    pub routing_events: Option<RoutingEvents>,
    /// Layer-4 services: ports without a name to peek at.
    pub services: Vec<Service>,
    /// Settings common to all layer-4 services.
    pub layer4: Layer4,
    /// Shield of listeners and services, as far as its settings hold for all.
    pub shield: Shield,
    /// Series that `/metrics` shows.
    pub metrics: Metrics,
    /// Log of connections; `None`: there is none.
    pub connection_log: Option<ConnectionLog>,
    /// TLS settings that listeners share.
    pub tls: TlsSettings,
    /// Files with the pages of answers of the balancer's own, by status code.
    pub pages: BTreeMap<u16, PathBuf>,
    /// Virtual addresses that several nodes share; `None`: there are none.
    pub ha: Option<HighAvailability>,
}

impl Model {
    /// Port where clients find names over TLS: 443 if some listener has it.
    #[must_use]
    pub fn https_port(&self) -> Option<u16> {
        let speak_tls = self
            .listeners
            .iter()
            .filter(|listener| listener.protocol == Protocol::Tls);
        let mut ports = speak_tls.flat_map(|listener| &listener.listen).map(|bind| bind.port);
        let first = ports.next()?;
        if first == 443 || ports.any(|port| port == 443) {
            return Some(443);
        }
        Some(first)
    }

    /// File or directory of this name beside the store.
    #[must_use]
    pub fn beside_store(&self, name: &str) -> PathBuf {
        self.store.with_file_name(name)
    }

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
    /// Members of the etcd: `http://HOST:PORT` or `https://HOST:PORT`.
    pub endpoints: Vec<String>,
    /// Prefix of all keys; ends in `/`.
    pub prefix: String,
    /// PEM file with the authorities that have signed the members' certificates.
    pub ca: Option<PathBuf>,
    /// PEM files with signalbox's certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Another balancer's admin API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balancer {
    /// Name of the balancer in [`Subset`].
    pub name: Option<String>,
    /// URL of the admin API: `http://HOST:PORT` or `https://HOST:PORT`.
    pub url: String,
    /// File with the balancer's token.
    pub token_file: Option<PathBuf>,
    /// PEM file with the authorities that have signed the balancer's certificate.
    pub ca: Option<PathBuf>,
    /// PEM files with signalbox's certificate and its key, in place of the token.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The admin API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Address of read-only HTTP; `None` for none.
    pub listen: Option<std::net::SocketAddr>,
    /// Unix socket (mode 0600) that takes changes.
    pub socket: PathBuf,
    /// File with the token that allows changes over `listen`.
    pub token_file: Option<PathBuf>,
    /// TLS of `listen`; `None`: plain HTTP.
    pub tls: Option<AdminTls>,
    /// Whether reads over `listen` need what changes need, but for probes, metrics and the files of the web UI.
    pub reads_need_token: bool,
    /// Most connections to `listen` at once.
    pub max_connections: u32,
    /// Names by which clients may call `listen`, besides its addresses and the machine's own name.
    pub names: Vec<String>,
}

/// Most connections to the admin API over TCP, where the configuration says nothing.
pub const DEFAULT_ADMIN_CONNECTIONS: u32 = 128;

/// Certificate of the admin API, and clients that may make changes without a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminTls {
    /// PEM file with the API's certificate and any intermediate ones.
    pub cert: PathBuf,
    /// PEM file with the key of the certificate.
    pub key: PathBuf,
    /// PEM file with authorities: clients with a certificate of theirs may make the changes the token allows.
    pub client_ca: Option<PathBuf>,
}

/// Protocol that a listener expects clients to speak first.
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
    /// Name of the protocol in the configuration.
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
    /// Prefix of one address (/32, /128) or many.
    pub prefix: IpNet,
    /// Port, not 0.
    pub port: u16,
}

impl Bind {
    /// Single address with the port; `None` where the prefix has several.
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

/// Listener: a place where clients come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Name of the listener.
    pub name: String,
    /// Protocol that clients speak.
    pub protocol: Protocol,
    /// Addresses that the listener listens on.
    pub listen: Vec<Bind>,
    /// Cluster of a `tcp` listener; of another listener, the cluster for names without a route.
    pub cluster: Option<usize>,
    /// Prefixes whose PROXY headers are believed; empty for none.
    pub trusted_proxies: Vec<IpNet>,
    /// Unit that a host is chosen for.
    pub routing: Routing,
    /// Tiers that carry bytes of the listener's flows.
    pub datapath: Datapath,
    /// Shield of the listener; `None`: there is none.
    pub shield: Option<shield::ShieldPolicy>,
    /// Treatment of requests that are routed one by one.
    pub http: http::HttpPolicy,
    /// TLS of a `https` listener, whose [`Self::protocol`] is [`Protocol::Tls`]; `None`: nothing is decrypted.
    pub tls: Option<ListenerTls>,
}

impl Listener {
    /// Name of the listener's protocol in the configuration.
    #[must_use]
    pub const fn protocol_name(&self) -> &'static str {
        match self.tls {
            Some(_) => "https",
            None => self.protocol.as_str(),
        }
    }

    /// Place where TLS ends at this listener for a name with this route.
    #[must_use]
    pub fn termination(&self, route: Option<&Route>) -> Termination {
        let Some(tls) = &self.tls else {
            return Termination::Passthrough;
        };
        let of_route = route.and_then(|route| {
            let said = route.tls.as_ref().and_then(|tls| tls.termination);
            said.or(route.claimed_termination)
        });
        of_route.unwrap_or(tls.termination)
    }

    /// Whether TLS of a name with this route ends here only if some certificate is for the name: the cluster's objects
    /// say so, not the configuration.
    #[must_use]
    pub fn needs_certificate(&self, route: Option<&Route>) -> bool {
        let is_said = |route: &Route| route.tls.as_ref().is_some_and(|tls| tls.termination.is_some());
        let claims_end = |route: &Route| {
            let claimed = route.claimed_termination;
            claimed.is_some_and(|claimed| claimed != Termination::Passthrough)
        };
        self.tls.is_some() && route.is_some_and(|route| !is_said(route) && claims_end(route))
    }

    /// Whether each request of a plain HTTP client is routed for itself, whose first request is for a name with this
    /// route.
    #[must_use]
    pub fn routes_requests(&self, route: Option<&Route>) -> bool {
        self.routing == Routing::Request
            || self.protocol == Protocol::Http && route.is_some_and(Route::needs_request_routing)
    }
}

/// Unit that a listener chooses a host for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Routing {
    /// A connection: its first bytes name the route, and all of it goes to one host.
    #[default]
    Connection,
    /// A request of HTTP: each one is routed for itself, and hosts' connections are shared among clients.
    Request,
}

impl Routing {
    /// Name of the unit in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Request => "request",
        }
    }
}

/// Tier: what carries an established flow's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Buffers in userspace.
    Copy,
    /// Pipes with `splice(2)`.
    Splice,
    /// Sockets joined in the kernel (sockmap).
    Sockmap,
    /// Packets rewritten and forwarded by TC programs, without sockets.
    Cut,
}

impl Tier {
    /// All tiers, slowest first.
    pub const ALL: [Self; 4] = [Self::Copy, Self::Splice, Self::Sockmap, Self::Cut];

    /// Name of the tier.
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

/// Tiers that flows may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datapath {
    /// Forced tier, used as soon as it is available; `None`: the tier is chosen per flow by its traffic.
    pub tier: Option<Tier>,
    /// Whether flows that are fit for tier `cut` are cut through. A forced tier rules cutting out.
    pub cut: bool,
    /// Whether requests that are routed one by one are cut through, where one is its connection's last.
    pub cuts_last_requests: bool,
    /// Whether the rest of a long answer to a request is cut through.
    pub cuts_long_answers: bool,
    /// Place where connections are peeked at.
    pub peek: PeekPlace,
    /// Whether the kernel goes on routing connections when the process has died. The same for all listeners.
    pub serves_orphaned: bool,
}

/// Place where a connection's first data is read, and its host chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeekPlace {
    /// In the kernel where that can decide as userspace would, and no rule of a packet filter would be passed by.
    Auto,
    /// In the kernel where that can decide as userspace would.
    Kernel,
    /// In userspace, behind a socket.
    Userspace,
}

/// Cluster: the router hosts that serve the same applications.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Whether hosts are sent a PROXY protocol v2 header.
    pub proxy_protocol: bool,
    /// Drain time of flows when the cluster or a host is taken out of rotation; `None`: [`Timeouts::drain`].
    pub drain: Option<Duration>,
    /// Hosts that the configuration names.
    pub hosts: Vec<Host>,
    /// Whether hosts and names may also be told by an agent or the API.
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
    /// Most connections that a host has at once, and requests where they are routed one by one; `None`: any number.
    pub max_host_connections: Option<u32>,
}

impl Cluster {
    /// Whether the cluster may have hosts and names that the configuration does not know.
    #[must_use]
    pub const fn accepts_discovery(&self) -> bool {
        self.learn || self.kubernetes.is_some()
    }
}

/// Host: a router host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
}

/// Route: a name and the clusters that serve it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Name or wildcard of the route.
    pub hostname: HostnamePattern,
    /// Number of labels that the name's star stands for, if it has one.
    pub depth: WildcardDepth,
    /// Clusters with their weights, 0 to 100: 0 gets nothing. Empty if sources tell the clusters of the name.
    pub clusters: Vec<(usize, u32)>,
    /// Drain time of the route's flows when it is taken out of rotation; `None`: [`Timeouts::drain`].
    pub drain: Option<Duration>,
    /// Clusters that certain clients get before all others, whatever the weights: testers reach a new version first.
    pub prefer: Vec<Preference>,
    /// Labels that the configuration gives the route. Labels of claims are in [`crate::discovery::Claim::labels`].
    pub labels: Labels,
    /// Addresses of the clients that are served; `None`: all are.
    pub allow: Option<Vec<IpNet>>,
    /// TLS of the route; `None`: what listeners say.
    pub tls: Option<RouteTls>,
    /// Place where TLS ends by the objects of the clusters, where [`Self::tls`] says nothing of it.
    pub claimed_termination: Option<Termination>,
    /// Clusters of requests by their path, where listeners route by request. [`Self::clusters`] gets the others; if
    /// that is empty, these have no route.
    pub paths: Vec<PathRoute>,
    /// Treatment of requests whose path is none of [`Self::paths`].
    pub requests: RequestPolicy,
    /// Treatment by annotations, of a name whose clusters are discovered; `None`: they ask for nothing.
    pub claimed: Option<Box<ClaimedPolicy>>,
}

impl Route {
    /// Whether plain HTTP for the name has to be routed by request: by path, by cookie, with changes, or to be answered
    /// with a redirect or 404.
    #[must_use]
    pub fn needs_request_routing(&self) -> bool {
        self.treats_requests() || self.restricts_plain_http()
    }

    /// Whether the route says something that holds for requests, and not for whole connections.
    #[must_use]
    pub fn treats_requests(&self) -> bool {
        let has_lists = self
            .claimed
            .iter()
            .any(|claimed| claimed.paths.iter().any(|path| !path.allow.is_empty()));
        !self.paths.is_empty() || has_lists || self.policies().any(RequestPolicy::needs_requests)
    }

    /// Treatments of requests, of the name and of its paths.
    pub fn policies(&self) -> impl Iterator<Item = &RequestPolicy> {
        let of_paths = self.paths.iter().map(|path| &path.requests);
        let claimed = self.claimed.iter().flat_map(|claimed| &claimed.paths);
        [&self.requests]
            .into_iter()
            .chain(of_paths)
            .chain(claimed.map(|path| &path.requests))
    }
}

/// Route of the requests whose path begins with a path ([`crate::http::path::PathTable`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRoute {
    /// Path, which begins with `/`.
    pub path: String,
    /// Clusters with their weights, 0 to 100: 0 gets nothing.
    pub clusters: Vec<(usize, u32)>,
    /// Treatment of the path's requests.
    pub requests: RequestPolicy,
}

/// Preference: clients that are sent to a cluster as long as it has a usable host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preference {
    /// Preferred cluster.
    pub cluster: usize,
    /// Addresses of the clients.
    pub clients: Vec<IpNet>,
}

impl Route {
    /// Clusters that a client gets before all others, in their order.
    pub fn preferred(&self, client: IpAddr) -> impl Iterator<Item = usize> + '_ {
        let is_meant = move |preference: &&Preference| preference.clients.iter().any(|net| net.contains(&client));
        self.prefer.iter().filter(is_meant).map(|preference| preference.cluster)
    }

    /// Whether a client may use the route.
    #[must_use]
    pub fn allows(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        let allow = self.allow.as_ref();
        allow.is_none_or(|allow| allow.iter().any(|prefix| prefix.contains(&client)))
    }

    /// Whether the configuration leaves the route's clusters to be discovered by sources.
    #[must_use]
    pub fn is_discovered(&self) -> bool {
        self.clusters.is_empty() && self.paths.is_empty()
    }
}

/// Treatment of a name without a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmatched {
    /// Refusal in the client's own protocol.
    Reject,
    /// Connection to this cluster.
    Cluster(usize),
    /// Connection to any healthy host of any cluster.
    Any,
}

/// Time limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Limit of one connect to a host.
    pub connect: Duration,
    /// Wait for a host with room, where hosts have a limit of connections.
    pub queue: Duration,
    /// Limit for the head of an HTTP request to arrive.
    pub peek_http: Duration,
    /// Limit for a ClientHello to arrive.
    pub peek_tls: Duration,
    /// Time without a byte either way after which a flow is ended.
    pub idle: Duration,
    /// Time for flows to end by themselves when signalbox is told to stop.
    pub shutdown: Duration,
    /// Time for flows to end by themselves when their route, cluster or host is taken out of rotation.
    pub drain: Duration,
    /// Longest wait, from the start, for watched clusters to be read; signalbox is not ready until the wait ends.
    pub first_read: Duration,
    /// Time limits of requests that are routed one by one ([`Routing::Request`]).
    pub http: HttpTimeouts,
}

/// Time limits of requests that are routed one by one. [`Timeouts::peek_http`] is that of a request's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpTimeouts {
    /// Time that a client's connection is kept for the next request.
    pub keep_alive: Duration,
    /// Time in which a body must make progress, in either direction.
    pub body: Duration,
    /// Time from the end of a request to the head of its answer.
    pub answer: Duration,
    /// Time without a byte either way after which a tunnel (WebSocket) is ended.
    pub tunnel: Duration,
}

/// Limits against greedy clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most connections at once in all; `None`: what the descriptor limit allows.
    pub max_connections: Option<u32>,
    /// Number of entries in the flow table of tier `cut`.
    pub cut_flows: u32,
    /// Limits of each source address.
    pub per_source: PerSource,
    /// Limits of TLS handshakes in progress.
    pub handshakes: HandshakeLimits,
}

/// Limits of TLS handshakes in progress at a worker; 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeLimits {
    /// Most handshakes at once.
    pub per_worker: u32,
    /// Most handshakes at once with one source address (/32, /64).
    pub per_source: u32,
}

/// Limits for each source address (/32, /64); 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerSource {
    /// Most connections at once.
    pub concurrent: u32,
    /// Most new connections in a second.
    pub per_second: u32,
    /// Most connections at once that are still being peeked at.
    pub peeking: u32,
}

/// Address as 16 bytes, IPv4 in its IPv4-mapped form.
#[must_use]
pub fn ipv4_mapped(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
