//! Layer-4 services made of applications' endpoints: clients reach the endpoints that routing events report at an
//! address and port.
//!
//! Endpoints of an application with one port name (`bank/db:mysql-5.1`) are one service. Rules of the configuration say
//! which endpoints are exposed and at which range of ports; [`ports`] assigns the ports. Addresses and ports of the
//! configuration's own listeners and services are never taken.

pub mod ports;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::discovered::discovery::Discovered;
use crate::discovered::merge::{WeightOverrides, merge};
use crate::model::AppEndpoint;
use crate::model::services::{Mode, ServiceBind, Transport};
use crate::model::{Cluster, ExposeRule, Host, Model, Service};

/// Most clusters of a model: workers number them in 16 bits.
const MAX_CLUSTERS: usize = 65_535;

/// Ports by the names that have them, `NAMESPACE/APP:PORTNAME`, kept as long as the application lives. Addresses are
/// left out, because balancers that share a table need not have equal ones.
pub type Ports = BTreeMap<String, u16>;

/// Result of exposing: services that exist, and services that lack a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExposeResult {
    /// Entries by the name of the service, `NAMESPACE/APP:PORTNAME`.
    pub entries: BTreeMap<String, ExposedEntry>,
    /// Use of each rule's ports, in the order of the rules.
    pub ranges: Vec<PortRange>,
    /// Ports to keep from now on.
    pub ports: Ports,
}

/// Service made of an application's endpoints of one port name, or why there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ExposedEntry {
    /// Name of the application, `NAMESPACE/APP`.
    pub application: String,
    /// Name of the port in the application's cartridge.
    pub port_name: String,
    /// Addresses of the service, as `ADDRESS:PORT`; empty where the endpoints are not exposed.
    pub listen: Vec<String>,
    /// Reason why the endpoints are not exposed, and the fix.
    pub reason: Option<String>,
    /// Endpoints that the service cannot lead to, each with the reason, by the host's name.
    pub left_out: BTreeMap<String, String>,
}

/// Use of a rule's ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct PortRange {
    /// Addresses and port range of the rule.
    pub listen: String,
    /// Number of ports that lead to an application.
    pub used: usize,
    /// Number of ports kept for port names that an application does not have at the moment.
    pub kept: usize,
    /// Number of ports that any service can be given.
    pub free: usize,
    /// Ports that a listener, a service of the configuration or the admin API has, each with the name of its owner.
    pub taken: BTreeMap<u16, String>,
    /// Number of services that are not exposed because no port is free.
    pub waiting: usize,
}

/// Endpoints of an application with one port name.
struct EndpointGroup<'a> {
    rule: usize,
    application: &'a str,
    port_name: &'a str,
    endpoints: Vec<&'a AppEndpoint>,
}

/// Builds the model to apply, with the services of applications.
#[must_use]
pub fn effective_model(
    file: &Model,
    discovered: &Discovered,
    weights: &WeightOverrides,
    held: &Ports,
) -> (Model, ExposeResult) {
    let mut model = merge(file, discovered, weights);
    let exposure = expose(&mut model, discovered, held);
    (model, exposure)
}

/// Adds the services of applications, and their clusters, to a model whose services are the configuration's own.
#[must_use]
pub fn expose(model: &mut Model, discovered: &Discovered, held: &Ports) -> ExposeResult {
    let rules = model.routing_events.as_ref().map(|events| events.expose.clone());
    let rules = rules.unwrap_or_default();
    let mut exposure = ExposeResult {
        ports: held.clone(),
        ..ExposeResult::default()
    };
    if rules.is_empty() {
        return exposure;
    }
    let groups = group_endpoints(&rules, discovered);
    for (at, rule) in rules.iter().enumerate() {
        let of_rule: BTreeMap<&str, &EndpointGroup<'_>> = groups
            .iter()
            .filter(|(_, group)| group.rule == at)
            .map(|(name, group)| (name.as_str(), group))
            .collect();
        let reserved_ports = reserved_ports(model, rule);
        let (chosen, range) = assign_ports(rule, &of_rule, &groups, held, reserved_ports, model.etcd.is_some());
        for name in &chosen.displaced {
            exposure.ports.remove(name);
        }
        for (name, group) in &of_rule {
            let entry = match chosen.assigned.get(*name) {
                Some(&port) => {
                    exposure.ports.insert((*name).to_owned(), port);
                    add_service(model, rule, name, group, port)
                }
                None => ExposedEntry {
                    reason: Some(not_exposed_reason(rule, &range)),
                    ..ExposedEntry::of(group)
                },
            };
            exposure.entries.insert((*name).to_owned(), entry);
        }
        exposure.ranges.push(range);
    }
    exposure
}

