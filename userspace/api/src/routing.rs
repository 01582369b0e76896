//! Listeners, routes, clusters, and the figures of routes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use signalbox_core::model::labels::Labels;

use crate::Label;

/// `GET /api/v1/listeners`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListenersAnswer {
    pub listeners: Vec<ListenerView>,
}

/// A listener with its counts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ListenerView {
    pub name: String,
    pub protocol: Label,
    /// Where TLS of listeners with certificates ends.
    pub termination: Option<Label>,
    pub routing: Label,
    pub listen: Vec<String>,
    pub cluster: Option<String>,
    pub backup: Option<String>,
    pub tier: Label,
    pub trusted_proxies: Vec<String>,
    pub active_connections: u32,
    pub total_connections: u64,
    /// Refused connections, by reason.
    pub refused: BTreeMap<Label, u64>,
}

/// `GET /api/v1/routes`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RoutesAnswer {
    pub routes: Vec<RouteView>,
    #[serde(default)]
    pub unmatched: UnmatchedView,
}

/// Treatment of names without a route.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum UnmatchedView {
    #[default]
    Reject,
    Any,
    Cluster(Option<String>),
}

/// A route with its counts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RouteView {
    pub host: String,
    pub clusters: Vec<RouteCluster>,
    pub total_connections: u64,
    pub active_connections: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Label sets of the route's objects; only in the list of routes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeSet<Labels>>,
}

/// Share of a cluster in a route.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RouteCluster {
    pub name: String,
    pub weight: u32,
    pub usable_hosts: usize,
}

/// `GET /api/v1/routes/{host}`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RouteAnswer {
    #[serde(flatten)]
    pub route: RouteView,
    pub at: f64,
    pub figures: RouteFigures,
}

/// `GET /api/v1/clusters`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClustersAnswer {
    pub clusters: Vec<ClusterView>,
}

/// A cluster with its counts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ClusterView {
    pub name: String,
    /// Reason why the cluster has no hosts yet.
    pub waits_for: Option<Label>,
    pub balance: Label,
    pub proxy_protocol: bool,
    pub hosts: usize,
    pub healthy_hosts: usize,
    pub active_connections: u32,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

/// `GET /api/v1/figures`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct FiguresAnswer {
    pub at: f64,
    pub uptime_seconds: f64,
    pub total: usize,
    /// Figures by the route's name.
    pub routes: BTreeMap<String, RouteFigures>,
}

/// `GET /api/v1/applications/{namespace}/{name}/figures`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ApplicationFigures {
    pub namespace: String,
    pub name: String,
    pub at: f64,
    pub figures: RouteFigures,
}

/// Figures of a route, and of each of its clusters.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RouteFigures {
    #[serde(flatten)]
    pub sum: ClusterFigures,
    pub refused_connections: u64,
    /// Refused connections, by reason.
    pub refused: BTreeMap<Label, u64>,
    pub clusters: BTreeMap<String, ClusterFigures>,
}

/// Figures of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ClusterFigures {
    pub connections: u64,
    #[serde(rename = "active_connections")]
    pub active: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

impl ClusterFigures {
    /// Adds the figures of another cluster or route.
    pub const fn add(&mut self, other: Self) {
        self.connections += other.connections;
        self.active += other.active;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
    }
}
