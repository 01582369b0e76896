//! Texts for `explain` about a route's settings for clients, connections and requests, with the origin of each.

use std::net::IpAddr;
use std::time::Duration;

use signalbox_core::discovered::discovery::Claim;
use signalbox_core::discovered::merge::settings_report;
use signalbox_core::model::Route;
use signalbox_core::model::claimed::ClusterAllow;
use signalbox_core::model::http::{PeriodRate, RequestPolicy};
use signalbox_core::model::tls::InsecurePolicy;
use signalbox_core::routing::view::Destination;

use crate::state::Snapshot;

/// Suffix of a text: the setting comes from annotations of Routes.
const BY_ANNOTATION: &str = " (annotation)";

/// Suffix of a text: the setting comes from the field `spec.tls` of Routes.
const BY_ROUTE: &str = " (spec.tls)";

/// Maximum number of prefixes of a list in a text.
const MAX_NAMED: usize = 8;

/// Returns the settings that annotations of a claim ask for, by the component that obeys them.
pub(super) fn settings_texts(snapshot: &Snapshot, route: &Route, cluster: &str, claim: &Claim) -> Vec<String> {
    let place = |cluster: &str| snapshot.model.clusters.iter().position(|known| known.name == cluster);
    let mut all: Vec<(usize, &Claim)> = Vec::new();
    for (cluster, learned) in snapshot.discovered.values().flatten() {
        let claim = learned.routes.iter().find(|claim| claim.hostname == route.hostname);
        if let Some((at, claim)) = place(cluster).zip(claim)
            && !all.iter().any(|(known, _)| *known == at)
        {
            all.push((at, claim));
        }
    }
    place(cluster).map_or_else(Vec::new, |at| settings_report(&snapshot.model, route, &all, at, claim))
}

/// Returns the settings of a destination's route for a connection or, with a path, for a request.
pub(super) fn policy_texts(
    snapshot: &Snapshot,
    to: Destination,
    request_path: Option<&str>,
    client: Option<IpAddr>,
) -> Vec<String> {
    let (at, path) = match to {
        Destination::Route(at) => (at, None),
        Destination::Path(at, path) => (at, Some(path)),
        _ => return Vec::new(),
    };
    let Some(route) = snapshot.model.routes.get(at) else {
        return Vec::new();
    };
    let claimed = request_path.and_then(|path| route.path_policy(path.as_bytes()));
    let of_path = path.and_then(|path| route.paths.get(path));
    let allow = claimed.map_or_else(|| route.cluster_allow(), |claimed| &claimed.allow);
    let mut texts = client_texts(snapshot, route, allow, client);
    let balance = route.claimed.as_ref().and_then(|claimed| claimed.balance);
    texts.extend(balance.map(|balance| format!("hosts are chosen by {}{BY_ANNOTATION}", balance.as_str())));
    let most = match claimed {
        Some(claimed) => claimed.requests.passive.max_host_connections,
        None => route.max_host_connections(),
    };
    texts.extend(most.map(|most| format!("a host has at most {most} connections at once{BY_ANNOTATION}")));
    let Some(request_path) = request_path else {
        texts.extend(
            route
                .claimed
                .as_ref()
                .and_then(|claimed| claimed.idle)
                .map(|idle| format!("a flow that carries nothing for {idle:?} is ended{BY_ANNOTATION}")),
        );
        return texts;
    };
    texts.extend(insecure_text(route, request_path));
    let policy = match (of_path, claimed) {
        (Some(path), _) => &path.requests,
        (None, Some(claimed)) => &claimed.requests,
        (None, None) => &route.requests,
    };
    let in_file = snapshot.file.routes.iter().find(|said| said.hostname == route.hostname);
    let is_of_file = in_file.is_some_and(|said| !said.is_discovered());
    let in_file = in_file.map_or(&RequestPolicy::NONE, |said| &said.requests);
    texts.extend(request_texts(policy, in_file, is_of_file));
    texts
}

/// Returns the settings for a request to a destination, by its path.
pub(super) fn request_policy<'a>(
    snapshot: &'a Snapshot,
    to: Destination,
    request_path: Option<&str>,
) -> &'a RequestPolicy {
    let (at, path) = match to {
        Destination::Route(at) => (at, None),
        Destination::Path(at, path) => (at, Some(path)),
        _ => return &RequestPolicy::NONE,
    };
    let Some(route) = snapshot.model.routes.get(at) else {
        return &RequestPolicy::NONE;
    };
    if let Some(path) = path.and_then(|path| route.paths.get(path)) {
        return &path.requests;
    }
    let claimed = request_path.and_then(|path| route.path_policy(path.as_bytes()));
    claimed.map_or(&route.requests, |claimed| &claimed.requests)
}

