//! Listeners: where clients come in.

use ipnet::IpNet;
use signalbox_core::model::shield::ShieldPolicy;
use signalbox_core::model::tls::CertificateFields;
use signalbox_core::model::{Bind, Datapath, Listener, Protocol, Routing};

use super::address::{self, BindOwners};
use super::clusters::{ClusterNames, as_backup};
use super::http::HttpKeys;
use super::map::MapDecoder;
use super::node::{NodeRef, Position};
use super::report::{Report, quote};
use super::scalar::optional_value;
use super::settings;
use super::shield;
use super::tls::ListenerKeys;
use super::unique::UniqueNames;

const MAX_LISTENERS: usize = 256;

/// Protocols by name, and whether TLS may end at the listener.
const PROTOCOLS: [(&str, (Protocol, bool)); 4] = [
    (Protocol::Http.as_str(), (Protocol::Http, false)),
    ("https", (Protocol::Tls, true)),
    (Protocol::Tls.as_str(), (Protocol::Tls, false)),
    (Protocol::Tcp.as_str(), (Protocol::Tcp, false)),
];

const ROUTINGS: [(&str, Routing); 2] = [
    (Routing::Connection.as_str(), Routing::Connection),
    (Routing::Request.as_str(), Routing::Request),
];

/// Context that listeners are decoded in.
struct ListenerContext<'a> {
    datapath: Datapath,
    default_shield: Option<&'a ShieldPolicy>,
    names: &'a ClusterNames,
    bind_owners: &'a mut BindOwners,
    unique: UniqueNames,
}

/// Decodes all listeners with their places.
pub(super) fn decode_all(
    place: Option<&NodeRef<'_>>,
    (datapath, guarded): (Datapath, Option<&ShieldPolicy>),
    names: &ClusterNames,
    bind_owners: &mut BindOwners,
    report: &mut Report,
) -> Option<Vec<(Position, Listener)>> {
    let place = place?;
    let mut around = ListenerContext {
        datapath,
        default_shield: guarded,
        names,
        bind_owners,
        unique: UniqueNames::default(),
    };
    let mut items = place.items("listeners", MAX_LISTENERS, report)?.peekable();
    if items.peek().is_none() {
        place.error(report, "there is no listener: at least one is needed");
    }
    let mut listeners = Some(Vec::new());
    for item in items {
        match (listener(&item, &mut around, report), &mut listeners) {
            (Some(listener), Some(listeners)) => listeners.push((item.position(), listener)),
            _ => listeners = None,
        }
    }
    if let Some(listeners) = &mut listeners {
        let tells = |listener: &Listener| {
            let clients = listener.tls.as_ref().and_then(|tls| tls.clients.as_ref());
            clients.is_some_and(|clients| clients.fields != CertificateFields::Off)
        };
        let some_tells = listeners.iter().any(|(_, listener)| tells(listener));
        for (_, listener) in listeners {
            listener.http.hides_certificate_fields = some_tells;
        }
    }
    listeners
}

