//! Turns a cluster's objects into what it serves: names by the rules of OpenShift's router, hosts from router pods.
//!
//! Pure: the same objects in any order give the same [`ClusterDiscovery`]. Called by `userspace::source::kube` with all
//! objects, after each change. Nothing is remembered between calls.

pub(crate) mod annotations;
mod gateways;
mod names;
mod object;
mod owners;
pub mod reason;
mod routers;
mod shard;

#[cfg(test)]
pub(crate) mod tests;

pub use annotations::is_known_annotation;
pub use gateways::{Gateway, GatewayListener};
pub use object::{
    Admission, HeaderActions, IngressClass, NamedCertificate, Node, Object, ObjectKind, Parent, RouterPod, RouterStatus,
};

use crate::discovered::discovery::ClusterDiscovery;
use crate::model::kubernetes::{AddressType, ShardFilter};

/// Rules that the configuration sets for a cluster: which objects count, and how its hosts are addressed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimRules {
    /// Choice of the objects that the routers serve.
    pub shard: ShardFilter,
    /// Whether the objects were chosen by their labels before they came here.
    pub filtered_by_label: bool,
    /// Whether wildcard names are served.
    pub wildcards: bool,
    /// Whether the balancer itself ends the TLS of names whose TLS would end at the routers.
    pub takes_certificates: bool,
    /// Type of the node address at which a router is reached.
    pub address_type: AddressType,
    /// Port of the hosts for `http` listeners; `None`: the router pod's own.
    pub http: Option<u16>,
    /// Port of the hosts for `tls` listeners; `None`: the router pod's own.
    pub https: Option<u16>,
}

/// All objects seen of a cluster, in any order.
#[derive(Clone, Debug, Default)]
pub struct ClusterObjects<'a> {
    /// Routes, Ingresses and routes of the Gateway API, which ask for names.
    pub objects: Vec<&'a Object>,
    /// Pods that run routers.
    pub pods: Vec<&'a RouterPod>,
    /// Nodes of these pods; may be empty unless external addresses are configured.
    pub nodes: Vec<&'a Node>,
    /// Namespaces that match [`ShardFilter::namespace_labels`]; `None`: signalbox may not list namespaces.
    pub namespaces: Option<Vec<&'a str>>,
    /// Classes of Ingresses; `None`: signalbox may not list them.
    pub ingress_classes: Option<Vec<&'a IngressClass>>,
    /// Gateways, at least those that are chosen by name; `None`: signalbox may not list them.
    pub gateways: Option<Vec<&'a Gateway>>,
}

/// Works out the names that a cluster serves, and the hosts of its routers.
#[must_use]
pub fn discover(seen: ClusterObjects<'_>, rules: &ClaimRules) -> ClusterDiscovery {
    let chooser = shard::ShardMatcher::new(&seen, rules);
    let (routes, mut rejected) = names::resolve_claims(seen.objects, &chooser, rules);
    let hosts = routers::hosts(seen.pods, seen.nodes, rules, &mut rejected);
    rejected.sort_unstable();
    ClusterDiscovery {
        hosts,
        routes,
        rejected,
        endpoints: Vec::new(),
    }
}
