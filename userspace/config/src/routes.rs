//! Routes from names to clusters, and the treatment of names without a route.

use std::collections::HashMap;

use ipnet::IpNet;
use signalbox_core::model::claimed::ConnectionLimits;
use signalbox_core::model::http::RequestPolicy;
use signalbox_core::model::labels::{Labels, is_key, is_value};
use signalbox_core::model::tls::Termination;
use signalbox_core::model::{PathRoute, Preference, Route, Unmatched};
use signalbox_core::wire::hostname::{HostnamePattern, WildcardDepth};
use signalbox_core::wire::http::path::is_route_path;

use super::clusters::ClusterNames;
use super::map::MapDecoder;
use super::node::{NodeKind, NodeRef, Position};
use super::report::{Report, did_you_mean, quote};
use super::requests::{MAX_CONCURRENT, MAX_RATE, RequestKeys, per_second};
use super::scalar::optional_value;
use super::tls;

/// Most preferences of a route, because each connection looks through them.
const MAX_PREFERENCES: usize = 16;

/// Places of routes that were decoded before, by name and path.
type Seen = HashMap<(HostnamePattern, Option<String>), Position>;

/// Decodes all routes. Those of a name's paths become part of the route of the name.
pub(super) fn decode_all(place: Option<&NodeRef<'_>>, names: &ClusterNames, report: &mut Report) -> Option<Vec<Route>> {
    let Some(place) = place else { return Some(Vec::new()) };
    let mut seen = Seen::new();
    let mut routes = Some(Vec::new());
    for item in place.items("routes", usize::MAX, report)? {
        match (route(&item, names, &mut seen, report), &mut routes) {
            (Some(route), Some(routes)) => routes.push(route),
            _ => routes = None,
        }
    }
    routes.map(join_paths)
}

/// Puts the paths of a name into one route, in place of its first.
fn join_paths(routes: Vec<Route>) -> Vec<Route> {
    if routes.iter().all(|route| route.paths.is_empty()) {
        return routes;
    }
    let mut joined: Vec<Route> = Vec::with_capacity(routes.len());
    let mut places: HashMap<HostnamePattern, usize> = HashMap::new();
    for mut route in routes {
        let Some(&at) = places.get(&route.hostname) else {
            places.insert(route.hostname.clone(), joined.len());
            joined.push(route);
            continue;
        };
        let known = &mut joined[at];
        if route.paths.is_empty() {
            // The route of the name itself, after some of its paths.
            route.paths = std::mem::take(&mut known.paths);
            *known = route;
        } else {
            known.paths.append(&mut route.paths);
        }
    }
    for Route { paths, requests, .. } in &mut joined {
        paths.iter_mut().for_each(|path| path.requests.inherit(requests));
    }
    joined
}

fn route(place: &NodeRef<'_>, names: &ClusterNames, seen: &mut Seen, report: &mut Report) -> Option<Route> {
    let mut map = MapDecoder::open(place, report)?;
    let host = map.require("host");
    let path = map.take("path");
    let prefer = map.take("prefer");
    let labels = map.take("labels");
    let tls = map.take("tls");
    let allow = map.take("allow");
    let connections = map.take("connections");
    let requests = RequestKeys::take(&mut map);
    // A route with further settings of its name may leave its clusters to be discovered.
    let of_name = [&prefer, &labels, &tls, &allow, &connections];
    let says_more = of_name.iter().any(|place| place.is_some());
    let may_be_discovered = path.is_none() && (says_more || requests.first().is_some());
    let clusters = if may_be_discovered {
        map.take("clusters")
    } else {
        map.require("clusters")
    };
    let drain = map.take("drain");
    map.finish(report);
    if path.is_some() {
        for (key, place) in [
            ("prefer", &prefer),
            ("labels", &labels),
            ("tls", &tls),
            ("allow", &allow),
            ("connections", &connections),
            ("drain", &drain),
        ] {
            if let Some(place) = place {
                let message = format!("`{key}` holds for a name as a whole: write it at the route without `path`");
                place.error(report, message);
                return None;
            }
        }
    }
    let path = optional_value(path.as_ref(), |place| self::path(place, report))?;
    let host = host.and_then(|place| hostname_pattern(&place, path.as_deref(), seen, report));
    let clusters = match clusters {
        None if may_be_discovered => Some(Vec::new()),
        clusters => clusters.and_then(|place| weights(&place, names, report)),
    };
    let prefer = match prefer {
        Some(place) => preferences(&place, names, report),
        None => Some(Vec::new()),
    };
    let labels = match labels {
        Some(place) => self::labels(&place, report),
        None => Some(Labels::new()),
    };
    let requests_policy = requests.decode(report);
    let tls = optional_value(tls.as_ref(), |place| tls::route(place, report));
    if let (Some(Some(tls)), Some((key, place))) = (&tls, requests.first())
        && tls.termination == Some(Termination::Passthrough)
    {
        let message = format!("`{key}` needs TLS to end here: with `termination: passthrough` no request can be read");
        place.error(report, message);
        return None;
    }
    let allow = optional_value(allow.as_ref(), |place| self::allow(place, report));
    let connections = optional_value(connections.as_ref(), |place| connection_limits(place, report));
    let (clusters, paths, requests) = match path {
        Some(path) => {
            let path = PathRoute {
                path,
                clusters: clusters?,
                requests: requests_policy?,
            };
            (Vec::new(), vec![path], RequestPolicy::NONE)
        }
        None => (clusters?, Vec::new(), requests_policy?),
    };
    Some(Route {
        hostname: host?,
        depth: WildcardDepth::Any,
        clusters,
        drain: drain.and_then(|place| place.duration(report)),
        prefer: prefer?,
        labels: labels?,
        allow: allow?,
        connections: connections?,
        tls: tls?,
        claimed_termination: None,
        claimed: None,
        paths,
        requests,
    })
}

