//! Weights that operators set: for one route or for many, all or none, with a dry run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde_json::json;
use signalbox_core::diff::diff;
use signalbox_core::expose::in_force;
use signalbox_core::labels::by_name;
use signalbox_core::merge::{Shares, Weights, check_weights};
use signalbox_core::name::HostPattern;

use super::api::problem;
use super::mutate::answer;
use super::selected::selector;
use crate::control::Control;
use crate::state::Snapshot;

/// Body of a change of one route's weights.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct One {
    clusters: BTreeMap<String, u32>,
}

/// Weights of clusters by name, namespace or selector; null removes weights that were set.
type ByWhat = BTreeMap<String, Option<BTreeMap<String, u32>>>;

/// Body of a change of many routes' weights.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Many {
    /// Weights by route name.
    #[serde(default)]
    routes: ByWhat,
    /// Weights for all names of a namespace.
    #[serde(default)]
    namespaces: ByWhat,
    /// Weights for all names that a label selector selects.
    #[serde(default)]
    selectors: ByWhat,
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
    let is_tried = many.dry_run;
    let set = match resolve(&snapshot, many) {
        Ok(set) => set,
        Err((status, why)) => return problem(status, "The weights are refused", &why, &json!({})),
    };
    if is_tried {
        return tried(&snapshot, &set);
    }
    answer(control.set_weights(set).await)
}

fn shares(clusters: BTreeMap<String, u32>) -> Shares {
    clusters.into_iter().collect()
}

/// Group of names with one set of weights.
struct Group {
    /// Property that the names share, in words.
    what: String,
    names: BTreeSet<String>,
    set: Option<Shares>,
}

/// Resolves a change of many to names, each with its weights, or an error. Weights of a name itself override those of
/// its namespace or its labels.
fn resolve(snapshot: &Snapshot, many: Many) -> Result<BTreeMap<String, Option<Shares>>, (StatusCode, String)> {
    let refused = |why: String| (StatusCode::UNPROCESSABLE_ENTITY, why);
    let routes: BTreeMap<_, _> = many
        .routes
        .into_iter()
        .map(|(name, clusters)| (name, clusters.map(shares)))
        .collect();
    let mut chosen: BTreeMap<String, (String, Option<Shares>)> = BTreeMap::new();
    for Group { what, mut names, set } in groups(snapshot, many.namespaces, many.selectors)? {
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

fn groups(snapshot: &Snapshot, namespaces: ByWhat, selectors: ByWhat) -> Result<Vec<Group>, (StatusCode, String)> {
    let mut groups = Vec::new();
    for (namespace, clusters) in namespaces {
        groups.push(Group {
            what: format!("namespace {namespace}"),
            names: of_namespace(snapshot, &namespace),
            set: clusters.map(shares),
        });
    }
    let names = by_name(&snapshot.file, &snapshot.lore);
    for (text, clusters) in selectors {
        let selector = selector(&text).map_err(|why| (StatusCode::BAD_REQUEST, why))?;
        let routes = snapshot.model.routes.iter().map(|route| &route.host);
        let is_selected = |host: &&HostPattern| names.get(host).is_some_and(|sets| selector.matches_any(sets));
        groups.push(Group {
            what: format!("selector {text}"),
            names: routes.filter(is_selected).map(ToString::to_string).collect(),
            set: clusters.map(shares),
        });
    }
    Ok(groups)
}

/// Returns the names that objects of a namespace claim, in any cluster.
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

/// Answers a dry run: what a change would do.
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
    let (after, _) = in_force(&snapshot.file, &snapshot.lore, &weights, &snapshot.exposure.ports);
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
