//! Explains where a name's connections go: which route matches and why others do not, the effect of weights, health and
//! load on its clusters, the next host, and the tier.

mod shares;

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde::Deserialize;
use signalbox_api::explain::{
    ClaimView, Explanation, KernelPeekExplanation, ListenerExplanation, LostClaim, NameExplanation, PathReason,
    RouteOrigin, RouteOrigins, TlsExplanation,
};
use signalbox_api::shield::GuardKind;
use signalbox_common::hash;
use signalbox_core::discovered::merge::unserved_claims;
use signalbox_core::model::tls::Termination;
use signalbox_core::model::{ClusterWithBackup, Listener, Protocol, Route};
use signalbox_core::routing::balance::PickContext;
use signalbox_core::routing::obstacle::PeekObstacle;
use signalbox_core::routing::view::Destination;
use signalbox_core::wire::address::ipv4_mapped;
use signalbox_core::wire::hostname::{Hostname, HostnamePattern, WildcardDepth};

use super::asked_path::{AMBIGUOUS, AskedPath};
use super::asked_url::AskedUrl;
use super::problem::problem;
use super::reply::{ApiReply, answer};
use super::{exposed, route_policy, tier, views};
use crate::config;
use crate::control::Control;
use crate::datapath::AMBIGUOUS_PATH;
use crate::datapath::refuse::RefuseReason;
use crate::reconcile::kernel_peek::{PeekQuestion, PeekReason};
use crate::state::{HostState, Snapshot};
pub(super) use shares::{OTHER_FAMILY, STANDS_BY, unusable_reason};
use shares::{cluster_view, http_text, mark_backup};

#[derive(Deserialize)]
pub(super) struct ExplainQuery {
    host: String,
    /// Client address: IP, or IP:PORT.
    client: Option<String>,
    listener: Option<String>,
    /// Path of a request, in place of that of a URL.
    path: Option<String>,
}

pub(super) async fn explain(
    State(control): State<Arc<Control>>,
    Query(question): Query<ExplainQuery>,
) -> ApiReply<Explanation> {
    match explanation(&control, &question) {
        Ok(explanation) => answer(explanation),
        Err(error) => problem(StatusCode::BAD_REQUEST, "The question is not understood", &error),
    }
}

fn explanation(control: &Control, question: &ExplainQuery) -> Result<Explanation, String> {
    let snapshot = control.shared.snapshot.load_full();
    let client = question.client.as_deref().map(client_address).transpose()?;
    if let Ok(at) = question.host.parse() {
        return Ok(Explanation::Address(exposed::explain_address(
            control, &snapshot, at, client,
        )));
    }
    let asked = AskedUrl::parse(&question.host)?.with_path(question.path.as_deref())?;
    let name = asked.name.clone();
    let listeners: Vec<_> = snapshot
        .model
        .listeners
        .iter()
        .filter(|l| question.listener.as_ref().is_none_or(|wanted| *wanted == l.name))
        .filter(|l| {
            question.listener.is_some() || asked.protocol.map_or(l.protocol != Protocol::Tcp, |p| p == l.protocol)
        })
        .collect();
    if listeners.is_empty() {
        return Err("there is no such listener, or none for this scheme".into());
    }
    let at_each: Vec<_> = listeners
        .iter()
        .map(|listener| at_listener(control, &snapshot, listener, &asked, client))
        .collect();
    let patterns = snapshot
        .model
        .routes
        .iter()
        .filter(|route| route.hostname.matches(&name, WildcardDepth::Any));
    let found = snapshot.view.table.find(&name);
    let (mut chosen, mut lost) = (None, Vec::new());
    for route in patterns {
        let is_chosen = found.and_then(|at| snapshot.model.routes.get(at)) == Some(route);
        let view = route_view(&snapshot, route);
        if is_chosen {
            chosen = Some(view);
        } else {
            let reason = if route.hostname.matches(&name, route.depth) {
                "a longer name matches"
            } else {
                "its star matches one label"
            };
            lost.push(LostClaim {
                route: Some(view),
                reason: reason.to_owned(),
                ..LostClaim::default()
            });
        }
    }
    for pattern in patterns_of(&name) {
        for (source, rejected) in unserved_claims(&snapshot.file, &snapshot.discovered, &snapshot.weights, &pattern) {
            lost.push(LostClaim {
                route: None,
                source: Some(source),
                reason: rejected.reason.clone(),
                rejected: Some(rejected),
            });
        }
    }
    Ok(Explanation::Name(NameExplanation {
        host: name.as_str().to_owned(),
        client,
        route: chosen,
        did_you_mean: found.is_none().then(|| similar_name(&snapshot, &name)).flatten(),
        lost,
        listeners: at_each,
    }))
}

