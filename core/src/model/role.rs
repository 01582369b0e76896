//! Role of a cluster's hosts.

use serde::Serialize;

/// Role of a cluster's hosts: decides whether they or the balancer obey the annotations of Routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClusterRole {
    /// OpenShift's routers, which obey annotations themselves, as far as they see the client.
    #[default]
    Routers,
    /// Servers, which know nothing of annotations: gears, pods.
    Servers,
}

impl ClusterRole {
    /// All roles, with their words in the configuration.
    pub const ALL: [(&'static str, Self); 2] = [("routers", Self::Routers), ("servers", Self::Servers)];
}
