//! `GET /api/v1/services`: layer-4 services.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use signalbox_core::discovered::expose::{ExposedEntry, PortRange};

use crate::Label;

/// Services, and what hinders them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ServicesAnswer {
    pub services: Vec<ServiceView>,
    pub ranges: Vec<PortRange>,
    pub not_exposed: Vec<ExposedService>,
    pub hooks: Vec<HookView>,
    pub troubles: Vec<String>,
}

/// A service with its counts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ServiceView {
    pub name: String,
    pub protocol: Label,
    pub listen: Vec<String>,
    pub cluster: String,
    /// Cluster whose hosts get flows while no host of `cluster` can.
    pub backup: Option<String>,
    /// Application, `NAMESPACE/APP`, whose endpoints the service exposes.
    pub application: Option<String>,
    pub mode: Label,
    pub affinity: Label,
    /// Number of connections and sessions that both sides have confirmed.
    pub flows: u32,
    pub flows_total: u64,
    pub packets_in: u64,
    pub packets_out: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub hosts: Vec<ServiceHost>,
}

/// A host of a service.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServiceHost {
    pub name: String,
    #[serde(default)]
    pub cluster: String,
    pub address: IpAddr,
    /// Port of the host, if it differs from the service's port.
    #[serde(default)]
    pub port: Option<u16>,
    /// Share of the table's slots that currently lead to the host, in percent.
    #[serde(default)]
    pub share: f64,
    /// True if the host, or its cluster, gets flows only while no other can.
    #[serde(default)]
    pub backup: bool,
    #[serde(default)]
    pub flows: u32,
    /// True if the host's Ethernet address is known.
    #[serde(default)]
    pub reachable: bool,
}

/// Endpoints of an application with one port name, as a service or not.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExposedService {
    pub service: String,
    #[serde(flatten)]
    pub entry: ExposedEntry,
}

/// An interface with one of the programs attached.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct HookView {
    pub interface: String,
    /// `xdp`, `tc`, or `tc_ip` for the shield alone at an interface without Ethernet.
    pub hook: Label,
    /// Reason for that hook.
    pub why: String,
    /// Index of the interface, which its name may no longer lead to.
    #[serde(skip)]
    pub index: u32,
}