/// Name of a route that is similar to the requested one.
fn similar_name(snapshot: &Snapshot, name: &Hostname) -> Option<String> {
    let names: Vec<_> = snapshot
        .model
        .routes
        .iter()
        .map(|route| route.hostname.to_string())
        .collect();
    let mut effort = MAX_COMPARISONS;
    config::suggest::nearest(name.as_str(), names.iter().map(String::as_str), &mut effort).map(str::to_owned)
}

/// Maximum work for a suggestion, as comparisons of characters: some milliseconds.
const MAX_COMPARISONS: usize = 10_000_000;

/// Returns where TLS ends for a name at a listener, and the certificate that a client gets there.
fn tls_view(control: &Control, snapshot: &Snapshot, listener: &Listener, name: &Hostname) -> TlsExplanation {
    let termination = control.shared.termination(snapshot, listener, Some(name));
    let certificate = (termination != Termination::Passthrough).then(|| {
        let tls = snapshot.tls.listeners.get(&listener.name)?;
        let certificates = control.shared.tls.certificates.load();
        tls.resolver.choose(&certificates, Some(name), &[])
    });
    TlsExplanation {
        termination: termination.as_str().into(),
        certificate: certificate.flatten().map(|certificate| certificate.label.clone()),
    }
}

fn client_address(text: &str) -> Result<IpAddr, String> {
    let ip = text
        .parse::<IpAddr>()
        .or_else(|_| text.parse::<std::net::SocketAddr>().map(|addr| addr.ip()));
    ip.map_err(|_| {
        format!("client: {text:?} is neither an address nor an address with a port, such as 192.0.2.1:50000")
    })
}

/// Returns the name itself and all wildcards above it: an object that claims one of these may have been meant for the
/// name.
fn patterns_of(name: &Hostname) -> Vec<HostnamePattern> {
    let mut patterns = vec![HostnamePattern::Exact(name.clone())];
    let mut rest = name.as_str();
    while let Some((_, domain)) = rest.split_once('.') {
        patterns.extend(Hostname::parse(domain.as_bytes()).map(HostnamePattern::Wildcard));
        rest = domain;
    }
    patterns
}

/// Returns how many labels the star of a route's name matches; `None` without a star.
fn wildcard_depth(route: &Route) -> Option<&'static str> {
    let is_wildcard = matches!(route.hostname, HostnamePattern::Wildcard(_));
    is_wildcard.then_some(match route.depth {
        WildcardDepth::One => "one label",
        WildcardDepth::Any => "one or more labels",
    })
}

/// Returns a route, with the origin of each of its shares.
fn route_view(snapshot: &Snapshot, route: &Route) -> RouteOrigins {
    let in_file = snapshot
        .file
        .routes
        .iter()
        .any(|r| r.hostname == route.hostname && !r.is_discovered());
    let set = snapshot.weights.contains_key(&route.hostname.to_string());
    let mut origins = Vec::new();
    if in_file {
        origins.push(RouteOrigin {
            source: "the configuration file".to_owned(),
            claim: None,
        });
    } else {
        for (source, clusters) in snapshot.discovered.iter() {
            for (cluster, learned) in clusters {
                for claim in learned.routes.iter().filter(|claim| claim.hostname == route.hostname) {
                    let claim = ClaimView {
                        cluster: cluster.clone(),
                        origin: claim.origin.clone(),
                        weight: claim.weight,
                        notes: claim.notes.clone(),
                        settings: route_policy::settings_texts(snapshot, route, cluster, claim),
                    };
                    origins.push(RouteOrigin {
                        source: source.clone(),
                        claim: Some(claim),
                    });
                }
            }
        }
    }
    RouteOrigins {
        host: route.hostname.to_string(),
        labels: wildcard_depth(route).map(Into::into),
        origins,
        weights_set_by_api: set,
        out_of_rotation: snapshot.rotation.is_closed(route),
    }
}

