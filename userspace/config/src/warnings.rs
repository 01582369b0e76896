//! Warnings about settings that are allowed but probably mistakes.

mod slips;

use signalbox_core::discovered::expose;
use signalbox_core::model::SubsetSize;
use signalbox_core::model::services::{Mode, Transport};
use signalbox_core::model::tls::Termination;
use signalbox_core::model::{
    ClusterRole, ExposeRule, FIRST_CUT_PORT, Listener, Model, Protocol, Route, Routing, RoutingEvents, Service,
    Unmatched,
};

use super::error::ConfigError;
use super::node::{NodePath, Position};
use super::report::{Report, quote};

/// Places in the file that warnings point at.
pub(super) struct Positions<'a> {
    pub(super) listeners: &'a [Position],
    pub(super) clusters: &'a [Position],
    pub(super) events: Option<Position>,
    /// Places of the addresses of each rule.
    pub(super) expose: &'a [Position],
    pub(super) balancers: Option<Position>,
    pub(super) layer4: Option<Position>,
    pub(super) shield: Option<Position>,
    pub(super) admin: Option<Position>,
}

/// Oddities of a configuration without mistakes, including those of the report, in the order of the file.
pub(super) fn find(model: &Model, spots: &Positions<'_>, report: &mut Report) -> Vec<ConfigError> {
    let mut warnings = report.take_warnings();
    let root = NodePath::ROOT.key("clusters");
    for (at, (cluster, spot)) in model.clusters.iter().zip(spots.clusters).enumerate() {
        if cluster.hosts.is_empty() && cluster.named_hosts.is_empty() && !cluster.accepts_discovery() {
            let name = quote(&cluster.name);
            let message = format!("the cluster {name} has no hosts: connections that it should get are refused");
            warnings.push(ConfigError::new(*spot, root.index(at).to_string(), message));
        }
    }
    let routed = RoutedProtocols::of_routes(model);
    let root = NodePath::ROOT.key("listeners");
    for (at, (listener, spot)) in model.listeners.iter().zip(spots.listeners).enumerate() {
        if let Some(message) = listener_leads_nowhere(listener, model, &routed) {
            warnings.push(ConfigError::new(*spot, root.index(at).to_string(), message));
        }
        let unmet = rules_of_first_names(listener, model).or_else(|| requests_that_are_not_read(listener, model));
        for message in unmet.into_iter().chain(plain_http_for_routers(listener, model)) {
            warnings.push(ConfigError::new(*spot, root.index(at).to_string(), message));
        }
    }
    if let (Some(settings), Some(spot)) = (&model.routing_events, spots.events)
        && let Some(message) = events_get_lost(settings)
    {
        let path = NodePath::ROOT.key("routing_events").to_string();
        warnings.push(ConfigError::new(spot, path, message));
    }
    if let Some(spot) = spots.balancers
        && has_subsets(model)
        && model.balancers.iter().any(|other| other.name.is_none())
    {
        let message = "not all `balancers` have a `name`: a host may then be in no balancer's subset; give each a name";
        let path = NodePath::ROOT.key("balancers").to_string();
        warnings.push(ConfigError::new(spot, path, message.to_owned()));
    }
    if let (Some(spot), Some(message)) = (spots.layer4, ports_of_listeners(model)) {
        let nat = NodePath::ROOT.key("layer4");
        let nat = nat.key("nat");
        warnings.push(ConfigError::new(spot, nat.key("ports").to_string(), message));
    }
    let rules = model.routing_events.iter().flat_map(|events| &events.expose);
    let root = NodePath::ROOT.key("routing_events");
    let root = root.key("expose");
    for (at, (rule, spot)) in rules.zip(spots.expose).enumerate() {
        if let Some(message) = ports_taken(model, rule) {
            let rule = root.index(at);
            warnings.push(ConfigError::new(*spot, rule.key("listen").to_string(), message));
        }
    }
    warnings.extend(slips::find(model, spots));
    warnings.sort_by_key(|warning| (warning.line, warning.column));
    warnings
}

/// Reach of routes and `unmatched`: whether they lead to any cluster, and for which protocols one of these has a port.
/// A cluster that accepts discovery may later have any port, and routes that lead to it.
struct RoutedProtocols {
    any: bool,
    http: bool,
    tls: bool,
}

