//! Routes of the API and what they answer.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{delete, get, post, put};
use serde::Deserialize;
use serde_json::{Value, json};
use signalbox_core::health::Health;

use super::{explain, learn, metrics, mutate, rotations, views};
use crate::control::Control;
use crate::datapath::flow::Filter;

/// The largest body: all routes of a large cluster.
const MOST_BODY: usize = 64 << 20;

/// All routes.
pub fn router(control: Control) -> Router {
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(prometheus))
        .route(
            "/api/v1/status",
            get(async |State(c): State<Arc<Control>>| Json(views::status(&c))),
        )
        .route(
            "/api/v1/listeners",
            get(async |State(c): State<Arc<Control>>| Json(views::listeners(&c))),
        )
        .route(
            "/api/v1/routes",
            get(async |State(c): State<Arc<Control>>| Json(views::routes(&c))),
        )
        .route(
            "/api/v1/clusters",
            get(async |State(c): State<Arc<Control>>| Json(views::clusters(&c))),
        )
        .route(
            "/api/v1/hosts",
            get(async |State(c): State<Arc<Control>>| Json(views::hosts(&c))),
        )
        .route("/api/v1/flows", get(flows))
        .route("/api/v1/explain", get(explain::explain))
        .route("/api/v1/diff", post(explain::difference))
        .route("/api/v1/sources", get(learn::sources))
        .route("/api/v1/sources/{source}/clusters/{cluster}", delete(learn::forget))
        .route("/api/v1/clusters/{cluster}/learned", put(learn::by_agent))
        .route("/api/cluster/{cluster}", post(learn::by_plugin))
        .route("/api/v1/rotations", get(rotations::list).post(rotations::start))
        .route("/api/v1/jobs/{id}", get(rotations::job).delete(rotations::cancel))
        .route("/api/v1/reload", post(mutate::reload))
        .route("/api/v1/config", put(mutate::config))
        .route("/api/v1/routes/{host}", put(mutate::weights))
        .layer(DefaultBodyLimit::max(MOST_BODY))
        .with_state(Arc::new(control))
}

/// The reasons why traffic should not be sent here yet, or any more.
pub fn unready(control: &Control) -> Vec<String> {
    let (shared, snapshot) = (&control.shared, control.shared.snapshot.load());
    let mut reasons = Vec::new();
    if shared.stopping.load(Relaxed) {
        reasons.push("stopping".to_owned());
    }
    if snapshot.listeners.is_empty() {
        reasons.push("no configuration is in force".to_owned());
    }
    // Once started, a host that has not answered its first check yet must not make us unready again.
    let patience = snapshot
        .model
        .clusters
        .iter()
        .map(|c| c.health.timeout)
        .max()
        .unwrap_or_default();
    if shared.started.elapsed() < patience {
        let waiting = snapshot
            .hosts
            .iter()
            .flatten()
            .filter(|host| host.health().0 == Health::Unknown)
            .count();
        if waiting > 0 {
            reasons.push(format!("{waiting} hosts have not been checked yet"));
        }
    }
    reasons
}

async fn readyz(State(control): State<Arc<Control>>, Query(query): Query<Verbose>) -> Response {
    let reasons = unready(&control);
    let status = if reasons.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let mut text = if reasons.is_empty() {
        "ready\n".to_owned()
    } else {
        format!("not ready: {}\n", reasons.join("; "))
    };
    if query.verbose.is_some() {
        let snapshot = control.shared.snapshot.load();
        let hosts = || snapshot.hosts.iter().flatten();
        text += &format!(
            "[{}] configuration\n",
            if snapshot.listeners.is_empty() { "-" } else { "+" }
        );
        text += &format!(
            "[{}] accepting\n",
            if control.shared.stopping.load(Relaxed) {
                "-"
            } else {
                "+"
            }
        );
        text += &format!(
            "[+] hosts: {} of {} usable\n",
            hosts().filter(|h| h.health().0.usable()).count(),
            hosts().count()
        );
        for (feature, why) in &control.facts.degraded {
            text += &format!("[~] {feature}: {why}\n");
        }
    }
    (status, text).into_response()
}

#[derive(Deserialize)]
struct Verbose {
    verbose: Option<String>,
}

async fn prometheus(State(control): State<Arc<Control>>) -> Response {
    match metrics::encode(&control) {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[derive(Deserialize)]
struct FlowQuery {
    limit: Option<usize>,
    host: Option<String>,
    cluster: Option<String>,
    listener: Option<String>,
    tier: Option<String>,
    route: Option<String>,
}

async fn flows(State(control): State<Arc<Control>>, Query(query): Query<FlowQuery>) -> Json<Value> {
    let filter = Filter {
        limit: query.limit.unwrap_or(1000),
        host: query.host,
        cluster: query.cluster,
        listener: query.listener,
        tier: query.tier,
        route: query.route,
    };
    let (total, flows) = control.flows(&filter).await;
    Json(json!({ "apiVersion": "v1", "total": total, "flows": flows }))
}

/// An error as RFC 9457 wants it.
pub(super) fn problem(status: StatusCode, title: &str, detail: &str, more: &Value) -> Response {
    let mut body = json!({ "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail });
    if let (Some(body), Some(more)) = (body.as_object_mut(), more.as_object()) {
        body.extend(more.clone());
    }
    (
        status,
        [(header::CONTENT_TYPE, "application/problem+json")],
        body.to_string(),
    )
        .into_response()
}
