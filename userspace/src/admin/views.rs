//! The state, in the API's types. The fields are stable, so that scripts that read them continue to work.

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering::Relaxed;

use serde_json::Value;
use signalbox_api::by_label;
use signalbox_api::hosts::{HostHealth, HostStatus, HostsAnswer, LastCheck};
use signalbox_api::routing::{
    ClusterView, ClustersAnswer, ListenerView, ListenersAnswer, RouteCluster, RouteView, RoutesAnswer, UnmatchedView,
};
use signalbox_api::services::ServicesAnswer;
use signalbox_api::status::{ConnectionCounts, DegradedFeature, HostCounts, ReloadCounts, ServingState, StatusAnswer};
use signalbox_api::weights::ConfigAnswer;
use signalbox_core::discovered::by_label::by_name;
use signalbox_core::model::labels::{Labels, Selector};
use signalbox_core::model::{Cluster, Host, NamedHost, Protocol, Route, Tier, Unmatched};
use signalbox_core::routing::shown::shown;

use crate::control::Control;
use crate::state::{HostState, RouteState, Snapshot};

pub fn status(control: &Control) -> StatusAnswer {
    let (shared, snapshot) = (&control.shared, control.shared.snapshot.load());
    let hosts = || snapshot.hosts.iter().flatten();
    let last_reload = shared.applied.reloads.last.lock().clone();
    let ready = super::readiness::unready_reasons(control);
    let degraded = control.facts.degraded.iter().map(|(feature, why)| DegradedFeature {
        feature: (*feature).into(),
        why: why.clone(),
    });
    StatusAnswer {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        revision: env!("SIGNALBOX_REVISION").to_owned(),
        abi: signalbox_common::ABI_VERSION,
        pid: std::process::id(),
        uptime_seconds: shared.life.started.elapsed().as_secs(),
        state: if shared.life.stopping.load(Relaxed) {
            ServingState::Draining
        } else {
            ServingState::Serving
        },
        ready: ready.is_empty(),
        not_ready: ready,
        steering: control.facts.steering.into(),
        workers: control.facts.workers,
        degraded: degraded.collect(),
        missing_features: control.missing_features(),
        connections: ConnectionCounts {
            active: shared.totals.current.get(),
            total: shared.totals.total.get(),
            refused: shared.totals.refused.get(),
            max: snapshot
                .model
                .limits
                .max_connections
                .unwrap_or(control.facts.max_connections),
        },
        fast_path: super::fast_path::view(shared, &snapshot),
        hosts: HostCounts {
            configured: hosts().count(),
            usable: hosts().filter(|host| host.health().0.usable()).count(),
        },
        routes: snapshot.routes.len(),
        access_log: super::log::view(&shared.log),
        config: control.file.as_ref().map(|file| file.path.clone()),
        last_reload,
        reloads: ReloadCounts {
            ok: shared.applied.reloads.ok.get(),
            failed: shared.applied.reloads.failed.get(),
        },
    }
}

pub fn listeners(control: &Control) -> ListenersAnswer {
    let snapshot = control.shared.snapshot.load();
    let name = |cluster: Option<usize>| Some(snapshot.model.clusters.get(cluster?)?.name.clone());
    let all = snapshot.model.listeners.iter().zip(&snapshot.listeners);
    let all = all.map(|(listener, state)| ListenerView {
        name: listener.name.clone(),
        protocol: listener.protocol_name().into(),
        termination: listener.tls.as_ref().map(|tls| tls.termination.as_str().into()),
        routing: listener.routing.as_str().into(),
        listen: listener.listen.iter().map(ToString::to_string).collect(),
        cluster: name(listener.cluster),
        backup: name(listener.backup),
        tier: listener.datapath.tier.map_or("auto", Tier::as_str).into(),
        trusted_proxies: listener.trusted_proxies.iter().map(ToString::to_string).collect(),
        active_connections: state.active.get(),
        total_connections: state.total.get(),
        refused: by_label(state.refused.get()),
    });
    ListenersAnswer {
        listeners: all.collect(),
    }
}

/// Returns all routes, or those that match a selector.
pub fn routes(control: &Control, selector: Option<&Selector>) -> RoutesAnswer {
    let snapshot = control.shared.snapshot.load();
    let names = by_name(&snapshot.file, &snapshot.discovered);
    let mut all = Vec::new();
    for (route, state) in snapshot.model.routes.iter().zip(&snapshot.routes) {
        let labels: &[&Labels] = names.get(&route.hostname).map_or(&[], Vec::as_slice);
        if selector.is_none_or(|selector| selector.matches_any(labels)) {
            let mut view = route_view(&snapshot, route, state);
            let distinct = labels.iter().filter(|labels| !labels.is_empty());
            let distinct = distinct.map(|labels| (*labels).clone()).collect();
            view.labels = Some(distinct);
            all.push(view);
        }
    }
    let unmatched = match snapshot.model.unmatched {
        Unmatched::Reject => UnmatchedView::Reject,
        Unmatched::Any => UnmatchedView::Any,
        Unmatched::Cluster(c) => UnmatchedView::Cluster(snapshot.model.clusters.get(c).map(|of| of.name.clone())),
    };
    RoutesAnswer { routes: all, unmatched }
}

/// Returns a route and its clusters.
pub(super) fn route_view(snapshot: &Snapshot, route: &Route, state: &RouteState) -> RouteView {
    let clusters = route.clusters.iter().filter_map(|&(c, weight)| {
        Some(RouteCluster {
            name: snapshot.model.clusters.get(c)?.name.clone(),
            weight,
            usable_hosts: usable(snapshot, c),
        })
    });
    let figures = state.stats.totals().total();
    RouteView {
        host: route.hostname.to_string(),
        clusters: clusters.collect(),
        total_connections: state.connections(),
        active_connections: figures.active,
        bytes_in: figures.bytes_in,
        bytes_out: figures.bytes_out,
        labels: None,
    }
}

