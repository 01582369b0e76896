//! Tables of the kernel peek for a snapshot: bindings, routes, clusters and hosts. Where the program cannot decide as
//! userspace would, the tables have only the reason, and userspace decides.

mod clients;
mod limits;
mod turns;

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use signalbox_common::peek::abi::{
    MAGLEV_SLOTS, MAX_PEEK_CLUSTERS, MAX_ROUTE_CLUSTERS, MAX_TURNS, PeekBinding, PeekCluster, PeekHost, PeekLimits,
    PeekMaglev, PeekName, PeekRoute, protocol,
};
use signalbox_common::steer::{STEER_FIXED_BITS, SteerKey};
use signalbox_core::firewall::LeftClients;
use signalbox_core::model::{Balance, Bind, Listener, Protocol, Route};
use signalbox_core::routing::obstacle::PeekObstacle;
use signalbox_core::routing::schedule::Schedule;
use signalbox_core::wire::address::ipv4_mapped;
use signalbox_core::wire::hostname::{HostnamePattern, WildcardDepth};
use signalbox_core::wire::peek::proxy::ProxyTlvs;

use super::conditions::Conditions;
use crate::datapath::cut::registry::Registry;
use crate::datapath::cut::source_address;
use crate::kernel::address::{from_words, to_words};
use crate::kernel::interfaces;
use crate::kernel::netlink::Netlink;
use crate::state::{HostState, Snapshot};
pub(super) use clients::ClientEntries;
use clients::ClientLists;
use turns::maglev_of;
pub(super) use turns::{cluster_turns, is_of_other_family, obstacles_of_route, route_turns};

/// A host, by cluster and name, with its address for one protocol.
pub(super) type PeekHostKey = (String, String, SocketAddr);

