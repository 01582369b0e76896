//! Facts that sources report, apart from the file: the router hosts of a cluster, and the names that it serves.

mod route_settings;

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::model::labels::LabelSets;
use crate::model::tls::{InsecurePolicy, Termination};
use crate::model::{AppEndpoint, Host};
use crate::wire::hostname::{HostnamePattern, WildcardDepth};

pub use route_settings::{HeaderAction, MAX_LIMIT, RouteSettings};

/// Range of the weights of a route's clusters; a cluster with 0 gets nothing.
pub const WEIGHT_RANGE: std::ops::RangeInclusive<u32> = 0..=100;

/// Range of the weights of hosts.
const HOST_WEIGHT_RANGE: std::ops::RangeInclusive<u32> = 1..=100;

/// All that one source knows of one cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClusterDiscovery {
    /// Router hosts of the cluster; their names are unique.
    #[serde(default)]
    pub hosts: Vec<Host>,
    /// Names that the cluster serves; each once.
    #[serde(default)]
    pub routes: Vec<Claim>,
    /// Objects and names that the cluster defines but does not serve, for a person to see.
    #[serde(default)]
    pub rejected: Vec<Rejected>,
    /// Endpoints of an application, which [`crate::discovered::expose`] may make services of. An API never sets this field: only
    /// the source that does keeps such records.
    #[serde(skip)]
    pub endpoints: Vec<AppEndpoint>,
}

/// Claim: a name that a cluster serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Claim {
    /// Name that is claimed.
    #[serde(rename = "host")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub hostname: HostnamePattern,
    /// Number of labels that the name's star stands for, if it has one.
    #[serde(default, skip_serializing_if = "WildcardDepth::is_any")]
    pub depth: WildcardDepth,
    /// Share of the name's connections, in proportion to those of other clusters that serve it: one of
    /// [`WEIGHT_RANGE`]. `None`: no weight is set, and `join` of the configuration decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Namespace that owns the claim; empty where the source knows no owners.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// Time since when the claim exists, in seconds of Unix time; 0 where that is not known yet.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub since: u64,
    /// Object that the claim comes from, as a person knows it: `Route shop/web`.
    pub origin: String,
    /// Notes on settings of the objects that make no sense or have no effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Settings of each object that shares the name, by its path; empty where none of them asks for anything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<RouteSettings>,
    /// Labels of the objects that the claim comes from, for selectors of names.
    #[serde(default, skip_serializing_if = "LabelSets::is_empty")]
    pub labels: LabelSets,
    /// Place where TLS ends, if the source knows. [`Termination::Edge`] and [`Termination::Reencrypt`] hold only where
    /// some certificate is for the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination: Option<Termination>,
    /// Whether servers behind the routers get plain HTTP where TLS ends at the routers. For clusters whose hosts are such
    /// servers, [`Termination::Reencrypt`] is [`Termination::Edge`] then.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_edge: bool,
    /// Treatment of plain HTTP: the loosest that the objects of the name ask for.
    #[serde(default, skip_serializing_if = "InsecurePolicy::is_allow")]
    pub insecure: InsecurePolicy,
    /// Certificate of the name. Only the source itself follows it, so it is neither told nor kept.
    #[serde(skip)]
    pub certificate: Option<CertificateOrigin>,
}

/// Object of a cluster that holds a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CertificateOrigin {
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Whether the object is a Secret; otherwise it is a Route.
    pub is_secret: bool,
}

/// Object or name that does not become a route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rejected {
    /// Name that the object asked for.
    #[serde(rename = "host")]
    pub hostname: String,
    /// Object that asked, as a person knows it.
    pub origin: String,
    /// Reason for the rejection.
    pub reason: String,
    /// Object that has the name instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rival: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Knowledge of all sources: by source, then by cluster.
pub type Discovered = BTreeMap<String, BTreeMap<String, std::sync::Arc<ClusterDiscovery>>>;

impl ClusterDiscovery {
    /// Returns this knowledge if it keeps the promises of its fields; otherwise the first broken promise, by name.
    pub fn validated(self) -> Result<Self, String> {
        let mut names = HashSet::new();
        for host in &self.hosts {
            if !names.insert(&host.name) {
                return Err(format!("there are two hosts {:?}", host.name));
            }
            if host.name.is_empty() || !HOST_WEIGHT_RANGE.contains(&host.weight) {
                return Err(format!(
                    "host {:?}: it needs a name, and a weight from 1 to 100",
                    host.name
                ));
            }
            let ports = [host.http, host.https, host.tcp];
            let named = !host.ports.is_empty();
            if ports == [None; 3] && !named || ports.contains(&Some(0)) || host.ports.values().any(|port| *port == 0) {
                return Err(format!("host {:?}: it needs a port, and none is 0", host.name));
            }
        }
        let mut patterns = HashSet::new();
        for claim in &self.routes {
            if !patterns.insert(&claim.hostname) {
                return Err(format!("there are two routes {}", claim.hostname));
            }
            if let Some(weight) = claim.weight.filter(|weight| !WEIGHT_RANGE.contains(weight)) {
                return Err(format!("route {}: weight {weight} is not 0 to 100", claim.hostname));
            }
            if let Some(wrong) = claim.labels.invalid_label() {
                return Err(format!("route {}: {wrong:?} is not a Kubernetes label", claim.hostname));
            }
            if let Some(promise) = claim.settings.iter().find_map(RouteSettings::invalid_field) {
                return Err(format!("route {}: settings: {promise}", claim.hostname));
            }
        }
        Ok(self)
    }
}
