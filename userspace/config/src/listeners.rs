//! Listeners: where clients come in.

use ipnet::IpNet;
use signalbox_core::model::shield::Policy;
use signalbox_core::model::{Bind, Datapath, Listener, Protocol};

use super::address::{self, Taken};
use super::clusters::Names;
use super::map::Map;
use super::node::{Place, Spot};
use super::report::{Report, quote};
use super::scalar::maybe;
use super::settings;
use super::shield;
use super::unique::Unique;

const MOST_LISTENERS: usize = 256;

const PROTOCOLS: [(&str, Protocol); 3] = [
    (Protocol::Http.as_str(), Protocol::Http),
    (Protocol::Tls.as_str(), Protocol::Tls),
    (Protocol::Tcp.as_str(), Protocol::Tcp),
];

/// Context that listeners are decoded in.
struct Around<'a> {
    datapath: Datapath,
    guarded: Option<&'a Policy>,
    names: &'a Names,
    taken: &'a mut Taken,
    unique: Unique,
}

/// Decodes all listeners with their places.
pub(super) fn all(
    place: Option<&Place<'_>>,
    (datapath, guarded): (Datapath, Option<&Policy>),
    names: &Names,
    taken: &mut Taken,
    report: &mut Report,
) -> Option<Vec<(Spot, Listener)>> {
    let place = place?;
    let mut around = Around {
        datapath,
        guarded,
        names,
        taken,
        unique: Unique::default(),
    };
    let mut items = place.items("listeners", MOST_LISTENERS, report)?.peekable();
    if items.peek().is_none() {
        place.fault(report, "there is no listener: at least one is needed");
    }
    let mut listeners = Some(Vec::new());
    for item in items {
        match (listener(&item, &mut around, report), &mut listeners) {
            (Some(listener), Some(listeners)) => listeners.push((item.spot(), listener)),
            _ => listeners = None,
        }
    }
    listeners
}

fn listener(place: &Place<'_>, around: &mut Around<'_>, report: &mut Report) -> Option<Listener> {
    let mut map = Map::open(place, report)?;
    let name = map.require("name");
    let protocol = map.require("protocol");
    let listen = map.require("listen");
    let cluster = map.take("cluster");
    let proxy_protocol = map.take("proxy_protocol");
    let datapath = map.take("datapath");
    let shield = map.take("shield");
    let known = map.finish(report);

    let label = name
        .as_ref()
        .and_then(Place::plain)
        .map_or_else(|| "a listener".to_owned(), owner);
    let name = name.and_then(|name| around.unique.name(&name, "listener", report));
    let protocol = protocol.and_then(|place| place.word("a protocol", &PROTOCOLS, report));
    let listen = listen.and_then(|place| addresses(&place, &label, around.taken, report));
    if protocol == Some(Protocol::Tcp) && cluster.is_none() && known {
        place.fault(report, "a tcp listener needs a `cluster`: nothing in tcp names one");
    }
    let cluster = maybe(cluster.as_ref(), |place| around.names.at(place, report));
    let trusted_proxies = proxy_protocol.map_or(Some(Vec::new()), |place| trusted(&place, report));
    let datapath = settings::datapath(datapath.as_ref(), around.datapath, report);
    let shield = shield::of(shield.as_ref(), around.guarded, report);
    Some(Listener {
        name: name?,
        protocol: protocol?,
        listen: listen?,
        cluster: cluster?,
        trusted_proxies: trusted_proxies?,
        datapath,
        shield,
    })
}

fn owner(name: &str) -> String {
    format!("listener {}", quote(name))
}

fn addresses(place: &Place<'_>, owner: &str, taken: &mut Taken, report: &mut Report) -> Option<Vec<Bind>> {
    let items: Vec<Place<'_>> = place.items("addresses", usize::MAX, report)?.collect();
    if items.is_empty() {
        place.fault(report, "a listener needs at least one address, such as 10.1.0.1:80");
        return None;
    }
    let mut all = Vec::with_capacity(items.len());
    for item in &items {
        let Some(text) = item.text(report) else { continue };
        let taken = address::binds(text).and_then(|binds| {
            for bind in &binds {
                taken.take(*bind, owner, Some(item.spot()))?;
            }
            Ok(binds)
        });
        match taken {
            Ok(binds) => all.extend(binds),
            Err(problem) => item.fault(report, problem),
        }
    }
    Some(all)
}

fn trusted(place: &Place<'_>, report: &mut Report) -> Option<Vec<IpNet>> {
    let mut map = Map::open(place, report)?;
    let trusted = map.require("trusted");
    map.finish(report);
    let trusted = trusted?;
    let items = trusted.items("prefixes", usize::MAX, report)?;
    Some(items.filter_map(|item| item.prefix(report)).collect())
}
