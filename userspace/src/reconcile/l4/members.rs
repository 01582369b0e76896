//! Hosts in a service's Maglev table.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use signalbox_core::model::services::Mode;
use signalbox_core::model::{Cluster, Host, Model, Service};

use crate::state::Snapshot;

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

/// Returns the clusters whose hosts a service can send to: its own, and the backup.
pub(super) fn clusters_of<'a>(model: &'a Model, service: &Service) -> impl Iterator<Item = &'a Cluster> {
    let clusters = service.clusters().both();
    clusters.filter_map(|at| model.clusters.get(at))
}

/// Returns the hosts of a family, by their places in the cluster, each with whether it is eligible.
fn of_family<'a>(
    cluster: &'a Cluster,
    family: TableFamily,
    standing: &[u16],
) -> impl Iterator<Item = (u16, &'a Host, bool)> {
    let hosts = (0u16..).zip(&cluster.hosts);
    hosts
        .filter(move |(_, host)| family.has(host.address))
        .map(move |(at, host)| (at, host, standing.binary_search(&at).is_ok()))
}

/// Returns the hosts for a cluster's table, by their places in the cluster, each with whether it is eligible: all hosts
/// that are not backups, or the backups if only they are eligible.
pub(super) fn members<'a>(cluster: &'a Cluster, family: TableFamily, standing: &[u16]) -> Vec<(u16, &'a Host, bool)> {
    let mut hosts: Vec<_> = of_family(cluster, family, standing).collect();
    let any_stands = |backup| hosts.iter().any(|(_, host, stands)| *stands && host.backup == backup);
    let by_backups = !any_stands(false) && any_stands(true);
    hosts.retain(|(_, host, _)| host.backup == by_backups);
    hosts
}

/// Returns which of a service's clusters gets new flows that need hosts of a family.
pub(super) fn taking(snapshot: &Snapshot, service: &Service, family: TableFamily) -> usize {
    let view = &snapshot.view;
    view.taking_by(service.clusters(), |at| {
        let cluster = snapshot.model.clusters.get(at);
        let stands = |cluster| of_family(cluster, family, view.eligible_hosts(at)).any(|(_, _, stands)| stands);
        cluster.is_some_and(stands)
    })
}

/// Returns whether packets for an address of a service can go to a host, by the family of the host's address.
pub fn can_take(service: &Service, address: IpAddr, host: &Host) -> bool {
    family(service.mode, address).has(host.address)
}

/// Returns the hosts that get new flows for an address of a service, as places of cluster and host.
pub fn takers(snapshot: &Snapshot, service: &Service, address: IpAddr) -> HashSet<(usize, u16)> {
    let family = family(service.mode, address);
    let at = taking(snapshot, service, family);
    let cluster = snapshot.model.clusters.get(at);
    let hosts = cluster.map(|cluster| members(cluster, family, snapshot.view.eligible_hosts(at)));
    let standing = hosts.into_iter().flatten().filter(|(_, _, stands)| *stands);
    standing.map(|(host, ..)| (at, host)).collect()
}
