//! Treatment of a discovered name by the annotations of its Routes ([`crate::discovered::merge`] makes it of them).

use serde::Serialize;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use super::http::{PeriodRate, RequestPolicy};
use super::tls::InsecurePolicy;
use super::{Balance, Route};
use crate::wire::http::path;

/// Treatment of a name by the annotations of its Routes, beside [`Route::requests`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClaimedPolicy {
    /// Clients that clusters serve, where the path is not known or none of [`Self::paths`]. A cluster that is not named
    /// serves all.
    pub allow: Vec<ClusterAllow>,
    /// Balancing among the hosts of each cluster; `None`: the cluster's own.
    pub balance: Option<Balance>,
    /// Treatment of plain HTTP, where the path is none of [`Self::paths`].
    pub insecure: InsecurePolicy,
    /// Limits of each client's connections.
    pub connections: ConnectionLimits,
    /// Most connections that a host has at once, where the path is not known; beside that of its cluster.
    pub max_host_connections: Option<u32>,
    /// Time without a byte after which a flow that is carried as a whole is ended; `None`: the common one.
    pub idle: Option<Duration>,
    /// Treatment of requests by their path, the longest path first. Their clusters are those of the name.
    pub paths: Vec<PathPolicy>,
}

/// Clients that a cluster serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Hash)]
pub struct ClusterAllow {
    /// Index of the cluster.
    pub cluster: usize,
    /// Prefixes of the clients; empty: no client is served.
    pub prefixes: Vec<IpNet>,
}

/// Limits of a client's connections for a name. A client is a /32 of IPv4 or a /64 of IPv6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConnectionLimits {
    /// Most connections at once, and most requests in flight where requests are routed one by one; 0: any number.
    pub concurrent: u32,
    /// New connections in a time.
    pub rate: Option<PeriodRate>,
}

/// Treatment of the requests of a discovered name whose path begins with a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathPolicy {
    /// Path; empty for every request.
    pub path: String,
    /// Clients that clusters serve, in place of those of the name.
    pub allow: Vec<ClusterAllow>,
    /// Treatment of plain HTTP, in place of that of the name.
    pub insecure: InsecurePolicy,
    /// Treatment of the requests.
    pub requests: RequestPolicy,
}

/// Whether a cluster serves a client, by the lists of clusters.
#[must_use]
pub fn is_served(allow: &[ClusterAllow], cluster: usize, client: IpAddr) -> bool {
    let client = client.to_canonical();
    let mut lists = allow.iter().filter(|list| list.cluster == cluster);
    lists.all(|list| list.prefixes.iter().any(|prefix| prefix.contains(&client)))
}

impl Route {
    /// Lists of the clients that clusters serve, for connections whose path is not known.
    #[must_use]
    pub fn cluster_allow(&self) -> &[ClusterAllow] {
        self.claimed.as_ref().map_or(&[], |claimed| &claimed.allow)
    }

    /// Whether the route treats some clients otherwise than others: `prefer`, `allow`, and the lists of clusters.
    #[must_use]
    pub fn treats_clients_differently(&self) -> bool {
        !self.prefer.is_empty() || self.allow.is_some() || !self.cluster_allow().is_empty()
    }

    /// Whether some cluster of the route serves a client, by the lists of clusters.
    #[must_use]
    pub fn has_cluster_for(&self, allow: &[ClusterAllow], client: IpAddr) -> bool {
        let shares = self.clusters.iter().filter(|(_, weight)| *weight > 0);
        let mut clusters = shares
            .map(|(cluster, _)| *cluster)
            .chain(self.preferred(client.to_canonical()));
        allow.is_empty() || clusters.any(|cluster| is_served(allow, cluster, client))
    }

    /// Treatment by annotations of requests with a path.
    #[must_use]
    pub fn path_policy(&self, path: &[u8]) -> Option<&PathPolicy> {
        let mut paths = self.claimed.iter().flat_map(|claimed| &claimed.paths);
        paths.find(|policy| path::covers(policy.path.as_bytes(), path))
    }

