//! `GET /api/v1/flows`, and the flows of a layer-4 service.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::Label;

/// Flows that match a filter.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct FlowsAnswer {
    /// Number of all that match.
    pub total: usize,
    pub flows: Vec<FlowView>,
}

/// A flow.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowView {
    pub id: u64,
    pub client: SocketAddr,
    pub local: SocketAddr,
    pub backend: SocketAddr,
    pub listener: String,
    pub route: Option<String>,
    pub cluster: String,
    pub host: String,
    /// Local address of leg B, if known without a system call.
    pub leg_b_local: Option<SocketAddr>,
    pub tier: Label,
    /// Reason why the flow is on this tier.
    pub tier_reason: Label,
    /// Reason why the flow was not cut; empty if it was.
    pub not_cut: Label,
    pub state: Label,
    pub age_seconds: f64,
    pub idle_seconds: f64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Packets forwarded. A super-packet (GRO/GSO) counts as one. `None` on all tiers except `cut`.
    pub packets_in: Option<u64>,
    pub packets_out: Option<u64>,
}

/// `GET /api/v1/services/{name}/flows`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServiceFlowsAnswer {
    pub service_flows: Vec<ServiceFlowView>,
}

/// A flow of a layer-4 service.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServiceFlowView {
    pub service: String,
    pub client: SocketAddr,
    pub listen: SocketAddr,
    pub host: IpAddr,
    pub protocol: Label,
    pub packets_in: u32,
    pub bytes_in: u64,
    pub idle_seconds: f64,
}
