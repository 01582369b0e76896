//! Why the kernel peek leaves connections to userspace.

use std::net::IpAddr;
use std::sync::Arc;

use signalbox_common::cut::moving::{MovingAddress, role};
use signalbox_core::model::claimed::{ClusterAllow, ConnectionLimits, is_served};
use signalbox_core::model::{Cluster, Listener, Model, PeekPlace, Protocol, Route, Routing};

use super::sysctl::{is_on, kernel_offers};
use crate::datapath::cut::program_ports;
use crate::kernel::Cut;
use crate::kernel::cut::moving::is_over;
use crate::kernel::packet_filter::PacketFilter;
use crate::kernel::packet_sockets::SharedFamilies;
use crate::state::ha::OwnedGroups;
use crate::state::shield::ShieldCover;
use crate::state::{HostState, Shared, Snapshot};

/// Conditions for all listeners, in addition to the snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conditions {
    /// Groups of virtual addresses that this node has; `None` before the first report.
    pub(super) owned: Option<Arc<OwnedGroups>>,
    /// Virtual addresses whose former owners drain: connections without a socket here are theirs.
    pub(super) chained: Vec<IpAddr>,
    has_syncookies: bool,
    has_ports: bool,
    has_filter: bool,
    /// Whether no host answers the program's SYNs.
    pub(super) has_no_answers: bool,
    /// Where the shield is active.
    cover: Arc<ShieldCover>,
    /// Address families in which passed-up packets would not find their socket.
    pub(super) shared: SharedFamilies,
    /// Hosts whose handshakes do not match what clients are offered, by cluster index and host index.
    pub(super) unfit: Vec<(usize, usize)>,
}

/// Time, in milliseconds, for which a host's connections are left to userspace after its handshake did not match the
/// client's. Such a client loses the time of one retransmission, and a health check may not see the mismatch.
const UNFIT_PERIOD_MS: u64 = 600_000;

impl Conditions {
    /// `has_filter`: a packet filter has rules.
    pub(super) fn now(shared: &Shared, cut: &Cut, has_filter: bool, families: SharedFamilies) -> Self {
        let chained = |(address, entry): (IpAddr, MovingAddress)| {
            (entry.has_role(role::NEW_OWNER) && !is_over(&entry)).then_some(address)
        };
        let moving = if shared.snapshot.load().floating.is_empty() {
            Vec::new()
        } else {
            cut.moving_addresses().unwrap_or_default()
        };
        let mut chained: Vec<_> = moving.into_iter().filter_map(chained).collect();
        chained.sort_unstable();
        Self {
            chained,
            owned: shared.ha.is_reported().then(|| shared.ha.owned()),
            has_syncookies: is_on("tcp_syncookies"),
            has_ports: program_ports().is_some(),
            has_filter,
            has_no_answers: false,
            cover: shared.shield_cover.load_full(),
            shared: families,
            unfit: unfit_hosts(&shared.snapshot.load()),
        }
    }
}

fn unfit_hosts(snapshot: &Snapshot) -> Vec<(usize, usize)> {
    let offered = kernel_offers() as u8;
    let is_unfit = |host: &HostState| host.was_unfit_within(UNFIT_PERIOD_MS) || host.handshake.lacks(offered);
    let hosts = snapshot.hosts.iter().enumerate();
    let places = hosts.flat_map(|(c, hosts)| hosts.iter().enumerate().map(move |(h, host)| ((c, h), host)));
    places
        .filter(|(_, host)| is_unfit(host))
        .map(|(place, _)| place)
        .collect()
}

/// Reason why connections of a listener, a route or a cluster are not routed in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeekObstacle {
    NotConfigured,
    NotAvailable,
    CutOff,
    NoNames,
    TerminatesTls,
    PerRequest,
    TrustedProxies,
    SourceLimits,
    TotalLimit,
    FloatingAddresses,
    FormerOwner,
    PacketSocket,
    SyncookiesOff,
    PacketFilter,
    NoAnswers,
    ShieldGap,
    NoPorts,
    NoLocalAddress,
    ClientFamily,
    NoRoute,
    LongName,
    Preference,
    AllowList,
    RouteLimits,
    OutOfRotation,
    ManyTurns,
    BothFamilies,
    NoUsableHost,
    ProxyProtocol,
    HostLimit,
    HostsSpeakHttp2,
    ManyHosts,
    HostNotReached,
    HostOptions,
    TableFull,
}