    /// Treatment of plain HTTP for a path: by the configuration, else by the clusters' objects.
    #[must_use]
    pub fn insecure(&self, path: &[u8]) -> InsecurePolicy {
        let of_path = || self.path_policy(path).map(|policy| policy.insecure);
        let of_name = || self.claimed.as_ref().map(|claimed| claimed.insecure);
        let said = self.tls.as_ref().and_then(|tls| tls.insecure);
        said.or_else(of_path).or_else(of_name).unwrap_or_default()
    }

    /// Whether plain HTTP for some path is not served as TLS is.
    #[must_use]
    pub fn restricts_plain_http(&self) -> bool {
        let claimed = || {
            let of_paths = |claimed: &ClaimedPolicy| claimed.paths.iter().any(|path| !path.insecure.is_allow());
            let mut claimed = self.claimed.iter();
            claimed.any(|claimed| !claimed.insecure.is_allow() || of_paths(claimed))
        };
        let said = self.tls.as_ref().and_then(|tls| tls.insecure);
        said.map_or_else(claimed, |said| !said.is_allow())
    }

    /// Limits of each client's connections.
    #[must_use]
    pub fn connection_limits(&self) -> ConnectionLimits {
        let claimed = || self.claimed.as_ref().map(|claimed| claimed.connections);
        self.connections.or_else(claimed).unwrap_or_default()
    }

    /// Balancing of the route, in place of that of its clusters.
    #[must_use]
    pub fn own_balance(&self) -> Option<Balance> {
        self.claimed.as_ref().and_then(|claimed| claimed.balance)
    }

    /// Most connections that a host has at once, for connections whose path is not known.
    #[must_use]
    pub fn max_host_connections(&self) -> Option<u32> {
        self.claimed.as_ref().and_then(|claimed| claimed.max_host_connections)
    }

    /// Time without a byte after which a flow of the route is ended that is carried as a whole.
    #[must_use]
    pub fn idle_timeout(&self, common: Duration) -> Duration {
        let own = self.claimed.as_ref().and_then(|claimed| claimed.idle);
        own.unwrap_or(common)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::view::tests::model;

    fn list(cluster: usize, prefixes: &[&str]) -> ClusterAllow {
        ClusterAllow {
            cluster,
            prefixes: prefixes.iter().map(|prefix| prefix.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn a_client_is_served_by_the_clusters_whose_lists_have_it() {
        let allow = [list(0, &["10.0.0.0/8"]), list(2, &[])];
        let served = |cluster, client: &str| is_served(&allow, cluster, client.parse().unwrap());
        assert!(served(0, "10.1.2.3") && served(0, "::ffff:10.1.2.3"));
        assert!(!served(0, "11.1.2.3") && !served(0, "2001:db8::1"));
        assert!(served(1, "11.1.2.3"), "a cluster without a list serves all");
        assert!(!served(2, "10.1.2.3"), "an empty list serves nobody");
    }

    #[test]
    fn a_route_serves_whom_a_cluster_with_a_share_serves() {
        let mut route = model().routes.remove(0);
        let allow = [list(0, &["10.0.0.0/8"]), list(1, &["10.0.0.0/8"])];
        let client = "11.0.0.1".parse().unwrap();
        assert!(!route.has_cluster_for(&allow, client) && route.has_cluster_for(&[], client));
        assert!(route.has_cluster_for(&allow[..1], client));
        route.clusters = vec![(0, 1), (1, 0)];
        assert!(!route.has_cluster_for(&allow[..1], client), "a weight of 0 is no share");
    }

    #[test]
    fn the_longest_path_of_the_annotations_counts() {
        let mut route = model().routes.remove(0);
        let policy = |path: &str| PathPolicy {
            path: path.into(),
            allow: Vec::new(),
            insecure: InsecurePolicy::Allow,
            requests: RequestPolicy::default(),
        };
        route.claimed = Some(Box::new(ClaimedPolicy {
            paths: ["/app/admin", "/app", ""].map(policy).to_vec(),
            ..ClaimedPolicy::default()
        }));
        let found = |path: &str| route.path_policy(path.as_bytes()).map(|policy| policy.path.as_str());
        assert_eq!(found("/app/admin/x"), Some("/app/admin"));
        assert_eq!(found("/app/administrator"), Some("/app"));
        assert_eq!(found("/application"), Some(""));
        assert_eq!(found("*"), Some(""));
    }
}
