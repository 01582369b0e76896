//! Services and their flows, in the API's form.

use std::collections::HashMap;
use std::net::SocketAddr;

use signalbox_api::flows::ServiceFlowView;
use signalbox_api::services::{ServiceHost, ServiceView};
use signalbox_common::l4::{L4Flow, ServiceStats, mode};
use signalbox_common::net::Key;

use super::Services;
use super::host_numbers::{HostId, service_id};
use super::ownership::{FlowOwner, OwnedSince, Ownership, is_reply};
use crate::kernel::address::from_words;
use crate::kernel::cut::table::{duration_between, tick};
use crate::kernel::l4::L4Kernel as Kernel;

impl Services {
    /// Returns all services.
    #[must_use]
    pub fn list(&self) -> Vec<ServiceView> {
        let snapshot = self.shared.snapshot.load_full();
        let (picture, counts) = (self.view.load(), self.sweeper.counts());
        let mut established: HashMap<u16, u32> = HashMap::new();
        for ((service, _), count) in &counts.established {
            *established.entry(*service).or_default() += count;
        }
        let all = snapshot.model.services.iter().map(|service| {
            let number = picture.services.get(&service_id(service)).copied();
            let stats = match (&picture.kernel, number) {
                (Some(kernel), Some(number)) => kernel.service_stats(number),
                _ => ServiceStats::default(),
            };
            let find = |at: usize| snapshot.model.clusters.get(at);
            let (cluster, backup) = (find(service.cluster), service.backup.and_then(find));
            let shares = picture.shares.get(&service.name);
            let clusters = cluster.into_iter().chain(backup);
            let hosts = clusters.flat_map(|cluster| cluster.hosts.iter().map(move |host| (cluster, host)));
            let hosts = hosts.map(|(of_cluster, host)| {
                let at = picture.hosts.get(&HostId::of(of_cluster, host)).copied();
                let of = |pair| counts.pairs.get(&pair).copied().unwrap_or(0);
                ServiceHost {
                    name: host.name.clone(),
                    cluster: of_cluster.name.clone(),
                    address: host.address,
                    port: service.port_at(host),
                    share: at.and_then(|at| shares?.get(&at).copied()).unwrap_or(0.0),
                    backup: host.backup || backup.is_some_and(|backup| backup.name == of_cluster.name),
                    flows: number.zip(at).map_or(0, of),
                    reachable: at.is_some_and(|at| picture.reachable.contains(&at)),
                }
            });
            ServiceView {
                name: service.configured_name().to_owned(),
                protocol: service.protocol.as_str().into(),
                listen: service.listen.iter().map(ToString::to_string).collect(),
                cluster: cluster.map(|cluster| cluster.name.clone()).unwrap_or_default(),
                backup: backup.map(|backup| backup.name.clone()),
                application: cluster.and_then(|cluster| cluster.application_name().map(str::to_owned)),
                mode: service.mode.as_str().into(),
                affinity: service.affinity.as_str().into(),
                flows: number.and_then(|number| established.get(&number).copied()).unwrap_or(0),
                flows_total: stats.flows,
                packets_in: stats.packets_in,
                packets_out: stats.packets_out,
                bytes_in: stats.bytes_in,
                bytes_out: stats.bytes_out,
                hosts: hosts.collect(),
            }
        });
        all.collect()
    }

    /// Returns some of the established flows, of one service or of all.
    #[must_use]
    pub fn flows(&self, service: Option<&str>, most: usize) -> Vec<ServiceFlowView> {
        let picture = self.view.load_full();
        let Some(kernel) = &picture.kernel else {
            return Vec::new();
        };
        let services = picture.services.iter();
        let names: HashMap<u16, &String> = services.map(|((name, _), number)| (*number, name)).collect();
        let ownership = Ownership::new(&self.shared, &mut OwnedSince::new());
        let mut all = Vec::new();
        let _ = Kernel::for_each_flow(&kernel.established, |key: &Key, flow: &L4Flow| {
            let name = names.get(&flow.service).map_or("", |name| name.as_str());
            let is_wanted = service.is_none_or(|wanted| wanted == name);
            let is_listed = is_wanted && !is_reply(flow) && ownership.owner(key, flow) != FlowOwner::Other;
            if all.len() < most && is_listed {
                all.push(flow_view(key, flow, name.to_owned(), kernel));
            }
        });
        all
    }
}

fn protocol(number: u32) -> &'static str {
    if number == 6 { "tcp" } else { "udp" }
}

fn flow_view(key: &Key, flow: &L4Flow, service: String, kernel: &Kernel) -> ServiceFlowView {
    let host = if flow.mode == mode::NAT {
        flow.destination
    } else {
        kernel
            .host(flow.host)
            .ok()
            .flatten()
            .map_or([0; 4], |host| host.address)
    };
    ServiceFlowView {
        service,
        client: SocketAddr::new(from_words(key.source), (key.ports >> 16) as u16),
        listen: SocketAddr::new(from_words(key.destination), key.ports as u16),
        host: from_words(host),
        protocol: protocol(key.protocol).into(),
        packets_in: flow.packets,
        bytes_in: flow.bytes,
        idle_seconds: duration_between(flow.last_seen, tick()).as_secs_f64(),
    }
}
