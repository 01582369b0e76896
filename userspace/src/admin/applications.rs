//! OpenShift's applications: the routing table of each, posted events, and messages that could not be understood.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use signalbox_api::applications::{ApplicationDetails, BalancerEndpoint, EndpointView};
use signalbox_api::events::{EventsAnswer, EventsStatus, SkipAnswer};
use signalbox_api::sources::{ApplicationView, ApplicationsAnswer};
use signalbox_api::v1;
use signalbox_common::hash;
use signalbox_core::discovered::spi::{AppKey, Application, Endpoint, endpoint_host_names};

use super::problem::{not_shown, problem};
use super::reply::{ApiReply, answer};
use super::{exposed, urls};
use crate::compat::routing_spi::{EventsError, RoutingSpi};
use crate::control::Control;
use crate::state::{Shared, Snapshot};

/// Endpoint type of a load balancer: this endpoint receives an application's connections for the others.
const LOAD_BALANCER_TYPE: &str = "load_balancer";

fn is_balancer(endpoint: &Endpoint) -> bool {
    endpoint.types.contains(LOAD_BALANCER_TYPE)
}

fn spi(control: &Control) -> Result<Arc<RoutingSpi>, Box<Response>> {
    let current = control.routing.read();
    current.clone().ok_or_else(|| {
        Box::new(problem(
            StatusCode::CONFLICT,
            "Routing events are not taken",
            "the configuration has no `routing_events`, or they could not be opened: see the log",
        ))
    })
}

/// The query of a post of events.
#[derive(Deserialize)]
pub(super) struct PostEventsQuery {
    dry_run: Option<bool>,
}

/// `POST /api/v1/routing-events`: YAML as published by OpenShift's plugin. Answers 2xx only when the events are on
/// disk.
pub(super) async fn post(
    State(control): State<Arc<Control>>,
    Query(how): Query<PostEventsQuery>,
    body: String,
) -> ApiReply<EventsAnswer> {
    let spi = match spi(&control) {
        Ok(spi) => spi,
        Err(response) => return (*response).into(),
    };
    let result = if how.dry_run.unwrap_or_default() {
        // A blocking thread, because `dry_run` waits while the ledger writes.
        let tried = tokio::task::spawn_blocking(move || spi.dry_run(&body));
        tried
            .await
            .unwrap_or_else(|_| Err(EventsError::Ledger("signalbox is ending".to_owned())))
    } else {
        spi.apply_text(&body).await
    };
    match result {
        Ok(outcome) => answer(EventsAnswer { outcome }),
        Err(error @ EventsError::Text(_)) => problem(
            StatusCode::BAD_REQUEST,
            "The events are not understood; none of them counts",
            &error.to_string(),
        ),
        Err(error) => problem(
            StatusCode::SERVICE_UNAVAILABLE,
            "The events could not be kept: post them again",
            &error.to_string(),
        ),
    }
}

/// `POST /api/v1/routing-events/skip`: skips the message that cannot be recorded.
pub(super) async fn skip(State(control): State<Arc<Control>>) -> ApiReply<SkipAnswer> {
    let spi = match spi(&control) {
        Ok(spi) => spi,
        Err(response) => return (*response).into(),
    };
    match spi.skip().await {
        Ok(skipped) => answer(SkipAnswer { skipped }),
        Err(error) => problem(StatusCode::CONFLICT, "Nothing was skipped", &error.to_string()),
    }
}

/// `GET /api/v1/routing-events`: status of the source, and the messages that could not be understood.
pub(super) async fn state(State(control): State<Arc<Control>>) -> ApiReply<EventsStatus> {
    match spi(&control) {
        Ok(spi) => answer(EventsStatus {
            source: spi.status().view(),
            blocked: spi.blocked(),
            dead_letters: spi.dead_letters(),
        }),
        Err(response) => (*response).into(),
    }
}

/// Query that selects applications.
#[derive(Deserialize)]
pub(super) struct ApplicationsQuery {
    namespace: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    protocol: Option<String>,
    limit: Option<usize>,
}

/// `GET /api/v1/applications`.
pub(super) async fn list(
    State(control): State<Arc<Control>>,
    Query(wanted): Query<ApplicationsQuery>,
    headers: HeaderMap,
) -> ApiReply<ApplicationsAnswer> {
    let spi = match spi(&control) {
        Ok(spi) => spi,
        Err(response) => return (*response).into(),
    };
    let matches = |app: &Application| {
        let has = |of: &dyn Fn(&Endpoint) -> bool| app.endpoints.values().any(of);
        wanted
            .namespace
            .as_ref()
            .is_none_or(|namespace| *namespace == app.key.namespace)
            && wanted.kind.as_ref().is_none_or(|kind| has(&|e| e.types.contains(kind)))
            && wanted
                .protocol
                .as_ref()
                .is_none_or(|protocol| has(&|e| e.protocols.contains(protocol)))
    };
    let limit = wanted.limit.unwrap_or(1000);
    let snapshot = control.shared.snapshot.load_full();
    let (mut total, mut shown) = (0, Vec::new());
    spi.for_each(|app| {
        if matches(app) {
            total += 1;
            if shown.len() < limit {
                shown.push(app.clone());
            }
        }
    });
    let applications = shown.iter().map(|app| application_view(&snapshot, app)).collect();
    with_etag(&headers, &ApplicationsAnswer { total, applications })
}

