//! `GET /api/v1/status`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::Label;

/// State of the process and of its configuration.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct StatusAnswer {
    pub version: String,
    pub revision: String,
    /// Version of the kernel's maps.
    pub abi: u32,
    pub pid: u32,
    pub uptime_seconds: u64,
    pub state: ServingState,
    pub ready: bool,
    pub not_ready: Vec<String>,
    pub steering: Label,
    pub workers: usize,
    pub degraded: Vec<DegradedFeature>,
    pub missing_features: Vec<MissingFeature>,
    pub connections: ConnectionCounts,
    /// Connections and names that the kernel routes.
    pub fast_path: FastPath,
    pub hosts: HostCounts,
    pub routes: usize,
    /// Absent if connections are not logged.
    pub access_log: Option<AccessLogView>,
    pub config: Option<PathBuf>,
    pub last_reload: Option<LastReload>,
    pub reloads: ReloadCounts,
}

/// Whether the process accepts connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ServingState {
    #[default]
    Serving,
    /// The process is ending: it accepts no connections.
    Draining,
}

impl ServingState {
    /// Returns the state's word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Draining => "draining",
        }
    }
}

/// A feature that works less well than it could.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DegradedFeature {
    pub feature: Label,
    pub why: String,
}

/// A configured feature that is not active.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct MissingFeature {
    pub feature: Label,
    /// The reason, and how to fix it if that is possible.
    pub why: String,
    /// True if this balancer is not ready without the feature.
    pub is_required: bool,
}

/// Counts of connections.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ConnectionCounts {
    pub active: u32,
    pub total: u64,
    pub refused: u64,
    pub max: u32,
}

/// Connections of the last minute, and names, that the kernel routes without a socket.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct FastPath {
    pub connections: u64,
    pub connections_in_kernel: u64,
    pub names: usize,
    pub names_in_kernel: usize,
    /// Listeners, routes and ranges of clients whose connections workers route.
    pub left_to_workers: Vec<LeftToWorkers>,
}

/// Listeners, routes or ranges of clients whose connections workers route for one reason.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LeftToWorkers {
    /// `listener`, `route` or `client range`.
    pub kind: Label,
    /// Value of the label `reason` in `signalbox_connections_path_total`.
    pub label: Label,
    pub reason: Label,
    pub count: usize,
}

/// Counts of hosts.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct HostCounts {
    pub configured: usize,
    pub usable: usize,
}

/// Counts of changes of the configuration.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ReloadCounts {
    pub ok: u64,
    pub failed: u64,
}

/// Result of the last change of the configuration.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LastReload {
    pub ok: bool,
    pub source: String,
    pub at: u64,
    pub error: Option<String>,
}

/// State of the access log.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct AccessLogView {
    pub to: String,
    pub lines: u64,
    /// Lines that were not written, by reason.
    pub dropped: BTreeMap<Label, u64>,
    pub error: Option<String>,
}

/// Answer to `POST /api/v1/log/reopen`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ReopenAnswer {
    pub log: Option<AccessLogView>,
}
