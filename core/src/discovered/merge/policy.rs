//! Treatment of a discovered name by the settings of its Routes.
//!
//! Settings that need the client's address, and those that end flows, apply in front of routers, too. Settings of
//! servers apply where no cluster that shares the name has routers, which would do the work again. Where several
//! clusters share a name, each one's list of clients applies to that cluster. For the name, the strictest limit, the
//! longest time and otherwise the oldest Route's setting apply.

pub(super) mod report;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::discovered::discovery::{Claim, RouteSettings};
use crate::model::claimed::{ClaimedPolicy, ClusterAllow, ConnectionLimits, PathPolicy};
use crate::model::http::{AffinityScope, CookieAffinity};
use crate::model::http::{HeaderEdits, PassivePolicy, PeriodRate, RequestLimits, RequestPolicy};
use crate::model::tls::{InsecurePolicy, RouteTls};
use crate::model::{Balance, Cluster, ClusterRole, Route, Timeouts};
use crate::wire::http::path;

/// Time in which `rate-limit-connections.rate-tcp` counts.
const CONNECTION_RATE_INTERVAL: Duration = Duration::from_secs(3);

/// Time in which `rate-limit-connections.rate-http` counts.
const REQUEST_RATE_INTERVAL: Duration = Duration::from_secs(10);

/// Claims that share a name, oldest first.
pub(super) struct SharedName<'a> {
    holders: Vec<Holder<'a>>,
    timeouts: &'a Timeouts,
}

/// A cluster's claim of a name.
#[derive(Clone, Copy)]
struct Holder<'a> {
    at: usize,
    cluster: &'a Cluster,
    claim: &'a Claim,
}

impl<'a> Holder<'a> {
    /// Whether the cluster's routers get the client's address, and obey settings that depend on it themselves.
    fn knows_client(&self) -> bool {
        self.cluster.role == ClusterRole::Routers && self.cluster.proxy_protocol.is_some()
    }

    /// Settings for a path: those of the cluster's only Route, or of the one with the longest path that has it.
    fn settings_at(&self, path: &str) -> Option<&'a RouteSettings> {
        if let [only] = &self.claim.settings[..] {
            return Some(only);
        }
        let all = self.claim.settings.iter();
        all.filter(|settings| path::covers(settings.path.as_bytes(), path.as_bytes()))
            .max_by_key(|settings| settings.path.len())
    }

    /// Loosest of a limit of the cluster's Routes; `None` if one of them has none.
    fn loosest(&self, limit: impl Fn(&RouteSettings) -> Option<u32>) -> Option<u32> {
        let limits: Option<Vec<u32>> = self.claim.settings.iter().map(limit).collect();
        limits?.into_iter().max()
    }
}

/// Gives a discovered route the settings of its claims, where the configuration says nothing.
pub(super) fn apply(route: &mut Route, claims: &[(usize, &Claim)], clusters: &[Cluster], timeouts: &Timeouts) {
    if claims
        .iter()
        .all(|(_, claim)| claim.settings.is_empty() && claim.insecure.is_allow())
    {
        return;
    }
    let name = SharedName::new(route, claims, clusters, timeouts);
    let list_in_file = route.allow.is_some();
    let mut claimed = ClaimedPolicy {
        allow: name.allow_of_connections(),
        balance: name.balance(),
        insecure: name.insecure(),
        max_host_connections: name.max_host_connections(),
        connections: name.connection_limits(),
        idle: name.idle(),
        paths: name.paths(),
    };
    if let [PathPolicy { requests, .. }] = &claimed.paths[..]
        && !is_of_path(&claimed.paths[0])
    {
        route.requests = route.requests.or(requests.clone());
        claimed.paths.clear();
    }
    for path in &mut claimed.paths {
        path.requests = route.requests.or(path.requests.clone());
    }
    if list_in_file {
        claimed.allow.clear();
        claimed.paths.iter_mut().for_each(|path| path.allow.clear());
    }
    if let Some(hsts) = name.hsts() {
        let tls = route.tls.get_or_insert_with(RouteTls::default);
        tls.hsts.get_or_insert(hsts);
    }
    route.claimed = (claimed != ClaimedPolicy::default()).then(|| Box::new(claimed));
}

/// Whether a policy can only apply to its path: it names or replaces that path.
fn is_of_path(policy: &PathPolicy) -> bool {
    let names_path = policy.requests.rewrite.is_some() || policy.requests.affinity.is_some();
    names_path && !matches!(policy.path.as_str(), "" | "/")
}

