//! Why a worker routes a connection, and not the kernel peek: the reasons, and those that the configuration shows.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::model::claimed::{ClusterAllow, is_served};
use crate::model::{Cluster, Listener, Model, PeekPlace, Protocol, Route, Routing};

macro_rules! obstacles {
    ($($name:ident, $label:literal, $text:literal, $remedy:literal;)*) => {
        /// Reason why connections of a listener, a route or a cluster are not routed in the kernel.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs, reason = "`text` describes each")]
        pub enum PeekObstacle {
            $($name,)*
        }

        impl PeekObstacle {
            /// All reasons, each at its index.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Value of the label `reason`.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)*
                }
            }

            /// The reason as half a sentence.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// Advice for an operator. Empty if nothing should be done.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self {
                    $(Self::$name => $remedy,)*
                }
            }
        }
    };
}

obstacles! {
    NotConfigured, "not_configured", "`datapath.peek` is `userspace`", "set `peek: auto`";
    NotAvailable, "not_available", "the kernel does not accept the kernel peek's program",
        "`signalbox doctor` names the reason";
    Loading, "loading", "the kernel is checking the program, or the program's tables are not written yet",
        "wait: this takes less than a second";
    NotLoaded, "not_loaded", "the program had nothing to route when the process started, so it is not loaded",
        "a restart or `signalbox run --takeover` loads it";
    CutOff, "cut_off", "tier `cut` is off", "remove `cut: false` or `tier` from `datapath`";
    NoNames, "no_names", "connections of protocol `tcp` contain no name to route by",
        "for a port without names, a service routes packets in the kernel";
    TerminatesTls, "tls_ends_here", "the listener terminates TLS", "let the hosts terminate TLS (`protocol: tls`)";
    PerRequest, "per_request", "requests are routed one by one", "";
    TrustedProxies, "trusted_proxies", "the listener accepts PROXY headers of trusted proxies",
        "give the proxies a listener of their own";
    FloatingAddresses, "floating_addresses", "more than 255 virtual addresses move between nodes (`ha`)", "";
    FormerOwner, "former_owner", "the address arrived by a planned move, and its former owner still drains", "";
    PacketFilter, "packet_filter", "a rule of a packet filter may do something to the connections",
        "if the rule need not see these connections, `datapath: { peek: kernel }` bypasses it";
    NoAnswers, "no_answers", "no host has answered the kernel peek's SYNs, and `datapath.peek` is `auto`",
        "the log and `signalbox doctor` name the likely cause";
    ShieldGap, "shield_gap", "the shield is not active at an interface, so userspace refuses the denied clients",
        "see `signalbox shield`";
    NoPorts, "no_ports", "net.ipv4.ip_local_port_range leaves no source ports for the program",
        "let the range leave 16384 to 28671 free";
    NoLocalAddress, "no_local_address", "the listener has no address of this machine", "";
    ClientFamily, "client_family", "the client's address family differs from that of the hosts", "";
    NoRoute, "no_route", "no route has this name", "add a route for it";
    LongName, "long_name", "the name is longer than 62 bytes, or contains bytes that are not allowed in names", "";
    Preference, "prefer", "`prefer` of the route names this client", "";
    AllowList, "allow", "a list of allowed clients does not contain this client", "";
    OutOfRotation, "out_of_rotation", "the application is out of rotation", "";
    ManyTurns, "many_turns", "the weights need more than 128 turns, or more than 8 clusters have a share",
        "use small whole weights, for at most 8 clusters";
    NoUsableHost, "no_usable_host", "no host of the route's clusters is usable", "see `signalbox hosts`";
    HostsSpeakHttp2, "h2c", "a cluster has `h2c`", "";
    ManyHosts, "many_hosts", "a cluster has more hosts, or turns among them, than the program compares", "";
    HostNotReached, "host_not_reached", "a host is on this machine, or no route leads to it", "";
    HostOptions, "host_options",
        "a host lacks TCP timestamps or selective acknowledgements, or accepts only small segments",
        "set net.ipv4.tcp_timestamps and net.ipv4.tcp_sack to 1 on the host";
    TableFull, "table_full", "a table of the kernel peek's program is full", "";
}

impl PeekObstacle {
    /// Returns all reasons for which the configuration leaves the connections of a listener to userspace.
    #[must_use]
    pub fn of_configuration(listener: &Listener) -> Vec<Self> {
        given(&[
            (listener.datapath.peek == PeekPlace::Userspace, Self::NotConfigured),
            (!listener.datapath.cut || listener.datapath.tier.is_some(), Self::CutOff),
            (listener.protocol == Protocol::Tcp, Self::NoNames),
            (listener.tls.is_some(), Self::TerminatesTls),
            (listener.routing == Routing::Request, Self::PerRequest),
            (!listener.trusted_proxies.is_empty(), Self::TrustedProxies),
        ])
    }

