//! Model of the programs' maps without a kernel, as Rust collections, for host tests and fuzzing.

extern crate std;

use std::boxed::Box;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::vec::Vec;

use super::abi::{Config, Flow, Fragment, Host, Key, PortBit, Service, Target};
use super::kernel::{Direction, Kernel};
use super::packet::Seen;
use crate::shield::abi::{Flood, NO_GUARD, Tally as ShieldTally};
use crate::shield::prefixes::{NONE, Node};
use crate::shield::{self, Bucket, CrowdKey, Dropped, Guard, Judged, Settings, prefixes};

/// Flow table whose entries never move, as an element of a kernel's map does not while a program runs.
type Flows = RefCell<HashMap<Key, Box<Flow>>>;

/// Maps of layer-4 services.
#[derive(Default)]
pub struct Maps {
    /// Flows that both sides have confirmed.
    pub established: Flows,
    /// Flows that have begun.
    pub opening: Flows,
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
    /// Keys on which sockets of the machine have connections.
    pub local: HashSet<Key>,
    /// Ports of datagrams.
    pub fragments: RefCell<HashMap<Fragment, u32>>,
    /// Settings common to all services.
    pub config: Config,
    /// The clock.
    pub now: Cell<u32>,
    /// Flows that have been removed, for the program that still reads them.
    #[allow(clippy::vec_box, reason = "somebody may hold a reference into the box")]
    gone: RefCell<Vec<Box<Flow>>>,
    /// Number of packets counted.
    pub counted: Cell<u32>,
    /// Maps of the shield.
    pub shield: Shield,
}

/// Maps of the shield, modelled.
#[derive(Default)]
pub struct Shield {
    /// Guards by what they guard.
    pub targets: HashMap<Target, u32>,
    /// Guards by number.
    pub guards: HashMap<u32, Guard>,
    /// Settings common to all guards.
    pub settings: Settings,
    /// Table of the prefixes common to all guards.
    pub common: Vec<Node>,
    /// Tables of guards' own prefixes, by guard.
    pub tables: HashMap<u32, Vec<Node>>,
    /// Rates of sources.
    pub sources: RefCell<HashMap<u32, Box<Bucket>>>,
    /// Connections of sources.
    pub crowd: RefCell<HashMap<CrowdKey, u32>>,
    /// Counters of guards.
    pub tallies: RefCell<HashMap<u32, Box<ShieldTally>>>,
    /// SYNs to guards.
    pub floods: RefCell<HashMap<u32, Box<Flood>>>,
    /// Samples of dropped packets.
    pub samples: RefCell<Vec<Dropped>>,
    /// The cookie of any SYN, where the backlog is full.
    pub cookie: Option<(u32, u16)>,
    /// Length of the frame, where it is not endless.
    pub frame: Option<u32>,
    /// Whether the frame is addressed to another machine.
    pub is_overheard: bool,
}

#[allow(clippy::mut_from_ref, reason = "as of an element of a kernel's map")]
fn find<'a>(flows: &'a Flows, key: &Key) -> Option<&'a mut Flow> {
    let flow: *mut Flow = &raw mut **flows.borrow_mut().get_mut(key)?;
    // SAFETY: in a box, which neither moves nor goes while a packet is looked at, but for `end` and `promote`, after
    // which nobody asks for it again. One thread.
    Some(unsafe { &mut *flow })
}

#[allow(clippy::mut_from_ref, reason = "as of an element of a kernel's map")]
fn element<T: Default>(of: &RefCell<HashMap<u32, Box<T>>>, at: u32) -> &mut T {
    let element: *mut T = &raw mut **of.borrow_mut().entry(at).or_default();
    // SAFETY: in a box, which neither moves nor goes. One thread.
    unsafe { &mut *element }
}

impl shield::Kernel for Maps {
    fn clock(&self) -> u64 {
        u64::from(self.now.get()) << 20
    }

    fn settings(&self) -> Option<&Settings> {
        Some(&self.shield.settings)
    }

    fn is_guarded(&self, _: PortBit) -> bool {
        !self.shield.targets.is_empty()
    }

    fn is_guarded_anywhere(&self, _: PortBit) -> bool {
        false
    }

    fn guard_of(&self, key: &Key, _: u32, _: u32) -> u32 {
        let target = Target::new(key.destination, key.ports as u16, key.protocol as u8);
        self.shield.targets.get(&target).copied().unwrap_or(NO_GUARD)
    }

    fn guard(&self, number: u32) -> Option<&Guard> {
        self.shield.guards.get(&number)
    }

    fn common(&self, _: u32, address: &[u32; 4], is_v4: bool) -> u32 {
        prefixes::verdict(self.shield.common.as_slice(), address, is_v4)
    }

