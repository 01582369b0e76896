//! Writes services, tables and hosts of a snapshot to the kernel's maps.
//!
//! Hosts come first ([`super::next_hops`]), then tables, then services; removal is in reverse order. So an entry never
//! refers to a missing one.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;

use signalbox_common::l4::abi::{MAX_SERVICES, MAX_TABLES, service};
use signalbox_common::l4::{Host, Service, mode};
use signalbox_common::net::Target;
use signalbox_common::net::target::{PORT_BITMAP_WORDS, PortBit};
use signalbox_core::model::services::{Affinity, Mode, Transport};
use signalbox_core::model::{Cluster, Layer4, Model, Service as Configured};
use signalbox_core::routing::maglev;

use super::host_numbers::{HostId, HostNumbers, ServiceId, kernel_name, service_id};
use super::members::{SlotTable, TableFamily, clusters_of, family, members, taking};
use super::services_error::ServicesError;
use super::sweep::FlowCounts;
use crate::datapath::cut::{FLOATING_SERVICE_PORTS, service_ports};
use crate::kernel::address::to_words;
use crate::kernel::l4::L4Kernel as Kernel;
use crate::state::Snapshot;

fn map_error(what: &'static str) -> impl FnOnce(io::Error) -> ServicesError {
    move |source| ServicesError::Map { what, source }
}

/// Desired content of the kernel's maps.
#[derive(Default)]
struct DesiredServices {
    targets: HashMap<Target, Service>,
    ports: HashMap<(u16, u32), u16>,
    tables: HashSet<(String, TableFamily)>,
}

/// Content of the kernel's maps, as far as this process has written it.
#[derive(Default)]
pub(super) struct Tables {
    pub(super) host_numbers: HostNumbers,
    pub(super) hosts: BTreeMap<u32, Host>,
    /// Cluster, name and number of each host that a service can send to.
    named_hosts: Vec<(String, String, u32)>,
    /// Hosts that are no longer configured, with the time of their removal (Unix time in milliseconds).
    removed_ms: HashMap<u32, u64>,
    tables: HashMap<(String, TableFamily), SlotTable>,
    services: HashMap<Target, Service>,
    service_numbers: HashMap<ServiceId, u16>,
    ports: HashMap<(u16, u32), u16>,
    /// Words of `L4_PORT_BITMAP` that are not 0.
    port_bits: BTreeMap<u32, u64>,
}

impl Tables {
    /// Reads the content that an earlier process has left.
    pub(super) fn of(kernel: &Kernel) -> Self {
        let mut tables = Self {
            host_numbers: HostNumbers::of(kernel),
            ..Self::default()
        };
        for (number, host) in (0..).zip(kernel.found_hosts()) {
            if host.address != [0; 4] {
                tables.hosts.insert(number, *host);
            }
        }
        tables.port_bits = (0..PORT_BITMAP_WORDS)
            .filter_map(|word| Some((word, kernel.port_bits(word)?)))
            .collect();
        tables.ports = kernel.own_ports().unwrap_or_default().into_iter().collect();
        for target in kernel.targets().unwrap_or_default() {
            if let Ok(Some(service)) = kernel.service(&target) {
                tables.services.insert(target, service);
            }
        }
        tables
    }

    /// Brings the maps in line with a snapshot whose hosts are numbered. `trouble` is the error from numbering them,
    /// which is returned if no other error occurs.
    pub(super) fn apply(
        &mut self,
        kernel: &Kernel,
        snapshot: &Snapshot,
        mut trouble: Option<ServicesError>,
    ) -> Result<(), ServicesError> {
        let model = &snapshot.model;
        let mut all = DesiredServices::default();
        // An exposed application without room in the maps must not affect other services.
        let mut passed_over = |service: &Configured, outcome: Result<(), ServicesError>| match outcome {
            Err(error) if service.is_exposed() => {
                trouble.get_or_insert(error);
                Ok(())
            }
            outcome => outcome,
        };
        // Ports come before tables that lead to a host: otherwise its packets would go to the service's port.
        for service in &model.services {
            passed_over(service, self.write_ports(kernel, model, service, &mut all))?;
        }
        for service in &model.services {
            passed_over(service, self.add_service(kernel, snapshot, service, &mut all))?;
        }
        let DesiredServices {
            targets: wanted,
            ports,
            tables,
        } = all;
        let bits = port_bits(model, wanted.keys());
        self.add_ports(kernel, &bits)?;
        for (target, service) in &wanted {
            if self.services.get(target) != Some(service) {
                kernel.set_service(target, service).map_err(map_error("a service"))?;
            }
        }
        for target in self.services.keys().filter(|target| !wanted.contains_key(target)) {
            kernel.remove_service(target).map_err(map_error("a service"))?;
        }
        self.services = wanted;
        for (service, host) in self.ports.keys().filter(|key| !ports.contains_key(key)) {
            kernel
                .set_port(*service, *host, None)
                .map_err(map_error("a host's port"))?;
        }
        self.ports = ports;
        let gone: Vec<_> = self
            .tables
            .keys()
            .filter(|key| !tables.contains(*key))
            .cloned()
            .collect();
        for key in gone {
            if let Some(table) = self.tables.remove(&key) {
                kernel.remove_table(table.index).map_err(map_error("a table"))?;
            }
        }
        trouble.map_or(Ok(()), Err)
    }

