//! The two programs, attached to nothing, their maps, and the effects of one run.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray};
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader};
use signalbox::kernel::l4::shield::Shield;
use signalbox::kernel::object;
use signalbox::kernel::pins::temporary::TemporaryPins;
use signalbox_common::Reason;
use signalbox_common::l4::abi::{ALL_MACS, DsrQuota, SLOTS, service};
use signalbox_common::l4::{Host, L4Config, L4Flow, Service, ServiceStats, mode};
use signalbox_common::net::target::{PORT_BITMAP_WORDS, PortBit};
use signalbox_common::net::{Key, Target};
use signalbox_common::shield::Settings;

use crate::logged::ProgramMessages;

use super::packet::{Packet, SYN, TCP, UDP};

/// The Ethernet addresses of a frame from the client, and of one to it.
pub(crate) const FROM_CLIENT: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0xc];
pub(crate) const TO_CLIENT: [u8; 12] = [2, 0, 0, 0, 0, 0xc, 2, 0, 0, 0, 0, 1];
/// Ethernet addresses of frames to hosts.
pub(crate) const TO_HOST: [u8; 12] = [2, 0, 0, 0, 0, 0xa, 2, 0, 0, 0, 0, 1];
pub(crate) const FROM_HOST: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0xa];

pub(crate) const CLIENT: &str = "192.0.2.7:40000";
pub(crate) const VIP: &str = "198.51.100.1:3306";
pub(crate) const OURS: &str = "10.0.0.1";
pub(crate) const HOST: &str = "10.0.0.9:3306";
pub(crate) const CLIENT6: &str = "[2001:db8:1::7]:40000";
pub(crate) const VIP6: &str = "[2001:db8:2::1]:3306";
pub(crate) const OURS6: &str = "fd00::1";
pub(crate) const HOST6: &str = "[fd00::9]:3306";

pub(crate) const FIRST_PORT: u32 = 20_000;
pub(crate) const PORTS: u32 = 1000;

/// Sources and ports of a service at an address that moves: this node's are the odd ports.
pub(crate) const FLOATING: &str = "10.0.0.77";
pub(crate) const FLOATING_FIRST_PORT: u32 = 2001;
pub(crate) const FLOATING_PORTS: u32 = 40;
pub(crate) const FLOATING_PORT_STEP: u32 = 2;

/// Loopback's, in the namespace of the tests: test_run sets it as the interface that a packet arrives at.
pub(crate) const IFINDEX: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Xdp,
    Tc,
}

pub(crate) const BOTH: [Program; 2] = [Program::Xdp, Program::Tc];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Pass,
    Drop,
    Send,
}

#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) action: Action,
    pub(crate) reasons: Vec<Reason>,
    pub(crate) bytes: Vec<u8>,
}

impl Outcome {
    /// The packet that was sent, for this reason.
    #[track_caller]
    pub(crate) fn sent(&self, reason: Reason) -> Packet {
        self.sent_bytes(reason);
        Packet::read(&self.bytes)
    }

    #[track_caller]
    pub(crate) fn sent_bytes(&self, reason: Reason) -> &[u8] {
        assert_eq!((self.action, &self.reasons[..]), (Action::Send, &[reason][..]));
        &self.bytes
    }

    #[track_caller]
    pub(crate) fn is(&self, action: Action, reason: Reason) {
        assert_eq!((self.action, &self.reasons[..]), (action, &[reason][..]));
    }
}

