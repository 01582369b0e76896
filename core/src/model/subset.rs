//! Part of each cluster's hosts that this balancer uses.

use crate::subset::SubsetSize;

/// Part of each cluster's hosts that this balancer uses, where the cluster says nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subset {
    /// Name by which the other balancers know this one; `None`: the machine's host name.
    pub name: Option<String>,
    /// Number of hosts used of each cluster.
    pub size: SubsetSize,
}