/// Decodes the addresses of the clients that are served.
fn allow(place: &NodeRef<'_>, report: &mut Report) -> Option<Vec<IpNet>> {
    let mut items = place.items("prefixes", usize::MAX, report)?.peekable();
    if items.peek().is_none() {
        place.error(
            report,
            "an empty list serves nobody: name prefixes, or leave `allow` out to serve all",
        );
        return None;
    }
    let mut prefixes = Vec::new();
    for item in items {
        prefixes.push(item.prefix(report)?);
    }
    Some(prefixes)
}

/// Decodes a path: raw bytes as requests have them, without a query.
pub(super) fn path(place: &NodeRef<'_>, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    if is_route_path(text) {
        return Some(text.to_owned());
    }
    let shown = quote(text);
    place.error(
        report,
        format!(
            "{shown} is not a path: begin it with `/`, and write no query, no space and only ASCII (encode the rest)"
        ),
    );
    None
}

/// Decodes labels as Kubernetes has them, by which `signalbox weight --selector` finds the name.
fn labels(place: &NodeRef<'_>, report: &mut Report) -> Option<Labels> {
    if !matches!(place.node.kind, NodeKind::Map(_)) {
        place.error(report, "labels are keys with values, as in { app: shop, tier: web }");
        return None;
    }
    let mut labels = Some(Labels::new());
    for entry in place.entries(report)? {
        let place = NodeRef {
            node: &entry.value,
            path: place.path.key(&entry.key),
        };
        match (label(&entry.key, &place, report), &mut labels) {
            (Some((key, value)), Some(labels)) => drop(labels.insert(key, value)),
            _ => labels = None,
        }
    }
    labels
}

fn label(key: &str, place: &NodeRef<'_>, report: &mut Report) -> Option<(String, String)> {
    // An empty text in quotes is a value too.
    let value = match place.plain() {
        Some("") => "",
        _ => place.text(report)?,
    };
    if !is_key(key) {
        let shown = quote(key);
        place.error(
            report,
            format!("{shown} is not the key of a label: up to 63 letters, digits, `-`, `_` or `.`, perhaps after a domain and `/`"),
        );
        return None;
    }
    if !is_value(value) {
        let shown = quote(value);
        place.error(
            report,
            format!("{shown} is not the value of a label: up to 63 letters, digits, `-`, `_` or `.`, a letter or digit at both ends"),
        );
        return None;
    }
    Some((key.to_owned(), value.to_owned()))
}

/// Decodes the limits of each client's connections.
fn connection_limits(place: &NodeRef<'_>, report: &mut Report) -> Option<ConnectionLimits> {
    let mut map = MapDecoder::open(place, report)?;
    let rate = map.take("rate");
    let burst = map.take("burst");
    let concurrent = map.take("concurrent");
    map.finish(report);
    if rate.is_none() && (burst.is_some() || concurrent.is_none()) {
        place.error(
            report,
            "write `rate: 100`, `concurrent: 50` or both; `burst` belongs to `rate`",
        );
        return None;
    }
    let rate = optional_value(rate.as_ref(), |place| place.number(1, MAX_RATE, report))?;
    let burst = optional_value(burst.as_ref(), |place| place.number(1, MAX_RATE, report))?;
    let concurrent = optional_value(concurrent.as_ref(), |place| place.number(1, MAX_CONCURRENT, report))?;
    Some(ConnectionLimits {
        concurrent: concurrent.unwrap_or(0),
        rate: rate.map(|count| per_second(count, burst.unwrap_or(count))),
    })
}

