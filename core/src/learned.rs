//! What sources other than the file know: which router hosts a cluster has, and which names it serves.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::labels::LabelSets;
use crate::model::Host;
use crate::name::{Depth, HostPattern};

/// Weights of a route's clusters; 0 gets nothing.
pub const WEIGHTS: std::ops::RangeInclusive<u32> = 0..=100;

/// Weights of hosts.
const HOST_WEIGHTS: std::ops::RangeInclusive<u32> = 1..=100;

/// All that one source knows of one cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Learned {
    /// Its router hosts; names are unique.
    #[serde(default)]
    pub hosts: Vec<Host>,
    /// The names that it serves; each once.
    #[serde(default)]
    pub routes: Vec<Claim>,
    /// What is defined there but not served, for a person to see.
    #[serde(default)]
    pub rejected: Vec<Rejected>,
    /// Endpoints of an application, which [`crate::expose`] may make services of. Never told by an API: the source has
    /// records of its own.
    #[serde(skip)]
    pub endpoints: Vec<Reachable>,
}

/// An endpoint of an application, whatever it speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reachable {
    /// The name of its host.
    pub host: String,
    /// Where it is.
    pub at: SocketAddr,
    /// The port's name in its cartridge, `tcp` where it has none: characters of names alone.
    pub port_name: String,
    /// What it speaks.
    pub protocols: BTreeSet<String>,
    /// It gets no connections.
    pub is_stopped: bool,
}

/// A name that a cluster serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The name.
    pub host: HostPattern,
    /// How many labels its star stands for, if it has one.
    #[serde(default, skip_serializing_if = "Depth::is_any")]
    pub depth: Depth,
    /// The cluster's share of the name's connections, in proportion to other clusters' that serve it: one of
    /// [`WEIGHTS`]. Nothing where nobody has said it: [`crate::join`] has it then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Whose it is: a namespace. Empty where the source knows no owners.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// Since when it is there, in seconds of Unix time; 0 where that is not known yet.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub since: u64,
    /// What it comes from, as a person knows it: `Route shop/web`.
    pub origin: String,
    /// What is asked for there and not done, such as annotations that only a router can obey.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The labels of the objects that it comes from. Selectors of names go by them.
    #[serde(default, skip_serializing_if = "LabelSets::is_empty")]
    pub labels: LabelSets,
}

/// Something that does not become a route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rejected {
    /// The name that it asked for.
    pub host: String,
    /// What it is.
    pub origin: String,
    /// Why not.
    pub reason: String,
    /// Who has the name instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rival: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What all sources know: by source, then by cluster.
pub type Lore = BTreeMap<String, BTreeMap<String, std::sync::Arc<Learned>>>;

impl Learned {
    /// The same, if it keeps its promises; what does not is named.
    pub fn checked(self) -> Result<Self, String> {
        let mut names = HashSet::new();
        for host in &self.hosts {
            if !names.insert(&host.name) {
                return Err(format!("there are two hosts {:?}", host.name));
            }
            if host.name.is_empty() || !HOST_WEIGHTS.contains(&host.weight) {
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
            if !patterns.insert(&claim.host) {
                return Err(format!("there are two routes {}", claim.host));
            }
            if let Some(weight) = claim.weight.filter(|weight| !WEIGHTS.contains(weight)) {
                return Err(format!("route {}: weight {weight} is not 0 to 100", claim.host));
            }
            if let Some(wrong) = claim.labels.wrong() {
                return Err(format!("route {}: {wrong:?} is no label of Kubernetes", claim.host));
            }
        }
        Ok(self)
    }
}
