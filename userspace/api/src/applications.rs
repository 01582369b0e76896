//! `GET /api/v1/applications/{namespace}/{name}`: the routing table of an application.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use signalbox_core::discovered::spi::Mapping;

use crate::hosts::HostHealth;
use crate::services::ExposedService;

/// Names, addresses and endpoints of an application.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ApplicationDetails {
    pub namespace: String,
    pub name: String,
    pub announced: bool,
    pub stopped: bool,
    /// Gears that events have taken out of rotation, each with the reason; the whole application by an empty name.
    pub rotated_out_by_events: BTreeMap<String, String>,
    pub geographies: BTreeSet<String>,
    pub scalable: Option<bool>,
    pub ha: bool,
    pub hostnames: Vec<String>,
    pub urls: Vec<String>,
    pub balancers: Vec<BalancerEndpoint>,
    pub endpoints: Vec<EndpointView>,
    pub exposed: Vec<ExposedService>,
    /// Names with a certificate.
    pub certificates: Vec<String>,
}

/// An endpoint that receives the application's connections for the others.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BalancerEndpoint {
    pub address: IpAddr,
    pub port: u16,
    pub gear_id: Option<String>,
}

/// An endpoint of an application, and the host that it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EndpointView {
    pub host: String,
    pub address: IpAddr,
    pub port: u16,
    pub gear_id: Option<String>,
    pub port_name: Option<String>,
    pub types: BTreeSet<String>,
    pub protocols: BTreeSet<String>,
    pub mappings: Vec<Mapping>,
    pub hostnames: Vec<String>,
    pub stopped: bool,
    pub geographies: BTreeSet<String>,
    pub takes_connections: bool,
    /// Absent if the endpoint takes no connections.
    pub health: Option<HostHealth>,
    /// Subject that takes the host out of rotation.
    pub out_of_rotation: Option<String>,
}