/// Returns how a listener currently handles a connection for the name.
fn at_listener(
    control: &Control,
    snapshot: &Arc<Snapshot>,
    listener: &Listener,
    question: &AskedUrl,
    client: Option<IpAddr>,
) -> ListenerExplanation {
    let name = &question.name;
    let route = snapshot.route(Some(name));
    let termination = control.shared.termination(snapshot, listener, Some(name));
    let protocol = match termination {
        // Requests whose TLS ends here go to the hosts' ports for plain HTTP.
        Termination::Edge => Protocol::Http,
        Termination::Passthrough | Termination::Reencrypt => listener.protocol,
    };
    let asked = (protocol != Protocol::Tcp).then_some(name);
    let is_per_request = listener.routes_requests(route) || termination != Termination::Passthrough;
    let asked_path = question.path.as_deref().filter(|_| is_per_request);
    let asked_path = asked_path.map(|path| AskedPath::read(snapshot, listener, name, path));
    let is_refused = asked_path.as_ref().is_some_and(|asked| asked.is_refused);
    let path = asked_path.as_ref().map(|asked| &*asked.path);
    let to = match path {
        Some(path) => snapshot
            .view
            .request_destination(asked, path.as_bytes(), listener.fallback()),
        None => snapshot.view.destination(asked, listener.fallback()),
    };
    let path = is_per_request.then_some(path.unwrap_or("/"));
    let (verdict, shares) = match to {
        _ if is_refused => (AMBIGUOUS, Vec::new()),
        Destination::Route(at) => {
            let route = snapshot.model.routes.get(at);
            ("route", route.map(|route| route.clusters.clone()).unwrap_or_default())
        }
        Destination::Path(at, path) => {
            let route = snapshot.model.routes.get(at).and_then(|route| route.paths.get(path));
            ("path", route.map(|path| path.clusters.clone()).unwrap_or_default())
        }
        Destination::Cluster(clusters) => {
            let taking = snapshot.view.taking(clusters, protocol);
            let shares = clusters.both().map(|at| (at, u32::from(at == taking)));
            (without_route(clusters, taking), shares.collect())
        }
        Destination::Any => ("any usable host of all clusters", Vec::new()),
        Destination::Closed => ("refused: the application is out of rotation", Vec::new()),
        Destination::NoRoute => ("refused: no route has the name", Vec::new()),
    };
    let is_alive = |cluster: usize| !snapshot.view.usable(cluster, protocol).is_empty();
    let total: u32 = shares
        .iter()
        .filter(|(c, _)| is_alive(*c))
        .map(|(_, weight)| weight)
        .sum();
    let clusters: Vec<_> = shares
        .iter()
        .filter_map(|&(at, weight)| {
            let mut view = cluster_view(snapshot, protocol, at, weight, if is_alive(at) { total } else { 0 })?;
            if let Destination::Cluster(clusters) = to
                && clusters.backup == Some(at)
            {
                mark_backup(&mut view, weight > 0);
            }
            if let Some(cluster) = snapshot.model.clusters.get(at).filter(|_| is_per_request) {
                view.http = Some(http_text(cluster, protocol));
            }
            Some(view)
        })
        .collect();
    let next = next_host(control, snapshot, to, protocol, client).filter(|_| !is_refused);
    let refused = match to {
        Destination::NoRoute => Some(RefuseReason::NoRoute),
        Destination::Closed => Some(RefuseReason::NoHost),
        Destination::Any => None,
        _ => next.is_none().then_some(RefuseReason::NoHost),
    };
    // Clients whose TLS ends here are answered in HTTP.
    let said_in = if termination == Termination::Passthrough {
        listener.protocol
    } else {
        Protocol::Http
    };
    let preferred = match to {
        Destination::Route(route) => client.and_then(|client| snapshot.preferred(route, protocol, client)),
        _ => None,
    };
    let preferred = preferred.and_then(|at| Some(snapshot.model.clusters.get(at)?.name.clone()));
    let at = next.as_ref().map(|host| host.address);
    let policy = route_policy::request_policy(snapshot, to, path);
    let mut datapath = tier::view(control, snapshot, (listener, route, termination, policy), client, at);
    let question = PeekQuestion {
        listener,
        name,
        route: match to {
            Destination::Route(route) | Destination::Path(route, _) => Some(route),
            Destination::Closed => snapshot.view.table.find(name),
            Destination::Any | Destination::Cluster(_) | Destination::NoRoute => None,
        },
        protocol,
        client,
    };
    datapath.kernel_peek = kernel_peek_view(control, snapshot, &question, termination);
    let refused_path = is_refused.then(|| format!("HTTP 400: {AMBIGUOUS_PATH}"));
    let changed_path = asked_path.as_ref().and_then(AskedPath::change);
    let shield = client.map(|client| {
        control
            .kernel
            .services
            .judge(GuardKind::Listener, &listener.name, client)
    });
    ListenerExplanation {
        listener: listener.name.clone(),
        shield,
        protocol: listener.protocol_name().into(),
        tls: listener
            .tls
            .as_ref()
            .map(|_| tls_view(control, snapshot, listener, name)),
        verdict: verdict.into(),
        client_gets: refused_path.or_else(|| refused.map(|reason| reason.seen_by(said_in))),
        requests: changed_path
            .into_iter()
            .chain(route_policy::policy_texts(snapshot, to, path, client))
            .collect(),
        clusters,
        preferred_cluster: preferred,
        next_host: next.map(|host| format!("{}/{}", host.cluster, host.name)),
        datapath,
    }
}

