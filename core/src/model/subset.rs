//! What part of each cluster's hosts this balancer uses.

use crate::subset::Size;

/// What part of each cluster's hosts this balancer uses, where the cluster says nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subset {
    /// What the other balancers call this one; `None`: the machine's host name.
    pub name: Option<String>,
    /// How many hosts of each cluster.
    pub size: Size,
}
