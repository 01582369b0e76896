//! Layer-4 services: ports without a name to peek at.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::IpNet;
use signalbox_common::l4::abi::{MAX_NAT_SOURCES, MAX_SERVICES, MAX_TARGETS};
use signalbox_core::model::services::{Affinity, Hook, Mode, ServiceBind, Transport};
use signalbox_core::model::shield::ShieldPolicy;
use signalbox_core::model::{Bind, Layer4, Service};

use super::address::BindOwners;
use super::clusters::{ClusterNames, as_backup};
use super::map::MapDecoder;
use super::node::{NodeKind, NodeRef, Position};
use super::report::{Report, quote};
use super::scalar::{optional_value, or_default};
use super::shield;
use super::unique::UniqueNames;

/// Default times that a flow of UDP, and a connection of TCP, is known without a packet.
const UDP_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const TCP_IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// Most services. One with two protocols counts twice.
const MOST_SERVICES: usize = MAX_SERVICES as usize - 1;

/// Range of the number of flows: fewer are useless, and more hardly fit into the kernel's memory.
const FLOWS_RANGE: RangeInclusive<u32> = 1024..=16_777_216;

/// Context that services are decoded in.
struct ServiceContext<'a> {
    default_shield: Option<&'a ShieldPolicy>,
    names: &'a ClusterNames,
    bind_owners: &'a mut BindOwners,
    targets: Vec<(ServiceBind, Transport, String, Position)>,
    ports: usize,
    unique: UniqueNames,
}

/// Decodes all services with their places.
pub(super) fn decode_all(
    place: Option<&NodeRef<'_>>,
    default_shield: Option<&ShieldPolicy>,
    names: &ClusterNames,
    bind_owners: &mut BindOwners,
    report: &mut Report,
) -> Option<Vec<(Position, Service)>> {
    let Some(place) = place else {
        return Some(Vec::new());
    };
    let mut around = ServiceContext {
        default_shield,
        names,
        bind_owners,
        targets: Vec::new(),
        ports: 0,
        unique: UniqueNames::default(),
    };
    let mut services = Some(Vec::new());
    for item in place.items("services", MOST_SERVICES, report)? {
        match (service(&item, &mut around, report), &mut services) {
            (Some(ones), Some(services)) => services.extend(ones.into_iter().map(|one| (item.position(), one))),
            _ => services = None,
        }
    }
    if services.as_ref().is_some_and(|services| services.len() > MOST_SERVICES) {
        place.error(
            report,
            format!("there are more than {MOST_SERVICES} services: one with two protocols counts twice"),
        );
        return None;
    }
    services
}

/// Decodes an entry: a service for each of its protocols.
fn service(place: &NodeRef<'_>, context: &mut ServiceContext<'_>, report: &mut Report) -> Option<Vec<Service>> {
    let mut map = MapDecoder::open(place, report)?;
    let name = map.require("name");
    let protocol = map.require("protocol");
    let listen = map.require("listen");
    let cluster = map.require("cluster");
    let backup = map.take("backup");
    let mode = map.take("mode");
    let affinity = map.take("affinity");
    let idle = map.take("idle");
    let shield = map.take("shield");
    map.finish(report);

    let label = name
        .as_ref()
        .and_then(NodeRef::plain)
        .map_or_else(|| "a service".to_owned(), |name| format!("service {}", quote(name)));
    let name = name.and_then(|name| context.unique.name(&name, "service", report));
    let protocols = protocol.and_then(|place| self::protocols(&place, report));
    let known = protocols.as_deref().unwrap_or_default();
    let listen = listen.and_then(|place| addresses(&place, &label, known, context, report));
    let cluster = cluster.and_then(|place| cluster_of(&place, context.names, report));
    let backup = optional_value(backup.as_ref(), |place| {
        let found = cluster_of(place, context.names, report)?;
        as_backup(found, cluster, place, report)
    });
    let mode = or_default(mode.as_ref(), Mode::Nat, |place| {
        place.keyword("a mode", &Mode::ALL, report)
    });
    let affinity = or_default(affinity.as_ref(), Affinity::Flow, |place| {
        place.keyword("an affinity", &Affinity::ALL, report)
    });
    let idle = idle.as_ref().and_then(|place| place.duration(report));
    let idle_of = |protocol| idle.unwrap_or_else(|| default_idle(protocol));
    let shield = shield::decode(shield.as_ref(), context.default_shield, report);
    let (&protocol, further) = known.split_first()?;
    let first = Service {
        name: name?,
        protocol,
        listen: listen?,
        cluster: cluster?,
        backup: backup?,
        mode,
        affinity,
        idle: idle_of(protocol),
        shield,
    };
    let further = further
        .iter()
        .map(|protocol| first.with_further_protocol(*protocol, idle_of(*protocol)));
    let mut all: Vec<_> = further.collect();
    all.insert(0, first);
    Some(all)
}

