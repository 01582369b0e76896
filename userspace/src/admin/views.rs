//! The state as JSON. The fields are stable, so that scripts that read them continue to work.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::atomic::Ordering::Relaxed;

use serde_json::{Value, json};
use signalbox_core::labels::{Labels, Selector, by_name};
use signalbox_core::model::{Cluster, Host, NamedHost, Protocol, Route, Unmatched};
use signalbox_core::shown::shown;

use crate::control::Control;
use crate::state::{HostState, RouteState, Snapshot};

pub fn status(control: &Control) -> Value {
    let (shared, snapshot) = (&control.shared, control.shared.snapshot.load());
    let hosts = || snapshot.hosts.iter().flatten();
    let last_reload = shared
        .reloads
        .last
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .clone();
    let ready = super::readiness::unready_reasons(control);
    json!({
        "apiVersion": "v1",
        "version": env!("CARGO_PKG_VERSION"),
        "revision": env!("SIGNALBOX_REVISION"),
        "abi": signalbox_common::ABI_VERSION,
        "pid": std::process::id(),
        "uptime_seconds": shared.started.elapsed().as_secs(),
        "state": if shared.stopping.load(Relaxed) { "draining" } else { "serving" },
        "ready": ready.is_empty(),
        "not_ready": ready,
        "steering": control.facts.steering,
        "workers": control.facts.workers,
        "degraded": control.facts.degraded.iter().map(|(feature, why)| json!({ "feature": feature, "why": why })).collect::<Vec<_>>(),
        "missing_features": control.missing_features(),
        "connections": {
            "active": shared.totals.current.get(),
            "total": shared.totals.total.get(),
            "refused": shared.totals.refused.get(),
            "max": snapshot.model.limits.max_connections.unwrap_or(control.facts.max_connections),
        },
        "hosts": { "configured": hosts().count(), "usable": hosts().filter(|host| host.health().0.usable()).count() },
        "routes": snapshot.routes.len(),
        "connection_log": super::log::view(&shared.log),
        "config": control.file,
        "last_reload": last_reload,
        "reloads": { "ok": shared.reloads.ok.get(), "failed": shared.reloads.failed.get() },
    })
}

pub fn listeners(control: &Control) -> Value {
    let snapshot = control.shared.snapshot.load();
    let all: Vec<Value> = snapshot
        .model
        .listeners
        .iter()
        .zip(&snapshot.listeners)
        .map(|(listener, state)| {
            json!({
                "name": listener.name,
                "protocol": listener.protocol_name(),
                "termination": listener.tls.as_ref().map(|tls| tls.termination),
                "routing": listener.routing,
                "listen": listener.listen.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "cluster": listener.cluster.and_then(|c| snapshot.model.clusters.get(c)).map(|c| &c.name),
                "backup": listener.backup.and_then(|c| snapshot.model.clusters.get(c)).map(|c| &c.name),
                "tier": listener.datapath.tier.map_or("auto", signalbox_core::model::Tier::as_str),
                "trusted_proxies": listener.trusted_proxies,
                "active_connections": state.active.get(),
                "total_connections": state.total.get(),
                "refused": state.refused.get().into_iter().collect::<std::collections::BTreeMap<_, _>>(),
            })
        })
        .collect();
    json!({ "apiVersion": "v1", "listeners": all })
}

/// Returns all routes, or those that match a selector.
pub fn routes(control: &Control, selector: Option<&Selector>) -> Value {
    let snapshot = control.shared.snapshot.load();
    let names = by_name(&snapshot.file, &snapshot.discovered);
    let mut all = Vec::new();
    for (route, state) in snapshot.model.routes.iter().zip(&snapshot.routes) {
        let labels: &[&Labels] = names.get(&route.hostname).map_or(&[], Vec::as_slice);
        if selector.is_none_or(|selector| selector.matches_any(labels)) {
            let mut view = route_view(&snapshot, route, state);
            let distinct: BTreeSet<_> = labels.iter().filter(|labels| !labels.is_empty()).collect();
            view["labels"] = json!(distinct);
            all.push(view);
        }
    }
    let unmatched = match snapshot.model.unmatched {
        Unmatched::Reject => json!("reject"),
        Unmatched::Any => json!("any"),
        Unmatched::Cluster(c) => json!({ "cluster": snapshot.model.clusters.get(c).map(|cluster| &cluster.name) }),
    };
    json!({ "apiVersion": "v1", "routes": all, "unmatched": unmatched })
}

/// Returns a route and its clusters.
pub(super) fn route_view(snapshot: &Snapshot, route: &Route, state: &RouteState) -> Value {
    let clusters: Vec<Value> = route
        .clusters
        .iter()
        .filter_map(|&(c, weight)| snapshot.model.clusters.get(c).map(|cluster| (c, cluster, weight)))
        .map(|(c, cluster, weight)| {
            json!({ "name": cluster.name, "weight": weight, "usable_hosts": usable(snapshot, c) })
        })
        .collect();
    let figures = state.stats.totals().total();
    json!({
        "host": route.hostname.to_string(),
        "clusters": clusters,
        "total_connections": state.connections(),
        "active_connections": figures.active,
        "bytes_in": figures.bytes_in,
        "bytes_out": figures.bytes_out,
    })
}

/// Number of a cluster's hosts that accept connections.
pub(super) fn usable(snapshot: &Snapshot, cluster: usize) -> usize {
    [Protocol::Http, Protocol::Tls, Protocol::Tcp]
        .map(|p| snapshot.view.usable(cluster, p).len())
        .into_iter()
        .max()
        .unwrap_or(0)
}