/// Returns whether the kernel routes the connection.
fn kernel_peek_view(
    control: &Control,
    snapshot: &Arc<Snapshot>,
    question: &PeekQuestion<'_>,
    termination: Termination,
) -> KernelPeekExplanation {
    let configured = question.route.and_then(|at| snapshot.model.routes.get(at));
    let has_lists = configured.is_some_and(Route::treats_clients_differently);
    let without_peek = control.facts.without_peek.unwrap_or(PeekObstacle::NotAvailable);
    let reasons = match &control.kernel.kernel_peek {
        None => {
            let filter = control.shared.kernel.filter_verdicts.load();
            question.reasons_without_program(snapshot, &filter, without_peek)
        }
        Some(kernel_peek) => kernel_peek.reasons(snapshot, question),
    };
    KernelPeekExplanation {
        routed: reasons.is_empty(),
        depends_on_client: reasons.is_empty() && question.client.is_none() && has_lists,
        left_to_userspace: reasons
            .into_iter()
            .map(|reason| path_reason(reason, termination))
            .collect(),
    }
}

fn path_reason(PeekReason { obstacle, of }: PeekReason, termination: Termination) -> PathReason {
    let text = match (obstacle, termination) {
        (PeekObstacle::TerminatesTls, Termination::Passthrough) => "TLS of other names ends at this listener",
        _ => obstacle.text(),
    };
    let remedy = obstacle.remedy();
    PathReason {
        label: obstacle.label().into(),
        of,
        reason: text.into(),
        remedy: (!remedy.is_empty()).then(|| remedy.into()),
    }
}

/// Returns how connections without a route get to a listener's cluster, or to its backup.
fn without_route(clusters: ClusterWithBackup, taking: usize) -> &'static str {
    match clusters.backup {
        None => "the listener's or the unmatched cluster",
        Some(backup) if backup == taking => {
            "the backup of the listener's cluster, of which no host can take a connection"
        }
        Some(_) => "the listener's cluster",
    }
}

/// Returns the host that the next connection would get, without counting anything.
fn next_host(
    control: &Control,
    snapshot: &Snapshot,
    to: Destination,
    protocol: Protocol,
    client: Option<IpAddr>,
) -> Option<Arc<HostState>> {
    let cluster = match to {
        Destination::Route(route) => client
            .and_then(|client| snapshot.preferred(route, protocol, client))
            .or_else(|| snapshot.view.cluster(to, snapshot.routes.get(route)?.total.get())),
        Destination::Path(..) => snapshot.view.cluster(to, 0),
        Destination::Cluster(clusters) => Some(snapshot.view.taking(clusters, protocol)),
        Destination::Any | Destination::Closed | Destination::NoRoute => None,
    }?;
    let ticket = snapshot.clusters.get(cluster)?.ticket.get();
    let draw = PickContext {
        ticket,
        random: hash::mix(control.shared.seed ^ hash::mix(ticket)),
        source_hash: hash::addr(
            0,
            ipv4_mapped(client.unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED))),
        ),
    };
    let hosts = snapshot.hosts.get(cluster)?;
    let load = |host: u16| hosts.get(usize::from(host)).map_or(0, |host| host.active.get());
    let host = snapshot.view.host_to(to, cluster, protocol, draw, &[], load)?;
    hosts.get(usize::from(host)).cloned()
}
