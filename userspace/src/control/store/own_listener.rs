//! Hosts that are a listener of this balancer: their connections would come back, each time as another one.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use signalbox_core::model::{ClusterWithBackup, Host, Listener, Model, Protocol};

use crate::kernel::interfaces;
use crate::state::{Binds, HostState};

/// Notes with each host's state whether the host is a listener of this balancer.
pub(super) fn note(model: &Model, binds: &Binds, hosts: &[Vec<Arc<HostState>>]) {
    let mut addresses = None;
    for (cluster, (configured, states)) in model.clusters.iter().zip(hosts).enumerate() {
        for (host, state) in configured.hosts.iter().zip(states) {
            let is_own = is_listened_on(model, binds, cluster, host) && is_local(host.address, &mut addresses);
            if !state.is_own_listener.swap(is_own, Relaxed) && is_own {
                tracing::warn!(
                    cluster = configured.name,
                    host = host.name,
                    address = %host.address,
                    "Host is a listener of this balancer: it gets no connections, which would come back without end."
                );
            }
        }
    }
}

/// Whether connections to a host would get to a listener that chooses among the hosts of the same cluster.
fn is_listened_on(model: &Model, binds: &Binds, cluster: usize, host: &Host) -> bool {
    [Protocol::Http, Protocol::Tls, Protocol::Tcp]
        .into_iter()
        .any(|protocol| {
            let listener = host
                .port(protocol)
                .and_then(|port| binds.find(SocketAddr::new(host.address, port)))
                .and_then(|at| model.listeners.get(at));
            // Names have the same route at each listener.
            let returns = |of: &Listener| {
                let mut clusters = of.fallback().into_iter().flat_map(ClusterWithBackup::both);
                protocol != Protocol::Tcp || clusters.any(|of| of == cluster)
            };
            listener.is_some_and(|listener| listener.protocol == protocol && returns(listener))
        })
}

/// Whether an address is one of this machine; `addresses` has them once they were read.
fn is_local(address: IpAddr, addresses: &mut Option<Vec<IpAddr>>) -> bool {
    address.is_loopback() || addresses.get_or_insert_with(interfaces::addresses).contains(&address)
}
