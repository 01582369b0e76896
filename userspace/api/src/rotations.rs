//! Rotation: subjects that are out, and jobs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Direction of a rotation: out, or in again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Action {
    #[default]
    Out,
    In,
}

impl Action {
    /// Returns the action's name in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::In => "in",
        }
    }
}

/// Progress of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Progress {
    /// Established flows continue until the deadline.
    #[default]
    Draining,
    /// The deadline has passed, and the remaining flows are being closed.
    Closing,
    /// No flow is left.
    Done,
    /// An operator has cancelled the job: its subjects are back in rotation.
    Cancelled,
}

impl Progress {
    /// Returns the progress' word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Draining => "draining",
            Self::Closing => "closing",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Body of `POST /api/v1/rotations`. Fields with default values are left out: a balancer of an earlier version may not
/// know them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RotationBody {
    pub action: Action,
    pub names: Vec<String>,
    /// Time to drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<f64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// True to rotate on all of the configuration's `balancers` too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all_balancers: bool,
    /// Reason in the operator's words, stored with the subject and shown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// `GET /api/v1/rotations`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RotationsAnswer {
    pub rotations: Vec<OutView>,
    pub jobs: Vec<JobView>,
}

/// A subject that is out of rotation.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct OutView {
    pub subject: String,
    pub reason: Option<String>,
    pub since: u64,
    pub by: Option<String>,
    pub job: u64,
}

/// Answers about one job.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobAnswer {
    pub job: JobView,
}

/// Answer to `POST /api/v1/rotations`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RotationAnswer {
    pub job: JobView,
    #[serde(default)]
    pub balancers: Vec<PeerResult>,
}

/// A job that carries out a rotation.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct JobView {
    pub id: u64,
    pub action: Action,
    pub subjects: Vec<String>,
    pub progress: Progress,
    pub started: f64,
    /// Time at which the remaining flows are closed.
    pub deadline: f64,
    pub ended: Option<f64>,
    pub remaining_connections: u64,
    /// Remaining flows, by host; those with the most.
    pub waits_for: BTreeMap<String, u32>,
    /// Flows that were closed at the deadline.
    pub closed_connections: u64,
}

/// Result of a rotation on another balancer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct PeerResult {
    pub url: String,
    /// Number of the job on that balancer.
    pub job: Option<u64>,
    pub error: Option<String>,
}