    /// Assigns numbers to the hosts of all services. Returns why some hosts of applications got no number.
    pub(super) fn number_hosts(&mut self, model: &Model) -> Result<Option<ServicesError>, ServicesError> {
        let mut trouble = None;
        // Clusters of the configuration come before applications, so they get the first numbers.
        let used: BTreeSet<usize> = model
            .services
            .iter()
            .flat_map(|service| service.clusters().both())
            .collect();
        self.named_hosts.clear();
        for cluster in used.iter().filter_map(|index| model.clusters.get(*index)) {
            for host in &cluster.hosts {
                match self.host_numbers.number(HostId::of(cluster, host)) {
                    Ok(number) => self.named_hosts.push((cluster.name.clone(), host.name.clone(), number)),
                    Err(error) if cluster.is_application() => trouble = trouble.or(Some(error)),
                    Err(error) => return Err(error),
                }
            }
        }
        let named: HashSet<u32> = self.named_hosts.iter().map(|(_, _, number)| *number).collect();
        self.removed_ms.retain(|number, _| !named.contains(number));
        for (_, number) in self.host_numbers.all().filter(|(_, number)| !named.contains(number)) {
            self.removed_ms.entry(number).or_insert_with(crate::sys::unix_ms);
        }
        // The number of an exposed service belongs to its address, which another application may have by now.
        let services: HashSet<&str> = model.services.iter().map(|service| service.name.as_str()).collect();
        self.service_numbers
            .retain(|(name, _), _| !name.contains('/') || services.contains(name.as_str()));
        Ok(trouble)
    }

    /// Writes the ports of hosts that differ from the service's.
    fn write_ports(
        &mut self,
        kernel: &Kernel,
        model: &Model,
        service: &Configured,
        all: &mut DesiredServices,
    ) -> Result<(), ServicesError> {
        let number = self.service_number(kernel, service)?;
        let hosts =
            clusters_of(model, service).flat_map(|cluster| cluster.hosts.iter().map(move |host| (cluster, host)));
        for (cluster, host) in hosts {
            let at = self.host_numbers.get(&HostId::of(cluster, host));
            if let (Some(&port), Some(at)) = (host.ports.get(service.configured_name()), at) {
                let key = (number, at);
                if self.ports.get(&key) != Some(&port) {
                    kernel
                        .set_port(number, at, Some(port))
                        .map_err(map_error("a host's port"))?;
                    self.ports.insert(key, port);
                }
                all.ports.insert(key, port);
            }
        }
        Ok(())
    }

    /// Adds the map entries that a service needs, and makes its tables.
    fn add_service(
        &mut self,
        kernel: &Kernel,
        snapshot: &Snapshot,
        service: &Configured,
        all: &mut DesiredServices,
    ) -> Result<(), ServicesError> {
        let number = self.service_number(kernel, service)?;
        let mut hosts = clusters_of(&snapshot.model, service).flat_map(|cluster| &cluster.hosts);
        let has_ports = hosts.any(|host| host.ports.contains_key(service.configured_name()));
        for bind in &service.listen {
            let family = family(service.mode, bind.address);
            let taking = taking(snapshot, service, family);
            let Some(cluster) = snapshot.model.clusters.get(taking) else {
                continue;
            };
            let key = (cluster.name.clone(), family);
            if !all.tables.contains(&key) {
                self.build(kernel, key.clone(), cluster, snapshot.view.eligible_hosts(taking))?;
                all.tables.insert(key.clone());
            }
            let table = self.tables.get(&key).map_or(u32::MAX, |table| table.index);
            let mut value = value(service, number, table, has_ports);
            let group = snapshot.floating.group_of(bind.address);
            value.group = group.map_or(0, |group| group as u32 + 1);
            for port in bind.ports.clone() {
                let target = Target::new(to_words(bind.address), port, service.protocol.number());
                all.targets.insert(target, value);
            }
        }
        Ok(())
    }

