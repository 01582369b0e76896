//! Turns a cluster's objects into what it serves: names by the rules of OpenShift's router, hosts from router pods.
//!
//! Pure: the same objects in any order give the same [`Learned`]. Called by `userspace::source::kube` with all that
//! it holds, after each change; nothing is remembered from one time to the next.

mod annotations;
mod names;
mod object;
mod owners;
mod routers;

#[cfg(test)]
mod tests;

pub use annotations::is_read;
pub use object::{Admission, Kind, Node, Object, RouterPod};

use crate::learned::Learned;
use crate::model::kubernetes::AddressType;

/// The first label of the reasons for which something is not served: the words of OpenShift's router.
pub mod reason {
    /// Another object has the name.
    pub const CLAIMED: &str = "HostAlreadyClaimed";
    /// It asks for no name.
    pub const NO_HOST: &str = "NoHostValue";
    /// What it asks for is not a name.
    pub const INVALID: &str = "InvalidHost";
    /// The router, or a setting, does not let it.
    pub const NOT_ADMITTED: &str = "RouteNotAdmitted";
}

/// What is decided by the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Whether wildcards are served.
    pub wildcards: bool,
    /// Which of a node's addresses is used.
    pub address: AddressType,
    /// The port for `http` listeners; `None`: the pod's.
    pub http: Option<u16>,
    /// The port for `tls` listeners; `None`: the pod's.
    pub https: Option<u16>,
}

/// What a cluster with these objects serves, and where. `nodes` may be empty unless external addresses are wanted.
pub fn learn<'a>(
    objects: impl IntoIterator<Item = &'a Object>,
    pods: impl IntoIterator<Item = &'a RouterPod>,
    nodes: impl IntoIterator<Item = &'a Node>,
    rules: &Rules,
) -> Learned {
    let (routes, mut rejected) = names::settle(objects.into_iter().collect(), rules);
    let hosts = routers::hosts(pods, nodes, rules, &mut rejected);
    rejected.sort_unstable();
    Learned {
        hosts,
        routes,
        rejected,
    }
}