const fn default_idle(protocol: Transport) -> Duration {
    match protocol {
        Transport::Tcp => TCP_IDLE_TIMEOUT,
        Transport::Udp => UDP_IDLE_TIMEOUT,
    }
}

/// Decodes one protocol, or a list of both. Their order does not matter: tcp comes first.
fn protocols(place: &NodeRef<'_>, report: &mut Report) -> Option<Vec<Transport>> {
    let word =
        |place: &NodeRef<'_>, report: &mut Report| place.keyword("a protocol of services", &Transport::ALL, report);
    if !matches!(place.node.kind, NodeKind::List(_)) {
        return word(place, report).map(|protocol| vec![protocol]);
    }
    let mut all = Vec::new();
    for item in place.items("protocols", Transport::ALL.len(), report)? {
        let protocol = word(&item, report)?;
        if all.contains(&protocol) {
            item.error(report, "the protocol is already in the list: write each once");
            return None;
        }
        all.push(protocol);
    }
    all.sort_by_key(|protocol| protocol.number());
    if all.is_empty() {
        place.error(report, "a service needs a protocol: tcp, udp or [tcp, udp]");
        return None;
    }
    Some(all)
}

/// Decodes the cluster of a service, which cannot be an application: its endpoints have different ports, a service one.
fn cluster_of(place: &NodeRef<'_>, names: &ClusterNames, report: &mut Report) -> Option<usize> {
    if let Some(name) = place.plain().filter(|name| name.contains('/')) {
        let name = quote(name);
        place.error(
            report,
            format!("{name} is an application, whose endpoints have ports of their own: name a cluster, use a tcp listener, or `routing_events.expose`"),
        );
        return None;
    }
    names.find_at(place, report)
}

fn addresses(
    place: &NodeRef<'_>,
    owner: &str,
    protocols: &[Transport],
    around: &mut ServiceContext<'_>,
    report: &mut Report,
) -> Option<Vec<ServiceBind>> {
    let items: Vec<NodeRef<'_>> = place.items("addresses", usize::MAX, report)?.collect();
    if items.is_empty() {
        place.error(report, "a service needs at least one address, such as 10.1.0.1:3306");
        return None;
    }
    let mut all = Vec::with_capacity(items.len());
    for item in &items {
        let Some(text) = item.text(report) else { continue };
        let bind = self::parse_bind(text).and_then(|bind| {
            let mut claims = protocols
                .iter()
                .map(|protocol| claim_listen(&bind, owner, item.position(), *protocol, around));
            claims.try_for_each(|claim| claim)?;
            Ok(bind)
        });
        match bind {
            Ok(bind) => all.push(bind),
            Err(problem) => item.error(report, problem),
        }
    }
    Some(all)
}