impl<'a> SharedName<'a> {
    /// Claims that have a share of the route, or all where none has.
    pub(super) fn new(
        route: &Route,
        claims: &[(usize, &'a Claim)],
        clusters: &'a [Cluster],
        timeouts: &'a Timeouts,
    ) -> Self {
        let holder = |&(at, claim): &(usize, &'a Claim)| {
            let cluster = clusters.get(at)?;
            Some(Holder { at, cluster, claim })
        };
        let mut holders: Vec<_> = claims.iter().filter_map(holder).collect();
        let has_share = |holder: &Holder<'_>| {
            let mut shares = route.clusters.iter();
            shares.any(|(cluster, weight)| *cluster == holder.at && *weight > 0)
        };
        if holders.iter().any(has_share) {
            holders.retain(has_share);
        }
        holders.sort_by_key(|holder| (holder.claim.since, holder.at));
        Self { holders, timeouts }
    }

    /// Whether every cluster has servers, so that only the balancer can obey settings for routers.
    pub(super) fn has_only_servers(&self) -> bool {
        self.holders
            .iter()
            .all(|holder| holder.cluster.role == ClusterRole::Servers)
    }

    /// Holders whose routers do not know the client.
    fn ignorant(&self) -> impl Iterator<Item = &Holder<'a>> {
        self.holders.iter().filter(|holder| !holder.knows_client())
    }

