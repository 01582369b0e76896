//! Weights that operators set: of one route or of many, all or none, tried first or not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde_json::json;
use signalbox_core::diff::diff;
use signalbox_core::merge::{Shares, Weights, check_weights, merge};

use super::api::problem;
use super::mutate::answer;
use crate::control::Control;
use crate::state::Snapshot;

/// The body of a change of one route's weights.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct One {
    clusters: BTreeMap<String, u32>,
}

/// The body of a change of many.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Many {
    /// By name; null takes weights back.
    #[serde(default)]
    routes: BTreeMap<String, Option<BTreeMap<String, u32>>>,
    /// The same for all names of a namespace.
    #[serde(default)]
    namespaces: BTreeMap<String, Option<BTreeMap<String, u32>>>,
    #[serde(default)]
    dry_run: bool,
}

/// `PUT /api/v1/routes/{host}`.
pub(super) async fn one(State(control): State<Arc<Control>>, Path(host): Path<String>, body: String) -> Response {
    match serde_json::from_str::<One>(&body) {
        Ok(one) => answer(
            control
                .set_weights(BTreeMap::from([(host, Some(shares(one.clusters)))]))
                .await,
        ),
        Err(error) => not_understood(&error, r#"{"clusters": {"east": 20, "west": 80}}"#),
    }
}

/// `PUT /api/v1/weights`.
pub(super) async fn many(State(control): State<Arc<Control>>, body: String) -> Response {
    let many = match serde_json::from_str::<Many>(&body) {
        Ok(many) => many,
        Err(error) => return not_understood(&error, r#"{"routes": {"app.example.com": {"east": 20, "west": 80}}}"#),
    };
    let snapshot = control.shared.snapshot.load_full();
    let mut set: BTreeMap<String, Option<Shares>> = BTreeMap::new();
    for (namespace, clusters) in many.namespaces {
        let names = of_namespace(&snapshot, &namespace);
        if names.is_empty() {
            let why = format!("no source has told of a name of namespace {namespace}");
            return problem(
                StatusCode::UNPROCESSABLE_ENTITY,
                "The weights are refused",
                &why,
                &json!({}),
            );
        }
        for name in names {
            set.insert(name, clusters.clone().map(shares));
        }
    }
    // What is said of a name itself counts before what is said of its namespace.
    for (name, clusters) in many.routes {
        set.insert(name, clusters.map(shares));
    }
    if many.dry_run {
        return tried(&snapshot, &set);
    }
    answer(control.set_weights(set).await)
}

fn shares(clusters: BTreeMap<String, u32>) -> Shares {
    clusters.into_iter().collect()
}

/// Names that objects of a namespace claim, in whatever cluster.
fn of_namespace(snapshot: &Snapshot, namespace: &str) -> BTreeSet<String> {
    let claims = snapshot
        .lore
        .values()
        .flat_map(BTreeMap::values)
        .flat_map(|learned| &learned.routes);
    claims
        .filter(|claim| claim.owner == namespace)
        .map(|claim| claim.host.to_string())
        .collect()
}

/// What a change would do.
fn tried(snapshot: &Snapshot, set: &BTreeMap<String, Option<Shares>>) -> Response {
    if let Err(error) = check_weights(&snapshot.model, &snapshot.weights, set) {
        return problem(
            StatusCode::UNPROCESSABLE_ENTITY,
            "The weights would be refused",
            &error,
            &json!({}),
        );
    }
    let mut weights: Weights = (*snapshot.weights).clone();
    for (host, shares) in set {
        match shares {
            Some(shares) => drop(weights.insert(host.clone(), shares.clone())),
            None => drop(weights.remove(host)),
        }
    }
    let after = merge(&snapshot.file, &snapshot.lore, &weights);
    let changes = diff(&snapshot.model, &after);
    Json(json!({ "apiVersion": "v1", "dry_run": true, "changes": changes })).into_response()
}

fn not_understood(error: &serde_json::Error, example: &str) -> Response {
    problem(
        StatusCode::BAD_REQUEST,
        "The body is not understood",
        &format!("{error}; expected for example {example}"),
        &json!({}),
    )
}