/// Counts of items left to userspace, by kind (`listener`, `route`, `cluster`) and reason.
pub type LeftOut = BTreeMap<(&'static str, PeekObstacle), u32>;

/// Tables of a snapshot.
#[derive(Default)]
pub(super) struct PeekTables {
    pub(super) bindings: HashMap<(u32, SteerKey), PeekBinding>,
    /// Routes, including wildcards. Their tickets are filled in later.
    pub(super) routes: HashMap<PeekName, PeekRoute>,
    /// All wildcards, routed by the program or by userspace, with the depth of their stars.
    pub(super) wildcards: HashMap<PeekName, WildcardDepth>,
    pub(super) clusters: HashMap<u32, ClusterTurns>,
    pub(super) clients: ClientEntries,
    /// Limits of routes, and of listeners, as keys of `PEEK_LIMITS`.
    pub(super) limits: HashMap<u32, PeekLimits>,
    /// Source addresses that move between nodes, by the number of the clients' destination and the host.
    pub(super) sources: HashMap<(u32, PeekHostKey), [u32; 4]>,
    /// Lowest number of a destination that this machine does not have yet.
    pub(super) first_awaited: u32,
    pub(super) hosts: HashMap<PeekHostKey, (PeekHost, Arc<HostState>)>,
    pub(super) left_out: LeftOut,
    /// Reasons why items are left out, by listener name and by route name.
    pub(super) listener_obstacles: HashMap<String, PeekObstacle>,
    pub(super) route_obstacles: HashMap<PeekName, PeekObstacle>,
}

/// How a cluster's host is chosen.
pub(super) struct ClusterTurns {
    /// A constant of [`signalbox_common::peek::abi::balance`].
    balance: u32,
    /// Hosts in turn, or the hosts to compare.
    turns: Vec<PeekHostKey>,
    /// Maglev table of a cluster balanced that way: indexes of `turns`.
    pub(super) maglev: Option<Box<PeekMaglev>>,
    /// Most connections of a host, and the word of the connections that wait for one; 0: no limit.
    host_limit: (u32, u32),
    /// PROXY header of the hosts: bits of [`signalbox_common::peek::proxy::part`].
    proxy: u32,
}

impl ClusterTurns {
    /// The map's entry. `None` if a host or the Maglev table has no element. `maglev` is the table's element.
    pub(super) fn to_entry(
        &self,
        maglev: Option<u32>,
        index_of: impl Fn(&PeekHostKey) -> Option<u32>,
    ) -> Option<PeekCluster> {
        if self.maglev.is_some() != maglev.is_some() {
            return None;
        }
        let mut entry = PeekCluster {
            balance: self.balance,
            maglev: maglev.unwrap_or(0),
            max_host_connections: self.host_limit.0,
            queue: self.host_limit.1,
            proxy: self.proxy,
            turns: self.turns.len() as u32,
            turn: [0; MAX_TURNS],
        };
        for (slot, key) in entry.turn.iter_mut().zip(&self.turns) {
            *slot = index_of(key)? as u16;
        }
        Some(entry)
    }
}

/// Protocols of listeners whose connections are routed by their first data, with their numbers in the kernel.
const PROTOCOLS: [(Protocol, u8); 2] = [(Protocol::Http, protocol::HTTP), (Protocol::Tls, protocol::TLS)];

/// Cluster with a protocol, and what its routes set otherwise: their balancing, and their limit of a host's connections.
type ElementKey = (usize, Protocol, OwnOfRoute);

/// Settings of a route that its clusters have, too.
type OwnOfRoute = (Option<Balance>, Option<u32>);

/// The tables in the making, and their inputs.
struct Builder<'a> {
    snapshot: &'a Snapshot,
    registry: &'a Registry,
    conditions: &'a Conditions,
    protocol: Protocol,
    /// Addresses of this machine, and those that may come from other nodes.
    addresses: Vec<IpAddr>,
    awaited: Vec<IpAddr>,
    /// Interfaces by their addresses, each looked up once.
    interfaces: HashMap<IpAddr, Option<u32>>,
    /// Looks up routes; `None` if the kernel does not permit it.
    netlink: Option<Netlink>,
    /// Source addresses and interfaces by host address, each looked up once.
    ways: HashMap<IpAddr, Option<(IpAddr, u32)>>,
    /// Virtual addresses, those that this machine has before those that may come: on overflow the latter are left out.
    vips: Vec<IpAddr>,
    /// Numbers of clients' destinations that move between nodes, with their groups.
    moving: HashMap<IpAddr, (u8, usize)>,
    clients: ClientLists<'a>,
    /// Elements of `PEEK_CLUSTERS`, by cluster, protocol and the balancing of routes.
    elements: HashMap<ElementKey, Result<u32, PeekObstacle>>,
    /// Seed of the cells of sources.
    seed: u64,
    tables: PeekTables,
}

impl PeekTables {
    pub(super) fn of(snapshot: &Snapshot, registry: &Registry, conditions: &Conditions, seed: u64) -> Self {
        let addresses: Vec<_> = interfaces::addresses()
            .into_iter()
            .filter(|address| !address.is_loopback())
            .collect();
        let (present, awaited): (Vec<_>, Vec<_>) = snapshot.floating.vips().partition(|vip| addresses.contains(vip));
        let mut builder = Builder {
            snapshot,
            registry,
            conditions,
            protocol: Protocol::Http,
            vips: [present.as_slice(), &awaited].concat(),
            awaited,
            addresses,
            interfaces: HashMap::new(),
            netlink: Netlink::open().ok(),
            ways: HashMap::new(),
            moving: HashMap::new(),
            clients: ClientLists::default(),
            elements: HashMap::new(),
            seed,
            tables: Self {
                first_awaited: present.len() as u32 + 1,
                ..Self::default()
            },
        };
        for (protocol, number) in PROTOCOLS {
            builder.protocol = protocol;
            if builder.add_listeners(number, conditions) {
                builder.add_clusters();
                builder.add_routes(number);
            }
        }
        builder.add_sources();
        builder.tables.clients = builder.clients.entries;
        builder.tables
    }

