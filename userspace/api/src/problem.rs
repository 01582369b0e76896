//! Errors, as "problem details" (RFC 9457).

use serde::{Deserialize, Serialize};

use crate::rotations::PeerResult;

/// No further fields.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NoDetails {}

/// Reason why a request was refused. `M` has the fields of one kind of error.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Problem"))]
pub struct Problem<M = NoDetails> {
    #[serde(rename = "type", default)]
    pub kind: String,
    #[serde(default)]
    pub title: String,
    #[serde(default)]
    pub status: u16,
    /// Explanation for people.
    pub detail: String,
    #[serde(flatten)]
    pub more: M,
}

/// Errors in a configuration, each with its position.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConfigMistakes<E> {
    pub errors: Vec<E>,
}

/// Results on each balancer of a set.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PeerResults {
    pub balancers: Vec<PeerResult>,
}