impl RoutedProtocols {
    /// Computes the reach once for all listeners, as there may be many routes.
    fn of_routes(model: &Model) -> Self {
        let any = matches!(model.unmatched, Unmatched::Any);
        let mut reached: Vec<bool> = model
            .clusters
            .iter()
            .map(|cluster| any || cluster.accepts_discovery())
            .collect();
        let routed = model
            .routes
            .iter()
            .flat_map(|route| {
                route
                    .clusters
                    .iter()
                    .chain(route.paths.iter().flat_map(|path| &path.clusters))
            })
            .map(|(cluster, _)| *cluster);
        let unmatched = match model.unmatched {
            Unmatched::Cluster(cluster) => Some(cluster),
            Unmatched::Any | Unmatched::Reject => None,
        };
        for cluster in routed.chain(unmatched) {
            if let Some(reached) = reached.get_mut(cluster) {
                *reached = true;
            }
        }
        let speaks = |protocol| {
            let reached = reached.iter().enumerate().filter(|(_, reached)| **reached);
            reached
                .into_iter()
                .any(|(cluster, _)| has_port(model, cluster, protocol))
        };
        // Applications of routing events bring their names and endpoints of any protocol.
        let announced = model.routing_events.is_some();
        Self {
            any: announced || reached.contains(&true),
            http: announced || speaks(Protocol::Http),
            tls: announced || speaks(Protocol::Tls),
        }
    }
}

/// Warning about ports of a rule at which clients cannot reach an application.
fn ports_taken(model: &Model, rule: &ExposeRule) -> Option<String> {
    let taken = expose::reserved_ports(model, rule);
    let (port, who) = taken.first_key_value()?;
    let listen = rule.listen_text();
    Some(match taken.len() {
        count if count == rule.ports.len() => {
            format!(
                "nothing is exposed at {listen}: {who} has port {port}, and listeners and services of the file come first"
            )
        }
        1 => format!("{who} has port {port} of {listen}: no application gets it"),
        count => format!(
            "{count} ports of {listen} are in use, the first of them, {port}, by {who}: no application gets them"
        ),
    })
}

fn has_subsets(model: &Model) -> bool {
    let is_some = |size: SubsetSize| size != SubsetSize::All;
    is_some(model.subset.size) || model.clusters.iter().filter_map(|cluster| cluster.subset).any(is_some)
}

fn events_get_lost(events: &RoutingEvents) -> Option<String> {
    let kept = events.brokers.is_empty() || events.subscription.is_some() || !events.destination.starts_with("/topic/");
    (!kept).then(|| {
        "the broker keeps no events of a topic for a disconnected consumer: give `client_id` and `subscription`, or \
         the `destination` of a queue"
            .to_owned()
    })
}

/// Warning about source ports that both services and cut-through take: where a service and a listener connect to the
/// same port of a host, two connections could get the same one.
fn ports_of_listeners(model: &Model) -> Option<String> {
    let last = *model.layer4.nat_ports.as_ref()?.end();
    let is_nat = |service: &Service| service.mode == Mode::Nat && service.protocol == Transport::Tcp;
    let are_shared = last >= FIRST_CUT_PORT && !model.listeners.is_empty() && model.services.iter().any(is_nat);
    are_shared.then(|| {
        format!(
            "connections of listeners also use source ports above {}, and could collide with those of a service at \
             the same port of a host: end the range there",
            FIRST_CUT_PORT - 1
        )
    })
}

fn has_port(model: &Model, cluster: usize, protocol: Protocol) -> bool {
    model.clusters.get(cluster).is_some_and(|cluster| {
        cluster.accepts_discovery()
            || cluster.hosts.iter().any(|host| host.port(protocol).is_some())
            || cluster.named_hosts.iter().any(|host| host.port(protocol).is_some())
    })
}

/// Warning about names whose rules apply only to clients that ask for them first.
fn rules_of_first_names(listener: &Listener, model: &Model) -> Option<String> {
    if listener.protocol != Protocol::Http || listener.routing == Routing::Request {
        return None;
    }
    let has_rule = |route: &&Route| route.allow.is_some() || route.restricts_plain_http();
    let route = model.routes.iter().find(has_rule)?;
    Some(format!(
        "listener {} routes connections by their first request: `allow` and `insecure` of {} and others do not hold \
         for a later request on the connection of another name; `routing: request` applies them to each",
        quote(&listener.name),
        quote(&route.hostname.to_string()),
    ))
}