/// Groups all endpoints that a rule takes by the name of their service. A service belongs to the first rule that takes
/// one of its endpoints.
fn group_endpoints<'a>(rules: &[ExposeRule], discovered: &'a Discovered) -> BTreeMap<String, EndpointGroup<'a>> {
    let mut groups: BTreeMap<String, EndpointGroup<'a>> = BTreeMap::new();
    let told = discovered.values().flatten();
    for (application, endpoint) in told.flat_map(|(name, learned)| learned.endpoints.iter().map(move |e| (name, e))) {
        let Some(rule) = rules.iter().position(|rule| rule.matches(application, endpoint)) else {
            continue;
        };
        let name = format!("{application}:{}", endpoint.port_name);
        let group = groups.entry(name).or_insert_with(|| EndpointGroup {
            rule,
            application,
            port_name: &endpoint.port_name,
            endpoints: Vec::new(),
        });
        group.rule = group.rule.min(rule);
        group.endpoints.push(endpoint);
    }
    for group in groups.values_mut() {
        let (rule, application) = (rules.get(group.rule), group.application);
        group
            .endpoints
            .retain(|endpoint| rule.is_some_and(|rule| rule.matches(application, endpoint)));
    }
    groups
}

/// Chooses which service gets which port of a rule.
fn assign_ports(
    rule: &ExposeRule,
    of_rule: &BTreeMap<&str, &EndpointGroup<'_>>,
    groups: &BTreeMap<String, EndpointGroup<'_>>,
    held: &Ports,
    reserved_ports: BTreeMap<u16, String>,
    is_shared: bool,
) -> (ports::PortAssignment, PortRange) {
    let usable: BTreeSet<u16> = rule
        .ports
        .clone()
        .filter(|port| !reserved_ports.contains_key(port))
        .collect();
    let wanted: BTreeSet<&str> = of_rule.keys().copied().collect();
    let held = held.iter().map(|(name, port)| (name.as_str(), *port));
    let (here, away): (BTreeMap<&str, u16>, BTreeMap<&str, u16>) =
        held.partition(|(name, _)| groups.contains_key(*name));
    let kept: BTreeMap<&str, u16> = away.into_iter().filter(|(_, port)| usable.contains(port)).collect();
    let choice = ports::assign(&usable, &wanted, &here, &kept, is_shared);
    let kept = kept.len() - choice.displaced.len();
    let range = PortRange {
        listen: rule.listen_text(),
        used: choice.assigned.len(),
        kept,
        free: usable.len().saturating_sub(choice.assigned.len() + kept),
        taken: reserved_ports,
        waiting: wanted.len() - choice.assigned.len(),
    };
    (choice, range)
}

/// Ports of a rule that the configuration's own listeners and services or the admin API have, each with its owner.
#[must_use]
pub fn reserved_ports(model: &Model, rule: &ExposeRule) -> BTreeMap<u16, String> {
    let mut reserved_ports = BTreeMap::new();
    let mut take = |ports: std::ops::RangeInclusive<u16>, who: String| {
        let (first, last) = (
            *ports.start().max(rule.ports.start()),
            *ports.end().min(rule.ports.end()),
        );
        for port in first..=last {
            reserved_ports.entry(port).or_insert_with(|| who.clone());
        }
    };
    for listener in &model.listeners {
        let is_meant = |prefix: &ipnet::IpNet| rule.addresses.iter().any(|address| prefix.contains(address));
        for bind in listener.listen.iter().filter(|bind| is_meant(&bind.prefix)) {
            take(bind.port..=bind.port, format!("listener {}", listener.name));
        }
    }
    let services = model.services.iter().filter(|service| !service.is_exposed());
    for service in services.filter(|service| service.protocol == Transport::Tcp) {
        for bind in service
            .listen
            .iter()
            .filter(|bind| rule.addresses.contains(&bind.address))
        {
            take(bind.ports.clone(), format!("service {}", service.name));
        }
    }
    if let Some(listen) = model.admin.listen
        && (listen.ip().is_unspecified() || rule.addresses.contains(&listen.ip()))
    {
        take(listen.port()..=listen.port(), "the admin API".to_owned());
    }
    reserved_ports
}

