//! The hosts of a cluster.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use signalbox_core::model::{Host, HttpProbe, NamedHost, Probe, Protocol, UdpProbe};
use signalbox_core::wire::hostname::Hostname;

use super::map::MapDecoder;
use super::node::NodeRef;
use super::report::Report;
use super::scalar::{optional_value, or_default};
use super::unique::UniqueNames;

const MAX_HOSTS: usize = 65_535;

/// Decodes all hosts of a cluster and checks that each has the port that its health check needs.
pub(super) fn decode_all(
    place: &NodeRef<'_>,
    probe: &Probe,
    report: &mut Report,
) -> Option<(Vec<Host>, Vec<NamedHost>)> {
    let mut unique = UniqueNames::default();
    let mut hosts = Some((Vec::new(), Vec::new()));
    for item in place.items("hosts", MAX_HOSTS, report)? {
        match (host(&item, probe, &mut unique, report), &mut hosts) {
            (Some((host, None)), Some((hosts, _))) => hosts.push(host),
            (Some((host, Some(hostname))), Some((_, named))) => named.push(NamedHost::new(host, hostname)),
            _ => hosts = None,
        }
    }
    hosts
}

/// Decodes a host; one with a hostname has no address that counts.
fn host(
    place: &NodeRef<'_>,
    probe: &Probe,
    unique: &mut UniqueNames,
    report: &mut Report,
) -> Option<(Host, Option<Hostname>)> {
    let mut map = MapDecoder::open(place, report)?;
    let name = map.require("name");
    let address = map.require("address");
    let http = map.take("http");
    let https = map.take("https");
    let tcp = map.take("tcp");
    let ports = map.take("ports");
    let weight = map.take("weight");
    let backup = map.take("backup");
    let known = map.finish(report);

    let name = name.and_then(|name| unique.name(&name, "host", report));
    let hostname = address.as_ref().and_then(hostname);
    let address: Option<IpAddr> = match &hostname {
        Some(_) => Some(Ipv4Addr::UNSPECIFIED.into()),
        None => address.and_then(|address| address.host_address(report)),
    };
    let mut port = |place: Option<NodeRef<'_>>| optional_value(place.as_ref(), |place| place.port(report));
    let (http, https, tcp) = (port(http), port(https), port(tcp));
    let weight = or_default(weight.as_ref(), 1, |place| place.number(1, 100, report));
    let backup = or_default(backup.as_ref(), false, |place| place.flag(report));
    let ports = ports.map_or(Some(BTreeMap::new()), |place| named_ports(&place, report));
    // A mistake in a host's ports or keys leaves open which ports it lacks.
    let host = Host {
        name: name?,
        address: address?,
        http: http?,
        https: https?,
        tcp: tcp?,
        ports: ports?,
        weight,
        backup,
        health_page: None,
    };
    if known {
        check_ports(&host, place, probe, report);
    }
    Some((host, hostname))
}

/// Hostname in place of an address. A name whose last label has no letter is a mistyped address.
fn hostname(place: &NodeRef<'_>) -> Option<Hostname> {
    let hostname = Hostname::parse(place.plain()?.as_bytes()).ok()?;
    let last = hostname.as_str().rsplit('.').next().unwrap_or_default();
    last.contains(|c: char| c.is_ascii_alphabetic()).then_some(hostname)
}

/// Decodes ports by the names of layer-4 services.
fn named_ports(place: &NodeRef<'_>, report: &mut Report) -> Option<BTreeMap<String, u16>> {
    let mut ports = Some(BTreeMap::new());
    for entry in place.entries(report)? {
        let at = NodeRef {
            node: &entry.value,
            path: place.path.key(&entry.key),
        };
        match (at.port(report), &mut ports) {
            (Some(port), Some(ports)) => {
                ports.insert(entry.key.clone(), port);
            }
            _ => ports = None,
        }
    }
    ports
}

fn check_ports(host: &Host, place: &NodeRef<'_>, probe: &Probe, report: &mut Report) {
    let is_given = matches!(
        probe,
        Probe::Tcp { port: Some(_) }
            | Probe::Http(HttpProbe { port: Some(_), .. })
            | Probe::Udp(UdpProbe { port: Some(_), .. })
    );
    if host.http.or(host.https).or(host.tcp).is_none() && host.ports.is_empty() && !is_given {
        place.error(
            report,
            "the host has no port: give it at least one of `http`, `https`, `tcp` and `ports`, or its health check a `port`",
        );
        return;
    }
    if matches!(probe, Probe::Udp(UdpProbe { port: None, .. })) && host.ports.is_empty() {
        place.error(
            report,
            "the cluster's udp health check cannot reach this host, which has none of `ports`: give the host one, or the \
             check a `port`",
        );
    }
    let Probe::Http(HttpProbe { port: None, tls, .. }) = probe else {
        return;
    };
    let (kind, protocol) = if tls.is_some() {
        ("https", Protocol::Tls)
    } else {
        ("http", Protocol::Http)
    };
    if host.port(protocol).is_none() {
        let message = format!(
            "the cluster's {kind} health check cannot reach this host, which has no `{kind}` port: give the host one, \
             or the check a `port`"
        );
        place.error(report, message);
    }
}