pub fn clusters(control: &Control) -> Value {
    let snapshot = control.shared.snapshot.load();
    let all: Vec<Value> = snapshot
        .model
        .clusters
        .iter()
        .zip(&snapshot.clusters)
        .zip(&snapshot.hosts)
        .map(|((cluster, state), hosts)| {
            json!({
                "name": cluster.name,
                "waits_for": crate::source::routing_spi::why_waiting(&snapshot.discovered, cluster),
                "balance": cluster.balance,
                "proxy_protocol": cluster.proxy_protocol,
                "hosts": hosts.len(),
                "healthy_hosts": hosts.iter().filter(|host| host.health().0.usable()).count(),
                "active_connections": state.active.iter().map(signalbox_core::stats::Gauge::get).sum::<u32>(),
                "bytes_in": state.bytes_in.get(),
                "bytes_out": state.bytes_out.get(),
            })
        })
        .collect();
    json!({ "apiVersion": "v1", "clusters": all })
}

pub fn hosts(control: &Control) -> Value {
    let snapshot = control.shared.snapshot.load();
    let clusters = snapshot.model.clusters.iter().zip(&snapshot.hosts).enumerate();
    let configured = clusters.flat_map(|(at, (cluster, states))| {
        let places = subset_roles(&snapshot, at);
        let hosts = cluster.hosts.iter().zip(states).enumerate();
        let views = hosts.map(|(index, (host, state))| {
            let mut view = host_view(&snapshot, state, Some(host));
            view["subset"] = json!(places.get(index));
            if let Some(named) = cluster.named_hosts.iter().find(|named| named.has(host)) {
                view["hostname"] = json!(named.hostname);
                view["not_resolved"] = json!(resolve_error(control, cluster, named));
            }
            view
        });
        let unresolved = cluster
            .unresolved()
            .map(|named| unresolved_view(control, cluster, named));
        views.chain(unresolved).collect::<Vec<_>>()
    });
    let draining = snapshot.draining.iter().map(|state| host_view(&snapshot, state, None));
    json!({ "apiVersion": "v1", "hosts": configured.chain(draining).collect::<Vec<_>>() })
}

/// Returns each host's role in this balancer's subset of the cluster's hosts; empty if the balancer uses all.
pub(super) fn subset_roles(snapshot: &Snapshot, cluster: usize) -> Vec<&'static str> {
    let Some(order) = snapshot.subsets.get(cluster).and_then(Option::as_ref) else {
        return Vec::new();
    };
    let mut places = vec!["spare"; order.hosts.len()];
    for protocol in [Protocol::Http, Protocol::Tls, Protocol::Tcp] {
        for (host, _) in snapshot.view.usable(cluster, protocol) {
            places[usize::from(*host)] = "stand-in";
        }
    }
    for host in order.own() {
        places[usize::from(*host)] = "own";
    }
    places
}

/// Returns why the hostname of hosts could not be resolved last time.
fn resolve_error(control: &Control, cluster: &Cluster, named: &NamedHost) -> Option<String> {
    let name = cluster.dns_source(&named.hostname);
    let sources = control.shared.sources();
    sources.iter().find(|source| source.name == name)?.last_error()
}

/// Returns a host whose hostname has never had an address.
fn unresolved_view(control: &Control, cluster: &Cluster, named: &NamedHost) -> Value {
    let unknown = HostState::new(&cluster.name, &named.name, Ipv4Addr::UNSPECIFIED.into());
    let error = resolve_error(control, cluster, named);
    let mut view = host_view(&control.shared.snapshot.load(), &unknown, None);
    view["address"] = json!(named.hostname);
    view["hostname"] = json!(named.hostname);
    view["health"] = "unresolved".into();
    view["weight"] = named.weight.into();
    view["backup"] = named.backup.into();
    view["last_check"] = json!({ "ok": false, "detail": error.clone().unwrap_or_else(|| "no answer yet".to_owned()) });
    view["not_resolved"] = json!(error);
    view
}

fn host_view(snapshot: &Snapshot, state: &HostState, configured: Option<&Host>) -> Value {
    let (health, since_ms) = state.health();
    let last_check = state
        .last_check
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .clone();
    json!({
        "cluster": state.cluster,
        "name": state.name,
        "address": state.address,
        "health": health,
        "health_since": since_ms as f64 / 1000.0,
        "checked_by": last_check.as_ref().map(|check| &check.asked),
        "last_check": last_check,
        "tls_fault": state.tls_fault(),
        "ejected": state.ejected.load(Relaxed),
        "draining": state.draining.load(Relaxed),
        "out_of_rotation": snapshot.rotation.taken_out_by(&state.cluster, &state.name, state.address).map(ToString::to_string),
        "hostname": null,
        "not_resolved": null,
        "weight": configured.map(|host| host.weight),
        "backup": configured.is_some_and(|host| host.backup),
        "subset": null,
        "active_connections": state.active.get(),
        "total_connections": state.total.get(),
        "refused_connections": state.refused.get(),
        "bytes_in": state.bytes_in.get(),
        "bytes_out": state.bytes_out.get(),
    })
}

/// Returns the active configuration: the file or its replacement by API, with the sources' reports and the operators'
/// weights.
///
/// # Errors
/// The model cannot be serialized.
pub fn config(control: &Control) -> Result<Value, serde_json::Error> {
    let config = shown(&control.shared.snapshot.load().model)?;
    Ok(json!({ "apiVersion": "v1", "config": config }))
}

/// Returns the layer-4 services.
#[must_use]
pub fn services(control: &Control) -> Value {
    let snapshot = control.shared.snapshot.load();
    json!({
        "apiVersion": "v1",
        "services": control.services.list(),
        "ranges": snapshot.exposure.ranges,
        "not_exposed": super::exposed::not_exposed(&snapshot),
        "hooks": control.services.hooks(),
        "troubles": control.services.problems(),
    })
}
