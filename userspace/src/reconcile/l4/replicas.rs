//! Connections reported by other nodes, entered into the kernel's table.

use std::net::SocketAddr;

use signalbox_common::l4::decide::reverse_key;
use signalbox_common::l4::{L4Flow, mode};
use signalbox_common::net::Key;
use signalbox_common::net::Target;
use signalbox_common::net::ip::TCP;
use signalbox_core::availability::ha::floating::FloatingSources;
use signalbox_core::availability::sync::{ServicePlace, ServiceRecord};

use super::Services;
use super::host_numbers::HostId;
use super::ownership::{is_reply, moving_group};
use super::services_view::ServicesView;
use crate::kernel::address::from_words;
use crate::kernel::cut::table::tick;
use crate::kernel::l4::L4Kernel as Kernel;
use crate::state::service_flows::ServiceKeys;
use crate::state::sync::Rejection;

impl Services {
    /// Starts looking for this node's connections immediately, and often.
    pub fn begin_replication(&self) {
        self.shared.sync.services.want();
        self.sweeper.sweep_now();
    }

    /// Whether connections can be entered: the services are in the kernel.
    pub fn takes_replicas(&self) -> bool {
        !self.shared.snapshot.load().model.has_services() || self.services_problem().is_none()
    }

    /// Maximum number of other nodes' connections in the table.
    pub fn max_replicas(&self) -> u32 {
        self.view
            .load()
            .kernel
            .as_ref()
            .map_or(0, |kernel| kernel.max_flows() / 2)
    }

    /// Enters or updates a connection that another node carries.
    pub fn enter_replica(&self, record: &ServiceRecord) -> Result<(), Rejection> {
        let picture = self.view.load();
        let Some(kernel) = &picture.kernel else {
            return Err(Rejection::OtherService);
        };
        let place = place_of(kernel, &picture, record).ok_or(Rejection::OtherService)?;
        let [mut flow, mut reply] = record.entries(place, tick());
        let (key, reply_key) = (record.key(), record.reply_key());
        if moving_group(&self.shared.snapshot.load().floating, &key, &flow).is_none() {
            return Err(Rejection::OtherAddresses);
        }
        let known = |key: &Key| kernel.established.get::<Key, L4Flow>(key).ok().flatten();
        match known(&key) {
            Some(old) if (old.source, old.ports) == (flow.source, flow.ports) => keep_way(&mut flow, &old),
            // The client's port had another connection, which is about to end.
            Some(old) => remove(kernel, &key, &old),
            None => {}
        }
        match known(&reply_key) {
            Some(old) if (old.destination, old.ports) == (reply.destination, reply.ports) => {
                keep_way(&mut reply, &old);
            }
            Some(old) => remove(kernel, &reply_key, &old),
            None => {}
        }
        let entered = kernel
            .established
            .update(&reply_key, &reply)
            .and_then(|()| kernel.established.update(&key, &flow));
        entered.map_err(|_| {
            let _ = kernel.end_flow(&reply_key);
            Rejection::NoRoom
        })
    }

    /// Removes a connection that has ended on another node, by the key of its client's direction.
    pub fn end_replica(&self, key: &Key) {
        let picture = self.view.load();
        let Some(kernel) = &picture.kernel else { return };
        let floating = &self.shared.snapshot.load().floating;
        if let Ok(Some(flow)) = kernel.established.get::<Key, L4Flow>(key)
            && moving_group(floating, key, &flow).is_some()
        {
            remove(kernel, key, &flow);
        }
    }

    /// Removes the connections of these groups, except the known ones.
    pub fn end_other_replicas(&self, groups: &[String], known: &ServiceKeys) {
        let picture = self.view.load();
        let Some(kernel) = &picture.kernel else { return };
        let snapshot = self.shared.snapshot.load();
        let mut over = Vec::new();
        let walked = Kernel::for_each_flow(&kernel.established, |key, flow| {
            if !is_reply(flow) && is_of(&snapshot.floating, groups, key, flow) && !known.contains(key) {
                over.push((*key, *flow));
            }
        });
        if let Err(error) = walked {
            tracing::warn!(%error, "Connections of services that have ended at another node could not be looked for.");
        }
        for (key, flow) in over {
            remove(kernel, &key, &flow);
        }
    }
}

/// Whether a flow moves with one of these groups.
fn is_of(floating: &FloatingSources, groups: &[String], key: &Key, flow: &L4Flow) -> bool {
    let group = moving_group(floating, key, flow).and_then(|group| floating.name_of(group));
    group.is_some_and(|group| groups.iter().any(|name| name == group))
}

/// Finds service and host of a connection: the service that listens on its target here, and the host with its address.
fn place_of(kernel: &Kernel, picture: &ServicesView, record: &ServiceRecord) -> Option<ServicePlace> {
    let key = record.key();
    let target = Target::new(key.destination, key.ports as u16, TCP as u8);
    let service = kernel.service(&target).ok()??;
    if service.mode != mode::NAT {
        return None;
    }
    let host = SocketAddr::new(from_words(record.addresses[3]), record.ports[1] as u16);
    // An endpoint of an application is a separate host; other services have machines as hosts.
    let numbers = [HostId::Endpoint(host), HostId::Machine(host.ip())].map(|id| picture.hosts.get(&id).copied());
    let is_host = |number: &u32| picture.service_hosts.contains(&(service.number, *number));
    Some(ServicePlace {
        service: service.number,
        host: numbers.into_iter().flatten().find(is_host)?,
        idle_ticks: service.idle_ticks,
    })
}

/// Copies the node's own data of an entry.
fn keep_way(flow: &mut L4Flow, old: &L4Flow) {
    (flow.macs, flow.ifindex, flow.vlan) = (old.macs, old.ifindex, old.vlan);
    (flow.packets, flow.bytes, flow.ack) = (old.packets, old.bytes, old.ack);
    flow.first_reply_ack = old.first_reply_ack;
}

/// Removes both directions of a flow, given one of them.
fn remove(kernel: &Kernel, key: &Key, flow: &L4Flow) {
    // A missing entry needs no removal, and no other error is possible.
    let _ = kernel.end_flow(&reverse_key(flow, key.protocol));
    let _ = kernel.end_flow(key);
}
