//! Model of the programs' maps without a kernel, as Rust collections, for host tests and fuzzing.

extern crate std;

use std::boxed::Box;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::vec::Vec;

use super::abi::{Fragment, Host, L4Config, L4Flow, Service};
use super::maps::{Direction, LocalSocket, Maps};
use crate::net::target::PortBit;
use crate::net::{Key, ParsedHeaders, Target};
use crate::shield::abi::{GuardStats, NO_GUARD, SynRate};
use crate::shield::prefixes::{NO_MATCH, Node};
use crate::shield::{self, Bucket, ConnCountKey, Decision, DroppedPacket, Guard, Settings, prefixes};

/// Flow table whose entries never move, as an element of a kernel's map does not while a program runs.
type Flows = RefCell<HashMap<Key, Box<L4Flow>>>;

/// Maps of layer-4 services.
#[derive(Default)]
pub struct ModelMaps {
    /// Flows that both sides have confirmed.
    pub established: Flows,
    /// Flows that have begun.
    pub half_open: Flows,
    /// Services by what they listen on.
    pub services: HashMap<Target, Service>,
    /// The hosts of each table's slots, in turn.
    pub tables: HashMap<u32, Vec<u16>>,
    /// Hosts by number.
    pub hosts: HashMap<u32, Host>,
    /// Ports of hosts.
    pub ports: HashMap<(u16, u32), u16>,
    /// Source addresses.
    pub sources: Vec<[u32; 4]>,
    /// Sockets of the machine, by the key of packets that arrive at them.
    pub local_sockets: HashMap<Key, LocalSocket>,
    /// Addresses of other machines that the kernel routes packets to.
    pub is_router_of: HashSet<[u32; 4]>,
    /// Ports of datagrams.
    pub fragments: RefCell<HashMap<Fragment, u32>>,
    /// Settings common to all services.
    pub config: L4Config,
    /// The clock.
    pub now: Cell<u32>,
    /// Flows that have been removed, for the program that still reads them.
    #[allow(clippy::vec_box, reason = "somebody may hold a reference into the box")]
    removed: RefCell<Vec<Box<L4Flow>>>,
    /// Number of packets counted.
    pub packets_counted: Cell<u32>,
    /// Maps of the shield.
    pub shield: ModelShieldMaps,
}

/// Maps of the shield, modelled.
#[derive(Default)]
pub struct ModelShieldMaps {
    /// Guards by what they guard.
    pub targets: HashMap<Target, u32>,
    /// Guards by number.
    pub guards: HashMap<u32, Guard>,
    /// Settings common to all guards.
    pub settings: Settings,
    /// Table of the prefixes common to all guards.
    pub shared_prefixes: Vec<Node>,
    /// Tables of guards' own prefixes, by guard.
    pub tables: HashMap<u32, Vec<Node>>,
    /// Rates of sources.
    pub sources: RefCell<HashMap<u32, Box<Bucket>>>,
    /// Connections of sources.
    pub conn_counts: RefCell<HashMap<ConnCountKey, u32>>,
    /// Counters of guards.
    pub stats: RefCell<HashMap<u32, Box<GuardStats>>>,
    /// SYNs to guards.
    pub syn_rates: RefCell<HashMap<u32, Box<SynRate>>>,
    /// Samples of dropped packets.
    pub samples: RefCell<Vec<DroppedPacket>>,
    /// The cookie of any SYN, where the backlog is full.
    pub cookie: Option<(u32, u16)>,
    /// Length of the frame, where it is not endless.
    pub frame: Option<u32>,
    /// Whether the frame is addressed to another machine.
    pub is_overheard: bool,
}

#[allow(clippy::mut_from_ref, reason = "as of an element of a kernel's map")]
fn find<'a>(flows: &'a Flows, key: &Key) -> Option<&'a mut L4Flow> {
    let flow: *mut L4Flow = &raw mut **flows.borrow_mut().get_mut(key)?;
    // SAFETY: in a box, which is neither moved nor freed while a packet is read, except by `end` and `promote`, after
    // which it is not read again. One thread.
    Some(unsafe { &mut *flow })
}

