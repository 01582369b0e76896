//! The configuration of `signalbox agent`.

use super::Balancer;
use super::kubernetes::KubernetesSource;
use serde::Serialize;

/// Configuration of an agent.
#[derive(Debug, Serialize)]
pub struct Agent {
    /// Name of the cluster, as balancers know it.
    pub cluster: String,
    /// API server that the agent watches.
    pub source: KubernetesSource,
    /// Balancers that the agent reports to.
    pub balancers: Vec<Balancer>,
}