    pub(super) fn leave_out(&mut self, kind: &'static str, obstacle: PeekObstacle) {
        *self.left_out.entry((kind, obstacle)).or_default() += 1;
    }
}

impl<'a> Builder<'a> {
    /// Adds the listeners' addresses. Returns whether there are any.
    fn add_listeners(&mut self, number: u8, conditions: &'a Conditions) -> bool {
        let of_protocol = |listener: &&Listener| listener.protocol == self.protocol;
        let listeners: Vec<_> = self.snapshot.model.listeners.iter().filter(of_protocol).collect();
        for listener in listeners {
            if let Some(obstacle) = conditions.first_obstacle(listener) {
                if obstacle != PeekObstacle::NotConfigured {
                    self.leave_out_listener(listener, obstacle);
                }
                continue;
            }
            let states = &self.snapshot.listeners;
            let state = states.iter().find(|state| state.name == listener.name);
            let Some(listener_number) = state.and_then(|state| self.registry.listener(state)) else {
                self.leave_out_listener(listener, PeekObstacle::TableFull);
                continue;
            };
            if let Some((key, limits)) = state.and_then(|state| limits::of_listener(listener, state, self.seed)) {
                self.tables.limits.insert(key | u32::from(listener_number), limits);
            }
            let addresses = [self.addresses.as_slice(), &self.awaited].concat();
            let own = local_binds(&self.snapshot.model.listeners, listener, &addresses);
            let mut obstacle = Some(PeekObstacle::NoLocalAddress);
            for (address, key) in own {
                let numbers = if conditions.is_filtered(listener, address) {
                    Err(PeekObstacle::PacketFilter)
                } else {
                    let left = conditions.left_clients(listener, address);
                    let left = left.map_or(&[][..], LeftClients::listed);
                    let moving = self.number_of_moving(address, conditions);
                    moving.and_then(|moving| Ok((moving, self.clients.number_of_listed(left)?)))
                };
                let (moving, clients) = match numbers {
                    Ok(numbers) => numbers,
                    Err(why) => {
                        self.tables.leave_out("address", why);
                        obstacle = obstacle.and(Some(why));
                        continue;
                    }
                };
                obstacle = None;
                let binding = PeekBinding {
                    listener: listener_number,
                    protocol: number,
                    moving,
                    clients,
                    is_awaited: self.awaited.contains(&address).into(),
                };
                self.tables.bindings.insert(key, binding);
            }
            if let Some(obstacle) = obstacle {
                self.leave_out_listener(listener, obstacle);
            }
        }
        self.tables.bindings.values().any(|binding| binding.protocol == number)
    }

    /// Number of a client destination that moves between nodes; 0 if the address does not move.
    fn number_of_moving(&mut self, address: IpAddr, conditions: &Conditions) -> Result<u8, PeekObstacle> {
        let floating = &self.snapshot.floating;
        let Some(group) = floating.group_of(address) else {
            return Ok(0);
        };
        // `cut_in` sends first data, which has no socket, to the former owner.
        if conditions.chained.contains(&address) {
            return Err(PeekObstacle::FormerOwner);
        }
        let place = self.vips.iter().position(|vip| *vip == address);
        let number = place.and_then(|place| u8::try_from(place + 1).ok());
        let number = number.ok_or(PeekObstacle::FloatingAddresses)?;
        self.moving.insert(address, (number, group));
        Ok(number)
    }

    /// Adds the source addresses of connections to hosts, as tier `cut` chooses them.
    fn add_sources(&mut self) {
        let moving: Vec<_> = self.moving.iter().map(|(vip, numbers)| (*vip, *numbers)).collect();
        let hosts: Vec<_> = self
            .tables
            .hosts
            .iter()
            .map(|(key, (host, _))| (key.clone(), from_words(host.local)))
            .collect();
        for (vip, (number, group)) in moving {
            for (key, ordinary) in &hosts {
                if let Some(source) = self.moving_source(group, vip, *ordinary) {
                    self.tables
                        .sources
                        .insert((number.into(), key.clone()), to_words(source));
                }
            }
        }
    }