    /// Returns all reasons for which a route's connections are not routed in the kernel. `is_closed`: its application
    /// is out of rotation.
    #[must_use]
    pub fn of_route(route: &Route, protocol: Protocol, is_closed: bool) -> Vec<Self> {
        let is_per_request = !route.paths.is_empty() || protocol == Protocol::Http && route.needs_request_routing();
        given(&[(is_per_request, Self::PerRequest), (is_closed, Self::OutOfRotation)])
    }

    /// Returns why the connections of a client are not routed in the kernel, by the lists of a route.
    #[must_use]
    pub fn of_client(route: &Route, client: IpAddr) -> Option<Self> {
        if route.preferred(client.to_canonical()).next().is_some() {
            return Some(Self::Preference);
        }
        let serves = |list: &ClusterAllow| is_served(route.cluster_allow(), list.cluster, client);
        (!route.allows(client) || !route.cluster_allow().iter().all(serves)).then_some(Self::AllowList)
    }

    /// Returns all reasons for which connections to a cluster are not routed in the kernel, from its configuration.
    #[must_use]
    pub fn of_cluster(cluster: &Cluster, protocol: Protocol) -> Vec<Self> {
        given(&[(cluster.h2c && protocol == Protocol::Http, Self::HostsSpeakHttp2)])
    }

    /// Reason with this value of the label `reason`.
    #[must_use]
    pub fn of_label(label: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|obstacle| obstacle.label() == label)
    }

    /// Whether the machine or a host is the cause, and not the configuration.
    #[must_use]
    pub const fn is_of_machine(self) -> bool {
        matches!(
            self,
            Self::NotAvailable
                | Self::NotLoaded
                | Self::PacketFilter
                | Self::NoAnswers
                | Self::ShieldGap
                | Self::NoPorts
                | Self::NoLocalAddress
                | Self::HostNotReached
                | Self::HostOptions
                | Self::TableFull
        )
    }
}

/// A listener or route of a configuration, and the reasons for which it is left to userspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPath {
    /// `listener` or `route`.
    pub kind: &'static str,
    /// Name of the listener or route.
    pub name: String,
    /// Reasons. Empty: the kernel routes the connections, as far as the configuration decides.
    pub obstacles: Vec<PeekObstacle>,
}

/// Returns the path of each listener, and of each route at those listeners whose connections the kernel may route.
#[must_use]
pub fn planned_paths(model: &Model) -> Vec<PlannedPath> {
    let listeners = model.listeners.iter().map(|listener| PlannedPath {
        kind: "listener",
        name: listener.name.clone(),
        obstacles: PeekObstacle::of_configuration(listener),
    });
    let listeners: Vec<_> = listeners.collect();
    let in_kernel = model
        .listeners
        .iter()
        .zip(&listeners)
        .filter(|(_, path)| path.obstacles.is_empty());
    let protocols: BTreeSet<Protocol> = in_kernel.map(|(listener, _)| listener.protocol).collect();
    let of_route = |route: &Route| {
        let of_protocol = |protocol: &Protocol| {
            let clusters = route.clusters.iter().filter_map(|(at, _)| model.clusters.get(*at));
            let of_clusters = clusters.flat_map(|cluster| PeekObstacle::of_cluster(cluster, *protocol));
            let all = PeekObstacle::of_route(route, *protocol, false)
                .into_iter()
                .chain(of_clusters);
            all.collect::<BTreeSet<_>>()
        };
        // A name that the kernel routes for one protocol is no concern: most names have hosts for one only.
        let all: Vec<_> = protocols.iter().map(of_protocol).collect();
        let least = all.into_iter().min_by_key(BTreeSet::len).unwrap_or_default();
        PlannedPath {
            kind: "route",
            name: route.hostname.to_string(),
            obstacles: least.into_iter().collect(),
        }
    };
    let routes = model.routes.iter().filter(|_| !protocols.is_empty()).map(of_route);
    listeners.into_iter().chain(routes).collect()
}

/// Returns the reasons that hold.
#[must_use]
pub fn given(obstacles: &[(bool, PeekObstacle)]) -> Vec<PeekObstacle> {
    let found = obstacles.iter().filter(|(holds, _)| *holds);
    found.map(|(_, obstacle)| *obstacle).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_found_by_its_label() {
        let found = |obstacle: &PeekObstacle| PeekObstacle::of_label(obstacle.label());
        assert!(
            PeekObstacle::ALL
                .iter()
                .all(|obstacle| found(obstacle) == Some(*obstacle))
        );
        assert!(PeekObstacle::of_label("gone").is_none());
    }

    #[test]
    fn each_reason_has_its_index_and_its_row_in_the_documentation() {
        let document = include_str!("../../../docs/kernel-peek.md");
        let rows = document.split("## Why userspace routes it").nth(1).unwrap();
        for (at, obstacle) in PeekObstacle::ALL.iter().enumerate() {
            assert_eq!(*obstacle as usize, at);
            let label = format!("`{}`", obstacle.label());
            let in_first_column =
                |line: &str| line.starts_with('|') && line.split('|').nth(1).unwrap().contains(&label);
            assert!(rows.lines().any(in_first_column), "{label}");
        }
    }
}
