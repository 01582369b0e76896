//! Hosts in a service's Maglev table.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use signalbox_core::model::services::Mode;
use signalbox_core::model::{Cluster, Host};

/// Address family of a table's hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum TableFamily {
    V4,
    V6,
    Any,
}

impl TableFamily {
    pub(super) fn has(self, address: IpAddr) -> bool {
        match self {
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
            Self::Any => true,
        }
    }
}

/// A table in the kernel.
pub(super) struct SlotTable {
    pub(super) index: u32,
    /// Hosts that may be in the table, with weights. `base_slots` is the table with all of them.
    pub(super) members: Vec<(u32, u32)>,
    pub(super) base_slots: Box<[u16]>,
    /// Hosts that are currently in the table.
    pub(super) current: HashSet<u32>,
    pub(super) shares: HashMap<u32, f64>,
}

/// Returns the family of hosts that can receive packets for an address.
pub(super) fn family(mode: Mode, address: IpAddr) -> TableFamily {
    match (mode, address) {
        (Mode::Nat, IpAddr::V4(_)) => TableFamily::V4,
        (Mode::Nat, IpAddr::V6(_)) => TableFamily::V6,
        (Mode::DsrL2 | Mode::DsrIpip, _) => TableFamily::Any,
    }
}

/// Returns the hosts for a cluster's table, each with whether it is eligible: all hosts that are not backups, or the
/// backups if only they are eligible.
pub(super) fn members<'a>(cluster: &'a Cluster, family: TableFamily, standing: &[u16]) -> Vec<(&'a Host, bool)> {
    let of_family = (0u16..)
        .zip(&cluster.hosts)
        .filter(|(_, host)| family.has(host.address));
    let mut hosts: Vec<_> = of_family
        .map(|(at, host)| (host, standing.binary_search(&at).is_ok()))
        .collect();
    let any_stands = |backup| hosts.iter().any(|(host, stands)| *stands && host.backup == backup);
    let by_backups = !any_stands(false) && any_stands(true);
    hosts.retain(|(host, _)| host.backup == by_backups);
    hosts
}
