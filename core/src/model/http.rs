//! Settings of listeners and routes whose requests are routed one by one.

use serde::Serialize;
use std::time::Duration;

use ipnet::IpNet;

use super::HttpTimeouts;
use crate::wire::http::cookie::StickyCookie;
use crate::wire::http::forwarded::ForwardedPolicy;
use crate::wire::http1::edit::FieldEdit;

/// Affinity of the requests of a route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CookieAffinity {
    /// Cookie that clients carry.
    pub cookie: StickyCookie,
    /// Part of the route that a client stays at.
    pub scope: AffinityScope,
}

/// Part of a route that a client stays at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AffinityScope {
    /// Cluster, whichever of its hosts.
    #[default]
    Cluster,
    /// Host.
    Host,
}

impl AffinityScope {
    /// All of them, with their words in the configuration.
    pub const ALL: [(&'static str, Self); 2] = [("cluster", Self::Cluster), ("host", Self::Host)];

    /// Word in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Host => "host",
        }
    }
}

/// Treatment of requests at a listener that routes them one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HttpPolicy {
    /// Policy for `X-Forwarded-*` and `Forwarded`.
    pub forwarded: ForwardedPolicy,
    /// Prefixes of the proxies whose `X-Forwarded-*` and request ids are believed; `None`: everyone's.
    pub trusted: Option<Vec<IpNet>>,
    /// Field that holds the id of a request, which hosts and the log get; `None`: there is none.
    pub request_id: Option<String>,
    /// Treatment of requests whose path hosts may read as that of another route.
    pub ambiguous_paths: AmbiguousPaths,
    /// Port of `https` that clients in plain HTTP are sent to; `None`: [`super::Model::https_port`].
    pub redirect_port: Option<u16>,
    /// Whether fields that describe clients' certificates are removed from requests, because some listener sends such
    /// fields to hosts.
    #[serde(rename = "hide_certificate_fields")]
    pub hides_certificate_fields: bool,
}

/// Treatment of requests whose path hosts may read as that of another route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AmbiguousPaths {
    /// Such paths are refused.
    #[default]
    Refuse,
    /// All paths are normalized first, for routes and for hosts; paths that are still ambiguous are refused.
    Normalize,
    /// Such paths are routed by their bytes.
    Pass,
}

impl AmbiguousPaths {
    /// All treatments, with their names in the configuration.
    pub const ALL: [(&'static str, Self); 3] = [
        ("refuse", Self::Refuse),
        ("normalize", Self::Normalize),
        ("pass", Self::Pass),
    ];
}

/// Treatment of the requests of a name, or of one of its paths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestPolicy {
    /// Cookie that keeps a client at its cluster or host; `None`: each request is balanced.
    pub affinity: Option<CookieAffinity>,
    /// Changes of fields; `None`: none.
    pub headers: Option<HeaderEdits>,
    /// Path that the host gets in place of the route's own.
    pub rewrite: Option<String>,
    /// Time limits in place of those of all routes.
    pub timeouts: RouteTimeouts,
    /// Limits of each client's requests; `None`: none.
    pub limits: Option<RequestLimits>,
    /// Protocols that clients may upgrade to, such as `SPDY/3.1`; `None`: WebSocket alone.
    pub upgrades: Option<Vec<String>>,
    /// Settings that apply where requests are routed one by one anyway.
    pub passive: PassivePolicy,
}

/// Settings of annotations that are no reason to route requests one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PassivePolicy {
    /// Time for a host to begin its answer.
    pub answer: Option<Duration>,
    /// Time that a tunnel may be idle.
    pub tunnel: Option<Duration>,
    /// Policy for `X-Forwarded-*` and `Forwarded`, in place of the listener's.
    pub forwarded: Option<ForwardedPolicy>,
    /// Most connections that a host has at once, beside [`super::Cluster::max_host_connections`].
    pub max_host_connections: Option<u32>,
}

/// Limits of a client's requests of a route. A client is a /32 of IPv4 or a /64 of IPv6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestLimits {
    /// Requests in a time, and at once.
    pub requests: Option<PeriodRate>,
    /// Most requests in flight, tunnels included; 0: any number.
    pub concurrent: u32,
}

/// Rate limit of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PeriodRate {
    /// Tokens in a period.
    pub count: u64,
    /// Period of the tokens.
    pub period: Duration,
    /// Most tokens at once.
    pub burst: u64,
}

