//! Weights set by operators: for one route or for many, all or none, with a dry run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use signalbox_api::weights::{AppliedAnswer, ChangesAnswer, RouteWeights, SharesByKey, WeightsAnswer, WeightsRequest};
use signalbox_core::discovered::by_label::by_name;
use signalbox_core::discovered::expose::effective_model;
use signalbox_core::discovered::merge::{ClusterWeights, WeightOverrides, add_testers, check_weights};
use signalbox_core::model::{Model, Route};
use signalbox_core::routing::diff::diff;
use signalbox_core::wire::hostname::HostnamePattern;

use super::mutate::apply_response;
use super::problem::problem;
use super::reply::{ApiReply, answer};
use super::route_selection::parse_selector;
use super::views::usable;
use crate::control::Control;
use crate::control::event::Applied;
use crate::state::Snapshot;

/// `PUT /api/v1/routes/{host}`.
pub(super) async fn put_one(
    State(control): State<Arc<Control>>,
    Path(host): Path<String>,
    body: String,
) -> ApiReply<AppliedAnswer<Applied>> {
    match serde_json::from_str::<RouteWeights>(&body) {
        Ok(RouteWeights { clusters, force }) => {
            let set = BTreeMap::from([(host, Some(cluster_weights(clusters)))]);
            apply(&control, set, force).await
        }
        Err(error) => bad_request(&error, r#"{"clusters": {"east": 20, "west": 80}}"#),
    }
}

/// Applies weights. If they leave a name without a host, they need force, because they are probably a mistake.
async fn apply(
    control: &Control,
    set: BTreeMap<String, Option<ClusterWeights>>,
    force: bool,
) -> ApiReply<AppliedAnswer<Applied>> {
    let snapshot = control.shared.snapshot.load_full();
    let starved = if force { Vec::new() } else { starved(&snapshot, &set) };
    if let Some(first) = starved.first() {
        let more = match starved.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let detail = format!(
            "{first}{more}: no cluster with a weight has a host that takes connections, and until now one had: \
             `\"force\": true` (`signalbox weight --force`) sets the weights all the same"
        );
        return problem(StatusCode::CONFLICT, "A name would be left without a host", &detail);
    }
    apply_response(control.set_weights(set).await)
}

/// Names that have a host that accepts connections now but would have none. Invalid weights starve no name.
fn starved<'s>(snapshot: &Snapshot, set: &'s BTreeMap<String, Option<ClusterWeights>>) -> Vec<&'s str> {
    if check_weights(&snapshot.model, &snapshot.weights, set).is_err() {
        return Vec::new();
    }
    let clusters = snapshot.model.clusters.iter().enumerate();
    let usable: BTreeSet<&str> = clusters
        .filter(|(index, _)| usable(snapshot, *index) > 0)
        .map(|(_, cluster)| cluster.name.as_str())
        .collect();
    let served = |model: &Model| {
        let is_served = |route: &&Route| {
            let mut shares = route.clusters.iter().filter(|(_, weight)| *weight > 0);
            shares.any(|(index, _)| {
                model
                    .clusters
                    .get(*index)
                    .is_some_and(|c| usable.contains(c.name.as_str()))
            })
        };
        let routes = model.routes.iter().filter(is_served);
        routes.map(|route| route.hostname.to_string()).collect::<BTreeSet<_>>()
    };
    let (before, after) = (served(&snapshot.model), served(&model_with(snapshot, set)));
    let names = set.keys().map(String::as_str);
    names
        .filter(|name| before.contains(*name) && !after.contains(*name))
        .collect()
}

