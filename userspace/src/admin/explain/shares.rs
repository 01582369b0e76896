//! Clusters that may get the connections of a name, and why their hosts do or do not take them.

use std::sync::atomic::Ordering::Relaxed;

use signalbox_api::explain::{HostExplanation, ShareExplanation};
use signalbox_core::model::{Cluster, Protocol};

use super::views;
use crate::state::{HostState, Snapshot};

/// Shows a cluster as a backup. Unless it takes connections, neither do its hosts.
pub(super) fn mark_backup(cluster: &mut ShareExplanation, takes: bool) {
    cluster.backup = true;
    let hosts = cluster.hosts.iter_mut().filter(|host| !takes && host.takes_connections);
    for host in hosts {
        host.takes_connections = false;
        host.reason = STANDS_BY.into();
    }
}

/// Returns the HTTP versions used with the hosts of a cluster.
pub(super) fn http_text(cluster: &Cluster, protocol: Protocol) -> String {
    match protocol {
        Protocol::Tls => {
            let names: Vec<_> = cluster
                .backend_tls
                .alpn
                .iter()
                .map(|version| version.as_str())
                .collect();
            format!("in TLS, offered {}", names.join(", "))
        }
        _ if cluster.h2c => "in HTTP/2 with prior knowledge".to_owned(),
        _ => "in HTTP/1.1".to_owned(),
    }
}

pub(super) fn cluster_view(
    snapshot: &Snapshot,
    protocol: Protocol,
    at: usize,
    weight: u32,
    total: u32,
) -> Option<ShareExplanation> {
    let (cluster, hosts) = snapshot.model.clusters.get(at).zip(snapshot.hosts.get(at))?;
    let usable = snapshot.view.usable(at, protocol);
    let places = views::subset_roles(snapshot, at);
    let hosts: Vec<_> = (0u16..)
        .zip(hosts.iter().zip(&cluster.hosts))
        .map(|(index, (state, configured))| {
            let takes = usable.iter().any(|(host, _)| *host == index);
            let place = places.get(usize::from(index)).copied();
            let has_port = configured.port(protocol).is_some();
            let reason = if takes {
                ""
            } else {
                unusable_reason(snapshot, state, has_port, place, configured.backup)
            };
            HostExplanation {
                name: state.name.clone(),
                weight: configured.weight,
                active_connections: state.active.get(),
                subset: place.map(Into::into),
                backup: configured.backup,
                takes_connections: takes,
                reason: reason.into(),
            }
        })
        .collect();
    let percent = if total == 0 {
        0.0
    } else {
        f64::from(weight) * 100.0 / f64::from(total)
    };
    let waits_for = crate::compat::routing_spi::why_waiting(&snapshot.discovered, cluster);
    Some(ShareExplanation {
        name: cluster.name.clone(),
        weight,
        share_percent: (percent * 10.0).round() / 10.0,
        balance: cluster.balance.as_str().into(),
        waits_for: waits_for.map(str::to_owned).or_else(|| unresolved(cluster)),
        hosts,
        ..ShareExplanation::default()
    })
}

/// Returns the hostnames of a cluster that have no address.
fn unresolved(cluster: &Cluster) -> Option<String> {
    let names: Vec<_> = cluster.unresolved().map(|named| named.hostname.to_string()).collect();
    (!names.is_empty()).then(|| format!("{} not resolved: `signalbox hosts` says why", names.join(", ")))
}

/// Reason why a usable host of a backup cluster gets nothing.
pub(in super::super) const STANDS_BY: &str = "its cluster is a backup: hosts of the other cluster take connections";

/// Reason why a host gets nothing for an address of a service: its packets would need another source address.
pub(in super::super) const OTHER_FAMILY: &str =
    "it has no address of this family (IPv4, IPv6), which `mode: nat` needs";

pub(in super::super) fn unusable_reason(
    snapshot: &Snapshot,
    state: &HostState,
    has_port: bool,
    place: Option<&str>,
    is_backup: bool,
) -> &'static str {
    if !has_port {
        "it has no port for this protocol"
    } else if snapshot.rotation.is_out(&state.cluster, &state.name, state.address) {
        "it is out of rotation"
    } else if state.is_own_listener.load(Relaxed) {
        "it is a listener of this balancer: connections would come back"
    } else if !state.health().0.usable() {
        "its checks fail: `signalbox hosts` says why"
    } else if state.ejected.load(Relaxed) {
        "it is ejected after failed connects"
    } else if is_backup {
        "it is a backup: other hosts of the cluster take connections"
    } else if place == Some("spare") {
        "it is outside of this balancer's subset"
    } else {
        "it is being left out"
    }
}
