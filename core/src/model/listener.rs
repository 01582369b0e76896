//! Listeners, where clients come in.

use ipnet::IpNet;
use serde::Serialize;

use super::tls::{ListenerTls, Termination};
use super::{ClusterWithBackup, Datapath, Route, http, shield};

/// Protocol that a listener expects clients to speak first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
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

impl Serialize for Bind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listener {
    /// Name of the listener.
    pub name: String,
    /// Protocol that clients speak.
    pub protocol: Protocol,
    /// Addresses that the listener listens on.
    pub listen: Vec<Bind>,
    /// Cluster of a `tcp` listener; of another listener, the cluster for names without a route.
    pub cluster: Option<usize>,
    /// Cluster that takes new connections while no host of [`Self::cluster`] can; `None`: there is none.
    pub backup: Option<usize>,
    /// Prefixes whose PROXY headers are believed; empty for none.
    #[serde(rename = "proxy_protocol_trusted")]
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

    /// Cluster of connections without a route, with its backup.
    #[must_use]
    pub fn fallback(&self) -> Option<ClusterWithBackup> {
        let backup = self.backup;
        self.cluster.map(|cluster| ClusterWithBackup { cluster, backup })
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

    /// Whether TLS of a name with this route ends here only if some certificate is for the name: then the cluster's
    /// objects decide, not the configuration.
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
