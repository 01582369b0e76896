//! Migrations by API: starts, shows, pauses, resumes and aborts them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Extension, Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use ipnet::IpNet;
use signalbox_api::migrations::{MigrationAnswer, MigrationBody, MigrationsAnswer, StepAnswer};
use signalbox_core::availability::migration::guard::GuardLimits;
use signalbox_core::availability::migration::probe::ProbePlan;
use signalbox_core::availability::migration::{Migration, MigrationPlan, report};

use super::api::POST;
use super::mutate::Requester;
use super::openapi::{DescribedRouter, RequestKind, change, json_body, read};
use super::problem::problem;
use super::reply::{ApiReply, answer};
use super::weights::{names_of_namespace, names_of_selector};
use crate::control::Control;
use crate::control::migration_names::NameChoice;
use crate::control::migration_orders::MigrationOrder;
use crate::control::migration_step::{FOLLOW_PATH, StepOrder, StepReport};
use crate::state::Snapshot;
use crate::sys::unix_ms;

/// Example of a request.
const EXAMPLE: &str = r#"{ "from": "v1", "to": "v2", "names": ["app.example.com"], "testers": ["10.9.0.0/16"],
     "steps": [5, 25, 50, 100], "hold": 60, "max_errors": 1, "max_latency": 3, "min_samples": 20,
     "probe": true, "probe_path": "/", "probe_every": 30, "probe_timeout": 3, "only_here": false, "dry_run": false }"#;

/// Example of an order to another balancer.
const FOLLOW_EXAMPLE: &str = r#"{ "migration": 1764086400000, "from": "v1", "to": "v2",
     "weights": { "app.example.com": [["v1", 75], ["v2", 25]] }, "testers": {}, "set": true }"#;

/// Adds the operations on migrations.
pub(super) fn add_operations(api: DescribedRouter) -> DescribedRouter {
    let order = |id, path, summary| change(id, POST, path, summary, RequestKind::Nothing);
    api.with(
        &read("listMigrations", "/api/v1/migrations", "Migrations of names, running and ended"),
        list,
    )
    .with(
        &read("getMigration", "/api/v1/migrations/{id}",
            "How far a migration is, and what its guards have seen",
        ),
        show,
    )
    .with(
        &read(
            "getMigrationReport",
            "/api/v1/migrations/{id}/report",
            "Report of a migration, in Markdown",
        ),
        show_report,
    )
    .with(
        &change("startMigration", POST, "/api/v1/migrations",
            "Move names from one cluster to another in steps, guarded by what real traffic shows; dry_run only says which",
            json_body::<MigrationBody>(EXAMPLE),
        ),
        start,
    )
    .with(
        &order("pauseMigration", "/api/v1/migrations/{id}/pause",
            "Pause a migration at its step; its guards stay active",
        ),
        pause,
    )
    .with(
        &order("resumeMigration", "/api/v1/migrations/{id}/resume",
            "Resume a paused migration: hold its step again from the beginning, then continue",
        ),
        resume,
    )
    .with(
        &order("abortMigration", "/api/v1/migrations/{id}/abort",
            "Abort a migration: restore the weights from before",
        ),
        abort,
    )
    .with(
        &change("followMigrationStep", POST, FOLLOW_PATH,
            "Follow a step of another balancer's migration, and report what its traffic shows here; for balancers alone",
            json_body::<StepOrder>(FOLLOW_EXAMPLE),
        ),
        follow,
    )
}

/// Maximum hold in seconds that is accepted here. The plan's own limit is lower.
const MAX_HOLD_SECS: f64 = 1e9;

/// Reads a prefix of testers. A single address is a prefix of full length.
fn tester_prefix(text: &String) -> Result<IpNet, String> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    let prefix = text.parse::<IpNet>().ok().or_else(address);
    let prefix = prefix.ok_or_else(|| format!("{text:?} is no prefix such as 10.9.0.0/16"))?;
    Ok(prefix.trunc())
}

/// How names are asked for. A plan checks its values: a number that is none becomes 0.
fn probe_plan(body: &MigrationBody) -> ProbePlan {
    ProbePlan {
        path: body.probe_path.clone(),
        every_ms: (body.probe_every * 1000.0) as u64,
        timeout_ms: (body.probe_timeout * 1000.0) as u64,
    }
}

fn plan(body: &MigrationBody) -> Result<MigrationPlan, String> {
    let is_in = |value: f64, most: f64| (0.0..=most).contains(&value);
    if !is_in(body.hold, MAX_HOLD_SECS) || !is_in(body.max_errors, 100.0) || !is_in(body.max_latency, 1000.0) {
        return Err("hold is in seconds, max_errors 0 to 100 percent, max_latency a multiple from 0 to 1000".into());
    }
    let testers = body.testers.iter().map(tester_prefix).collect::<Result<Vec<_>, _>>()?;
    // Testers come first: in their step no other client gets the new cluster.
    let of_testers = (!testers.is_empty()).then_some(0);
    Ok(MigrationPlan {
        from: body.from.clone(),
        to: body.to.clone(),
        steps: of_testers.into_iter().chain(body.steps.iter().copied()).collect(),
        hold_ms: (body.hold * 1000.0) as u64,
        limits: GuardLimits {
            max_error_permille: (body.max_errors * 10.0).round() as u64,
            max_latency_percent: (body.max_latency * 100.0).round() as u64,
            min_samples: body.min_samples,
        },
        testers,
        only_here: body.only_here,
        probe: body.probe.then(|| probe_plan(body)),
        leaves_out: body.all,
    })
}