    /// Tells the programs which ports to check. Ports of removed services stay, because flows may still use them.
    fn add_ports(&mut self, kernel: &Kernel, bits: &BTreeMap<u32, u64>) -> Result<(), ServicesError> {
        for (&word, &bits) in bits {
            let before = self.port_bits.get(&word).copied().unwrap_or(0);
            if before | bits != before {
                kernel
                    .set_port_bits(word, before | bits)
                    .map_err(map_error("the ports of services"))?;
                self.port_bits.insert(word, before | bits);
            }
        }
        Ok(())
    }

    /// Removes all services, so that no new flow begins.
    pub(super) fn withdraw(&mut self, kernel: &Kernel) -> Result<(), ServicesError> {
        for target in self.services.drain().map(|(target, _)| target) {
            kernel.remove_service(&target).map_err(map_error("a service"))?;
        }
        Ok(())
    }

    fn service_number(&mut self, kernel: &Kernel, service: &Configured) -> Result<u16, ServicesError> {
        // A cached number counts only for configured services: an exposed service may have another address by now.
        let id = service_id(service);
        if let Some(number) = self.service_numbers.get(&id).filter(|_| !service.is_exposed()) {
            return Ok(*number);
        }
        let parts = ["service", &kernel_name(service), service.protocol.as_str()];
        let number = kernel.names.number(&parts).map_err(map_error("a name"))?;
        if number >= MAX_SERVICES {
            return Err(ServicesError::TooManyNames);
        }
        let number = number as u16;
        self.service_numbers.insert(id, number);
        Ok(number)
    }

    /// Makes the table of a cluster's hosts, unless it is up to date.
    fn build(
        &mut self,
        kernel: &Kernel,
        key: (String, TableFamily),
        cluster: &Cluster,
        standing: &[u16],
    ) -> Result<(), ServicesError> {
        let mut of: Vec<(u32, u32)> = Vec::new();
        let mut stands = HashSet::new();
        let mut identities = HashMap::new();
        for (_, host, is_standing) in members(cluster, key.1, standing) {
            let place = HostId::of(cluster, host);
            let number = self.host_numbers.number(place)?;
            if identities.insert(number, place.identity()).is_none() {
                of.push((number, host.weight));
            }
            if is_standing {
                stands.insert(number);
            }
        }
        let known = self.tables.get(&key);
        if known.is_some_and(|table| table.members == of && table.current == stands) {
            return Ok(());
        }
        let index = match known {
            Some(table) => table.index,
            None => self.free_table_index()?,
        };
        let base = match known {
            Some(table) if table.members == of => table.base_slots.clone(),
            _ => {
                let candidates: Vec<_> = of
                    .iter()
                    .map(|(number, weight)| maglev::Candidate {
                        index: *number as u16,
                        weight: *weight,
                        identity: identities.get(number).copied().unwrap_or_default(),
                    })
                    .collect();
                maglev::build(&candidates)
            }
        };
        let mut shares = HashMap::new();
        if stands.is_empty() {
            kernel.remove_table(index).map_err(map_error("a table"))?;
        } else {
            let slots = maglev::repaired(&base, |host| stands.contains(&u32::from(host)));
            kernel.swap_table(index, &slots).map_err(map_error("a table"))?;
            for slot in &slots {
                *shares.entry(u32::from(*slot)).or_insert(0.0) += 100.0 / slots.len() as f64;
            }
        }
        let table = SlotTable {
            index,
            members: of,
            base_slots: base,
            current: stands,
            shares,
        };
        self.tables.insert(key, table);
        Ok(())
    }

