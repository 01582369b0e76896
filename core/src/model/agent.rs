//! The configuration of `signalbox agent`.

use super::Balancer;
use super::kubernetes::KubernetesSource;

/// The configuration of an agent.
#[derive(Debug)]
pub struct Agent {
    /// The cluster's name, as balancers know it.
    pub cluster: String,
    /// How the cluster is watched.
    pub source: KubernetesSource,
    /// Balancers that the agent tells what it learns.
    pub balancers: Vec<Balancer>,
}
