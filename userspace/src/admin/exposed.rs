//! Applications exposed as layer-4 services: which ones are, which are not and why, and the hosts of an address.

use std::net::{IpAddr, SocketAddr};

use signalbox_api::explain::{AddressExplanation, AddressHost};
use signalbox_api::services::ExposedService;
use signalbox_api::shield::GuardKind;
use signalbox_core::discovered::expose::ExposedEntry;
use signalbox_core::model::Service;
use signalbox_core::model::services::Transport;

use super::explain::{OTHER_FAMILY, STANDS_BY, unusable_reason};
use super::views;
use crate::control::Control;
use crate::reconcile::l4::members::{can_take, takers};
use crate::state::Snapshot;

/// Returns the services of an application, including those that could not be created, with the reason.
pub(super) fn of_application(snapshot: &Snapshot, application: &str) -> Vec<ExposedService> {
    let entries = snapshot.exposure.entries.iter();
    let of = entries.filter(|(_, entry)| entry.application == application);
    of.map(|(service, entry)| view(service, entry)).collect()
}

/// Returns the services of all applications that a rule selects but that are not exposed, with the reason.
pub(super) fn not_exposed(snapshot: &Snapshot) -> Vec<ExposedService> {
    let entries = snapshot.exposure.entries.iter();
    let missing = entries.filter(|(_, entry)| entry.reason.is_some() || !entry.left_out.is_empty());
    missing.map(|(service, entry)| view(service, entry)).collect()
}

fn view(service: &str, entry: &ExposedEntry) -> ExposedService {
    ExposedService {
        service: service.to_owned(),
        entry: entry.clone(),
    }
}

/// Returns the answer of `explain` for an address and port: which service or listener gets the connection, which others
/// have the address too, and which hosts of the service accept connections.
pub(super) fn explain_address(
    control: &Control,
    snapshot: &Snapshot,
    at: SocketAddr,
    client: Option<IpAddr>,
) -> AddressExplanation {
    let model = &snapshot.model;
    let services: Vec<_> = model.services.iter().filter(|service| listens(service, at)).collect();
    let of = |protocol| services.iter().find(|service| service.protocol == protocol);
    let listener = snapshot.binds.find(at).and_then(|index| model.listeners.get(index));
    // A listener's connections are TCP.
    let service = of(Transport::Tcp)
        .or_else(|| of(Transport::Udp).filter(|_| listener.is_none()))
        .copied();
    let name = service.map(|service| &service.name);
    let application = name.and_then(|name| snapshot.exposure.entries.get(name));
    let shield = match (service, client) {
        (Some(service), Some(client)) => Some(control.kernel.services.judge(GuardKind::Service, &service.name, client)),
        _ => None,
    };
    let protocols = services.iter().map(|service| service.protocol.as_str().into());
    AddressExplanation {
        address: at,
        client,
        service: service.map(|service| service.configured_name().to_owned()),
        protocols: protocols.collect(),
        listener: listener
            .filter(|_| service.is_none())
            .map(|listener| listener.name.clone()),
        application: application.map(|entry| entry.application.clone()),
        left_out: application.map(|entry| entry.left_out.clone()),
        clash: port_conflict(snapshot, at),
        shield,
        hosts: service.map(|service| hosts(snapshot, service, at)),
    }
}

fn listens(service: &Service, at: SocketAddr) -> bool {
    let mut binds = service.listen.iter();
    binds.any(|bind| bind.address == at.ip() && bind.ports.contains(&at.port()))
}

/// Returns why no application gets a port in a range of `expose`.
fn port_conflict(snapshot: &Snapshot, at: SocketAddr) -> Option<String> {
    let events = snapshot.model.routing_events.as_ref()?;
    let mut rules = events.expose.iter().zip(&snapshot.exposure.ranges);
    let (_, range) = rules.find(|(rule, _)| rule.addresses.contains(&at.ip()) && rule.ports.contains(&at.port()))?;
    let who = range.taken.get(&at.port())?;
    Some(format!(
        "{who} of the configuration has it, so that no application of {} gets it",
        range.listen
    ))
}

fn hosts(snapshot: &Snapshot, service: &Service, at: SocketAddr) -> Vec<AddressHost> {
    let takers = takers(snapshot, service, at.ip());
    let of_cluster = |c: usize| {
        let found = snapshot.model.clusters.get(c).zip(snapshot.hosts.get(c));
        let places = views::subset_roles(snapshot, c);
        let hosts = found
            .into_iter()
            .flat_map(|(cluster, states)| cluster.hosts.iter().zip(states));
        let views = (0u16..).zip(hosts).map(|(index, (host, state))| {
            let takes = takers.contains(&(c, index));
            let place = places.get(usize::from(index)).copied();
            let reason = match service.backup {
                _ if takes => "",
                _ if !can_take(service, at.ip(), host) => OTHER_FAMILY,
                Some(backup) if backup == c && takers.iter().any(|(taking, _)| *taking != c) => STANDS_BY,
                _ => unusable_reason(snapshot, state, true, place, host.backup),
            };
            AddressHost {
                name: host.name.clone(),
                cluster: state.cluster.clone(),
                address: host.address,
                port: service.port_at(host),
                takes_connections: takes,
                reason: reason.into(),
            }
        });
        views.collect::<Vec<_>>()
    };
    service.clusters().both().flat_map(of_cluster).collect()
}
