//! Hosts that services can send to, and those of them that get no new flows.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use signalbox_core::model::services::Transport;
use signalbox_core::routing::health::Health;

use super::apply::Tables;
use super::host_numbers::{HostId, service_id};
use super::members::clusters_of;
use super::sweep::ServiceHostPair;
use crate::state::Snapshot;

impl Tables {
    /// Returns the services of each cluster.
    pub(super) fn services_of_clusters(&self, snapshot: &Snapshot) -> HashMap<String, Vec<u16>> {
        let mut all: HashMap<String, Vec<u16>> = HashMap::new();
        for service in &snapshot.model.services {
            let Some(number) = self.service_numbers().get(&service_id(service)) else {
                continue;
            };
            for cluster in clusters_of(&snapshot.model, service) {
                all.entry(cluster.name.clone()).or_default().push(*number);
            }
        }
        all
    }

    /// Returns every service with every host that it may send to. Also returns the pairs without new flows for a reason
    /// other than rotation, with the time for which their flows may continue.
    pub(super) fn service_hosts(
        &self,
        snapshot: &Snapshot,
    ) -> (HashSet<ServiceHostPair>, HashMap<ServiceHostPair, Duration>) {
        let (mut all, mut out, mut eligible) = (HashSet::new(), HashMap::new(), HashSet::new());
        for service in &snapshot.model.services {
            let Some(&number) = self.service_numbers().get(&service_id(service)) else {
                continue;
            };
            let clusters = || service.clusters().both();
            let has_eligible = clusters().any(|at| !snapshot.view.eligible_hosts(at).is_empty());
            let found = clusters().filter_map(|at| Some((at, snapshot.model.clusters.get(at)?)));
            let hosts = found.flat_map(|(c, cluster)| (0u16..).zip(&cluster.hosts).map(move |host| (c, cluster, host)));
            for (c, cluster, (at, host)) in hosts {
                let Some(host_number) = self.host_numbers.get(&HostId::of(cluster, host)) else {
                    continue;
                };
                let pair = (number, host_number);
                all.insert(pair);
                if snapshot.view.eligible_hosts(c).binary_search(&at).is_ok() {
                    eligible.insert(pair);
                    continue;
                }
                if snapshot.rotation.is_out(&cluster.name, &host.name, host.address) {
                    continue;
                }
                let drain = cluster.drain.unwrap_or(snapshot.model.timeouts.drain);
                let is_dead = || {
                    let states = snapshot.hosts.get(c);
                    let state = states.and_then(|states| states.get(usize::from(at)));
                    state.is_some_and(|host| host.health().0 == Health::Unhealthy)
                };
                // A dead host answers no client: the next datagram begins a flow to a live one.
                let moves_at_once = service.protocol == Transport::Udp && has_eligible && is_dead();
                out.insert(pair, if moves_at_once { Duration::ZERO } else { drain });
            }
        }
        // A machine may be a host of both clusters of a service.
        out.retain(|pair, _| !eligible.contains(pair));
        (all, out)
    }
}