/// Returns how a request in plain HTTP is handled, if it is not served like others.
fn insecure_text(route: &Route, path: &str) -> Option<String> {
    let what = match route.insecure(path.as_bytes()) {
        InsecurePolicy::Allow => return None,
        InsecurePolicy::Redirect => "plain HTTP is sent to https",
        InsecurePolicy::None => "plain HTTP is not served (404)",
    };
    let is_said = route.tls.as_ref().is_some_and(|tls| tls.insecure.is_some());
    Some(format!("{what}{}", if is_said { "" } else { BY_ROUTE }))
}

/// Returns the settings for clients and their connections.
fn client_texts(snapshot: &Snapshot, route: &Route, allow: &[ClusterAllow], client: Option<IpAddr>) -> Vec<String> {
    let mut texts = Vec::new();
    if client.is_some_and(|client| !route.allows(client) || !route.has_cluster_for(allow, client)) {
        texts.push("this client is refused: no list of clients has it".to_owned());
    }
    for ClusterAllow { cluster, prefixes } in allow {
        let name = snapshot
            .model
            .clusters
            .get(*cluster)
            .map_or("?", |cluster| &cluster.name);
        let named: Vec<String> = prefixes.iter().take(MAX_NAMED).map(ToString::to_string).collect();
        let more = match prefixes.len().saturating_sub(MAX_NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let whom = if named.is_empty() {
            "nobody".to_owned()
        } else {
            named.join(", ")
        };
        texts.push(format!("cluster {name} serves {whom}{more}{BY_ANNOTATION}"));
    }
    let limits = route.connection_limits();
    if limits.concurrent > 0 {
        texts.push(format!(
            "each client may have {} connections{BY_ANNOTATION}",
            limits.concurrent
        ));
    }
    if let Some(rate) = limits.rate {
        texts.push(format!(
            "each client may begin {}{BY_ANNOTATION}",
            rate_text(rate, "connections")
        ));
    }
    texts
}

/// Returns the settings for requests. Settings that are not in the file come from annotations, unless the file defines
/// the whole route.
fn request_texts(policy: &RequestPolicy, in_file: &RequestPolicy, is_of_file: bool) -> Vec<String> {
    let origin = |is_said: bool| if is_said || is_of_file { "" } else { BY_ANNOTATION };
    let affinity = policy.affinity.as_ref().map(|affinity| {
        let (name, scope) = (affinity.cookie.name(), affinity.scope.as_str());
        let origin = origin(in_file.affinity.is_some());
        format!("cookie {name} keeps a client at its {scope}{origin}")
    });
    let rewrite = policy.rewrite.as_ref();
    let rewrite = rewrite.map(|path| format!("the path becomes {path}{}", origin(in_file.rewrite.is_some())));
    let headers = policy.headers.as_ref().map(|headers| {
        let (request, response) = (headers.request.len(), headers.response.len());
        let origin = origin(in_file.headers.is_some());
        format!("{request} changes of request fields, {response} of answer fields{origin}")
    });
    let limits = policy.limits.map(|limits| {
        let rate = limits.requests.map(|rate| rate_text(rate, "requests"));
        let concurrent = (limits.concurrent > 0).then(|| format!("{} in flight", limits.concurrent));
        let texts: Vec<_> = rate.into_iter().chain(concurrent).collect();
        let origin = origin(in_file.limits.is_some());
        format!("each client may send {}{origin}", texts.join(", and have "))
    });
    let upgrades = policy.upgrades.as_ref();
    let upgrades = upgrades.map(|upgrades| format!("clients may upgrade to: {}", upgrades.join(", ")));
    let (own, passive) = (policy.timeouts, policy.passive);
    let time = |what: &str, own: Option<Duration>, passive: Option<Duration>| {
        let limit = own.or(passive)?;
        let origin = if own.is_some() { "" } else { BY_ANNOTATION };
        Some(format!("{what} within {limit:?}{origin}"))
    };
    let forwarded = passive
        .forwarded
        .map(|policy| format!("forwarded fields: {}{BY_ANNOTATION}", policy.as_str()));
    [
        affinity,
        rewrite,
        headers,
        limits,
        time("an answer begins", own.answer, passive.answer),
        time("a body goes on", own.body, None),
        time("a tunnel carries something", own.tunnel, passive.tunnel),
        forwarded,
        upgrades,
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn rate_text(rate: PeriodRate, what: &str) -> String {
    let PeriodRate { count, period, burst } = rate;
    let period = match period.as_secs() {
        1 => "a second".to_owned(),
        seconds => format!("in {seconds} seconds"),
    };
    format!("{count} {what} {period}, {burst} at once")
}