/// Returns the selected names, and how they were chosen.
fn selected_names(body: &MigrationBody, snapshot: &Snapshot) -> Result<(Vec<String>, NameChoice), String> {
    let has_others = !(body.names.is_empty() && body.namespaces.is_empty() && body.selectors.is_empty());
    if body.all {
        return if has_others {
            Err("this selects all names: give no other names with it".into())
        } else {
            Ok((Vec::new(), NameChoice::AllFit))
        };
    }
    let mut names: BTreeSet<String> = body.names.iter().map(|name| name.to_ascii_lowercase()).collect();
    for namespace in &body.namespaces {
        let of = names_of_namespace(snapshot, namespace);
        if of.is_empty() {
            return Err(format!("there is no name of namespace {namespace}"));
        }
        names.extend(of);
    }
    for selector in &body.selectors {
        let of = names_of_selector(snapshot, selector)?;
        if of.is_empty() {
            return Err(format!("there is no name of selector {selector}"));
        }
        names.extend(of);
    }
    Ok((names.into_iter().collect(), NameChoice::Given))
}

/// `POST /api/v1/migrations`.
async fn start(
    State(control): State<Arc<Control>>,
    Extension(Requester(by)): Extension<Requester>,
    body: String,
) -> ApiReply<MigrationAnswer> {
    let body: MigrationBody = match serde_json::from_str(&body) {
        Ok(body) => body,
        Err(error) => return not_understood(&error, EXAMPLE),
    };
    let snapshot = control.shared.snapshot.load_full();
    let (plan, (names, choice)) = match plan(&body).and_then(|plan| Ok((plan, selected_names(&body, &snapshot)?))) {
        Ok(understood) => understood,
        Err(why) => return refused(StatusCode::BAD_REQUEST, &why),
    };
    match control.begin_migration(plan, names, choice, by, body.dry_run).await {
        Ok(migration) => {
            let status = if body.dry_run {
                StatusCode::OK
            } else {
                StatusCode::ACCEPTED
            };
            view(migration).with_status(status)
        }
        Err(why) => refused(StatusCode::UNPROCESSABLE_ENTITY, &why),
    }
}

/// `GET /api/v1/migrations`.
async fn list(State(control): State<Arc<Control>>) -> ApiReply<MigrationsAnswer> {
    answer(MigrationsAnswer {
        migrations: control.migrations.all(),
    })
}

/// `GET /api/v1/migrations/{id}`.
async fn show(State(control): State<Arc<Control>>, Path(id): Path<u64>) -> ApiReply<MigrationAnswer> {
    control.migrations.get(id).map_or_else(|| unknown(id), view)
}

/// `GET /api/v1/migrations/{id}/report`.
async fn show_report(State(control): State<Arc<Control>>, Path(id): Path<u64>) -> Response {
    let text = |migration: Migration| report::markdown(&migration, unix_ms());
    let typed = |text: String| ([(header::CONTENT_TYPE, "text/markdown; charset=utf-8")], text).into_response();
    control
        .migrations
        .get(id)
        .map_or_else(|| unknown(id), |migration| typed(text(migration)))
}

/// `POST /api/v1/migrations/follow`.
async fn follow(State(control): State<Arc<Control>>, body: String) -> ApiReply<StepAnswer<StepReport>> {
    let order: StepOrder = match serde_json::from_str(&body) {
        Ok(order) => order,
        Err(error) => return not_understood(&error, FOLLOW_EXAMPLE),
    };
    match control.follow_step(order).await {
        Ok(report) => answer(StepAnswer { report }),
        Err(why) => refused(StatusCode::UNPROCESSABLE_ENTITY, &why),
    }
}

async fn pause(
    State(control): State<Arc<Control>>,
    Extension(by): Extension<Requester>,
    Path(id): Path<u64>,
) -> ApiReply<MigrationAnswer> {
    order(&control, &by, id, MigrationOrder::Pause).await
}

async fn resume(
    State(control): State<Arc<Control>>,
    Extension(by): Extension<Requester>,
    Path(id): Path<u64>,
) -> ApiReply<MigrationAnswer> {
    order(&control, &by, id, MigrationOrder::Resume).await
}

async fn abort(
    State(control): State<Arc<Control>>,
    Extension(by): Extension<Requester>,
    Path(id): Path<u64>,
) -> ApiReply<MigrationAnswer> {
    order(&control, &by, id, MigrationOrder::Abort).await
}

async fn order(
    control: &Control,
    Requester(by): &Requester,
    id: u64,
    order: MigrationOrder,
) -> ApiReply<MigrationAnswer> {
    match control.order_migration(id, order, by).await {
        Some(Ok(migration)) => view(migration),
        Some(Err(why)) => refused(StatusCode::CONFLICT, &why),
        None => unknown(id),
    }
}

fn view(migration: Migration) -> ApiReply<MigrationAnswer> {
    answer(MigrationAnswer { migration })
}

fn not_understood<R: From<Response>>(error: &serde_json::Error, example: &str) -> R {
    let detail = format!("{error}; expected for example {example}");
    problem(StatusCode::BAD_REQUEST, "The body is not understood", &detail)
}

fn unknown<R: From<Response>>(id: u64) -> R {
    let detail = format!("there is no migration {id}: `signalbox migrate --list` shows them");
    problem(StatusCode::NOT_FOUND, "There is no such migration", &detail)
}

fn refused<R: From<Response>>(status: StatusCode, why: &str) -> R {
    problem(status, "The migration is refused; nothing has changed", why)
}