#[allow(clippy::mut_from_ref, reason = "as of an element of a kernel's map")]
fn element<T: Default>(of: &RefCell<HashMap<u32, Box<T>>>, at: u32) -> &mut T {
    let element: *mut T = &raw mut **of.borrow_mut().entry(at).or_default();
    // SAFETY: in a box, which is neither moved nor freed. One thread.
    unsafe { &mut *element }
}

impl shield::ShieldMaps for ModelMaps {
    fn clock_ns(&self) -> u64 {
        u64::from(self.now.get()) << 20
    }

    fn settings(&self) -> Option<&Settings> {
        Some(&self.shield.settings)
    }

    fn is_port_guarded(&self, _: PortBit) -> bool {
        !self.shield.targets.is_empty()
    }

    fn is_wildcard_guarded(&self, _: PortBit) -> bool {
        false
    }

    fn guard_of(&self, key: &Key, _: u32, _: u32) -> u32 {
        let target = Target::new(key.destination, key.ports as u16, key.protocol as u8);
        self.shield.targets.get(&target).copied().unwrap_or(NO_GUARD)
    }

    fn guard(&self, number: u32) -> Option<&Guard> {
        self.shield.guards.get(&number)
    }

    fn shared_verdict(&self, _: u32, address: &[u32; 4], is_v4: bool) -> u32 {
        prefixes::verdict(self.shield.shared_prefixes.as_slice(), address, is_v4)
    }

    fn guard_verdict(&self, guard: u32, address: &[u32; 4], is_v4: bool) -> u32 {
        let table = self.shield.tables.get(&guard);
        table.map_or(NO_MATCH, |nodes| prefixes::verdict(nodes.as_slice(), address, is_v4))
    }

    fn bucket(&self, place: u32) -> Option<&mut Bucket> {
        (place < self.shield.settings.buckets).then(|| element(&self.shield.sources, place))
    }

    fn conn_count(&self, key: &ConnCountKey) -> u32 {
        self.shield.conn_counts.borrow().get(key).copied().unwrap_or(0)
    }

    fn conn_opened(&self, key: &ConnCountKey) {
        *self.shield.conn_counts.borrow_mut().entry(*key).or_default() += 1;
    }

    fn conn_closed(&self, key: &ConnCountKey) {
        if let Some(count) = self.shield.conn_counts.borrow_mut().get_mut(key) {
            *count = count.saturating_sub(1);
        }
    }

    fn guard_stats(&self, guard: u32) -> Option<&mut GuardStats> {
        Some(element(&self.shield.stats, guard))
    }

    fn syn_rate(&self, guard: u32) -> Option<&mut SynRate> {
        Some(element(&self.shield.syn_rates, guard))
    }

    fn take_sample_quota(&self, _: Decision) -> bool {
        true
    }

    fn send_sample(&self, dropped: &DroppedPacket) {
        self.shield.samples.borrow_mut().push(*dropped);
    }

    fn make_cookie(&self, _: &Key, _: &[u32; 25], _: u32) -> Option<(u32, u16)> {
        self.shield.cookie
    }

    fn frame_length(&self) -> u32 {
        self.shield.frame.unwrap_or(0xffff)
    }

    fn ingress_ifindex(&self) -> u32 {
        1
    }
}

impl Maps for ModelMaps {
    fn now(&self) -> u32 {
        self.now.get()
    }

    fn config(&self) -> Option<&L4Config> {
        Some(&self.config)
    }

    fn established(&self, key: &Key) -> Option<&mut L4Flow> {
        find(&self.established, key)
    }

    fn half_open(&self, key: &Key) -> Option<&mut L4Flow> {
        find(&self.half_open, key)
    }

    fn insert_half_open(&self, key: &Key, flow: &L4Flow, fresh: bool) -> bool {
        let mut half_open = self.half_open.borrow_mut();
        if fresh && half_open.contains_key(key) {
            return false;
        }
        match half_open.get_mut(key) {
            Some(place) => **place = *flow,
            None => drop(half_open.insert(*key, Box::new(*flow))),
        }
        true
    }

    fn promote(&self, key: &Key, flow: &L4Flow, reverse: Option<(&Key, &L4Flow)>) -> bool {
        // The entries of flows that have begun stay, because the program may still read them.
        for (key, flow) in reverse.into_iter().chain([(key, flow)]) {
            self.established.borrow_mut().insert(*key, Box::new(*flow));
        }
        true
    }