    /// The first address that moves together with a virtual address, and is this machine's as far as that is.
    fn moving_source(&mut self, group: usize, vip: IpAddr, ordinary: IpAddr) -> Option<IpAddr> {
        let interfaces = &mut self.interfaces;
        let interface = |address| *interfaces.entry(address).or_insert_with(|| interface_of(address));
        let choice = source_address::floating_choice(&self.snapshot.floating, group, vip, ordinary, interface);
        let is_awaited = self.awaited.contains(&vip);
        choice
            .into_iter()
            .find(|source| is_awaited || self.addresses.contains(source))
    }

    fn leave_out_listener(&mut self, listener: &Listener, obstacle: PeekObstacle) {
        self.tables.leave_out("listener", obstacle);
        self.tables.listener_obstacles.insert(listener.name.clone(), obstacle);
    }

    /// Adds clusters and their hosts, and counts those left out.
    fn add_clusters(&mut self) {
        for at in 0..self.snapshot.model.clusters.len() {
            if let Err(obstacle) = self.element(at, (None, None))
                && obstacle != PeekObstacle::NoUsableHost
            {
                self.tables.leave_out("cluster", obstacle);
            }
        }
    }

    /// Element of a cluster for routes with settings of their own. Added when a route first needs it.
    fn element(&mut self, at: usize, own: OwnOfRoute) -> Result<u32, PeekObstacle> {
        let key = (at, self.protocol, own);
        if let Some(known) = self.elements.get(&key) {
            return *known;
        }
        // A cluster keeps its element when others come and go. The elements for settings of routes follow.
        let index = if own == (None, None) {
            2 * at as u32 + u32::from(self.protocol == Protocol::Tls)
        } else {
            let known = self.elements.keys().filter(|(_, _, own)| *own != (None, None));
            2 * self.snapshot.model.clusters.len() as u32 + known.count() as u32
        };
        let added = if index < MAX_PEEK_CLUSTERS {
            self.add_cluster(at, own, index).map(|()| index)
        } else {
            Err(PeekObstacle::TableFull)
        };
        self.elements.insert(key, added);
        added
    }

    fn add_cluster(&mut self, at: usize, (balance, limit): OwnOfRoute, index: u32) -> Result<(), PeekObstacle> {
        let turns_of = cluster_turns(self.snapshot, at, self.protocol, balance)?;
        let host_limit = limits::of_hosts(self.snapshot, at, limit)?;
        let mut hosts = HashMap::new();
        for &host in &turns_of.hosts {
            if let std::collections::hash_map::Entry::Vacant(place) = hosts.entry(host) {
                place.insert(self.host(at, host)?);
            }
        }
        // If a host could not be added, `?` has left the whole cluster to userspace above.
        let turns = turns_of
            .hosts
            .iter()
            .filter_map(|host| Some(hosts.get(host)?.0.clone()));
        let configured = self.snapshot.model.clusters.get(at);
        let cluster = ClusterTurns {
            balance: turns_of.balance,
            turns: turns.collect(),
            maglev: turns_of.maglev.map(|table| maglev_of(table, &turns_of.hosts)),
            host_limit,
            proxy: configured
                .and_then(|cluster| cluster.proxy_protocol)
                .map_or(0, ProxyTlvs::parts),
        };
        self.tables.clusters.insert(index, cluster);
        let of_hosts = hosts.into_values().map(|(key, entry, state)| (key, (entry, state)));
        self.tables.hosts.extend(of_hosts);
        Ok(())
    }