/// `PUT /api/v1/weights`.
pub(super) async fn put_many(State(control): State<Arc<Control>>, body: String) -> ApiReply<WeightsAnswer<Applied>> {
    let many = match serde_json::from_str::<WeightsRequest>(&body) {
        Ok(many) => many,
        Err(error) => return bad_request(&error, r#"{"routes": {"app.example.com": {"east": 20, "west": 80}}}"#),
    };
    let snapshot = control.shared.snapshot.load_full();
    let (is_tried, force) = (many.dry_run, many.force);
    let set = match resolve(&snapshot, many) {
        Ok(set) => set,
        Err((status, why)) => return problem(status, "The weights are refused", &why),
    };
    if is_tried {
        return dry_run_response(&snapshot, &set);
    }
    apply(&control, set, force).await.into_response().into()
}

fn cluster_weights(clusters: BTreeMap<String, u32>) -> ClusterWeights {
    clusters.into_iter().collect()
}

/// Group of names with the same weights.
struct NameGroup {
    /// Shared property of the names, in words.
    description: String,
    names: BTreeSet<String>,
    weights: Option<ClusterWeights>,
}

/// Resolves a change of many to names, each with its weights, or an error. Weights of a name itself override those of
/// its namespace or its labels.
fn resolve(
    snapshot: &Snapshot,
    request: WeightsRequest,
) -> Result<BTreeMap<String, Option<ClusterWeights>>, (StatusCode, String)> {
    let refused = |why: String| (StatusCode::UNPROCESSABLE_ENTITY, why);
    let routes: BTreeMap<_, _> = request
        .routes
        .into_iter()
        .map(|(name, clusters)| (name, clusters.map(cluster_weights)))
        .collect();
    let mut chosen: BTreeMap<String, (String, Option<ClusterWeights>)> = BTreeMap::new();
    for NameGroup {
        description: what,
        mut names,
        weights: set,
    } in groups(snapshot, request.namespaces, request.selectors)?
    {
        if names.is_empty() {
            return Err(refused(format!("there is no name of {what}")));
        }
        if set.is_none() {
            names.retain(|name| snapshot.weights.contains_key(name));
            if names.is_empty() {
                return Err(refused(format!("no weights are set for a name of {what}")));
            }
        }
        for name in names.into_iter().filter(|name| !routes.contains_key(name)) {
            if let Some((other, said)) = chosen.get(&name)
                && *said != set
            {
                let why =
                    format!("{name} is of {other} and of {what}, which say different weights: name it itself too");
                return Err(refused(why));
            }
            chosen.insert(name, (what.clone(), set.clone()));
        }
    }
    let mut all: BTreeMap<_, _> = chosen.into_iter().map(|(name, (_, set))| (name, set)).collect();
    all.extend(routes);
    Ok(all)
}

fn groups(
    snapshot: &Snapshot,
    namespaces: SharesByKey,
    selectors: SharesByKey,
) -> Result<Vec<NameGroup>, (StatusCode, String)> {
    let mut groups = Vec::new();
    for (namespace, clusters) in namespaces {
        groups.push(NameGroup {
            description: format!("namespace {namespace}"),
            names: names_of_namespace(snapshot, &namespace),
            weights: clusters.map(cluster_weights),
        });
    }
    for (text, clusters) in selectors {
        let names = names_of_selector(snapshot, &text).map_err(|why| (StatusCode::BAD_REQUEST, why))?;
        groups.push(NameGroup {
            description: format!("selector {text}"),
            names,
            weights: clusters.map(cluster_weights),
        });
    }
    Ok(groups)
}

/// Returns the names that match a label selector. The error describes a mistake in it.
pub(super) fn names_of_selector(snapshot: &Snapshot, text: &str) -> Result<BTreeSet<String>, String> {
    let selector = parse_selector(text)?;
    let names = by_name(&snapshot.file, &snapshot.discovered);
    let routes = snapshot.model.routes.iter().map(|route| &route.hostname);
    let is_selected = |hostname: &&HostnamePattern| names.get(hostname).is_some_and(|sets| selector.matches_any(sets));
    Ok(routes.filter(is_selected).map(ToString::to_string).collect())
}

/// Returns the names that objects of a namespace claim, in any cluster.
pub(super) fn names_of_namespace(snapshot: &Snapshot, namespace: &str) -> BTreeSet<String> {
    let claims = snapshot
        .discovered
        .values()
        .flat_map(BTreeMap::values)
        .flat_map(|learned| &learned.routes);
    claims
        .filter(|claim| claim.owner == namespace)
        .map(|claim| claim.hostname.to_string())
        .collect()
}

/// Answers a dry run with the effects of a change.
fn dry_run_response(
    snapshot: &Snapshot,
    set: &BTreeMap<String, Option<ClusterWeights>>,
) -> ApiReply<WeightsAnswer<Applied>> {
    if let Err(error) = check_weights(&snapshot.model, &snapshot.weights, set) {
        return problem(StatusCode::UNPROCESSABLE_ENTITY, "The weights would be refused", &error);
    }
    let after = model_with(snapshot, set);
    let changes = match diff(&snapshot.model, &after) {
        Ok(changes) => changes,
        Err(error) => return super::problem::not_shown(&error),
    };
    answer(WeightsAnswer::Changes(ChangesAnswer { dry_run: true, changes }))
}

/// The active model, with other weights.
fn model_with(snapshot: &Snapshot, set: &BTreeMap<String, Option<ClusterWeights>>) -> Model {
    let mut weights: WeightOverrides = (*snapshot.weights).clone();
    for (host, shares) in set {
        match shares {
            Some(shares) => drop(weights.insert(host.clone(), shares.clone())),
            None => drop(weights.remove(host)),
        }
    }
    let (mut after, _) = effective_model(&snapshot.file, &snapshot.discovered, &weights, &snapshot.exposure.ports);
    add_testers(&mut after, &snapshot.testers);
    after
}

fn bad_request<R: From<Response>>(error: &serde_json::Error, example: &str) -> R {
    problem(
        StatusCode::BAD_REQUEST,
        "The body is not understood",
        &format!("{error}; expected for example {example}"),
    )
}