    fn own(&self, guard: u32, address: &[u32; 4], is_v4: bool) -> u32 {
        let table = self.shield.tables.get(&guard);
        table.map_or(NONE, |nodes| prefixes::verdict(nodes.as_slice(), address, is_v4))
    }

    fn bucket(&self, place: u32) -> Option<&mut Bucket> {
        (place < self.shield.settings.buckets).then(|| element(&self.shield.sources, place))
    }

    fn crowd(&self, key: &CrowdKey) -> u32 {
        self.shield.crowd.borrow().get(key).copied().unwrap_or(0)
    }

    fn join(&self, key: &CrowdKey) {
        *self.shield.crowd.borrow_mut().entry(*key).or_default() += 1;
    }

    fn part(&self, key: &CrowdKey) {
        if let Some(count) = self.shield.crowd.borrow_mut().get_mut(key) {
            *count = count.saturating_sub(1);
        }
    }

    fn judged(&self, guard: u32) -> Option<&mut ShieldTally> {
        Some(element(&self.shield.tallies, guard))
    }

    fn flood(&self, guard: u32) -> Option<&mut Flood> {
        Some(element(&self.shield.floods, guard))
    }

    fn may_sample(&self, _: Judged) -> bool {
        true
    }

    fn sample(&self, dropped: &Dropped) {
        self.shield.samples.borrow_mut().push(*dropped);
    }

    fn cookie(&self, _: &Key, _: &[u32; 25], _: u32) -> Option<(u32, u16)> {
        self.shield.cookie
    }

    fn frame(&self) -> u32 {
        self.shield.frame.unwrap_or(0xffff)
    }

    fn interface(&self) -> u32 {
        1
    }
}

impl Kernel for Maps {
    fn now(&self) -> u32 {
        self.now.get()
    }

    fn config(&self) -> Option<&Config> {
        Some(&self.config)
    }

    fn established(&self, key: &Key) -> Option<&mut Flow> {
        find(&self.established, key)
    }

    fn opening(&self, key: &Key) -> Option<&mut Flow> {
        find(&self.opening, key)
    }

    fn open(&self, key: &Key, flow: &Flow, fresh: bool) -> bool {
        let mut opening = self.opening.borrow_mut();
        if fresh && opening.contains_key(key) {
            return false;
        }
        match opening.get_mut(key) {
            Some(place) => **place = *flow,
            None => drop(opening.insert(*key, Box::new(*flow))),
        }
        true
    }

    fn promote(&self, key: &Key, flow: &Flow, reverse: Option<(&Key, &Flow)>) -> bool {
        // The entries among those that have begun stay, for the program may still read them.
        for (key, flow) in reverse.into_iter().chain([(key, flow)]) {
            self.established.borrow_mut().insert(*key, Box::new(*flow));
        }
        true
    }

    fn end(&self, key: &Key) {
        let gone = self.established.borrow_mut().remove(key);
        self.gone.borrow_mut().extend(gone);
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

    fn port(&self, service: u16, host: u32) -> Option<u16> {
        self.ports.get(&(service, host)).copied()
    }

    fn source(&self, index: u32) -> Option<[u32; 4]> {
        self.sources.get(index as usize).copied()
    }

    fn is_local(&self, key: &Key) -> bool {
        self.local.contains(key)
    }

    fn fragment(&self, fragment: &Fragment) -> Option<u32> {
        self.fragments.borrow().get(fragment).copied()
    }

    fn learn_fragment(&self, fragment: &Fragment, ports: u32) {
        self.fragments.borrow_mut().insert(*fragment, ports);
    }

    fn tally(&self, _: u16, _: u32, _: Direction) {
        self.counted.set(self.counted.get() + 1);
    }

    fn is_wanted(&self, _: PortBit) -> bool {
        true
    }

    fn way_back(&self) -> [u32; 3] {
        [1, 2, 3]
    }

    fn is_for_us(&self) -> bool {
        !self.shield.is_overheard
    }

    fn arrival(&self) -> (u32, u16) {
        (1, 0)
    }

    fn largest(&self, seen: &Seen) -> u32 {
        seen.length
    }
}

impl Maps {
    /// A service of each mode on a port of its own (80, 81, 82), TCP and UDP, both families, to the hosts 0 to 7 of either.
    #[must_use]
    pub fn with_services(vip4: [u32; 4], vip6: [u32; 4]) -> Self {
        let mut maps = Self {
            config: Config {
                first_port: 20_000,
                ports: 10_000,
                opening: 60_000,
                outer_v4: 0xac10_0000,
                outer_v4_free: 0xffff,
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
                    port: 2,
                    mtu: 1500,
                    first_source: table as u32,
                    sources: 1,
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
                        idle: 30_000,
                    };
                    maps.services.insert(Target::new(vip, port, protocol), service);
                }
            }
        }
        maps
    }
}