    fn host(&mut self, c: usize, h: u16) -> Result<(PeekHostKey, PeekHost, Arc<HostState>), PeekObstacle> {
        let snapshot = self.snapshot;
        let found = || {
            let cluster = snapshot.model.clusters.get(c)?;
            let host = cluster.hosts.get(usize::from(h))?;
            let state = snapshot.hosts.get(c)?.get(usize::from(h))?;
            let number = self.registry.host(state, snapshot.clusters.get(c)?)?;
            Some((cluster, host, state, number, host.port(self.protocol)?))
        };
        let (cluster, host, state, number, port) = found().ok_or(PeekObstacle::TableFull)?;
        if self.conditions.unfit.contains(&(c, usize::from(h))) {
            return Err(PeekObstacle::HostOptions);
        }
        let (local, ifindex) = self.way_to(host.address).ok_or(PeekObstacle::HostNotReached)?;
        let entry = PeekHost {
            address: to_words(host.address),
            local: to_words(local),
            port: port.into(),
            number,
            weight: host.weight.max(1),
            count: state.active.word().ok_or(PeekObstacle::TableFull)?,
            is_moving: snapshot.floating.moves(local).into(),
            ifindex,
            ..PeekHost::default()
        };
        let key = (
            cluster.name.clone(),
            host.name.clone(),
            SocketAddr::new(host.address, port),
        );
        Ok((key, entry, Arc::clone(state)))
    }

    /// Source address and interface for connections to a host. `None` if the host is unreachable or on this machine: no
    /// interface with the programs lies in between.
    fn way_to(&mut self, host: IpAddr) -> Option<(IpAddr, u32)> {
        let netlink = self.netlink.as_ref()?;
        *self.ways.entry(host).or_insert_with(|| {
            let way = netlink.route_get(host).ok().flatten().filter(|way| !way.is_local)?;
            Some((source_address::kernel_choice(host).ok()?, way.ifindex))
        })
    }

    fn add_routes(&mut self, number: u8) {
        let snapshot = self.snapshot;
        for (id, route) in snapshot.model.routes.iter().enumerate() {
            let name = key_of(number, &route.hostname).ok_or(PeekObstacle::LongName);
            if let (Ok(name), HostnamePattern::Wildcard(_)) = (name, &route.hostname) {
                self.tables.wildcards.insert(name, route.depth);
            }
            let entry = route_turns(snapshot, id, route, self.protocol)
                .and_then(|turns| self.route((id, route), turns))
                .and_then(|entry| Ok((name?, entry)));
            match entry {
                Ok((name, entry)) => _ = self.tables.routes.insert(name, entry),
                Err(obstacle) => {
                    self.tables.leave_out("route", obstacle);
                    if let Ok(name) = name {
                        self.tables.route_obstacles.insert(name, obstacle);
                    }
                }
            }
        }
    }