/// Number of a cluster's hosts that accept connections.
pub(super) fn usable(snapshot: &Snapshot, cluster: usize) -> usize {
    [Protocol::Http, Protocol::Tls, Protocol::Tcp]
        .map(|p| snapshot.view.usable(cluster, p).len())
        .into_iter()
        .max()
        .unwrap_or(0)
}

pub fn clusters(control: &Control) -> ClustersAnswer {
    let snapshot = control.shared.snapshot.load();
    let all = snapshot
        .model
        .clusters
        .iter()
        .zip(&snapshot.clusters)
        .zip(&snapshot.hosts);
    let all = all.map(|((cluster, state), hosts)| ClusterView {
        name: cluster.name.clone(),
        waits_for: crate::compat::routing_spi::why_waiting(&snapshot.discovered, cluster).map(Into::into),
        balance: cluster.balance.as_str().into(),
        proxy_protocol: cluster.proxy_protocol.is_some(),
        hosts: hosts.len(),
        healthy_hosts: hosts.iter().filter(|host| host.health().0.usable()).count(),
        active_connections: state.active.iter().map(signalbox_core::limits::stats::Gauge::get).sum(),
        bytes_in: state.bytes_in.get(),
        bytes_out: state.bytes_out.get(),
    });
    ClustersAnswer {
        clusters: all.collect(),
    }
}

pub fn hosts(control: &Control) -> HostsAnswer {
    let snapshot = control.shared.snapshot.load();
    let clusters = snapshot.model.clusters.iter().zip(&snapshot.hosts).enumerate();
    let configured = clusters.flat_map(|(at, (cluster, states))| {
        let places = subset_roles(&snapshot, at);
        let hosts = cluster.hosts.iter().zip(states).enumerate();
        let views = hosts.map(|(index, (host, state))| {
            let mut view = host_view(&snapshot, state, Some(host));
            view.subset = places.get(index).map(|place| (*place).into());
            if let Some(named) = cluster.named_hosts.iter().find(|named| named.has(host)) {
                view.hostname = Some(named.hostname.to_string());
                view.not_resolved = resolve_error(control, cluster, named);
            }
            view
        });
        let unresolved = cluster
            .unresolved()
            .map(|named| unresolved_view(control, cluster, named));
        views.chain(unresolved).collect::<Vec<_>>()
    });
    let draining = snapshot.draining.iter().map(|state| host_view(&snapshot, state, None));
    let hosts = configured.chain(draining).map(|host| HostStatus {
        state: host.standing(host.health),
        ..host
    });
    HostsAnswer { hosts: hosts.collect() }
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
fn unresolved_view(control: &Control, cluster: &Cluster, named: &NamedHost) -> HostStatus {
    let unknown = HostState::new(&cluster.name, &named.name, Ipv4Addr::UNSPECIFIED.into());
    let error = resolve_error(control, cluster, named);
    HostStatus {
        address: named.hostname.to_string(),
        hostname: Some(named.hostname.to_string()),
        health: HostHealth::Unresolved,
        weight: Some(named.weight),
        backup: named.backup,
        last_check: Some(LastCheck {
            detail: error.clone().unwrap_or_else(|| "no answer yet".to_owned()),
            ..LastCheck::default()
        }),
        not_resolved: error,
        ..host_view(&control.shared.snapshot.load(), &unknown, None)
    }
}

fn host_view(snapshot: &Snapshot, state: &HostState, configured: Option<&Host>) -> HostStatus {
    let (health, since_ms) = state.health();
    let last_check = state.last_check.lock().clone();
    let taken_out_by = snapshot
        .rotation
        .taken_out_by(&state.cluster, &state.name, state.address);
    HostStatus {
        cluster: state.cluster.clone(),
        name: state.name.clone(),
        address: state.address.to_string(),
        health: health.into(),
        health_since: since_ms as f64 / 1000.0,
        checked_by: last_check.as_ref().and_then(|check| check.asked.clone()),
        last_check,
        tls_fault: state.tls_fault(),
        ejected: state.ejected.load(Relaxed),
        draining: state.draining.load(Relaxed),
        own_listener: state.is_own_listener.load(Relaxed),
        out_of_rotation: taken_out_by.map(ToString::to_string),
        weight: configured.map(|host| host.weight),
        backup: configured.is_some_and(|host| host.backup),
        active_connections: state.active.get(),
        total_connections: state.total.get(),
        refused_connections: state.refused.get(),
        bytes_in: state.bytes_in.get(),
        bytes_out: state.bytes_out.get(),
        ..HostStatus::default()
    }
}

/// Returns the active configuration: the file or its replacement by API, with the sources' reports and the operators'
/// weights.
///
/// # Errors
/// The model cannot be serialized.
pub fn config(control: &Control) -> Result<ConfigAnswer<Value>, serde_json::Error> {
    let config = shown(&control.shared.snapshot.load().model)?;
    Ok(ConfigAnswer { config })
}

/// Returns the layer-4 services.
#[must_use]
pub fn services(control: &Control) -> ServicesAnswer {
    let snapshot = control.shared.snapshot.load();
    ServicesAnswer {
        services: control.kernel.services.list(),
        ranges: snapshot.exposure.ranges.clone(),
        not_exposed: super::exposed::not_exposed(&snapshot),
        hooks: control.kernel.services.hooks(),
        troubles: control.kernel.services.problems(),
    }
}