/// Warning about names with settings for requests that a listener cannot read, because their TLS ends at the hosts.
fn requests_that_are_not_read(listener: &Listener, model: &Model) -> Option<String> {
    let is_unread = |route: &&Route| {
        listener.protocol == Protocol::Tls
            && listener.termination(Some(route)) == Termination::Passthrough
            && route.treats_requests()
    };
    let route = model.routes.iter().find(is_unread)?;
    Some(format!(
        "listener {} passes on the TLS of {}, whose requests it cannot read: `path`, `affinity`, `headers`, `rewrite`, \
         `timeouts` and `limits` of its routes do not hold there; `tls: {{ termination: edge }}` or `reencrypt`, at a listener \
         with `protocol: https`, ends TLS here",
        quote(&listener.name),
        quote(&route.hostname.to_string()),
    ))
}

/// Warning about TLS that ends here in front of routers, which get plain HTTP then. A router answers that as it answers
/// clients without TLS: a Route with TLS by a redirect or 503, one without TLS, or with the policy `Allow`, as it should.
fn plain_http_for_routers(listener: &Listener, model: &Model) -> Option<String> {
    let is_routers = |at: usize| {
        let cluster = model.clusters.get(at);
        cluster.filter(|cluster| cluster.role == ClusterRole::Routers)
    };
    let of_route = |route: &Route| {
        let clusters = route
            .clusters
            .iter()
            .chain(route.paths.iter().flat_map(|path| &path.clusters));
        let routers = clusters.into_iter().find_map(|(at, _)| is_routers(*at))?;
        let is_edge = listener.termination(Some(route)) == Termination::Edge;
        is_edge.then(|| (quote(&route.hostname.to_string()), &routers.name))
    };
    let of_discovered = || {
        let mut watched = model.clusters.iter().filter(|cluster| cluster.kubernetes.is_some());
        let routers = watched.find(|cluster| cluster.role == ClusterRole::Routers)?;
        let is_edge = listener.termination(None) == Termination::Edge;
        is_edge.then(|| ("discovered names".to_owned(), &routers.name))
    };
    let (names, cluster) = model.routes.iter().find_map(of_route).or_else(of_discovered)?;
    Some(format!(
        "listener {} ends the TLS of {names} and speaks plain HTTP to the hosts of {}: OpenShift's routers answer that \
         with 503 or endless redirects, unless the Route allows plain HTTP; write `reencrypt`, or `role: servers` at \
         the cluster if its hosts are not routers",
        quote(&listener.name),
        quote(cluster),
    ))
}

/// Whether the listener ends TLS for hosts with the port `http`.
fn ends_tls_for_plain_hosts(listener: &Listener, model: &Model, routed: &RoutedProtocols) -> bool {
    let is_edge = |route: &Route| listener.termination(Some(route)) == Termination::Edge;
    routed.http && (listener.termination(None) == Termination::Edge || model.routes.iter().any(is_edge))
}

fn listener_leads_nowhere(listener: &Listener, model: &Model, routed: &RoutedProtocols) -> Option<String> {
    let name = quote(&listener.name);
    let key = match listener.protocol {
        Protocol::Http => "http",
        Protocol::Tls => "https",
        Protocol::Tcp => "tcp",
    };
    let without_port = |at: usize, what| {
        let cluster = model
            .clusters
            .get(at)
            .filter(|_| !has_port(model, at, listener.protocol));
        cluster.map(|cluster| {
            let cluster = quote(&cluster.name);
            format!("no host of {cluster}, the {what} of listener {name}, has the port `{key}`")
        })
    };
    if let Some(cluster) = listener.cluster {
        let of_backup = || listener.backup.and_then(|backup| without_port(backup, "backup"));
        return without_port(cluster, "cluster").or_else(of_backup);
    }
    let reachable = match listener.protocol {
        Protocol::Http => routed.http,
        Protocol::Tls => routed.tls || ends_tls_for_plain_hosts(listener, model, routed),
        Protocol::Tcp => true,
    };
    match (reachable, routed.any) {
        (true, _) => None,
        (false, true) => Some(format!(
            "no host that a route or `unmatched` leads to has the port `{key}`: listener {name} refuses everything"
        )),
        (false, false) => Some(format!(
            "there is no route, and `unmatched` rejects: listener {name} refuses everything"
        )),
    }
}
