//! Sources of clusters, applications of routing events, and certificates.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use signalbox_core::discovered::discovery::Rejected;

use crate::Label;

/// `GET /api/v1/sources`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SourcesAnswer {
    pub sources: Vec<SourceView>,
}

/// A source and its report.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SourceView {
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub connected: bool,
    /// Absent if the source has not been heard of by this process.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub contact: Option<SourceContact>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clusters: Option<Vec<ClusterReport>>,
}

/// Contact with a source.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SourceContact {
    pub kind: Label,
    #[serde(default)]
    pub seconds_since_heard: Option<f64>,
    #[serde(default)]
    pub failures: u64,
    /// Events, by kind.
    #[serde(default)]
    pub events: BTreeMap<Label, u64>,
    #[serde(default)]
    pub notes: BTreeMap<String, String>,
    #[serde(default)]
    pub last_error: Option<String>,
}

/// Report of a source about a cluster.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ClusterReport {
    pub cluster: String,
    pub hosts: usize,
    pub routes: usize,
    pub rejected: Vec<Rejected>,
}

/// Answer to a report about a cluster.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DiscoveryAnswer {
    pub hosts: usize,
    pub routes: usize,
    pub rejected: Vec<Rejected>,
}

/// `GET /api/v1/applications`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ApplicationsAnswer {
    /// Number of all that match.
    pub total: usize,
    pub applications: Vec<ApplicationView>,
}

/// An application of OpenShift's routing events.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ApplicationView {
    pub namespace: String,
    pub name: String,
    pub scalable: Option<bool>,
    pub ha: Option<bool>,
    /// Number of endpoints.
    pub endpoints: usize,
    pub aliases: Vec<String>,
    /// Addresses of its layer-4 services.
    pub exposed: Vec<String>,
    /// Names of services that could not be created.
    pub not_exposed: Vec<String>,
}

/// `GET /api/v1/certificates`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CertificatesAnswer {
    pub certificates: Vec<CertificateView>,
    /// Files that cannot be used, each with the reason.
    pub errors: Vec<String>,
}

/// An active certificate, without its key.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CertificateView {
    pub label: String,
    pub names: Vec<String>,
    pub default: bool,
    /// Kind of the key.
    pub key: String,
    pub subject: String,
    pub issuer: String,
    pub not_before: u64,
    pub not_after: u64,
    pub state: Label,
    pub days_left: i64,
    pub warnings: Vec<String>,
}

/// Answers to changes of certificates.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CertificateChange {
    /// Label of a certificate that was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removed: Option<String>,
    /// Whether the certificate is active now.
    pub in_force: bool,
    /// Certificate that was set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<CertificateView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warnings: Option<Vec<String>>,
}
