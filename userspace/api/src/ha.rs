//! `GET /api/v1/ha`: groups of virtual addresses, and replication of flows.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use signalbox_core::availability::ha::notice::GroupState;

use crate::Label;

/// High availability of this node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct HaAnswer {
    pub configured: bool,
    pub groups: Vec<GroupView>,
    /// Absent without a section `ha`.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub node: Option<HaNode>,
}

/// This node and the others.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HaNode {
    pub name: String,
    pub mode: Label,
    pub node: String,
    #[serde(default)]
    pub nodes: Vec<NodeAddress>,
    /// Whether a `signalbox ha run` is connected.
    #[serde(default)]
    pub supervised: bool,
    /// Absent if flows are not replicated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<SyncView>,
    #[serde(flatten)]
    pub condition: Condition,
}

impl HaNode {
    /// Whether addresses are given by `signalbox ha run`, and none is connected.
    #[must_use]
    pub fn lacks_supervisor(&self) -> bool {
        !self.supervised && self.mode != "external"
    }
}

/// A node of the set.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeAddress {
    pub name: String,
    pub address: IpAddr,
}

/// A group of virtual addresses.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct GroupView {
    pub name: String,
    pub vips: Vec<String>,
    pub sources: Vec<String>,
    pub prefer: Option<String>,
    /// State on this node; absent before the supervisor's first report.
    pub state: Option<GroupState>,
    pub priority: Option<u8>,
    pub since_ms: Option<u64>,
}

/// Condition of the process: whether the node may have addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Condition {
    pub pid: u32,
    pub ready: bool,
    pub reasons: Vec<String>,
    pub stopping: bool,
    pub may_preempt: bool,
}

/// Replication of flows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SyncView {
    pub peers: Vec<PeerView>,
    /// Number of flows that this node has taken over.
    pub promoted: u64,
}

/// Replication with one other node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct PeerView {
    pub node: String,
    pub sending: bool,
    /// Whether the other node has all flows that existed when sending began.
    pub told_all: bool,
    pub behind_ms: u64,
    pub send_error: Option<String>,
    pub receiving: bool,
    pub complete: bool,
    /// Whether this node accepts the other node's SYN cookies: a client that has sent nothing yet stays connected.
    pub same_cookies: bool,
    pub flows_sent: u64,
    pub ends_sent: u64,
    pub bytes_sent: u64,
    pub mean_lag_seconds: Option<f64>,
    /// Flows of the other node that are stored here.
    pub shadows: u64,
    pub service_flows: u64,
    /// Flows of the other node that are not stored, by reason.
    pub rejected: BTreeMap<Label, u64>,
}

impl PeerView {
    /// Returns why the node does not get this node's flows.
    #[must_use]
    pub fn send_error_text(&self) -> &str {
        self.send_error.as_deref().unwrap_or("it is not connected")
    }
}

/// Body of `PUT /api/v1/ha/groups/{name}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GroupUpdate {
    pub state: GroupState,
    #[serde(default)]
    pub priority: u8,
}

/// Answer to `PUT /api/v1/ha/groups/{name}`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GroupAnswer {
    pub group: GroupView,
}

/// Answer to `POST /api/v1/ha/groups/{name}/hand-over`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct HandOverAnswer {
    pub group: String,
    pub nodes: Vec<String>,
    /// Time that connections have to drain.
    pub seconds: u64,
}

/// Body of `POST /api/v1/ha/reclaim`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReclaimBody {
    pub groups: Vec<String>,
}

/// Answer to `POST /api/v1/ha/reclaim`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ReclaimAnswer {
    pub groups: Vec<String>,
    pub nodes: Vec<String>,
}