impl PeekObstacle {
    /// Value of the label `reason`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::NotConfigured => "not_configured",
            Self::NotAvailable => "not_available",
            Self::CutOff => "cut_off",
            Self::NoNames => "no_names",
            Self::TerminatesTls => "tls_ends_here",
            Self::PerRequest => "per_request",
            Self::TrustedProxies => "trusted_proxies",
            Self::SourceLimits => "source_limits",
            Self::TotalLimit => "max_connections",
            Self::FloatingAddresses => "floating_addresses",
            Self::FormerOwner => "former_owner",
            Self::PacketSocket => "packet_socket",
            Self::SyncookiesOff => "syncookies_off",
            Self::PacketFilter => "packet_filter",
            Self::NoAnswers => "no_answers",
            Self::ShieldGap => "shield_gap",
            Self::NoPorts => "no_ports",
            Self::NoLocalAddress => "no_local_address",
            Self::ClientFamily => "client_family",
            Self::NoRoute => "no_route",
            Self::LongName => "long_name",
            Self::Preference => "prefer",
            Self::AllowList => "allow",
            Self::RouteLimits => "route_limits",
            Self::OutOfRotation => "out_of_rotation",
            Self::ManyTurns => "many_turns",
            Self::BothFamilies => "both_families",
            Self::NoUsableHost => "no_usable_host",
            Self::ProxyProtocol => "proxy_protocol",
            Self::HostLimit => "max_host_connections",
            Self::HostsSpeakHttp2 => "h2c",
            Self::ManyHosts => "many_hosts",
            Self::HostNotReached => "host_not_reached",
            Self::HostOptions => "host_options",
            Self::TableFull => "table_full",
        }
    }

    /// The reason as half a sentence.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::NotConfigured => "`datapath.peek` is `userspace`",
            Self::NotAvailable => "the kernel peek is not available: `signalbox doctor` names the reason",
            Self::CutOff => "tier `cut` is off",
            Self::NoNames => "connections of protocol `tcp` contain no name to route by",
            Self::TerminatesTls => "the listener terminates TLS",
            Self::PerRequest => "requests are routed one by one",
            Self::TrustedProxies => "the listener accepts PROXY headers of trusted proxies",
            Self::SourceLimits => "connections are limited for each source address",
            Self::TotalLimit => "`limits.max_connections` is set",
            Self::PacketSocket => {
                "a packet socket, such as that of keepalived, receives packets of this address family"
            }
            Self::FormerOwner => "the address arrived by a planned move, and its former owner still drains",
            Self::FloatingAddresses => "more than 255 virtual addresses move between nodes (`ha`)",
            Self::SyncookiesOff => {
                "net.ipv4.tcp_syncookies is 0, so the kernel makes no socket from a cookie: set it to 1"
            }
            Self::PacketFilter => {
                "a packet filter has rules, or may have some: only `datapath: { peek: kernel }` bypasses them"
            }
            Self::NoAnswers => {
                "no host has answered the kernel peek's SYNs, and `datapath.peek` is `auto`: see `signalbox status`"
            }
            Self::ShieldGap => "the shield is not active at an interface, so userspace refuses the denied clients",
            Self::NoPorts => "net.ipv4.ip_local_port_range leaves no source ports for the program",
            Self::NoLocalAddress => "the listener has no address of this machine",
            Self::ClientFamily => "the client's address family differs from that of the hosts",
            Self::NoRoute => "no route has this name",
            Self::LongName => "the name is longer than 62 bytes, or contains bytes that are not allowed in names",
            Self::Preference => "`prefer` of the route names this client",
            Self::AllowList => "a list of allowed clients does not contain this client",
            Self::RouteLimits => "the route limits connections",
            Self::OutOfRotation => "the application is out of rotation",
            Self::ManyTurns => "the weights need more than 128 turns, or more than 8 clusters have a share",
            Self::BothFamilies => "the route's clusters have both IPv4 and IPv6 hosts",
            Self::NoUsableHost => "no host of the route's clusters is usable",
            Self::ProxyProtocol => "hosts of the route's clusters get a PROXY header",
            Self::HostLimit => {
                "a cluster has `max_host_connections`, or an annotation of the route limits the connections of a host"
            }
            Self::HostsSpeakHttp2 => "a cluster has `h2c`",
            Self::ManyHosts => "a cluster has more hosts, or turns among them, than the program compares",
            Self::HostNotReached => "a host is on this machine, or no route leads to it",
            Self::HostOptions => {
                "a host lacks TCP timestamps or selective acknowledgements, or accepts only small segments"
            }
            Self::TableFull => "a table of the kernel peek's program is full",
        }
    }

    /// Why the connections of a listener are not routed in the kernel, in a process that has not loaded the program.
    #[must_use]
    pub fn without_program(listener: &Listener, snapshot: &Snapshot) -> Self {
        let has_filter = || PacketFilter::default().has_rules().unwrap_or(true);
        let is_filtered = || listener.datapath.peek == PeekPlace::Auto && has_filter();
        Self::of_configuration(listener, &snapshot.model)
            .or_else(|| is_filtered().then_some(Self::PacketFilter))
            .unwrap_or(Self::NotAvailable)
    }

    /// Why the connections of a listener are not routed in the kernel; `None` where they are.
    pub(super) fn of_listener(listener: &Listener, snapshot: &Snapshot, conditions: &Conditions) -> Option<Self> {
        let obstacles = [
            (!conditions.has_syncookies, Self::SyncookiesOff),
            (!conditions.has_ports, Self::NoPorts),
            (
                listener.shield.is_some()
                    && (conditions.cover.is_partial || !conditions.cover.listeners.contains(&listener.name)),
                Self::ShieldGap,
            ),
            (
                conditions.has_filter && listener.datapath.peek == PeekPlace::Auto,
                Self::PacketFilter,
            ),
            (
                conditions.has_no_answers && listener.datapath.peek == PeekPlace::Auto,
                Self::NoAnswers,
            ),
        ];
        Self::of_configuration(listener, &snapshot.model).or_else(|| first(&obstacles))
    }

    /// Why the configuration leaves the connections of a listener to userspace.
    #[must_use]
    pub fn of_configuration(listener: &Listener, model: &Model) -> Option<Self> {
        let limits = &model.limits;
        let per_source = limits.per_source;
        let limits_concurrent = |shield: &signalbox_core::model::shield::ShieldPolicy| shield.limits.concurrent != 0;
        let obstacles = [
            (listener.datapath.peek == PeekPlace::Userspace, Self::NotConfigured),
            (!listener.datapath.cut || listener.datapath.tier.is_some(), Self::CutOff),
            (listener.protocol == Protocol::Tcp, Self::NoNames),
            (listener.tls.is_some(), Self::TerminatesTls),
            (listener.routing == Routing::Request, Self::PerRequest),
            (!listener.trusted_proxies.is_empty(), Self::TrustedProxies),
            (
                per_source.concurrent != 0
                    || per_source.per_second != 0
                    || listener.shield.as_ref().is_some_and(limits_concurrent),
                Self::SourceLimits,
            ),
            (limits.max_connections.is_some(), Self::TotalLimit),
        ];
        first(&obstacles)
    }

    /// Why the connections of a name are not routed in the kernel, from its route.
    pub(super) fn of_route(route: &Route, protocol: Protocol, snapshot: &Snapshot) -> Option<Self> {
        let obstacles = [
            (
                !route.paths.is_empty() || protocol == Protocol::Http && route.needs_request_routing(),
                Self::PerRequest,
            ),
            (
                route.connection_limits() != ConnectionLimits::default(),
                Self::RouteLimits,
            ),
            (route.max_host_connections().is_some(), Self::HostLimit),
            (snapshot.rotation.is_closed(route), Self::OutOfRotation),
        ];
        first(&obstacles)
    }

    /// Why the connections of a client are not routed in the kernel, by the lists of a route.
    pub(super) fn of_client(route: &Route, client: IpAddr) -> Option<Self> {
        if route.preferred(client.to_canonical()).next().is_some() {
            return Some(Self::Preference);
        }
        let serves = |list: &ClusterAllow| is_served(route.cluster_allow(), list.cluster, client);
        (!route.allows(client) || !route.cluster_allow().iter().all(serves)).then_some(Self::AllowList)
    }

    /// Why connections to a cluster are not routed in the kernel, from its configuration.
    pub(super) fn of_cluster(cluster: &Cluster, protocol: Protocol) -> Option<Self> {
        let obstacles = [
            (cluster.proxy_protocol, Self::ProxyProtocol),
            (cluster.max_host_connections.is_some(), Self::HostLimit),
            (cluster.h2c && protocol == Protocol::Http, Self::HostsSpeakHttp2),
        ];
        first(&obstacles)
    }
}

fn first(obstacles: &[(bool, PeekObstacle)]) -> Option<PeekObstacle> {
    let found = obstacles.iter().find(|(is_there, _)| *is_there);
    found.map(|(_, obstacle)| *obstacle)
}
