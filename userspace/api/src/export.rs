//! `GET /api/v1/export?format=json`: the routing table.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::Label;
use crate::hosts::HostHealth;

/// The whole table.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExportAnswer {
    pub names: Vec<ExportedName>,
    pub clusters: Vec<ExportedCluster>,
}

/// A name with the weights of its clusters.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExportedName {
    pub host: String,
    pub clusters: Vec<ExportedShare>,
    pub out_of_rotation: bool,
}

/// Weight of a cluster.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExportedShare {
    pub cluster: Option<String>,
    pub weight: u32,
}

/// A cluster with its hosts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExportedCluster {
    pub name: String,
    pub balance: Label,
    pub proxy_protocol: bool,
    pub hosts: Vec<ExportedHost>,
}

/// A host with its ports.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExportedHost {
    pub name: String,
    pub address: IpAddr,
    pub http: Option<u16>,
    pub https: Option<u16>,
    pub tcp: Option<u16>,
    /// Ports for layer-4 services, by the services' names.
    pub ports: BTreeMap<String, u16>,
    pub weight: u32,
    pub health: HostHealth,
    pub out_of_rotation: bool,
}