/// Changes of the fields of requests and answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeaderEdits {
    /// Changes of the requests that hosts get.
    pub request: Vec<FieldEdit>,
    /// Changes of the answers that clients get.
    pub response: Vec<FieldEdit>,
}

/// Time limits of a route; `None`: as for all routes ([`HttpTimeouts`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RouteTimeouts {
    /// Time for a host to begin its answer.
    pub answer: Option<Duration>,
    /// Time without progress of a request's or answer's body.
    pub body: Option<Duration>,
    /// Time that a tunnel may be idle.
    pub tunnel: Option<Duration>,
}

impl RouteTimeouts {
    /// Returns these limits, completed by others where they say nothing.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            answer: self.answer.or(other.answer),
            body: self.body.or(other.body),
            tunnel: self.tunnel.or(other.tunnel),
        }
    }
}

impl RequestPolicy {
    /// Treatment of every request, unless a route says more.
    pub const NONE: Self = Self {
        affinity: None,
        headers: None,
        rewrite: None,
        timeouts: RouteTimeouts {
            answer: None,
            body: None,
            tunnel: None,
        },
        limits: None,
        upgrades: None,
        passive: PassivePolicy {
            answer: None,
            tunnel: None,
            forwarded: None,
            max_host_connections: None,
        },
    };

    /// Whether the policy needs requests to be routed one by one.
    #[must_use]
    pub fn needs_requests(&self) -> bool {
        let Self {
            affinity,
            headers,
            rewrite,
            timeouts,
            limits,
            // Where connections are carried as a whole, upgrades work anyway.
            upgrades: _,
            passive: _,
        } = self;
        let has_timeouts = *timeouts != RouteTimeouts::default();
        affinity.is_some() || headers.is_some() || rewrite.is_some() || has_timeouts || limits.is_some()
    }

    /// Returns this policy, completed by another one where it says nothing.
    #[must_use]
    pub fn or(&self, other: Self) -> Self {
        Self {
            affinity: self.affinity.clone().or(other.affinity),
            headers: self.headers.clone().or(other.headers),
            rewrite: self.rewrite.clone().or(other.rewrite),
            timeouts: self.timeouts.or(other.timeouts),
            limits: self.limits.or(other.limits),
            upgrades: self.upgrades.clone().or(other.upgrades),
            passive: PassivePolicy {
                answer: self.passive.answer.or(other.passive.answer),
                tunnel: self.passive.tunnel.or(other.passive.tunnel),
                forwarded: self.passive.forwarded.or(other.passive.forwarded),
                max_host_connections: self.passive.max_host_connections.or(other.passive.max_host_connections),
            },
        }
    }

    /// Fills settings that a path leaves out with those of its name. Not [`Self::rewrite`], which belongs to one path,
    /// and not [`Self::limits`]: requests of paths without limits are counted with their name's.
    pub fn inherit(&mut self, of_name: &Self) {
        self.affinity = self.affinity.take().or_else(|| of_name.affinity.clone());
        self.headers = self.headers.take().or_else(|| of_name.headers.clone());
        self.timeouts = self.timeouts.or(of_name.timeouts);
        self.upgrades = self.upgrades.take().or_else(|| of_name.upgrades.clone());
    }

    /// Whether clients may upgrade to a protocol.
    #[must_use]
    pub fn allows_upgrade(&self, protocol: &[u8]) -> bool {
        let is_asked = |allowed: &str| allowed.as_bytes().eq_ignore_ascii_case(protocol);
        match &self.upgrades {
            Some(upgrades) => upgrades.iter().any(|allowed| is_asked(allowed)),
            None => is_asked("websocket"),
        }
    }

    /// Time limits of the route's requests, where `common` are those of all routes.
    #[must_use]
    pub fn timeouts(&self, common: HttpTimeouts) -> HttpTimeouts {
        let passive = self.passive;
        // An annotation's time is that of each silence of the server, and not of a client that is slow to send.
        let of_annotation = passive.answer.map(|answer| answer.max(common.body));
        HttpTimeouts {
            answer: self.timeouts.answer.or(passive.answer).unwrap_or(common.answer),
            tunnel: self.timeouts.tunnel.or(passive.tunnel).unwrap_or(common.tunnel),
            body: self.timeouts.body.or(of_annotation).unwrap_or(common.body),
            ..common
        }
    }
}
