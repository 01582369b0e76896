//! Warnings about likely mistakes in a file: hosts that are ourselves, a host twice, ports of no service, shields that
//! deny no client or every client.

use std::collections::{HashMap, HashSet};

use ipnet::IpNet;
use signalbox_core::model::shield::PrefixLists;
use signalbox_core::model::tls::Termination;
use signalbox_core::model::{Admin, Cluster, Host, Listener, Model, Service};

use super::Positions;
use crate::error::ConfigError;
use crate::node::NodePath;
use crate::report::quote;

/// All such warnings.
pub(super) fn find(model: &Model, spots: &Positions<'_>) -> Vec<ConfigError> {
    let mut found = Vec::new();
    let services: HashSet<&str> = model.services.iter().map(Service::configured_name).collect();
    let root = NodePath::ROOT.key("clusters");
    for (at, (cluster, spot)) in model.clusters.iter().zip(spots.clusters).enumerate() {
        let own = cluster.hosts.iter().filter_map(|host| own_listener(host, model));
        let ports = ports_of_no_service(cluster, &services).chain(ports_of_direct_return(at, model));
        let messages = own.chain(twins(cluster)).chain(ports);
        found.extend(messages.map(|message| ConfigError::new(*spot, root.index(at).to_string(), message)));
    }
    let root = NodePath::ROOT.key("listeners");
    for (at, (listener, spot)) in model.listeners.iter().zip(spots.listeners).enumerate() {
        let lists = listener
            .shield
            .as_ref()
            .and_then(|shield| slip_of_lists(&shield.lists, &model.shield.lists));
        let messages = lists
            .into_iter()
            .chain(trusts_all(listener))
            .chain(no_certificate(listener, model));
        found.extend(messages.map(|message| ConfigError::new(*spot, root.index(at).to_string(), message)));
    }
    let of_all = spots
        .shield
        .zip(slip_of_lists(&model.shield.lists, &PrefixLists::default()));
    let of_admin = spots.admin.zip(slip_of_admin(&model.admin));
    for (key, found_there) in [("shield", of_all), ("admin", of_admin)] {
        found.extend(
            found_there.map(|(spot, message)| ConfigError::new(spot, NodePath::ROOT.key(key).to_string(), message)),
        );
    }
    found
}

/// A host whose port is one that we listen on.
fn own_listener(host: &Host, model: &Model) -> Option<String> {
    let is_own = |listener: &&Listener| {
        // Most addresses of a bind to all are other machines'.
        let mut binds = listener.listen.iter().filter(|bind| bind.prefix.prefix_len() > 0);
        binds.any(|bind| bind.prefix.contains(&host.address) && Some(bind.port) == host.port(listener.protocol))
    };
    let listener = model.listeners.iter().find(is_own)?;
    Some(format!(
        "the host {} is the listener {} itself: it gets no connections, which would come back",
        quote(&host.name),
        quote(&listener.name)
    ))
}

/// Hosts with one address and the same ports.
fn twins(cluster: &Cluster) -> Vec<String> {
    let mut known = HashMap::<String, &str>::new();
    let mut said = Vec::new();
    for host in &cluster.hosts {
        let at = format!("{} {:?}", host.address, (host.http, host.https, host.tcp, &host.ports));
        match known.get(&at) {
            Some(other) => said.push(format!(
                "the hosts {} and {} have the same address and ports: one server gets the connections of both",
                quote(other),
                quote(&host.name)
            )),
            None => drop(known.insert(at, host.name.as_str())),
        }
    }
    said
}

fn ports_of_no_service<'m>(cluster: &'m Cluster, services: &'m HashSet<&str>) -> impl Iterator<Item = String> + 'm {
    let hosts = cluster.hosts.iter().map(|host| (&host.name, &host.ports));
    let named = cluster.named_hosts.iter().map(|host| (&host.name, &host.ports));
    hosts.chain(named).flat_map(move |(host, ports)| {
        let unknown = ports.keys().filter(|name| !services.contains(name.as_str()));
        unknown.map(move |name| {
            format!(
                "`ports` of the host {} names {}, which is not a service: correct the name, or add the service; other \
                 services use the port that they listen on",
                quote(host),
                quote(name)
            )
        })
    })
}

/// Ports of a cluster's hosts for services of direct return, whose packets keep the service's port.
fn ports_of_direct_return(cluster: usize, model: &Model) -> impl Iterator<Item = String> {
    let of_cluster = |service: &&Service| service.clusters().both().any(|at| at == cluster);
    let services = model.services.iter().filter(of_cluster);
    let direct = services.filter(|service| !service.mode.changes_ports());
    let mut found: Vec<_> = direct
        .flat_map(|service| ports_unused(model, cluster, service))
        .collect();
    // A service of two protocols would say it twice.
    found.dedup();
    found.into_iter()
}

fn ports_unused(model: &Model, cluster: usize, service: &Service) -> Vec<String> {
    let hosts = model.clusters.get(cluster).map_or(&[][..], |cluster| &cluster.hosts);
    let name = service.configured_name();
    let unused = hosts.iter().filter_map(|host| {
        let port = host.ports.get(name)?;
        let listens = service.listen.iter().any(|bind| bind.ports.contains(port));
        (!listens).then(|| {
            format!(
                "`ports` of the host {} names port {port} for the service {}, whose `mode: {}` cannot change ports: \
                 packets go to the port that the service listens on; write `mode: nat`, or leave the port out",
                quote(&host.name),
                quote(name),
                service.mode.as_str(),
            )
        })
    });
    unused.collect()
}

fn is_all(net: &IpNet) -> bool {
    net.prefix_len() == 0
}

/// Lists that deny no client, or every client; `common` are those that apply to all.
fn slip_of_lists(lists: &PrefixLists, common: &PrefixLists) -> Option<String> {
    let denies = |lists: &PrefixLists| !lists.deny.is_empty() || !lists.deny_files.is_empty();
    let allows = |lists: &PrefixLists| !lists.allow.is_empty() || !lists.allow_files.is_empty();
    if allows(lists) && !denies(lists) && !denies(common) {
        return Some(
            "`allow` makes exceptions to `deny`, which is empty: nobody is denied; to let in nobody else, write \
             `deny: [\"0.0.0.0/0\", \"::/0\"]` beside it"
                .to_owned(),
        );
    }
    let all = lists.deny.iter().find(|net| is_all(net))?;
    (!allows(lists) && !allows(common)).then(|| format!("{all} is denied and nothing is allowed: nobody gets in"))
}

fn trusts_all(listener: &Listener) -> Option<String> {
    let all = listener.trusted_proxies.iter().find(|net| is_all(net))?;
    Some(format!(
        "PROXY headers are believed from {all}: any client can claim the address of another"
    ))
}

/// A listener that ends TLS, where there is no certificate for any name.
fn no_certificate(listener: &Listener, model: &Model) -> Option<String> {
    let tls = listener.tls.as_ref()?;
    let from_elsewhere = model.clusters.iter().any(Cluster::accepts_discovery) || model.routing_events.is_some();
    let has_none = tls.termination != Termination::Passthrough && model.tls.certificates.is_empty();
    (has_none && !from_elsewhere).then(|| {
        format!(
            "the listener {} ends TLS, and there are no `certificates`: until some are set by the API, each handshake fails",
            quote(&listener.name)
        )
    })
}

fn slip_of_admin(admin: &Admin) -> Option<String> {
    let at = admin.listen.filter(|at| !at.ip().is_loopback())?;
    let is_clear = admin.token_file.is_some() && admin.tls.is_none();
    is_clear.then(|| format!("the token for {at} is sent unencrypted: give `tls`"))
}