pub(crate) struct World {
    pub(crate) messages: ProgramMessages,
    pub(crate) program: Program,
    pub(crate) established: HashMap<MapData, Key, L4Flow>,
    pub(crate) opening: HashMap<MapData, Key, L4Flow>,
    services: HashMap<MapData, Target, Service>,
    hosts: Array<MapData, Host>,
    ports: HashMap<MapData, u32, u32>,
    sources: Array<MapData, [u32; 4]>,
    config: Array<MapData, L4Config>,
    fragments: HashMap<MapData, signalbox_common::l4::Fragment, u32>,
    counters: PerCpuArray<MapData, u64>,
    tally: PerCpuArray<MapData, ServiceStats>,
    wanted: Array<MapData, u64>,
    one_way: Array<MapData, DsrQuota>,
    macs: HashMap<MapData, u64, u32>,
    tables: Map,
    pub(crate) shield: Shield,
    pub(crate) settings: Settings,
    ebpf: Ebpf,
}

pub(crate) fn words(ip: IpAddr) -> [u32; 4] {
    let bytes = signalbox_core::wire::address::ipv4_mapped(ip);
    std::array::from_fn(|i| u32::from_be_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap()))
}

fn macs(bytes: [u8; 12]) -> [u32; 3] {
    std::array::from_fn(|i| u32::from_be_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap()))
}

/// The key of a packet's addresses and ports.
pub(crate) fn key(packet: &Packet) -> Key {
    Key {
        source: words(packet.from.ip()),
        destination: words(packet.to.ip()),
        ports: u32::from(packet.from.port()) << 16 | u32::from(packet.to.port()),
        protocol: u32::from(packet.protocol),
    }
}

/// Runs `test` with each program.
pub(crate) fn with_each(test: impl Fn(&mut World) + Send + Sync) {
    for program in BOTH {
        with(program, &test);
    }
}

pub(crate) fn with<F: Fn(&mut World) + Send + Sync>(program: Program, test: F) {
    let name = crate::namespace::test_of::<F>();
    // TC ignores packets for other Ethernet addresses: the loopback device gets ours.
    let ours = ["link set lo address 02:00:00:00:00:01"];
    crate::namespace::in_own_namespace(name, aya::programs::ProgramType::Xdp, &ours, move || {
        let mut world = World::fresh(program);
        test(&mut world);
    });
}

