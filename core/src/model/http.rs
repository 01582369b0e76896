//! Settings of listeners and routes whose requests are routed one by one.

use std::time::Duration;

use ipnet::IpNet;

use super::HttpTimeouts;
use super::shield::RateLimit;
use crate::affinity::CookieAffinity;
use crate::http::forwarded::ForwardedPolicy;
use crate::http1::edit::FieldEdit;

/// Treatment of requests at a listener that routes them one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpPolicy {
    /// Policy for `X-Forwarded-*` and `Forwarded`.
    pub forwarded: ForwardedPolicy,
    /// Prefixes of the proxies whose `X-Forwarded-*` and request ids are believed; `None`: everyone's.
    pub trusted: Option<Vec<IpNet>>,
    /// Field that holds the id of a request, which hosts and the log get; `None`: there is none.
    pub request_id: Option<String>,
}

/// Treatment of the requests of a name, or of one of its paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
}

/// Limits of a client's requests of a route. A client is a /32 of IPv4 or a /64 of IPv6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestLimits {
    /// Requests in a second, and at once.
    pub requests: Option<RateLimit>,
    /// Most requests in flight, tunnels included; 0: any number.
    pub concurrent: u32,
}

/// Changes of the fields of requests and answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderEdits {
    /// Changes of what hosts get.
    pub request: Vec<FieldEdit>,
    /// Changes of what clients get.
    pub response: Vec<FieldEdit>,
}

/// Time limits of a route; `None`: as for all routes ([`HttpTimeouts`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteTimeouts {
    /// Time for a host to begin its answer.
    pub answer: Option<Duration>,
    /// Time that a tunnel may be idle.
    pub tunnel: Option<Duration>,
}

impl RequestPolicy {
    /// Treatment of every request, unless a route says more.
    pub const NONE: Self = Self {
        affinity: None,
        headers: None,
        rewrite: None,
        timeouts: RouteTimeouts {
            answer: None,
            tunnel: None,
        },
        limits: None,
    };

    /// Fills what a path leaves out with what is said of its name. Not [`Self::rewrite`], which belongs to one path, and
    /// not [`Self::limits`], for whose sake requests of paths without limits are counted with their name's.
    pub fn inherit(&mut self, of_name: &Self) {
        self.affinity = self.affinity.take().or_else(|| of_name.affinity.clone());
        self.headers = self.headers.take().or_else(|| of_name.headers.clone());
        self.timeouts.answer = self.timeouts.answer.or(of_name.timeouts.answer);
        self.timeouts.tunnel = self.timeouts.tunnel.or(of_name.timeouts.tunnel);
    }

    /// Time limits of the route's requests, where `common` are those of all routes.
    #[must_use]
    pub fn timeouts(&self, common: HttpTimeouts) -> HttpTimeouts {
        HttpTimeouts {
            answer: self.timeouts.answer.unwrap_or(common.answer),
            tunnel: self.timeouts.tunnel.unwrap_or(common.tunnel),
            ..common
        }
    }
}
