//! Samples of each second: `GET /api/v1/live` and `GET /api/v1/history`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Label;
use crate::hosts::HostHealth;

/// Event `hello`, the first of each stream.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Hello {
    pub version: Label,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Interval of samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval_ms: Option<u64>,
}

/// Event `sample`: all that has changed since the one before.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SampleChange {
    /// Time in milliseconds since 1970.
    pub at: u64,
    pub overall: OverallFigures,
    /// Figures by the host's index in the list of hosts.
    pub figures: BTreeMap<usize, HostSample>,
    /// Present if the list has changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<HostName>>,
    /// Number of hosts that are not sampled; present with the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out_hosts: Option<usize>,
}

/// `GET /api/v1/history`: lists of samples, oldest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct HistoryAnswer {
    pub interval_ms: u64,
    /// Times in milliseconds since 1970.
    pub at: Vec<u64>,
    pub overall: Vec<OverallFigures>,
    pub hosts: Vec<HostHistory>,
    pub left_out_hosts: usize,
}

/// A sampled host.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct HostName {
    pub cluster: String,
    pub name: String,
    pub address: String,
}

/// Samples of a host.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct HostHistory {
    #[serde(flatten)]
    pub host: HostName,
    /// Samples; absent while the host did not exist.
    pub figures: Vec<Option<HostSample>>,
}

/// Figures of a host in one sample, by [`Figure`]. A list, to be short.
pub type HostSample = [u64; 6];

/// Indexes of a host's figures in a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    Active = 0,
    Total = 1,
    Refused = 2,
    BytesIn = 3,
    BytesOut = 4,
    /// 0: unknown, 1: healthy, 2: unhealthy.
    Health = 5,
}

/// Returns the health that a sample shows.
#[must_use]
pub const fn sampled_health(figure: u64) -> HostHealth {
    match figure {
        1 => HostHealth::Healthy,
        2 => HostHealth::Unhealthy,
        _ => HostHealth::Unknown,
    }
}

/// Figures of the whole balancer. Totals count since the process' start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct OverallFigures {
    pub active: u32,
    pub total: u64,
    pub refused: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub usable_hosts: u32,
    pub unhealthy_hosts: u32,
    /// Connections on each tier.
    pub tiers: BTreeMap<Label, u32>,
    /// Connections that were not cut, by reason.
    pub not_cut: BTreeMap<Label, u64>,
}