impl World {
    /// Returns the world, shared by all tests, one after the other, with empty maps: the verifier takes a second for
    /// the programs.
    pub(crate) fn fresh(program: Program) -> MutexGuard<'static, Self> {
        static LOADED: OnceLock<Mutex<World>> = OnceLock::new();
        let loaded = LOADED.get_or_init(|| Mutex::new(Self::load()));
        let mut world = loaded.lock().unwrap_or_else(PoisonError::into_inner);
        world.program = program;
        world.clear();
        world
    }

    fn load() -> Self {
        let pins = TemporaryPins::for_test_run().unwrap();
        let mut loader = EbpfLoader::new();
        pins.set_pins(&mut loader);
        loader.map_max_entries("L4_CT_ESTABLISHED", 64);
        loader.map_max_entries("SHIELD_SOURCES", 1024);
        loader.map_max_entries("SHIELD_SHARED_PREFIXES", 1 << 20);
        let mut ebpf = loader.load(object::LAYER4).unwrap();
        let xdp: &mut Xdp = ebpf.program_mut("l4_xdp").unwrap().try_into().unwrap();
        xdp.load().unwrap();
        let tc: &mut SchedClassifier = ebpf.program_mut("l4_tc").unwrap().try_into().unwrap();
        tc.load().unwrap();
        let shield = Shield::of(&mut ebpf).unwrap();
        let messages = ProgramMessages::of(&mut ebpf);
        let mut take = |name: &str| -> Map { ebpf.take_map(name).unwrap() };
        Self {
            messages,
            shield,
            settings: Settings::default(),
            program: Program::Xdp,
            established: take("L4_CT_ESTABLISHED").try_into().unwrap(),
            opening: take("L4_CT_HALF_OPEN").try_into().unwrap(),
            services: take("L4_SERVICES").try_into().unwrap(),
            hosts: take("L4_HOSTS").try_into().unwrap(),
            ports: take("L4_HOST_PORTS").try_into().unwrap(),
            sources: take("L4_NAT_SOURCES").try_into().unwrap(),
            config: take("L4_CONFIG").try_into().unwrap(),
            fragments: take("L4_FRAGMENTS").try_into().unwrap(),
            counters: take("COUNTERS").try_into().unwrap(),
            tally: take("L4_SERVICE_STATS").try_into().unwrap(),
            wanted: take("L4_PORT_BITMAP").try_into().unwrap(),
            one_way: take("L4_DSR_QUOTA").try_into().unwrap(),
            macs: take("L4_LOCAL_MACS").try_into().unwrap(),
            tables: take("L4_TABLES"),
            ebpf,
        }
    }

    /// Forgets all flows.
    pub(crate) fn forget(&mut self) {
        for map in [&mut self.established, &mut self.opening] {
            for key in map.keys().collect::<Result<Vec<_>, _>>().unwrap() {
                map.remove(&key).unwrap();
            }
        }
    }

    fn clear(&mut self) {
        self.forget();
        for key in self.services.keys().collect::<Result<Vec<_>, _>>().unwrap() {
            self.services.remove(&key).unwrap();
        }
        for key in self.ports.keys().collect::<Result<Vec<_>, _>>().unwrap() {
            self.ports.remove(&key).unwrap();
        }
        for key in self.fragments.keys().collect::<Result<Vec<_>, _>>().unwrap() {
            self.fragments.remove(&key).unwrap();
        }
        let cpus = aya::util::nr_cpus().unwrap();
        let nothing = aya::maps::PerCpuValues::try_from(vec![ServiceStats::default(); cpus]).unwrap();
        self.tally.set(3, nothing, 0).unwrap();
        let config = L4Config {
            first_port: FIRST_PORT,
            port_count: PORTS,
            floating_first_port: FLOATING_FIRST_PORT,
            floating_port_count: FLOATING_PORTS,
            floating_port_step: FLOATING_PORT_STEP,
            half_open_ticks: 60_000,
            outer_v4: u32::from_be_bytes([172, 16, 0, 0]),
            outer_v4_flow_mask: 0xffff,
            outer_v6: [0x0100_0000, 0, 0],
        };
        self.config.set(0, config, 0).unwrap();
        for word in 0..PORT_BITMAP_WORDS {
            self.wanted.set(word, 0, 0).unwrap();
            self.shield.set_ports(word, 0).unwrap();
        }
        self.clear_shield();
        self.one_way(0, 64);
        for key in self.macs.keys().collect::<Result<Vec<_>, _>>().unwrap() {
            self.macs.remove(&key).unwrap();
        }
        for port in FIRST_PORT..FIRST_PORT + PORTS {
            self.want(port as u16, TCP);
            self.want(port as u16, UDP);
        }
        self.sources.set(0, words(OURS.parse().unwrap()), 0).unwrap();
        self.sources.set(1, words(OURS6.parse().unwrap()), 0).unwrap();
        self.sources.set(2, words(FLOATING.parse().unwrap()), 0).unwrap();
        for index in 0..8 {
            self.hosts.set(index, Host::default(), 0).unwrap();
        }
        self.host(0, HOST, 0);
        self.host(1, HOST6, 1);
        self.table(0, &[0]);
        self.table(1, &[1]);
    }

    /// A host, whose source for mode `nat` is the one at `source`.
    pub(crate) fn host(&mut self, index: u32, address: &str, source: u32) {
        let address: SocketAddr = address.parse().unwrap();
        let host = Host {
            address: words(address.ip()),
            macs: macs(TO_HOST),
            ifindex: IFINDEX,
            xdp_ifindex: IFINDEX,
            vlan: 0,
            mtu: 1500,
            first_source: source,
            source_count: 1,
        };
        self.hosts.set(index, host, 0).unwrap();
    }

    pub(crate) fn change_host(&mut self, index: u32, change: impl FnOnce(&mut Host)) {
        let mut host = self.hosts.get(&index, 0).unwrap();
        change(&mut host);
        self.hosts.set(index, host, 0).unwrap();
    }

    /// Sets how many flows of direct return are established, of how many that may be.
    pub(crate) fn one_way(&mut self, flows: u64, most: u64) {
        self.one_way.set(0, DsrQuota { flows, max_flows: most }, 0).unwrap();
    }

    /// The machine has this Ethernet address and no other.
    pub(crate) fn owns(&mut self, mac: [u8; 6]) {
        let [a, b, c, d, e, f] = mac;
        let mac = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        for key in [mac, ALL_MACS] {
            self.macs.insert(key, 1, 0).unwrap();
        }
    }

    /// A table in which these hosts take turns.
    pub(crate) fn table(&mut self, index: u32, hosts: &[u16]) {
        let slots: Vec<u8> = (0..(SLOTS as usize).next_multiple_of(4))
            .flat_map(|slot| hosts[slot % hosts.len()].to_ne_bytes())
            .collect();
        let Map::Array(outer) = &self.tables else {
            panic!("{:?}", self.tables)
        };
        let inner = signalbox::kernel::l4::new_table(&slots).unwrap();
        let outer = signalbox::kernel::map::MapFd::new(outer.fd().as_fd()).unwrap();
        outer.update(&index, &(inner.as_raw_fd() as u32)).unwrap();
    }

    /// Mode `nat` has this one source port.
    pub(crate) fn only_port(&mut self, port: u16) {
        let mut config = self.config.get(&0, 0).unwrap();
        (config.first_port, config.port_count) = (u32::from(port), 1);
        self.config.set(0, config, 0).unwrap();
        self.want(port, TCP);
    }

    /// Has a service's address move with a group.
    pub(crate) fn set_group(&mut self, target: &str, protocol: u8, group: u32) {
        let at: SocketAddr = target.parse().unwrap();
        let target = Target::new(words(at.ip()), at.port(), protocol);
        let service = self.services.get(&target, 0).unwrap();
        self.services.insert(target, Service { group, ..service }, 0).unwrap();
        for n in 0..FLOATING_PORTS {
            self.want((FLOATING_FIRST_PORT + n * FLOATING_PORT_STEP) as u16, TCP);
        }
    }

    /// A service with table 0 (IPv4) or 1 (IPv6).
    pub(crate) fn serve(&mut self, target: &str, protocol: u8, mode: u8) {
        self.serve_with(target, protocol, mode, 0);
    }

    pub(crate) fn serve_with(&mut self, target: &str, protocol: u8, mode: u8, flags: u8) {
        let at: SocketAddr = target.parse().unwrap();
        let service = Service {
            number: 3,
            mode,
            flags,
            table: u32::from(at.is_ipv6()),
            idle_ticks: 30_000,
            group: 0,
        };
        let target = Target::new(words(at.ip()), at.port(), protocol);
        self.services.insert(target, service, 0).unwrap();
        self.want(at.port(), protocol);
    }

    fn want(&mut self, port: u16, protocol: u8) {
        let at = PortBit::new(port, protocol);
        let bits = self.wanted.get(&at.word, 0).unwrap() | 1 << at.bit;
        self.wanted.set(at.word, bits, 0).unwrap();
    }

    /// The usual: both families, both protocols, mode `nat`.
    pub(crate) fn serve_all(&mut self) {
        for (vip, protocol) in [(VIP, TCP), (VIP6, TCP), (VIP, UDP), (VIP6, UDP)] {
            self.serve(vip, protocol, mode::NAT);
        }
    }

    pub(crate) fn host_port(&mut self, host: u32, port: u16) {
        self.ports.insert(3 << 16 | host, u32::from(port), 0).unwrap();
        for (vip, protocol) in [(VIP, TCP), (VIP6, TCP), (VIP, UDP), (VIP6, UDP)] {
            self.serve_with(vip, protocol, mode::NAT, service::HAS_PORTS);
        }
    }

    pub(crate) fn tally(&self) -> ServiceStats {
        let all = self.tally.get(&3, 0).unwrap();
        all.iter().fold(ServiceStats::default(), ServiceStats::plus)
    }

    /// Runs the program on a packet that arrives.
    pub(crate) fn arrives(&self, packet: &Packet) -> Outcome {
        self.run(&packet.bytes())
    }

    pub(crate) fn run(&self, bytes: &[u8]) -> Outcome {
        self.repeat(bytes, 1).0
    }

    /// Runs the program several times on the same bytes; returns the time of one run, too.
    pub(crate) fn repeat(&self, bytes: &[u8], times: u32) -> (Outcome, Duration) {
        let mut after = vec![0; bytes.len() + 256];
        let counted = self.counted();
        // The beginning of `struct __sk_buff`; the rest is zero.
        let mut context = [0u32; 11];
        context[10] = IFINDEX;
        let context: Vec<u8> = context.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let options = TestRunOptions {
            data_in: Some(bytes),
            data_out: Some(&mut after),
            ctx_in: (self.program == Program::Tc).then_some(&context),
            repeat: times,
            ..TestRunOptions::default()
        };
        let run = match self.program {
            Program::Xdp => {
                let xdp: &Xdp = self.ebpf.program("l4_xdp").unwrap().try_into().unwrap();
                xdp.test_run(options).unwrap()
            }
            Program::Tc => {
                let tc: &SchedClassifier = self.ebpf.program("l4_tc").unwrap().try_into().unwrap();
                tc.test_run(options).unwrap()
            }
        };
        after.truncate(run.data_size_out as usize);
        let action = match (self.program, run.return_value as i32) {
            (Program::Xdp, 2) | (Program::Tc, -1) => Action::Pass,
            (Program::Xdp, 1) | (Program::Tc, 2) => Action::Drop,
            (Program::Xdp, 3 | 4) | (Program::Tc, 7) => Action::Send,
            (program, other) => panic!("an action of {program:?} that is not ours: {other}"),
        };
        let reasons = self.counted().into_iter().zip(counted).zip(Reason::ALL);
        let reasons = reasons
            .filter(|((after, before), _)| after != before)
            .map(|(_, reason)| *reason);
        let outcome = Outcome {
            action,
            reasons: reasons.collect(),
            bytes: after,
        };
        (outcome, run.duration)
    }

    fn counted(&self) -> Vec<u64> {
        let of = |at| self.counters.get(&at, 0).unwrap().iter().sum();
        (0..self.counters.len()).map(of).collect()
    }

    /// A connection that both sides have confirmed; returns the client's SYN as the host got it.
    #[track_caller]
    pub(crate) fn connect(&self, client: &str, vip: &str) -> Packet {
        self.connect_to(client, vip, if client.starts_with('[') { HOST6 } else { HOST })
    }

    /// Opens a connection; returns the packet to the host that has to answer.
    #[track_caller]
    pub(crate) fn connect_to(&self, client: &str, vip: &str, host: &str) -> Packet {
        let to_host = self
            .arrives(&Packet::tcp(FROM_CLIENT, client, vip, SYN))
            .sent(Reason::L4Opened);
        assert_eq!(to_host.to, host.parse().unwrap());
        let mut answer = Packet::tcp(FROM_HOST, host, host, SYN | super::packet::ACK);
        (answer.from, answer.to) = (to_host.to, to_host.from);
        (answer.seq, answer.ack) = (7000, 1001);
        self.arrives(&answer).sent(Reason::L4Replied);
        let mut third = Packet::tcp(FROM_CLIENT, client, vip, super::packet::ACK);
        (third.seq, third.ack) = (1001, 7001);
        third.payload.clear();
        self.arrives(&third).sent(Reason::L4Forwarded);
        to_host
    }
}
