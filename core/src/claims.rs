//! Turns a cluster's objects into what it serves: names by the rules of OpenShift's router, hosts from router pods.
//!
//! Pure: the same objects in any order give the same [`Learned`]. Called by `userspace::source::kube` with all that
//! it holds, after each change; nothing is remembered from one time to the next.

mod annotations;
mod choice;
mod gateways;
mod names;
mod object;
mod owners;
pub mod reason;
mod routers;

#[cfg(test)]
mod tests;

pub use annotations::is_read;
pub use gateways::{Gateway, Listener, Parent};
pub use object::{Admission, IngressClass, Kind, Node, Object, RouterPod, Said};

use crate::learned::Learned;
use crate::model::kubernetes::{AddressType, Choice};

/// What is decided by the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Which objects the routers serve.
    pub choice: Choice,
    /// Whether the objects were chosen by their labels before they came here.
    pub labelled: bool,
    /// Whether wildcards are served.
    pub wildcards: bool,
    /// Which of a node's addresses is used.
    pub address: AddressType,
    /// The port for `http` listeners; `None`: the pod's.
    pub http: Option<u16>,
    /// The port for `tls` listeners; `None`: the pod's.
    pub https: Option<u16>,
}

/// All that is seen of a cluster, in any order.
#[derive(Clone, Debug, Default)]
pub struct Seen<'a> {
    /// Routes, Ingresses and routes of the Gateway API, which ask for names.
    pub objects: Vec<&'a Object>,
    /// Pods that run routers.
    pub pods: Vec<&'a RouterPod>,
    /// Nodes of these pods; may be empty unless external addresses are wanted.
    pub nodes: Vec<&'a Node>,
    /// The namespaces that match [`Choice::namespace_labels`]; `None`: these may not be seen.
    pub namespaces: Option<Vec<&'a str>>,
    /// The classes of Ingresses; `None`: these may not be seen.
    pub ingress_classes: Option<Vec<&'a IngressClass>>,
    /// Gateways, at least those that are chosen by name; `None`: these may not be seen.
    pub gateways: Option<Vec<&'a Gateway>>,
}

/// The names that a cluster serves, and the hosts of its routers.
#[must_use]
pub fn learn(seen: Seen<'_>, rules: &Rules) -> Learned {
    let chooser = choice::Chooser::new(&seen, rules);
    let (routes, mut rejected) = names::settle(seen.objects, &chooser, rules);
    let hosts = routers::hosts(seen.pods, seen.nodes, rules, &mut rejected);
    rejected.sort_unstable();
    Learned {
        hosts,
        routes,
        rejected,
        endpoints: Vec::new(),
    }
}