    /// Returns an index that neither our tables nor a service of an earlier process use.
    fn free_table_index(&self) -> Result<u32, ServicesError> {
        let ours = self.tables.values().map(|table| table.index);
        let taken: HashSet<u32> = ours
            .chain(self.services.values().map(|service| service.table))
            .collect();
        (0..MAX_TABLES)
            .find(|index| !taken.contains(index))
            .ok_or(ServicesError::TooManyTables)
    }

    /// Forgets unconfigured hosts, once two counts started after their removal have found no flow of theirs.
    pub(super) fn forget_hosts(&mut self, kernel: &Kernel, counts: &FlowCounts) {
        let is_idle = |number: &u32| {
            let since = self.removed_ms.get(number);
            since.is_some_and(|since| counts.previous_ms > *since) && !counts.busy.contains(number)
        };
        let gone: Vec<(HostId, u32)> = self.host_numbers.all().filter(|(_, number)| is_idle(number)).collect();
        for (place, number) in gone {
            if kernel.set_host(number, &Host::default()).is_ok() {
                self.host_numbers.forget(&place);
                self.hosts.remove(&number);
                self.removed_ms.remove(&number);
            }
        }
    }

    /// Returns all hosts, with their numbers.
    pub(super) fn numbers(&self) -> impl Iterator<Item = (HostId, u32)> {
        self.host_numbers.all()
    }

    /// Returns cluster, name and number of configured hosts.
    pub(super) fn named_hosts(&self) -> &[(String, String, u32)] {
        &self.named_hosts
    }

    pub(super) fn service_numbers(&self) -> &HashMap<ServiceId, u16> {
        &self.service_numbers
    }

    pub(super) fn reachable(&self) -> HashSet<u32> {
        let known = self.hosts.iter().filter(|(_, host)| host.ifindex != 0);
        known.map(|(number, _)| *number).collect()
    }

    /// Returns each host's share of the table, in percent, for the service's first address.
    pub(super) fn shares(&self, snapshot: &Snapshot, service: &Configured) -> HashMap<u32, f64> {
        let mut all = HashMap::new();
        for bind in service.listen.iter().rev() {
            let family = family(service.mode, bind.address);
            let cluster = snapshot.model.clusters.get(taking(snapshot, service, family));
            let key = cluster.map(|cluster| (cluster.name.clone(), family));
            if let Some(table) = key.and_then(|key| self.tables.get(&key)) {
                all.extend(&table.shares);
            }
        }
        all
    }
}

/// Returns the ports of the targets, and the ports from which hosts answer.
fn port_bits<'a>(model: &Model, targets: impl Iterator<Item = &'a Target>) -> BTreeMap<u32, u64> {
    let mut bits = BTreeMap::new();
    let mut want = |port: u16, protocol: u8| {
        let at = PortBit::new(port, protocol);
        *bits.entry(at.word).or_insert(0) |= 1 << at.bit;
    };
    for target in targets {
        want((target.port_protocol >> 16) as u16, target.port_protocol as u8);
    }
    let floating = model.ha.is_some().then(|| floating_nat_ports(&model.layer4));
    for port in nat_ports(&model.layer4).chain(floating.into_iter().flatten()) {
        for (_, transport) in Transport::ALL {
            want(port, transport.number());
        }
    }
    bits
}

/// Returns the source ports of mode `nat`.
pub(super) fn nat_ports(layer4: &Layer4) -> std::ops::RangeInclusive<u16> {
    layer4.nat_ports.clone().unwrap_or_else(service_ports)
}

/// Returns the source ports of mode `nat` at addresses that move between nodes, of all nodes together.
pub(super) fn floating_nat_ports(layer4: &Layer4) -> std::ops::RangeInclusive<u16> {
    layer4.nat_ports.clone().unwrap_or(FLOATING_SERVICE_PORTS)
}

fn value(wanted: &Configured, number: u16, table: u32, has_ports: bool) -> Service {
    let mut flags = 0;
    if wanted.affinity == Affinity::Source {
        flags |= service::BY_SOURCE;
    }
    if has_ports {
        flags |= service::HAS_PORTS;
    }
    Service {
        number,
        mode: match wanted.mode {
            Mode::Nat => mode::NAT,
            Mode::DsrL2 => mode::DSR_L2,
            Mode::DsrIpip => mode::DSR_IPIP,
        },
        flags,
        table,
        idle_ticks: super::sweep::ticks(wanted.idle),
        group: 0,
    }
}
