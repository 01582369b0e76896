//! Routes: names, and the clusters that serve them.

use serde::Serialize;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use super::claimed::{ClaimedPolicy, ConnectionLimits};
use super::http::RequestPolicy;
use super::tls::{RouteTls, Termination};
use crate::model::labels::Labels;
use crate::wire::hostname::{HostnamePattern, WildcardDepth};

/// Route: a name and the clusters that serve it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Route {
    /// Name or wildcard of the route.
    #[serde(rename = "host")]
    pub hostname: HostnamePattern,
    /// Number of labels that the name's star stands for, if it has one.
    pub depth: WildcardDepth,
    /// Clusters with their weights, 0 to 100: 0 gets nothing. Empty if sources report the clusters of the name.
    pub clusters: Vec<(usize, u32)>,
    /// Drain time of the route's flows when it is taken out of rotation; `None`: [`Timeouts::drain`].
    pub drain: Option<Duration>,
    /// Clusters that certain clients get before all others, regardless of weights: testers reach a new version first.
    pub prefer: Vec<Preference>,
    /// Labels that the configuration gives the route. Labels of claims are in [`crate::discovered::discovery::Claim::labels`].
    pub labels: Labels,
    /// Addresses of the clients that are served; `None`: all are.
    pub allow: Option<Vec<IpNet>>,
    /// Limits of each client's connections, in place of those of annotations; `None`: the configuration says nothing.
    pub connections: Option<ConnectionLimits>,
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

    /// Whether the route has a setting for requests that does not apply to whole connections.
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

/// Route of the requests whose path begins with a path ([`crate::wire::http::path::PathTable`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathRoute {
    /// Path, which begins with `/`.
    pub path: String,
    /// Clusters with their weights, 0 to 100: 0 gets nothing.
    pub clusters: Vec<(usize, u32)>,
    /// Treatment of the path's requests.
    pub requests: RequestPolicy,
}

/// Preference: clients that are sent to a cluster as long as it has a usable host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Hash)]
pub struct Preference {
    /// Preferred cluster.
    pub cluster: usize,
    /// Addresses of the clients.
    pub clients: Vec<IpNet>,
}

/// Treatment of a name without a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unmatched {
    /// Refusal in the client's own protocol.
    Reject,
    /// Connection to this cluster.
    Cluster(usize),
    /// Connection to any healthy host of any cluster.
    Any,
}
