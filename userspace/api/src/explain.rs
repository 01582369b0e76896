//! `GET /api/v1/explain`: where connections go, and why.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use signalbox_core::discovered::discovery::Rejected;

use crate::Label;
use crate::shield::ShieldVerdict;

/// Answer for a name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct NameExplanation {
    pub host: String,
    pub client: Option<IpAddr>,
    /// Route that the name has.
    pub route: Option<RouteOrigins>,
    /// Name of a similar route, if no route has the name.
    pub did_you_mean: Option<String>,
    /// Routes and claims of the name that have no effect.
    pub lost: Vec<LostClaim>,
    pub listeners: Vec<ListenerExplanation>,
}

/// A route, and the objects that it comes from.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RouteOrigins {
    pub host: String,
    /// Number of labels that the star matches; `None` without a star.
    pub labels: Option<Label>,
    pub origins: Vec<RouteOrigin>,
    pub weights_set_by_api: bool,
    pub out_of_rotation: bool,
}

/// An object that a route comes from.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RouteOrigin {
    pub source: String,
    /// Claim of the object; absent for the configuration file.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimView>,
}

/// Claim of an object of a cluster.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClaimView {
    pub cluster: String,
    pub origin: String,
    pub weight: Option<u32>,
    #[serde(default)]
    pub notes: Vec<String>,
    /// Settings of the object's annotations, as sentences.
    #[serde(default)]
    pub settings: Vec<String>,
}

/// A route or claim that has no effect on the name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LostClaim {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<RouteOrigins>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejected: Option<Rejected>,
    pub reason: String,
}

/// Treatment of the name's connections at a listener.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ListenerExplanation {
    pub listener: String,
    /// Verdict of the shield; `None` without a client.
    pub shield: Option<ShieldVerdict>,
    pub protocol: Label,
    /// `None` for a listener without certificates.
    pub tls: Option<TlsExplanation>,
    pub verdict: Label,
    /// Answer to a client that is refused.
    pub client_gets: Option<String>,
    /// Treatment of requests, as sentences.
    pub requests: Vec<String>,
    pub clusters: Vec<ShareExplanation>,
    /// Cluster that the route prefers for the client.
    pub preferred_cluster: Option<String>,
    /// Host of the next connection, as `CLUSTER/HOST`.
    pub next_host: Option<String>,
    pub datapath: DatapathExplanation,
}

/// Place where TLS of the name ends, and the label of the certificate.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct TlsExplanation {
    pub termination: Label,
    pub certificate: Option<String>,
}

/// A cluster that may get the connections.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ShareExplanation {
    pub name: String,
    pub weight: u32,
    /// Share of the connections at present.
    pub share_percent: f64,
    pub balance: Label,
    /// Reason why the cluster has no hosts yet.
    pub waits_for: Option<String>,
    /// True for the backup of a listener's cluster.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub backup: bool,
    /// HTTP version that hosts are spoken to in; absent where no host is chosen by request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    pub hosts: Vec<HostExplanation>,
}

/// A host of a cluster that may get the connections.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct HostExplanation {
    pub name: String,
    pub weight: u32,
    pub active_connections: u32,
    /// Place in this balancer's subset.
    pub subset: Option<Label>,
    pub backup: bool,
    pub takes_connections: bool,
    /// Reason why the host takes no connections; empty if it does.
    pub reason: Label,
}

/// Path of the connection through the kernel or userspace.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DatapathExplanation {
    pub tier: Label,
    pub verdict: Label,
    /// Label of the reason in `signalbox_not_cut_total`.
    pub not_cut: Option<Label>,
    /// Label of the reason why a connection's last request is not cut either.
    pub last_request: Option<Label>,
    pub reason: String,
    pub kernel_peek: KernelPeekExplanation,
}

/// Whether the kernel routes the connection.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct KernelPeekExplanation {
    pub routed: bool,
    /// True if that holds only for some clients, and no client was named.
    pub depends_on_client: bool,
    /// All reasons why a worker routes it.
    pub left_to_userspace: Vec<PathReason>,
}

/// A reason why a worker routes a connection, and not the kernel.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct PathReason {
    /// Value of the label `reason` in `signalbox_connections_path_total`.
    pub label: Label,
    /// Item that causes it, such as `cluster v1`.
    pub of: String,
    pub reason: Label,
    /// Advice for an operator. Absent if nothing should be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Label>,
}

/// Answer for an address and port.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AddressExplanation {
    pub address: SocketAddr,
    pub client: Option<IpAddr>,
    pub service: Option<String>,
    /// Transport protocols of the services at the address.
    #[serde(default)]
    pub protocols: Vec<Label>,
    pub listener: Option<String>,
    /// Application that is exposed there.
    pub application: Option<String>,
    /// Endpoints of the application that are no hosts, with the reason.
    pub left_out: Option<BTreeMap<String, String>>,
    /// Reason why no application gets the port.
    pub clash: Option<String>,
    pub shield: Option<ShieldVerdict>,
    pub hosts: Option<Vec<AddressHost>>,
}

/// A host of the service at an address.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AddressHost {
    pub name: String,
    pub cluster: String,
    pub address: IpAddr,
    pub port: Option<u16>,
    pub takes_connections: bool,
    /// Reason why the host takes no connections; empty if it does.
    #[serde(default)]
    pub reason: Label,
}

/// Answer for what was asked: an address and port, or a name.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Explanation {
    Address(AddressExplanation),
    Name(NameExplanation),
}
