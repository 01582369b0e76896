//! Exports the current table for other balancers: HAProxy's maps and backends, nginx's map and upstreams.
//!
//! Equal tables give equal texts, so that two exports can be compared.

mod haproxy;
mod nginx;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use crate::model::{Balance, Cluster, Model, Protocol, Route};
use crate::wire::hostname::HostnamePattern;

/// Format in which the table is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// HAProxy map of names to backends, for `map_str`.
    HaproxyMap,
    /// HAProxy map of wildcards to backends, for `map_end`; longer ones first.
    HaproxyWildcards,
    /// HAProxy backends that both maps name.
    HaproxyBackends,
    /// nginx map of names and wildcards to upstreams, and the upstreams, for the `http` or `stream` block.
    NginxMap,
}

impl Format {
    /// All formats, with their names.
    pub const ALL: [(&'static str, Self); 4] = [
        ("haproxy-map", Self::HaproxyMap),
        ("haproxy-wildcards", Self::HaproxyWildcards),
        ("haproxy-backends", Self::HaproxyBackends),
        ("nginx-map", Self::NginxMap),
    ];

    /// Format with this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name)?;
        Some(found.1)
    }
}

/// Whether a host (cluster, name, address) is out of rotation.
pub type IsRotatedOut<'a> = &'a dyn Fn(&str, &str, IpAddr) -> bool;

/// The table of a model, ready to be exported.
pub struct ExportTable<'a> {
    model: &'a Model,
    protocol: Protocol,
    is_out: IsRotatedOut<'a>,
    /// Names that are not out of rotation, with the clusters that get a share of each.
    names: Vec<(&'a HostnamePattern, Split)>,
}

/// Clusters with their weights, none of them 0.
type Split = Vec<(usize, u32)>;

/// Host as a server of an exported backend or upstream.
struct Server<'a> {
    cluster: &'a Cluster,
    name: &'a str,
    at: SocketAddr,
    /// Weight of the server, at least 1.
    weight: u32,
    is_out: bool,
}

/// Largest weight of a server in HAProxy.
const MAX_WEIGHT: f64 = 256.0;

impl<'a> ExportTable<'a> {
    /// Builds the table of a model, with the hosts' ports for a protocol. Routes for which `is_closed` is true are left
    /// out.
    pub fn new(
        model: &'a Model,
        protocol: Protocol,
        is_out: IsRotatedOut<'a>,
        is_closed: &dyn Fn(&Route) -> bool,
    ) -> Self {
        let split = |route: &Route| -> Split {
            let known = route
                .clusters
                .iter()
                .filter(|(at, weight)| *weight > 0 && *at < model.clusters.len());
            known.copied().collect()
        };
        let open = model.routes.iter().filter(|route| !is_closed(route));
        let mut names: Vec<_> = open.map(|route| (&route.hostname, split(route))).collect();
        names.retain(|(_, split)| !split.is_empty());
        // The longest wildcard comes first, because the first match counts.
        let length = |hostname: &HostnamePattern| match hostname {
            HostnamePattern::Exact(_) => 0,
            HostnamePattern::Wildcard(suffix) => suffix.as_str().len(),
        };
        names.sort_by_cached_key(|(host, _)| (std::cmp::Reverse(length(host)), host.to_string()));
        Self {
            model,
            protocol,
            is_out,
            names,
        }
    }

    /// Text of the table in a format.
    #[must_use]
    pub fn render(&self, format: Format) -> String {
        match format {
            Format::HaproxyMap => haproxy::map(self, false),
            Format::HaproxyWildcards => haproxy::map(self, true),
            Format::HaproxyBackends => haproxy::backends(self),
            Format::NginxMap => nginx::map(self),
        }
    }

    /// Every split that a name has, once, keyed by the name that `called` gives the split.
    fn splits(&self, called: impl Fn(&Split) -> String) -> BTreeMap<String, &Split> {
        self.names.iter().map(|(_, split)| (called(split), split)).collect()
    }

    fn cluster(&self, at: usize) -> Option<&'a Cluster> {
        self.model.clusters.get(at)
    }

    /// Hosts of a split that have a port for the protocol, weighted so that each gets its part of all connections.
    fn servers(&self, split: &Split) -> Vec<Server<'a>> {
        let mut shares = Vec::new();
        for (cluster, share) in split.iter().filter_map(|(at, share)| Some((self.cluster(*at)?, share))) {
            let hosts = cluster
                .hosts
                .iter()
                .filter_map(|host| Some((host, host.port(self.protocol)?)));
            let hosts: Vec<_> = hosts.collect();
            let total: u32 = hosts.iter().map(|(host, _)| host.weight).sum();
            for (host, port) in hosts {
                let part = f64::from(*share) * f64::from(host.weight) / f64::from(total.max(1));
                shares.push((part, cluster, host, port));
            }
        }
        let most = shares.iter().map(|(part, ..)| *part).fold(0.0, f64::max);
        let alone = split.len() == 1;
        let server = |(part, cluster, host, port): (f64, &'a Cluster, &'a crate::model::Host, u16)| Server {
            cluster,
            name: &host.name,
            at: SocketAddr::new(host.address, port),
            weight: if alone { host.weight } else { scaled(part, most) },
            is_out: (self.is_out)(&cluster.name, &host.name, host.address),
        };
        shares.into_iter().map(server).collect()
    }

    /// Balancing algorithm of a split: that of its cluster or, with several clusters, weighted round-robin.
    fn balance(&self, split: &Split) -> Balance {
        match split[..] {
            [(at, _)] => self.cluster(at).map_or(Balance::RoundRobin, |cluster| cluster.balance),
            _ => Balance::RoundRobin,
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 256")]
fn scaled(part: f64, most: f64) -> u32 {
    (part / most * MAX_WEIGHT).round().clamp(1.0, MAX_WEIGHT) as u32
}

#[cfg(test)]
mod tests;