    /// Entry of a route.
    fn route(&mut self, (id, route): (usize, &'a Route), turns: &[u16]) -> Result<PeekRoute, PeekObstacle> {
        let state = self.snapshot.routes.get(id);
        let mut entry = PeekRoute {
            number: state
                .and_then(|state| self.registry.route(state))
                .ok_or(PeekObstacle::TableFull)?,
            ticket: 0,
            turns: turns.len() as u32,
            clients: 0,
            limits: 0,
            clusters: [0; MAX_ROUTE_CLUSTERS],
            turn: [0; MAX_TURNS],
        };
        let mut clusters: Vec<u16> = Vec::new();
        let schedule = self.snapshot.view.routes.get(id);
        let in_order = schedule.into_iter().flat_map(Schedule::turns);
        for (slot, cluster) in entry.turn.iter_mut().zip(in_order) {
            let at = clusters.iter().position(|known| *known == cluster).unwrap_or_else(|| {
                clusters.push(cluster);
                clusters.len() - 1
            });
            *slot = at as u8;
        }
        if clusters.len() > MAX_ROUTE_CLUSTERS {
            return Err(PeekObstacle::ManyTurns);
        }
        for (slot, &cluster) in entry.clusters.iter_mut().zip(&clusters) {
            *slot = self.element(cluster.into(), (route.own_balance(), route.max_host_connections()))? as u16;
        }
        entry.clients = self.clients.number_of(route)?;
        if let Some(limits) = limits::of_route(route, self.seed) {
            entry.limits = 1;
            self.tables.limits.insert(entry.number, limits);
        }
        Ok(entry)
    }
}

/// Addresses that belong to a listener, with their keys. A prefix may cover other addresses, but their
/// packets are forwarded elsewhere. An address in a more specific bind of another listener belongs to that listener.
fn local_binds(all: &[Listener], listener: &Listener, addresses: &[IpAddr]) -> Vec<(IpAddr, (u32, SteerKey))> {
    let has = |bind: &Bind, address: IpAddr, port: u16| bind.port == port && bind.prefix.contains(&address);
    let longest = |of: &Listener, address: IpAddr, port: u16| {
        let binds = of.listen.iter().filter(|bind| has(bind, address, port));
        binds.map(|bind| bind.prefix.prefix_len()).max()
    };
    let mut keys = Vec::new();
    for bind in &listener.listen {
        for &address in addresses.iter().filter(|address| bind.prefix.contains(*address)) {
            // Of two equally specific binds the first listener's counts, as in the steering plan.
            let best = all
                .iter()
                .filter_map(|other| Some((longest(other, address, bind.port)?, other)));
            let owner = best.reduce(|a, b| if b.0 > a.0 { b } else { a });
            if owner.is_some_and(|(_, owner)| owner.name == listener.name) {
                let family = if address.is_ipv4() { 4 } else { 6 };
                let key = SteerKey::new(bind.port, family, ipv4_mapped(address));
                keys.push((address, (STEER_FIXED_BITS + 128, key)));
            }
        }
    }
    keys
}

/// Key of a route's name.
pub(super) fn name_of(route: &Route, protocol: Protocol) -> Option<PeekName> {
    let (_, number) = PROTOCOLS.iter().find(|(known, _)| *known == protocol)?;
    key_of(*number, &route.hostname)
}

fn key_of(number: u8, hostname: &HostnamePattern) -> Option<PeekName> {
    match hostname {
        HostnamePattern::Exact(name) => PeekName::new(number, name.as_str()),
        HostnamePattern::Wildcard(suffix) => PeekName::wildcard(number, suffix.as_str()),
    }
}

/// Index of the interface that has an address.
fn interface_of(address: IpAddr) -> Option<u32> {
    let name = interfaces::name_of_address(address)?;
    interfaces::all()
        .into_iter()
        .find(|interface| interface.name == name)
        .map(|interface| interface.index)
}

const _: () = assert!(MAGLEV_SLOTS == signalbox_core::routing::maglev::SLOTS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_are_routed_by_their_most_specific_listener() {
        let text = "version: 1\nlisteners:\n  - { name: all, protocol: http, listen: [\"0.0.0.0:80\"] }\n  \
                    - { name: one, protocol: tcp, listen: [\"10.0.0.2:80\"], cluster: c }\n\
                    clusters: [{ name: c, hosts: [{ name: h, address: 10.2.0.2, http: 80, tcp: 80 }] }]\n";
        let listeners = crate::config::parse(text).unwrap().model.listeners;
        let addresses: Vec<IpAddr> = ["10.0.0.1", "10.0.0.2", "fd00::1"]
            .map(|text| text.parse().unwrap())
            .into();
        let key = |text: &str| {
            let address: IpAddr = text.parse().unwrap();
            (
                address,
                (STEER_FIXED_BITS + 128, SteerKey::new(80, 4, ipv4_mapped(address))),
            )
        };
        assert_eq!(local_binds(&listeners, &listeners[0], &addresses), [key("10.0.0.1")]);
        assert_eq!(local_binds(&listeners, &listeners[1], &addresses), [key("10.0.0.2")]);
        assert_eq!(local_binds(&listeners, &listeners[0], &[]), []);
    }
}
