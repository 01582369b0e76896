//! Names that a migration can move.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use signalbox_core::availability::migration::{Migration, MigrationPlan};
use signalbox_core::discovered::merge::ClusterWeights;
use signalbox_core::model::{Protocol, Route};

use crate::state::Snapshot;

/// Maximum number of names whose problems an error lists.
pub(super) const MAX_LISTED_PROBLEMS: usize = 20;

/// Names for a migration to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameChoice {
    /// The given names: each must be suitable.
    Given,
    /// All names of the old cluster that the new one serves too. Unsuitable ones are left out.
    AllFit,
}

/// Whether a cluster has a host that accepts connections of any protocol.
pub(super) fn is_usable(snapshot: &Snapshot, cluster: &str) -> bool {
    let index = snapshot.model.clusters.iter().position(|known| known.name == cluster);
    index.is_some_and(|at| {
        let mut protocols = [Protocol::Http, Protocol::Tls, Protocol::Tcp].into_iter();
        protocols.any(|protocol| !snapshot.view.usable(at, protocol).is_empty())
    })
}

/// Returns why a name cannot be moved, or `None`.
fn unfit(snapshot: &Snapshot, plan: &MigrationPlan, name: &str, route: Option<&Route>) -> Option<String> {
    let (from, to) = (&plan.from, &plan.to);
    let Some(route) = route else {
        return Some(format!("there is no route {name}: `signalbox routes` lists them"));
    };
    let clusters = &snapshot.model.clusters;
    let shares = route
        .clusters
        .iter()
        .filter_map(|(at, weight)| Some((&clusters.get(*at)?.name, *weight)));
    let mut weights: BTreeMap<&String, u32> = shares.collect();
    let (old, new) = (weights.remove(from).unwrap_or(0), weights.remove(to));
    if old == 0 {
        return Some(format!(
            "{name}: {from} has no traffic of it (`signalbox explain {name}`)"
        ));
    }
    if let Some((other, weight)) = weights.into_iter().find(|(_, weight)| *weight > 0) {
        return Some(format!(
            "{name}: {other} has weight {weight}; set it to 0 first (`signalbox weight`)"
        ));
    }
    let has_from = |shares: &[(usize, u32)]| {
        shares
            .iter()
            .any(|(at, _)| clusters.get(*at).is_some_and(|c| c.name == *from))
    };
    if route.paths.iter().any(|path| has_from(&path.clusters)) {
        return Some(format!(
            "{name} has paths with weights of their own in {from}: change those in the configuration"
        ));
    }
    if new.is_none() && route.is_discovered() {
        return Some(format!("{name}: {to} does not serve it"));
    }
    let has = new.unwrap_or(0) * 100 / (old + new.unwrap_or(0));
    let first = plan.steps.first().copied().unwrap_or(100);
    (has > first).then(|| format!("{name}: {to} has {has} % already; begin with a step that is not less"))
}

/// Returns the names that cannot be moved any more, with the reasons: time has passed since the order, while names were
/// asked for. Names without a route do no harm.
pub(super) fn changed_meanwhile(snapshot: &Snapshot, migration: &Migration) -> BTreeMap<String, String> {
    if !migration.awaits_probes() {
        return BTreeMap::new();
    }
    let routes = snapshot.model.routes.iter();
    let routes: HashMap<String, &Route> = routes.map(|route| (route.hostname.to_string(), route)).collect();
    let problem = |(name, before): (&String, &Option<ClusterWeights>)| {
        let route = routes.get(name)?;
        if snapshot.weights.get(name) != before.as_ref() {
            return Some((
                name.clone(),
                format!("the weights of {name} were changed in the meantime"),
            ));
        }
        Some((name.clone(), unfit(snapshot, &migration.plan, name, Some(route))?))
    };
    migration.names.iter().filter_map(problem).collect()
}

/// Returns the names to move, or why some of them cannot be moved.
pub(super) fn fit_names(
    snapshot: &Arc<Snapshot>,
    plan: &MigrationPlan,
    mut names: Vec<String>,
    choice: NameChoice,
) -> Result<Vec<String>, String> {
    let routes: HashMap<String, &Route> = snapshot
        .model
        .routes
        .iter()
        .map(|route| (route.hostname.to_string(), route))
        .collect();
    if choice == NameChoice::AllFit {
        let serves = |route: &Route| {
            let mut clusters = route
                .clusters
                .iter()
                .filter_map(|(at, _)| snapshot.model.clusters.get(*at));
            clusters.any(|cluster| cluster.name == plan.to)
        };
        let fit = routes
            .iter()
            .filter(|(name, route)| serves(route) && unfit(snapshot, plan, name, Some(route)).is_none());
        names = fit.map(|(name, _)| name.clone()).collect();
        if names.is_empty() {
            return Err(format!("no name of {} can be moved to {}", plan.from, plan.to));
        }
        return Ok(names);
    }
    names.sort();
    names.dedup();
    if names.is_empty() {
        return Err("no name is given: name some, a selector, or all".into());
    }
    let problems: Vec<_> = names
        .iter()
        .filter_map(|name| unfit(snapshot, plan, name, routes.get(name).copied()))
        .collect();
    if problems.is_empty() {
        return Ok(names);
    }
    let more = problems.len().saturating_sub(MAX_LISTED_PROBLEMS);
    let mut text = problems[..problems.len() - more].join("; ");
    if more > 0 {
        text += &format!("; and {more} more");
    }
    Err(text)
}
