//! What `signalbox agent` is told to do.

use super::Balancer;
use super::kubernetes::KubernetesSource;

/// What an agent does.
#[derive(Debug)]
pub struct Agent {
    /// The cluster's name, as balancers know it.
    pub cluster: String,
    /// How the cluster is watched.
    pub source: KubernetesSource,
    /// Who is told.
    pub balancers: Vec<Balancer>,
}
