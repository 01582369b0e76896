//! Writes services, tables and hosts of a snapshot to the kernel's maps.
//!
//! Hosts come first, then tables, then services; removal is in reverse order. So no entry ever refers to a missing
//! one.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use signalbox_common::l4::abi::{MAX_SERVICES, MAX_TABLES, PortBit, WANTED_WORDS, service};
use signalbox_common::l4::{Host, Service, Target, mode};
use signalbox_core::maglev;
use signalbox_core::model::services::{Affinity, Mode, Transport};
use signalbox_core::model::{Cluster, Layer4, Model, Service as Configured};

use super::places::{Place, Places, seat};
use super::sweep::{Counts, Pair};
use super::trouble::Trouble;
use crate::datapath::cut::{for_services, words};
use crate::kernel::l4::Layer4 as Kernel;
use crate::state::Snapshot;

fn writing(what: &'static str) -> impl FnOnce(io::Error) -> Trouble {
    move |source| Trouble::Map { what, source }
}

/// Address family of a table's hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Family {
    V4,
    V6,
    Any,
}

impl Family {
    fn has(self, address: IpAddr) -> bool {
        match self {
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
            Self::Any => true,
        }
    }
}

/// A table in the kernel.
struct Table {
    index: u32,
    /// Hosts that may be in the table, with weights; `base` is the table with all of them.
    of: Vec<(u32, u32)>,
    base: Box<[u16]>,
    /// Hosts that are in the table now.
    standing: HashSet<u32>,
    shares: HashMap<u32, f64>,
}

/// Desired content of the kernel's maps.
#[derive(Default)]
struct Wanted {
    targets: HashMap<Target, Service>,
    ports: HashMap<(u16, u32), u16>,
    tables: HashSet<(String, Family)>,
}

/// Content of the kernel's maps, as far as this process has written it.
#[derive(Default)]
pub(super) struct Tables {
    places: Places,
    pub(super) written: BTreeMap<u32, Host>,
    /// Cluster and name of each host that a service can send to, with its number.
    named: Vec<(String, String, u32)>,
    /// Hosts that are no longer configured, with the time of their removal (Unix time in milliseconds).
    unnamed_ms: HashMap<u32, u64>,
    tables: HashMap<(String, Family), Table>,
    services: HashMap<Target, Service>,
    service_numbers: HashMap<String, u16>,
    ports: HashMap<(u16, u32), u16>,
    /// Words of `L4_WANTED` that are not 0.
    wanted: BTreeMap<u32, u64>,
}

impl Tables {
    /// Reads the content that an earlier process has left.
    pub(super) fn of(kernel: &Kernel) -> Self {
        let mut tables = Self {
            places: Places::of(kernel),
            ..Self::default()
        };
        for (number, host) in (0..).zip(kernel.found_hosts()) {
            if host.address != [0; 4] {
                tables.written.insert(number, *host);
            }
        }
        tables.wanted = (0..WANTED_WORDS)
            .filter_map(|word| Some((word, kernel.wanted(word)?)))
            .collect();
        tables.ports = kernel.own_ports().unwrap_or_default().into_iter().collect();
        for target in kernel.targets().unwrap_or_default() {
            if let Ok(Some(service)) = kernel.service(&target) {
                tables.services.insert(target, service);
            }
        }
        tables
    }

