//! Figures of routes and applications, for autoscaling: a rate is the difference of two answers, divided by the
//! difference of their `at`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::Deserialize;
use signalbox_api::routing::{ApplicationFigures, FiguresAnswer, RouteAnswer};

use super::problem::problem;
use super::reply::{ApiReply, answer};
use super::views;
use crate::control::Control;
use crate::state::route_stats::RouteTotals;
use crate::sys::unix_ms;

/// Query that selects routes.
#[derive(Deserialize)]
pub(super) struct FiguresQuery {
    cluster: Option<String>,
    limit: Option<usize>,
}

/// Returns the time at which the numbers were read, in seconds since 1970.
fn read_at() -> f64 {
    unix_ms() as f64 / 1000.0
}

/// `GET /api/v1/figures`.
pub(super) async fn list(
    State(control): State<Arc<Control>>,
    Query(wanted): Query<FiguresQuery>,
) -> ApiReply<FiguresAnswer> {
    let snapshot = control.shared.snapshot.load_full();
    let limit = wanted.limit.unwrap_or(1000);
    let (mut total, mut routes) = (0, BTreeMap::new());
    for state in snapshot.routes.iter().filter(|state| state.stats.is_used()) {
        let sums = state.stats.totals();
        let is_in = |cluster: &String| sums.clusters.contains_key(cluster);
        if wanted.cluster.as_ref().is_none_or(is_in) {
            total += 1;
            if routes.len() < limit {
                routes.insert(state.hostname.clone(), sums.view());
            }
        }
    }
    answer(FiguresAnswer {
        at: read_at(),
        uptime_seconds: control.shared.life.started.elapsed().as_secs_f64(),
        total,
        routes,
    })
}

/// `GET /api/v1/routes/{host}`.
pub(super) async fn route(State(control): State<Arc<Control>>, Path(host): Path<String>) -> ApiReply<RouteAnswer> {
    let snapshot = control.shared.snapshot.load_full();
    let host = host.to_ascii_lowercase();
    let mut pairs = snapshot.model.routes.iter().zip(&snapshot.routes);
    match pairs.find(|(_, state)| state.hostname == host) {
        Some((route, state)) => {
            let route = views::route_view(&snapshot, route, state);
            let figures = state.stats.totals().view();
            answer(RouteAnswer {
                route,
                at: read_at(),
                figures,
            })
        }
        None => {
            let detail = format!("no route has the name {host:?}: `signalbox routes` lists them");
            problem(StatusCode::NOT_FOUND, "There is no such route", &detail)
        }
    }
}

/// `GET /api/v1/applications/{namespace}/{name}/figures`: figures of the application's cluster, summed over all names.
pub(super) async fn application(
    State(control): State<Arc<Control>>,
    Path((namespace, name)): Path<(String, String)>,
) -> ApiReply<ApplicationFigures> {
    let snapshot = control.shared.snapshot.load_full();
    let cluster = format!("{namespace}/{name}");
    let Some(at_cluster) = snapshot.model.clusters.iter().position(|known| known.name == cluster) else {
        let detail =
            format!("no event has reported an application {cluster}, or it has no endpoint that takes connections");
        return problem(StatusCode::NOT_FOUND, "There is no such application", &detail);
    };
    let mut sums = RouteTotals::default();
    let pairs = snapshot.model.routes.iter().zip(&snapshot.routes);
    for (_, state) in pairs.filter(|(route, _)| route.clusters.iter().any(|(c, _)| *c == at_cluster)) {
        let mut of = state.stats.totals();
        of.clusters.retain(|name, _| *name == cluster);
        sums.add(&of);
    }
    answer(ApplicationFigures {
        namespace,
        name,
        at: read_at(),
        figures: sums.view(),
    })
}