fn preferences(place: &NodeRef<'_>, names: &ClusterNames, report: &mut Report) -> Option<Vec<Preference>> {
    let mut all = Some(Vec::new());
    for item in place.items("preferences", MAX_PREFERENCES, report)? {
        match (preference(&item, names, report), &mut all) {
            (Some(one), Some(all)) => all.push(one),
            _ => all = None,
        }
    }
    all
}

fn preference(place: &NodeRef<'_>, names: &ClusterNames, report: &mut Report) -> Option<Preference> {
    let mut map = MapDecoder::open(place, report)?;
    let cluster = map.require("cluster");
    let clients = map.require("clients");
    map.finish(report);
    let cluster = cluster.and_then(|place| names.find_at(&place, report));
    let place = clients?;
    let mut items = place.items("prefixes", usize::MAX, report)?.peekable();
    if items.peek().is_none() {
        place.error(
            report,
            "a preference needs clients, as in { cluster: west, clients: [10.9.0.0/16] }",
        );
        return None;
    }
    let clients = items.filter_map(|item| item.prefix(report)).collect();
    Some(Preference {
        cluster: cluster?,
        clients,
    })
}

fn hostname_pattern(
    place: &NodeRef<'_>,
    path: Option<&str>,
    seen: &mut Seen,
    report: &mut Report,
) -> Option<HostnamePattern> {
    let text = place.text(report)?;
    let problem = match HostnamePattern::parse(text) {
        Ok(host) => {
            let key = (host, path.map(ToOwned::to_owned));
            match seen.get(&key) {
                None => {
                    seen.insert(key.clone(), place.position());
                    return Some(key.0);
                }
                Some(first) => {
                    let of_path = path.map(|path| format!(" for {path}")).unwrap_or_default();
                    format!("{} already has a route{of_path} on line {}", quote(text), first.line)
                }
            }
        }
        Err(error) if error_is_port(text) => format!("{}: {error}; leave the port out", quote(text)),
        Err(error) => format!("{}: {error}", quote(text)),
    };
    place.error(report, problem);
    None
}

fn error_is_port(text: &str) -> bool {
    text.rsplit_once(':')
        .is_some_and(|(name, port)| !name.contains(':') && port.parse::<u16>().is_ok())
}

fn weights(place: &NodeRef<'_>, names: &ClusterNames, report: &mut Report) -> Option<Vec<(usize, u32)>> {
    if matches!(place.node.kind, NodeKind::Scalar { .. } | NodeKind::List(_)) {
        place.error(
            report,
            "a route's clusters are names with weights from 0 to 100, as in { east: 10, west: 80 }",
        );
        return None;
    }
    let entries = place.entries(report)?;
    if entries.is_empty() {
        place.error(report, "a route needs at least one cluster, as in { east: 100 }");
        return None;
    }
    let mut weights = Some(Vec::with_capacity(entries.len()));
    for entry in entries {
        let place = NodeRef {
            node: &entry.value,
            path: place.path.key(&entry.key),
        };
        let cluster = names.find(&entry.key, entry.position, &place.path, report);
        let weight = place.number(0, 100, report);
        match (cluster, weight, &mut weights) {
            (Some(cluster), Some(weight), Some(weights)) => weights.push((cluster, weight)),
            _ => weights = None,
        }
    }
    if weights
        .as_ref()
        .is_some_and(|weights| weights.iter().all(|(_, weight)| *weight == 0))
    {
        place.error(report, "all weights are 0: give at least one cluster a weight above 0");
        return None;
    }
    weights
}

/// Decodes the treatment of a name without a route.
pub(super) fn unmatched(place: Option<&NodeRef<'_>>, names: &ClusterNames, report: &mut Report) -> Option<Unmatched> {
    let Some(place) = place else {
        return Some(Unmatched::Reject);
    };
    if !matches!(place.node.kind, NodeKind::Map(_)) {
        return match place.text(report)? {
            "reject" => Some(Unmatched::Reject),
            "any" => Some(Unmatched::Any),
            other => {
                let guess = did_you_mean(report.suggest(other, ["reject", "any"].into_iter()));
                let other = quote(other);
                place.error(
                    report,
                    format!("{other} is neither reject, any nor {{ cluster: NAME }}{guess}"),
                );
                None
            }
        };
    }
    let mut map = MapDecoder::open(place, report)?;
    let cluster = map.require("cluster");
    map.finish(report);
    cluster
        .and_then(|place| names.find_at(&place, report))
        .map(Unmatched::Cluster)
}