/// Returns an application as a line of the list.
fn application_view(snapshot: &Snapshot, app: &Application) -> ApplicationView {
    let exposed = exposed::of_application(snapshot, &app.key.to_string());
    let (there, missing): (Vec<_>, Vec<_>) = exposed.into_iter().partition(|one| one.entry.reason.is_none());
    ApplicationView {
        namespace: app.key.namespace.clone(),
        name: app.key.app.clone(),
        scalable: app.scalable,
        ha: app.ha,
        endpoints: app.endpoints.len(),
        aliases: app.aliases.iter().cloned().collect(),
        exposed: there.into_iter().flat_map(|one| one.entry.listen).collect(),
        not_exposed: missing.into_iter().map(|one| one.service).collect(),
    }
}

/// `GET /api/v1/applications/{namespace}/{name}`: addresses, names and endpoints of an application.
pub(super) async fn show(
    State(control): State<Arc<Control>>,
    Path((namespace, app)): Path<(String, String)>,
    headers: HeaderMap,
) -> ApiReply<ApplicationDetails> {
    let spi = match spi(&control) {
        Ok(spi) => spi,
        Err(response) => return (*response).into(),
    };
    let key = AppKey { namespace, app };
    match spi.application(&key) {
        Some(app) => with_etag(&headers, &details(&control.shared, &app)),
        None => problem(
            StatusCode::NOT_FOUND,
            "There is no such application",
            &format!("no event has reported an application {key}"),
        ),
    }
}

fn details(shared: &Shared, app: &Application) -> ApplicationDetails {
    let snapshot = &*shared.snapshot.load();
    let cluster = app.key.to_string();
    let model = &snapshot.model;
    let at = model.clusters.iter().position(|known| known.name == cluster);
    // Aliases first, then the implied name.
    let implied = model
        .routes
        .iter()
        .filter(|route| route.clusters.iter().any(|(c, _)| Some(*c) == at));
    let implied = implied
        .map(|route| route.hostname.to_string())
        .filter(|name| !app.aliases.contains(name));
    let names: Vec<String> = app.aliases.iter().cloned().chain(implied).collect();
    let urls = at
        .map(|at| urls::application_urls(shared, snapshot, at, &names))
        .unwrap_or_default();
    let exposed = exposed::of_application(snapshot, &cluster);
    // A host belongs to the application if it is in the cluster of the application or of one of its services.
    let mine = |at: &usize| model.clusters.get(*at).and_then(|known| known.application_name()) == Some(&*cluster);
    let states: Vec<_> = at
        .into_iter()
        .chain((0..model.clusters.len()).filter(|other| Some(*other) != at && mine(other)))
        .filter_map(|at| snapshot.hosts.get(at))
        .flatten()
        .collect();
    let endpoints: Vec<_> = app
        .endpoints
        .iter()
        .zip(endpoint_host_names(app))
        .map(|((address, endpoint), host)| {
            let state = states.iter().find(|state| state.name == host);
            let of = state.map_or(cluster.as_str(), |state| state.cluster.as_str());
            EndpointView {
                address: address.ip(),
                port: address.port(),
                gear_id: endpoint.gear.clone(),
                port_name: endpoint.name.clone(),
                types: endpoint.types.clone(),
                protocols: endpoint.protocols.clone(),
                mappings: endpoint.mappings.clone(),
                hostnames: if is_balancer(endpoint) {
                    names.clone()
                } else {
                    Vec::new()
                },
                stopped: app.is_stopped(endpoint),
                geographies: app.geographies_of(endpoint).into_iter().map(str::to_owned).collect(),
                takes_connections: state.is_some(),
                health: state.map(|state| state.health().0.into()),
                out_of_rotation: snapshot
                    .rotation
                    .taken_out_by(of, &host, address.ip())
                    .map(ToString::to_string),
                host,
            }
        })
        .collect();
    // A gear that no longer exists is not shown as out of rotation.
    let is_there = |gear: &str| gear.is_empty() || app.gears().any(|there| there == gear);
    let rotated_out = app.rotated_out.iter().filter(|(gear, _)| is_there(gear));
    let balancers = app.endpoints.iter().filter(|(_, endpoint)| is_balancer(endpoint));
    let balancers: Vec<_> = balancers
        .map(|(address, endpoint)| BalancerEndpoint {
            address: address.ip(),
            port: address.port(),
            gear_id: endpoint.gear.clone(),
        })
        .collect();
    ApplicationDetails {
        namespace: app.key.namespace.clone(),
        name: app.key.app.clone(),
        announced: app.announced,
        stopped: app.stopped,
        rotated_out_by_events: rotated_out
            .map(|(gear, reason)| (gear.clone(), reason.clone()))
            .collect(),
        geographies: app.geographies.values().flatten().cloned().collect(),
        scalable: app.scalable,
        // No event reports that an application has become highly available. Two balancers among its endpoints show it.
        ha: app.ha == Some(true) || balancers.len() > 1,
        hostnames: names,
        urls,
        balancers,
        endpoints,
        exposed,
        certificates: app.certificates.keys().cloned().collect(),
    }
}

/// Adds an ETag (RFC 9110, section 8.8.3), so that a client with this answer need not load it again.
fn with_etag<T: Serialize>(headers: &HeaderMap, answer: &T) -> ApiReply<T> {
    let body = match serde_json::to_string(&v1(answer)) {
        Ok(body) => body,
        Err(error) => return not_shown(&error),
    };
    let tag = format!("\"{:016x}\"", hash::bytes(0, body.as_bytes()));
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let is_known = known.is_some_and(|known| known.split(',').any(|one| one.trim() == tag || one.trim() == "*"));
    if is_known {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response().into();
    }
    (
        [
            (header::ETAG, tag),
            (header::CONTENT_TYPE, "application/json".to_owned()),
        ],
        body,
    )
        .into_response()
        .into()
}