/// Parses an address and a port, or a range of ports.
pub(super) fn parse_bind(text: &str) -> Result<ServiceBind, String> {
    const BIND_EXAMPLES: &str = "such as 10.1.0.1:3306, [fd00:1::1]:3306 or 10.1.0.9:7000-7100";
    let shown = quote(text);
    let parts = text.rsplit_once(':').filter(|(place, _)| !place.is_empty());
    let Some((place, ports)) = parts else {
        return Err(format!("{shown} is not an address with a port, {BIND_EXAMPLES}"));
    };
    let inner = place.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let address = match inner.unwrap_or(place).parse::<IpAddr>() {
        Ok(IpAddr::V6(_)) if inner.is_none() => {
            return Err(format!("{shown} is not an address with a port, {BIND_EXAMPLES}"));
        }
        Ok(ip) if ip.is_unspecified() || ip.is_multicast() => {
            return Err(format!(
                "{shown}: a service needs its own addresses, not a wildcard, {BIND_EXAMPLES}"
            ));
        }
        Ok(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_some() => {
            return Err(format!(
                "{shown} is an IPv4-mapped IPv6 address: write {}:{ports}",
                IpAddr::V6(ip).to_canonical()
            ));
        }
        Ok(ip) => ip,
        Err(_) => return Err(format!("{shown} is not an address with a port, {BIND_EXAMPLES}")),
    };
    let port = |text: &str| {
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<u16>().ok().filter(|port| digits && *port > 0)
    };
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    match (port(first), port(last)) {
        (Some(first), Some(last)) if first <= last => Ok(ServiceBind {
            address,
            ports: first..=last,
        }),
        _ => Err(format!(
            "{shown} needs a port, or a range of them, from 1 to 65535, {BIND_EXAMPLES}"
        )),
    }
}

/// Notes that an owner listens on a bind; the error names another owner that does already.
fn claim_listen(
    bind: &ServiceBind,
    owner: &str,
    spot: Position,
    protocol: Transport,
    around: &mut ServiceContext<'_>,
) -> Result<(), String> {
    let overlaps = |other: &&(ServiceBind, Transport, String, Position)| {
        other.0.address == bind.address
            && other.1 == protocol
            && other.0.ports.start() <= bind.ports.end()
            && bind.ports.start() <= other.0.ports.end()
    };
    if let Some((other, _, who, at)) = around.targets.iter().find(overlaps) {
        return Err(format!("{bind} is already used by {who} on line {} ({other})", at.line));
    }
    if protocol == Transport::Tcp {
        for port in bind.ports.clone() {
            let prefix = IpNet::from(bind.address);
            around.bind_owners.claim(Bind { prefix, port }, owner, Some(spot))?;
        }
    }
    around.ports += bind.ports.len();
    if around.ports > MAX_TARGETS as usize {
        return Err(format!(
            "services listen on more than {MAX_TARGETS} ports in all: use fewer"
        ));
    }
    around.targets.push((bind.clone(), protocol, owner.to_owned(), spot));
    Ok(())
}

/// Decodes the settings that all services have in common.
pub(super) fn common(place: Option<&NodeRef<'_>>, report: &mut Report) -> Layer4 {
    let defaults = Layer4::default();
    let Some(mut map) = place.and_then(|place| MapDecoder::open(place, report)) else {
        return defaults;
    };
    let hook = map.take("hook");
    let flows = map.take("flows");
    let nat = map.take("nat");
    let tunnel = map.take("tunnel");
    map.finish(report);
    let (nat_sources, nat_ports) = nat.map_or((Vec::new(), None), |place| self::nat(&place, report));
    let (tunnel_v4, tunnel_v6) = tunnel.map_or((defaults.tunnel_v4, defaults.tunnel_v6), |place| {
        self::tunnel(&place, &defaults, report)
    });
    Layer4 {
        hook: or_default(hook.as_ref(), defaults.hook, |place| {
            place.keyword("a place for programs", &Hook::ALL, report)
        }),
        flows: or_default(flows.as_ref(), defaults.flows, |place| {
            place.number(*FLOWS_RANGE.start(), *FLOWS_RANGE.end(), report)
        }),
        nat_sources,
        nat_ports,
        tunnel_v4,
        tunnel_v6,
    }
}

fn nat(place: &NodeRef<'_>, report: &mut Report) -> (Vec<IpAddr>, Option<RangeInclusive<u16>>) {
    let Some(mut map) = MapDecoder::open(place, report) else {
        return (Vec::new(), None);
    };
    let sources = map.take("sources");
    let ports = map.take("ports");
    map.finish(report);
    let mut addresses = Vec::new();
    if let Some(sources) = sources
        && let Some(items) = sources.items("addresses", MAX_NAT_SOURCES as usize / 4, report)
    {
        addresses.extend(items.filter_map(|item| item.host_address(report)));
    }
    let ports = ports.and_then(|place| range(&place, report));
    (addresses, ports)
}

fn range(place: &NodeRef<'_>, report: &mut Report) -> Option<RangeInclusive<u16>> {
    let text = place.text(report)?;
    let parsed = text
        .split_once('-')
        .and_then(|(first, last)| Some(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?))
        .filter(|range| *range.start() >= 1024 && range.start() < range.end());
    if parsed.is_none() {
        let shown = quote(text);
        place.error(
            report,
            format!("{shown} is not a range of ports above 1023, such as 1024-32767"),
        );
    }
    parsed
}

fn tunnel(place: &NodeRef<'_>, defaults: &Layer4, report: &mut Report) -> (ipnet::Ipv4Net, ipnet::Ipv6Net) {
    let mut found = (defaults.tunnel_v4, defaults.tunnel_v6);
    let Some(mut map) = MapDecoder::open(place, report) else {
        return found;
    };
    let v4 = map.take("source_ipv4");
    let v6 = map.take("source_ipv6");
    map.finish(report);
    if let Some(place) = v4 {
        match place.prefix(report) {
            Some(IpNet::V4(net)) => found.0 = net,
            Some(IpNet::V6(_)) => place.error(report, "this is IPv6: write an IPv4 prefix, such as 172.16.0.0/16"),
            None => {}
        }
    }
    if let Some(place) = v6 {
        match place.prefix(report) {
            Some(IpNet::V6(net)) if net.prefix_len() <= 96 => found.1 = net,
            Some(_) => place.error(report, "write an IPv6 prefix of /96 or shorter, such as 100::/64"),
            None => {}
        }
    }
    found
}