    fn remove_established(&self, key: &Key) {
        let gone = self.established.borrow_mut().remove(key);
        self.removed.borrow_mut().extend(gone);
    }

    fn service(&self, target: &Target) -> Option<&Service> {
        self.services.get(target)
    }

    fn slot(&self, table: u32, slot: u32) -> Option<u16> {
        let hosts = self.tables.get(&table)?;
        hosts.get(slot as usize % hosts.len().max(1)).copied()
    }

    fn host(&self, index: u32) -> Option<&Host> {
        self.hosts.get(&index)
    }

    fn host_port(&self, service: u16, host: u32) -> Option<u16> {
        self.ports.get(&(service, host)).copied()
    }

    fn nat_source(&self, index: u32) -> Option<[u32; 4]> {
        self.sources.get(index as usize).copied()
    }

    fn local_socket(&self, key: &Key) -> LocalSocket {
        self.local_sockets.get(key).copied().unwrap_or_default()
    }

    fn is_forwarded(&self, seen: &ParsedHeaders) -> bool {
        self.is_router_of.contains(&seen.key.destination)
    }

    fn fragment(&self, fragment: &Fragment) -> Option<u32> {
        self.fragments.borrow().get(fragment).copied()
    }

    fn record_fragment(&self, fragment: &Fragment, ports: u32) {
        self.fragments.borrow_mut().insert(*fragment, ports);
    }

    fn count_packet(&self, _: u16, _: u32, _: Direction) {
        self.packets_counted.set(self.packets_counted.get() + 1);
    }

    fn is_service_port(&self, _: PortBit) -> bool {
        true
    }

    fn reply_macs(&self) -> [u32; 3] {
        [1, 2, 3]
    }

    fn is_for_us(&self) -> bool {
        !self.shield.is_overheard
    }

    fn ingress(&self) -> (u32, u16) {
        (1, 0)
    }

    fn largest_packet(&self, seen: &ParsedHeaders) -> u32 {
        seen.length
    }
}

impl ModelMaps {
    /// A service of each mode on a port of its own (80, 81, 82), TCP and UDP, both families, to the hosts 0 to 7 of
    /// either.
    #[must_use]
    pub fn with_services(vip4: [u32; 4], vip6: [u32; 4]) -> Self {
        let mut maps = Self {
            config: L4Config {
                first_port: 20_000,
                port_count: 10_000,
                floating_first_port: 2001,
                floating_port_count: 500,
                floating_port_step: 2,
                half_open_ticks: 60_000,
                outer_v4: 0xac10_0000,
                outer_v4_flow_mask: 0xffff,
                outer_v6: [0x0100_0000, 0, 0],
            },
            sources: [[0, 0, 0xffff, 0x0a00_0001], [0xfd00_0000, 0, 0, 1]].into(),
            ..Self::default()
        };
        for (table, vip) in [vip4, vip6].into_iter().enumerate() {
            let hosts = (0..8).map(|n| 8 * table as u16 + n);
            maps.tables.insert(table as u32, hosts.clone().collect());
            for number in hosts {
                let address = if table == 0 {
                    [0, 0, 0xffff, 0x0a00_0100 + u32::from(number)]
                } else {
                    [0xfd00_0000, 0, 0, 0x100 + u32::from(number)]
                };
                let host = Host {
                    address,
                    macs: [u32::from(number) + 10, 11, 12],
                    ifindex: 2,
                    xdp_ifindex: 2,
                    mtu: 1500,
                    first_source: table as u32,
                    source_count: 1,
                    ..Host::default()
                };
                maps.hosts.insert(u32::from(number), host);
            }
            for (port, mode) in [(80, 0), (81, 1), (82, 2)] {
                for protocol in [6, 17] {
                    let service = Service {
                        number: port,
                        mode,
                        flags: 0,
                        table: table as u32,
                        idle_ticks: 30_000,
                        group: 0,
                    };
                    maps.services.insert(Target::new(vip, port, protocol), service);
                }
            }
        }
        maps
    }
}