    /// Clients whose connections clusters serve: those that one of a cluster's Routes serves, since the path is not known.
    fn allow_of_connections(&self) -> Vec<ClusterAllow> {
        let of_cluster = |holder: &Holder<'_>| {
            let lists: Option<Vec<_>> = holder
                .claim
                .settings
                .iter()
                .map(|settings| settings.allow.as_ref())
                .collect();
            let lists = lists.filter(|lists| !lists.is_empty())?;
            Some(ClusterAllow {
                cluster: holder.at,
                prefixes: lists.into_iter().flatten().copied().collect(),
            })
        };
        self.ignorant().filter_map(of_cluster).collect()
    }

    fn allow_at(&self, path: &str) -> Vec<ClusterAllow> {
        let of_cluster = |holder: &Holder<'_>| {
            Some(ClusterAllow {
                cluster: holder.at,
                prefixes: holder.settings_at(path)?.allow.clone()?,
            })
        };
        self.ignorant().filter_map(of_cluster).collect()
    }

    fn connection_limits(&self) -> ConnectionLimits {
        let strictest = |limit: fn(&RouteSettings) -> Option<u32>| {
            let limits = self.ignorant().filter_map(|holder| holder.loosest(limit));
            limits.min()
        };
        let rate = strictest(|settings| settings.connection_rate);
        ConnectionLimits {
            concurrent: strictest(|settings| settings.concurrent_connections).unwrap_or(0),
            rate: rate.map(|count| rate_in(count, CONNECTION_RATE_INTERVAL)),
        }
    }

    /// Longest of a time; `None` where no Route says one. `common` is that of Routes that say none.
    fn longest(times: impl Iterator<Item = Option<Duration>>, common: Duration) -> Option<Duration> {
        let times: Vec<_> = times.collect();
        let is_said = times.iter().any(Option::is_some);
        let longest = times.into_iter().map(|time| time.unwrap_or(common)).max();
        longest.filter(|_| is_said)
    }

    /// Time without a byte for flows that are carried as a whole. One that passes requests may wait for an answer, or be
    /// a tunnel: neither is cut short by the time of the other.
    fn idle(&self) -> Option<Duration> {
        let common = self.timeouts.idle;
        let of_route = |settings: &RouteSettings| {
            let (timeout, tunnel) = (settings.timeout(), settings.tunnel_timeout());
            match tunnel {
                _ if settings.passes_tls => tunnel.or(timeout),
                Some(tunnel) => Some(tunnel.max(timeout.unwrap_or(self.timeouts.http.answer))),
                None => timeout.filter(|timeout| *timeout > common),
            }
        };
        let of_cluster = |holder: &Holder<'_>| Self::longest(holder.claim.settings.iter().map(of_route), common);
        Self::longest(self.holders.iter().map(of_cluster), common)
    }

    /// Treatments of requests by path, the longest first; one without a path where all are alike.
    fn paths(&self) -> Vec<PathPolicy> {
        let all = self.holders.iter().flat_map(|holder| &holder.claim.settings);
        let paths: BTreeSet<&str> = all.map(|settings| settings.path.as_str()).collect();
        let policy = |path: &&str| PathPolicy {
            path: (*path).to_owned(),
            allow: self.allow_at(path),
            insecure: self.insecure_at(path),
            requests: self.requests_at(path),
        };
        let mut policies: Vec<_> = paths.iter().map(policy).collect();
        policies.sort_by_key(|policy| std::cmp::Reverse(policy.path.len()));
        let is_alike = |pair: &[PathPolicy]| match pair {
            [a, b] => a.allow == b.allow && a.insecure == b.insecure && a.requests == b.requests,
            _ => true,
        };
        if policies.windows(2).all(is_alike) && !policies.iter().any(is_of_path) {
            policies.truncate(1);
            policies.iter_mut().for_each(|policy| policy.path.clear());
        }
        policies
    }

    fn requests_at(&self, path: &str) -> RequestPolicy {
        let at = |holder: &Holder<'a>| holder.settings_at(path);
        let with_requests = |holder| at(holder).filter(|settings| !settings.passes_tls);
        let rates = self.ignorant().filter_map(|holder| with_requests(holder)?.request_rate);
        let time = |time: fn(&RouteSettings) -> Option<Duration>, common| {
            Self::longest(self.holders.iter().map(|holder| at(holder).and_then(time)), common)
        };
        let first = self.holders.first().filter(|holder| !holder.knows_client());
        let passive = PassivePolicy {
            answer: time(RouteSettings::timeout, self.timeouts.http.answer),
            tunnel: time(RouteSettings::tunnel_timeout, self.timeouts.http.tunnel),
            forwarded: first.and_then(|holder| at(holder)?.forwarded),
            max_host_connections: self.max_host_connections_at(path),
        };
        RequestPolicy {
            limits: rates.min().map(|count| RequestLimits {
                requests: Some(rate_in(count, REQUEST_RATE_INTERVAL)),
                concurrent: 0,
            }),
            passive,
            ..self.requests_of_servers(path)
        }
    }

    /// Settings for requests that are a router's work where there is one.
    fn requests_of_servers(&self, path: &str) -> RequestPolicy {
        let settings = self.holders.first().and_then(|holder| holder.settings_at(path));
        let settings = settings.filter(|settings| self.has_only_servers() && !settings.passes_tls);
        let Some(settings) = settings else {
            return RequestPolicy::NONE;
        };
        let (request, response) = settings.header_edits();
        let has_headers = !request.is_empty() || !response.is_empty();
        RequestPolicy {
            affinity: settings.cookie().map(|cookie| CookieAffinity {
                cookie,
                scope: AffinityScope::Host,
            }),
            headers: has_headers.then_some(HeaderEdits { request, response }),
            rewrite: settings.rewrite.clone(),
            ..RequestPolicy::NONE
        }
    }

    /// Treatment of plain HTTP for paths that no Route has.
    fn insecure(&self) -> InsecurePolicy {
        let first = self.holders.first().filter(|_| self.has_only_servers());
        first.map_or(InsecurePolicy::Allow, |holder| holder.claim.insecure)
    }

    fn insecure_at(&self, path: &str) -> InsecurePolicy {
        let first = self.holders.first().filter(|_| self.has_only_servers());
        let settings = first.and_then(|holder| holder.settings_at(path));
        settings.map_or_else(|| self.insecure(), |settings| settings.insecure)
    }

    /// Balancing among servers, which connections without a path have, too.
    fn balance(&self) -> Option<Balance> {
        let first = self.holders.first().filter(|_| self.has_only_servers())?;
        first.claim.settings.iter().find_map(|settings| settings.balance)
    }

    /// Limit of a server's connections, for those whose path is not known.
    fn max_host_connections(&self) -> Option<u32> {
        let holders = self.holders.iter().filter(|_| self.has_only_servers());
        holders
            .filter_map(|holder| holder.loosest(|settings| settings.server_connections))
            .min()
    }

    fn max_host_connections_at(&self, path: &str) -> Option<u32> {
        let holders = self.holders.iter().filter(|_| self.has_only_servers());
        holders
            .filter_map(|holder| holder.settings_at(path)?.server_connections)
            .min()
    }

    /// Value of Strict-Transport-Security, which browsers take for the whole name.
    fn hsts(&self) -> Option<String> {
        let first = self.holders.first().filter(|_| self.has_only_servers())?;
        let mut values = first.claim.settings.iter().filter(|settings| settings.ends_tls);
        values.find_map(|settings| settings.hsts.clone())
    }
}

/// Rate of `count` in a period, all of them at once if a client likes.
fn rate_in(count: u32, period: Duration) -> PeriodRate {
    PeriodRate {
        count: count.into(),
        period,
        burst: count.into(),
    }
}