fn not_exposed_reason(rule: &ExposeRule, range: &PortRange) -> String {
    let listen = rule.listen_text();
    if let Some((_, who)) = range.taken.first_key_value()
        && range.taken.len() == rule.ports.len()
    {
        return match range.taken.len() {
            1 => format!("{who} of the configuration has {listen}: give the rule another port, or move the other"),
            _ => format!(
                "listeners and services of the configuration have all ports of {listen}: give the rule other ones"
            ),
        };
    }
    match range.used {
        1 if rule.ports.len() == 1 => format!(
            "another application has {listen}, which is a single port: give the rule a range, or narrow its `match` or \
             `port_names`"
        ),
        used if range.kept > 0 => format!(
            "the ports of {listen} are given ({used}), or kept for port names that applications had ({}): widen the range, or \
             narrow the rule's `match` or `port_names`",
            range.kept
        ),
        used => format!(
            "all {used} ports of {listen} are given: widen the range, or narrow the rule's `match` or `port_names`"
        ),
    }
}

/// Adds a service and its cluster to the model.
fn add_service(model: &mut Model, rule: &ExposeRule, name: &str, group: &EndpointGroup<'_>, port: u16) -> ExposedEntry {
    let mut entry = ExposedEntry::of(group);
    if model.clusters.len() >= MAX_CLUSTERS {
        entry.reason = Some(format!(
            "there are {MAX_CLUSTERS} clusters already, the most that are allowed"
        ));
        return entry;
    }
    let mut cluster = Cluster::exposed(name, rule, model.routing_events.as_ref());
    for endpoint in &group.endpoints {
        match left_out_reason(rule, endpoint, port) {
            Some(why) => drop(entry.left_out.insert(endpoint.host.clone(), why)),
            None if endpoint.is_stopped => {}
            None => cluster.hosts.push(Host {
                name: endpoint.host.clone(),
                address: endpoint.addr.ip(),
                http: None,
                https: None,
                // Checks connect to this port; the service itself uses `ports`.
                tcp: Some(endpoint.addr.port()),
                ports: [(name.to_owned(), endpoint.addr.port())].into(),
                weight: 1,
                backup: false,
                health_page: None,
            }),
        }
    }
    let listen: Vec<ServiceBind> = rule.binds(&(port..=port)).collect();
    entry.listen = listen.iter().map(ToString::to_string).collect();
    model.services.push(Service {
        name: name.to_owned(),
        protocol: Transport::Tcp,
        listen,
        cluster: model.clusters.len(),
        backup: None,
        mode: rule.mode,
        affinity: rule.affinity,
        idle: rule.idle,
        shield: rule.shield.clone(),
    });
    model.clusters.push(cluster);
    entry
}

/// Reason why a service cannot lead to an endpoint; `None`: it can.
fn left_out_reason(rule: &ExposeRule, endpoint: &AppEndpoint, port: u16) -> Option<String> {
    let at = endpoint.addr;
    if rule.mode == Mode::Nat {
        let is_other = !rule.addresses.iter().any(|address| address.is_ipv4() == at.is_ipv4());
        let (family, address) = if at.is_ipv4() {
            ("IPv4", "an IPv4")
        } else {
            ("IPv6", "an IPv6")
        };
        return is_other.then(|| {
            format!(
                "{at} is {family}, and the rule has no address of that family: add {address} address to its `listen`"
            )
        });
    }
    (at.port() != port)
        .then(|| format!("direct return does not change ports, and {at} has another port than {port}: use `mode: nat`"))
}

impl ExposedEntry {
    fn of(group: &EndpointGroup<'_>) -> Self {
        Self {
            application: group.application.to_owned(),
            port_name: group.port_name.to_owned(),
            listen: Vec::new(),
            reason: None,
            left_out: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests;
