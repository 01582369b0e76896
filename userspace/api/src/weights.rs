//! Weights that operators set.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use signalbox_core::routing::diff::ModelChange;

/// Weights by cluster.
pub type Shares = BTreeMap<String, u32>;

/// Weights of clusters by name, namespace or selector. Null removes weights that were set.
pub type SharesByKey = BTreeMap<String, Option<Shares>>;

/// Body of `PUT /api/v1/routes/{host}`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RouteWeights {
    pub clusters: Shares,
    /// Sets them even if the name is left without a host.
    #[serde(default)]
    pub force: bool,
}

/// Body of `PUT /api/v1/weights`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct WeightsRequest {
    /// Weights by route name.
    pub routes: SharesByKey,
    /// Weights for all names of a namespace.
    pub namespaces: SharesByKey,
    /// Weights for all names that match a label selector.
    pub selectors: SharesByKey,
    pub dry_run: bool,
    /// Sets them even if a name is left without a host.
    pub force: bool,
}

/// Answer to a dry run of weights.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ChangesAnswer {
    /// True if nothing was changed.
    pub dry_run: bool,
    pub changes: Vec<ModelChange>,
}

/// Answer to `POST /api/v1/diff`. `W` is a warning of the configuration.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "DiffAnswer"))]
pub struct DiffAnswer<W> {
    pub changes: Vec<ModelChange>,
    pub warnings: Vec<W>,
    /// Names whose weights in the file do not apply, because an operator has set others.
    pub weights_set_by_api: Vec<String>,
}

/// Answer to a change that was applied. `A` has the change's counts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "AppliedAnswer"))]
pub struct AppliedAnswer<A> {
    pub applied: A,
}

/// Answer to `PUT /api/v1/weights`: what was applied, or what a dry run would change.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "WeightsAnswer"))]
#[serde(untagged)]
pub enum WeightsAnswer<A> {
    Applied(AppliedAnswer<A>),
    Changes(ChangesAnswer),
}

/// `GET /api/v1/config`. `C` is the configuration as it is shown, without secrets.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ConfigAnswer"))]
pub struct ConfigAnswer<C> {
    pub config: C,
}