fn listener(place: &NodeRef<'_>, context: &mut ListenerContext<'_>, report: &mut Report) -> Option<Listener> {
    let mut map = MapDecoder::open(place, report)?;
    let name = map.require("name");
    let protocol = map.require("protocol");
    let listen = map.require("listen");
    let cluster = map.take("cluster");
    let backup = map.take("backup");
    let proxy_protocol = map.take("proxy_protocol");
    let routing = map.take("routing");
    let datapath = map.take("datapath");
    let shield = map.take("shield");
    let tls_keys = ListenerKeys::take(&mut map);
    let http_keys = HttpKeys::take(&mut map);
    let known = map.finish(report);

    let label = name
        .as_ref()
        .and_then(NodeRef::plain)
        .map_or_else(|| "a listener".to_owned(), owner);
    let name = name.and_then(|name| context.unique.name(&name, "listener", report));
    let spoken = protocol.and_then(|place| self::protocol(&place, report));
    let tls = match spoken {
        Some((_, true)) => tls_keys.decode(report).map(Some),
        Some((protocol, false)) => {
            tls_keys.reject(protocol.as_str(), report);
            Some(None)
        }
        None => None,
    };
    let protocol = spoken.map(|(protocol, _)| protocol);
    let listen = listen.and_then(|place| addresses(&place, &label, context.bind_owners, report));
    if protocol == Some(Protocol::Tcp) && cluster.is_none() && known {
        place.error(
            report,
            "a tcp listener needs a `cluster`: its connections contain no name to route by",
        );
    }
    let cluster = optional_value(cluster.as_ref(), |place| context.names.find_at(place, report));
    if let (Some(place), Some(None)) = (&backup, cluster)
        && known
        && protocol != Some(Protocol::Tcp)
    {
        place.error(report, "`backup` needs a `cluster`, from which it takes over");
    }
    let backup = optional_value(backup.as_ref(), |place| {
        let found = context.names.find_at(place, report)?;
        as_backup(found, cluster.flatten(), place, report)
    });
    let trusted_proxies = proxy_protocol.map_or(Some(Vec::new()), |place| trusted_proxies(&place, report));
    let is_https = tls.as_ref().is_some_and(Option::is_some);
    let routing = optional_value(routing.as_ref(), |place| {
        self::routing(place, protocol, is_https, report)
    });
    let is_per_request = is_https || matches!(routing, Some(Some(Routing::Request)));
    let http = http_keys.decode(is_per_request || routing.is_none(), spoken, report);
    let datapath = settings::listener_datapath(datapath.as_ref(), context.datapath, report);
    let shield = shield::decode(shield.as_ref(), context.default_shield, report);
    Some(Listener {
        name: name?,
        protocol: protocol?,
        listen: listen?,
        cluster: cluster?,
        backup: backup?,
        trusted_proxies: trusted_proxies?,
        routing: routing?.unwrap_or_default(),
        datapath,
        shield,
        tls: tls?,
        http: http?,
    })
}

fn protocol(place: &NodeRef<'_>, report: &mut Report) -> Option<(Protocol, bool)> {
    if place.plain() == Some("udp") {
        place.error(
            report,
            "a listener accepts TCP connections: write a UDP port as a layer-4 service, under `services`",
        );
        return None;
    }
    place.keyword("a protocol", &PROTOCOLS, report)
}

fn routing(place: &NodeRef<'_>, protocol: Option<Protocol>, is_https: bool, report: &mut Report) -> Option<Routing> {
    let routing = place.keyword("a unit of routing", &ROUTINGS, report)?;
    if is_https {
        place.error(
            report,
            "`routing` has no effect with `protocol: https`: decrypted traffic is routed by request, and passthrough \
             by connection",
        );
        return None;
    }
    match protocol {
        Some(protocol) if routing == Routing::Request && protocol != Protocol::Http => {
            let protocol = protocol.as_str();
            place.error(
                report,
                format!(
                    "`routing: request` needs `protocol: http`: signalbox reads only the first bytes of {protocol}"
                ),
            );
            None
        }
        _ => Some(routing),
    }
}

fn owner(name: &str) -> String {
    format!("listener {}", quote(name))
}

fn addresses(place: &NodeRef<'_>, owner: &str, bind_owners: &mut BindOwners, report: &mut Report) -> Option<Vec<Bind>> {
    let items: Vec<NodeRef<'_>> = place.items("addresses", usize::MAX, report)?.collect();
    if items.is_empty() {
        place.error(report, "a listener needs at least one address, such as 10.1.0.1:80");
        return None;
    }
    let mut all = Vec::with_capacity(items.len());
    for item in &items {
        let Some(text) = item.text(report) else { continue };
        let taken = address::binds(text).and_then(|binds| {
            for bind in &binds {
                bind_owners.claim(*bind, owner, Some(item.position()))?;
            }
            Ok(binds)
        });
        match taken {
            Ok(binds) => all.extend(binds),
            Err(problem) => item.error(report, problem),
        }
    }
    Some(all)
}

fn trusted_proxies(place: &NodeRef<'_>, report: &mut Report) -> Option<Vec<IpNet>> {
    let mut map = MapDecoder::open(place, report)?;
    let trusted = map.require("trusted");
    map.finish(report);
    let trusted = trusted?;
    let items = trusted.items("prefixes", usize::MAX, report)?;
    Some(items.filter_map(|item| item.prefix(report)).collect())
}
