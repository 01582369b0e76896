//! Part of each cluster's hosts that this balancer uses.

use serde::Serialize;

/// Number of a cluster's hosts that a balancer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SubsetSize {
    /// All hosts.
    All,
    /// Number of hosts.
    Hosts(u32),
    /// Percentage of the hosts, rounded up.
    Percent(u32),
}

impl SubsetSize {
    /// Number of hosts that the size makes of `hosts`: at least one where there are any.
    #[must_use]
    pub fn of(self, hosts: usize) -> usize {
        let wanted = match self {
            Self::All => hosts,
            Self::Hosts(count) => count as usize,
            Self::Percent(percent) => (hosts * percent as usize).div_ceil(100),
        };
        wanted.clamp(1.min(hosts), hosts)
    }
}

/// Part of each cluster's hosts that this balancer uses, where the cluster says nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Subset {
    /// Name by which the other balancers know this one; `None`: the machine's host name.
    pub name: Option<String>,
    /// Number of hosts used of each cluster.
    pub size: SubsetSize,
}