    /// Brings the maps in line with a snapshot.
    pub(super) fn apply(&mut self, kernel: &Kernel, snapshot: &Snapshot) -> Result<(), Trouble> {
        let model = &snapshot.model;
        let mut trouble = self.name_hosts(model)?;
        let mut all = Wanted::default();
        // An exposed application without room in the maps costs the other services nothing.
        let mut passed_over = |service: &Configured, outcome: Result<(), Trouble>| match outcome {
            Err(error) if service.is_exposed() => {
                trouble.get_or_insert(error);
                Ok(())
            }
            outcome => outcome,
        };
        // Ports come before any table leads to a host: otherwise its packets would go to the service's own port.
        for service in &model.services {
            passed_over(service, self.write_ports(kernel, model, service, &mut all))?;
        }
        for service in &model.services {
            passed_over(service, self.want_service(kernel, snapshot, service, &mut all))?;
        }
        let Wanted {
            targets: wanted,
            ports,
            tables,
        } = all;
        let bits = wanted_ports(model, wanted.keys());
        self.want(kernel, &bits)?;
        for (target, service) in &wanted {
            if self.services.get(target) != Some(service) {
                kernel.set_service(target, service).map_err(writing("a service"))?;
            }
        }
        for target in self.services.keys().filter(|target| !wanted.contains_key(target)) {
            kernel.remove_service(target).map_err(writing("a service"))?;
        }
        self.services = wanted;
        for (service, host) in self.ports.keys().filter(|key| !ports.contains_key(key)) {
            kernel
                .set_port(*service, *host, None)
                .map_err(writing("a host's port"))?;
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
                kernel.remove_table(table.index).map_err(writing("a table"))?;
            }
        }
        trouble.map_or(Ok(()), Err)
    }

    /// Numbers the hosts of all services. Returns why some hosts of applications got no number.
    fn name_hosts(&mut self, model: &Model) -> Result<Option<Trouble>, Trouble> {
        let mut trouble = None;
        // Clusters of the configuration come first in order, applications after them: they get the first numbers.
        let used: BTreeSet<usize> = model.services.iter().map(|service| service.cluster).collect();
        self.named.clear();
        for cluster in used.iter().filter_map(|index| model.clusters.get(*index)) {
            for host in &cluster.hosts {
                match self.places.number(Place::of(cluster, host)) {
                    Ok(number) => self.named.push((cluster.name.clone(), host.name.clone(), number)),
                    Err(error) if cluster.is_application() => trouble = trouble.or(Some(error)),
                    Err(error) => return Err(error),
                }
            }
        }
        let named: HashSet<u32> = self.named.iter().map(|(_, _, number)| *number).collect();
        self.unnamed_ms.retain(|number, _| !named.contains(number));
        for (_, number) in self.places.all().filter(|(_, number)| !named.contains(number)) {
            self.unnamed_ms.entry(number).or_insert_with(crate::state::unix_ms);
        }
        // The number of an exposed service belongs to its address, which another application may have by now.
        let services: HashSet<&str> = model.services.iter().map(|service| service.name.as_str()).collect();
        self.service_numbers
            .retain(|name, _| !name.contains('/') || services.contains(name.as_str()));
        Ok(trouble)
    }

    /// Writes the ports of hosts that differ from the service's.
    fn write_ports(
        &mut self,
        kernel: &Kernel,
        model: &Model,
        service: &Configured,
        all: &mut Wanted,
    ) -> Result<(), Trouble> {
        let Some(cluster) = model.clusters.get(service.cluster) else {
            return Ok(());
        };
        let number = self.service_number(kernel, service)?;
        for host in &cluster.hosts {
            let at = self.places.get(&Place::of(cluster, host));
            if let (Some(&port), Some(at)) = (host.ports.get(&service.name), at) {
                let key = (number, at);
                if self.ports.get(&key) != Some(&port) {
                    kernel
                        .set_port(number, at, Some(port))
                        .map_err(writing("a host's port"))?;
                    self.ports.insert(key, port);
                }
                all.ports.insert(key, port);
            }
        }
        Ok(())
    }

    /// Adds the map entries that a service needs, and makes its tables.
    fn want_service(
        &mut self,
        kernel: &Kernel,
        snapshot: &Snapshot,
        service: &Configured,
        all: &mut Wanted,
    ) -> Result<(), Trouble> {
        let Some(cluster) = snapshot.model.clusters.get(service.cluster) else {
            return Ok(());
        };
        let number = self.service_number(kernel, service)?;
        for bind in &service.listen {
            let family = family(service.mode, bind.address);
            let key = (cluster.name.clone(), family);
            if !all.tables.contains(&key) {
                self.build(
                    kernel,
                    key.clone(),
                    cluster,
                    snapshot.view.eligible_hosts(service.cluster),
                )?;
                all.tables.insert(key.clone());
            }
            let table = self.tables.get(&key).map_or(u32::MAX, |table| table.index);
            let has_ports = cluster.hosts.iter().any(|host| host.ports.contains_key(&service.name));
            let value = value(service, number, table, has_ports);
            for port in bind.ports.clone() {
                let target = Target::new(words(bind.address), port, service.protocol.number());
                all.targets.insert(target, value);
            }
        }
        Ok(())
    }

    /// Tells the programs which ports to look at. Ports of removed services stay, because flows may still use them.
    fn want(&mut self, kernel: &Kernel, bits: &BTreeMap<u32, u64>) -> Result<(), Trouble> {
        for (&word, &bits) in bits {
            let before = self.wanted.get(&word).copied().unwrap_or(0);
            if before | bits != before {
                kernel
                    .set_wanted(word, before | bits)
                    .map_err(writing("the ports of services"))?;
                self.wanted.insert(word, before | bits);
            }
        }
        Ok(())
    }

    /// Removes all services: no new flow begins.
    pub(super) fn withdraw(&mut self, kernel: &Kernel) -> Result<(), Trouble> {
        for target in self.services.drain().map(|(target, _)| target) {
            kernel.remove_service(&target).map_err(writing("a service"))?;
        }
        Ok(())
    }

    fn service_number(&mut self, kernel: &Kernel, service: &Configured) -> Result<u16, Trouble> {
        // A cached number counts only for configured services: an exposed service may be at another address by now.
        if let Some(number) = self
            .service_numbers
            .get(&service.name)
            .filter(|_| !service.is_exposed())
        {
            return Ok(*number);
        }
        let name = seat(service);
        let number = kernel.names.number(&["service", &name]).map_err(writing("a name"))?;
        if number >= MAX_SERVICES {
            return Err(Trouble::Names);
        }
        let number = number as u16;
        self.service_numbers.insert(service.name.clone(), number);
        Ok(number)
    }

    /// Makes the table of a cluster's hosts, unless it is up to date.
    fn build(
        &mut self,
        kernel: &Kernel,
        key: (String, Family),
        cluster: &Cluster,
        standing: &[u16],
    ) -> Result<(), Trouble> {
        let mut of: Vec<(u32, u32)> = Vec::new();
        let mut stands = HashSet::new();
        let mut identities = HashMap::new();
        for (at, host) in (0u16..).zip(&cluster.hosts).filter(|(_, host)| key.1.has(host.address)) {
            let place = Place::of(cluster, host);
            let number = self.places.number(place)?;
            if identities.insert(number, place.identity()).is_none() {
                of.push((number, host.weight));
            }
            if standing.binary_search(&at).is_ok() {
                stands.insert(number);
            }
        }
        let known = self.tables.get(&key);
        if known.is_some_and(|table| table.of == of && table.standing == stands) {
            return Ok(());
        }
        let index = match known {
            Some(table) => table.index,
            None => self.free_table()?,
        };
        let base = match known {
            Some(table) if table.of == of => table.base.clone(),
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
            kernel.remove_table(index).map_err(writing("a table"))?;
        } else {
            let slots = maglev::repaired(&base, |host| stands.contains(&u32::from(host)));
            kernel.swap_table(index, &slots).map_err(writing("a table"))?;
            for slot in &slots {
                *shares.entry(u32::from(*slot)).or_insert(0.0) += 100.0 / slots.len() as f64;
            }
        }
        let table = Table {
            index,
            of,
            base,
            standing: stands,
            shares,
        };
        self.tables.insert(key, table);
        Ok(())
    }

    /// Returns an index that neither a table of ours uses nor a service of an earlier process.
    fn free_table(&self) -> Result<u32, Trouble> {
        let ours = self.tables.values().map(|table| table.index);
        let taken: HashSet<u32> = ours
            .chain(self.services.values().map(|service| service.table))
            .collect();
        (0..MAX_TABLES)
            .find(|index| !taken.contains(index))
            .ok_or(Trouble::Tables)
    }

    /// Forgets hosts that are no longer configured, once two counts that began later have found no flow of theirs.
    pub(super) fn forget_hosts(&mut self, kernel: &Kernel, counts: &Counts) {
        let is_idle = |number: &u32| {
            let since = self.unnamed_ms.get(number);
            since.is_some_and(|since| counts.before_ms > *since) && !counts.busy.contains(number)
        };
        let gone: Vec<(Place, u32)> = self.places.all().filter(|(_, number)| is_idle(number)).collect();
        for (place, number) in gone {
            if kernel.set_host(number, &Host::default()).is_ok() {
                self.places.forget(&place);
                self.written.remove(&number);
                self.unnamed_ms.remove(&number);
            }
        }
    }

    /// Returns all hosts, with their numbers.
    pub(super) fn numbers(&self) -> impl Iterator<Item = (Place, u32)> {
        self.places.all()
    }

    /// Returns cluster, name and number of configured hosts.
    pub(super) fn named(&self) -> &[(String, String, u32)] {
        &self.named
    }

    pub(super) fn service_numbers(&self) -> &HashMap<String, u16> {
        &self.service_numbers
    }

    pub(super) fn reachable(&self) -> HashSet<u32> {
        let known = self.written.iter().filter(|(_, host)| host.ifindex != 0);
        known.map(|(number, _)| *number).collect()
    }

    /// Returns the services of each cluster.
    pub(super) fn services_of_clusters(&self, snapshot: &Snapshot) -> HashMap<String, Vec<u16>> {
        let mut all: HashMap<String, Vec<u16>> = HashMap::new();
        for service in &snapshot.model.services {
            let cluster = snapshot.model.clusters.get(service.cluster);
            if let (Some(cluster), Some(number)) = (cluster, self.service_numbers.get(&service.name)) {
                all.entry(cluster.name.clone()).or_default().push(*number);
            }
        }
        all
    }

    /// Returns every service with every host that it may send to; and those of them without new flows for a reason
    /// other than rotation, with the time that their flows may go on.
    pub(super) fn pairs(&self, snapshot: &Snapshot) -> (HashSet<Pair>, HashMap<Pair, Duration>) {
        let (mut all, mut out) = (HashSet::new(), HashMap::new());
        for service in &snapshot.model.services {
            let number = self.service_numbers.get(&service.name).copied();
            let cluster = snapshot.model.clusters.get(service.cluster);
            let (Some(number), Some(cluster)) = (number, cluster) else {
                continue;
            };
            let standing = snapshot.view.eligible_hosts(service.cluster);
            for (at, host) in (0u16..).zip(&cluster.hosts) {
                let Some(host_number) = self.places.get(&Place::of(cluster, host)) else {
                    continue;
                };
                let pair = (number, host_number);
                all.insert(pair);
                let is_rotated = || snapshot.rotation.is_out(&cluster.name, &host.name, host.address);
                if standing.binary_search(&at).is_err() && !is_rotated() {
                    out.insert(pair, cluster.drain.unwrap_or(snapshot.model.timeouts.drain));
                }
            }
        }
        (all, out)
    }

    /// Returns the share of the table that each host has, in percent, for the service's first address.
    pub(super) fn shares(&self, snapshot: &Snapshot, service: &Configured) -> HashMap<u32, f64> {
        let cluster = snapshot.model.clusters.get(service.cluster);
        let mut all = HashMap::new();
        for bind in service.listen.iter().rev() {
            let key = cluster.map(|cluster| (cluster.name.clone(), family(service.mode, bind.address)));
            if let Some(table) = key.and_then(|key| self.tables.get(&key)) {
                all.extend(&table.shares);
            }
        }
        all
    }
}

/// Returns the ports of the targets, and those that hosts answer to.
fn wanted_ports<'a>(model: &Model, targets: impl Iterator<Item = &'a Target>) -> BTreeMap<u32, u64> {
    let mut bits = BTreeMap::new();
    let mut want = |port: u16, protocol: u8| {
        let at = PortBit::new(port, protocol);
        *bits.entry(at.word).or_insert(0) |= 1 << at.bit;
    };
    for target in targets {
        want((target.port_protocol >> 16) as u16, target.port_protocol as u8);
    }
    for port in nat_ports(&model.layer4) {
        for (_, transport) in Transport::ALL {
            want(port, transport.number());
        }
    }
    bits
}

/// Returns the source ports of mode `nat`.
pub(super) fn nat_ports(layer4: &Layer4) -> std::ops::RangeInclusive<u16> {
    layer4.nat_ports.clone().unwrap_or_else(for_services)
}

/// Returns the family of hosts that can take packets to an address.
fn family(mode: Mode, address: IpAddr) -> Family {
    match (mode, address) {
        (Mode::Nat, IpAddr::V4(_)) => Family::V4,
        (Mode::Nat, IpAddr::V6(_)) => Family::V6,
        (Mode::DsrL2 | Mode::DsrIpip, _) => Family::Any,
    }
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
        idle: super::sweep::ticks(wanted.idle),
    }
}
