//! A bad link: the programs of `ebpf/src/impair.rs` on an interface of the lab, in both directions.

use std::sync::atomic::{AtomicU32, Ordering};

use aya::Ebpf;
use aya::maps::{Array, MapData};
use aya::programs::{SchedClassifier, TcAttachType};

use super::namespace::{Ns, ip};
use super::topology::Lab;

/// Odds of a packet's fates, as fractions of 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Odds {
    /// Odds to be dropped.
    pub(crate) drop: f64,
    /// Odds to arrive twice.
    pub(crate) duplicate: f64,
    /// Odds to arrive after later packets.
    pub(crate) reorder: f64,
}

impl Odds {
    /// No impairment.
    pub(crate) const GOOD: Self = Self::of(0.0, 0.0, 0.0);
    /// Everything is lost.
    pub(crate) const SILENT: Self = Self::of(1.0, 0.0, 0.0);
    /// A hundredth is lost.
    pub(crate) const LOSS: Self = Self::of(0.01, 0.0, 0.0);
    /// A hundredth comes twice.
    pub(crate) const DUPLICATION: Self = Self::of(0.0, 0.01, 0.0);
    /// A fiftieth is overtaken.
    pub(crate) const REORDERING: Self = Self::of(0.0, 0.0, 0.02);
    /// Loss, duplication and reordering together.
    pub(crate) const ALL: Self = Self::of(0.01, 0.01, 0.02);

    const fn of(drop: f64, duplicate: f64, reorder: f64) -> Self {
        Self {
            drop,
            duplicate,
            reorder,
        }
    }
}

/// Slots of the map, as in `ebpf/src/impair.rs`.
const DETOUR: u32 = 3;
const DIRECTION: u32 = 4;
const HOME: u32 = 5;
const HIT: u32 = 6;
const SEEN: u32 = 7;
const BPF_F_INGRESS: u32 = 1;

/// An interface whose packets suffer for as long as this lives.
pub(crate) struct Impaired([OneWay; 2]);

impl Impaired {
    /// Impairs the packets that come in and go out of `device` in `ns`.
    pub(crate) fn new(ns: &Ns, device: &str, odds: Odds) -> Self {
        single_segments(ns, device);
        Self([TcAttachType::Egress, TcAttachType::Ingress].map(|way| OneWay::new(ns, device, way, odds)))
    }

    /// The link between clients and the balancer.
    pub(crate) fn client_link(lab: &Lab, odds: Odds) -> Self {
        single_segments(&lab.lb, "client");
        Self::new(&lab.client, "eth0", odds)
    }

    /// The link between the balancer and a host.
    pub(crate) fn host_link(lab: &Lab, host: &str, odds: Odds) -> Self {
        single_segments(&lab.lb, "back");
        single_segments(&lab.lb, host);
        Self::new(lab.host(host), "eth0", odds)
    }

    /// From now on with these odds, in both directions.
    pub(crate) fn set(&mut self, odds: Odds) {
        self.0.iter_mut().for_each(|way| way.set(odds));
    }

    /// TCP packets that were examined, and how many of them were impaired.
    pub(crate) fn seen_and_hit(&self) -> (u32, u32) {
        let sum = |slot| self.0.iter().map(|way| way.config.get(&slot, 0).unwrap()).sum();
        (sum(SEEN), sum(HIT))
    }
}

/// Impairment of one direction: a separate BPF object, and so a separate configuration.
struct OneWay {
    config: Array<MapData, u32>,
    _ebpf: Ebpf,
}

impl OneWay {
    fn new(ns: &Ns, device: &str, way: TcAttachType, odds: Odds) -> Self {
        let (near, far) = detour(ns);
        let mut ebpf = load();
        ns.run(|| {
            attach(&mut ebpf, "impair_return", &far, TcAttachType::Ingress);
            attach(&mut ebpf, "impair", device, way);
        });
        let mut one = Self {
            config: ebpf.take_map("IMPAIR").unwrap().try_into().unwrap(),
            _ebpf: ebpf,
        };
        let index = |name: &str| ns.run(|| nix::net::if_::if_nametoindex(name).unwrap());
        one.config.set(HOME, index(device), 0).unwrap();
        let ingress = matches!(way, TcAttachType::Ingress);
        one.config
            .set(DIRECTION, if ingress { BPF_F_INGRESS } else { 0 }, 0)
            .unwrap();
        one.config.set(DETOUR, index(&near), 0).unwrap();
        one.set(odds);
        one
    }

    fn set(&mut self, odds: Odds) {
        for (slot, odds) in (0..).zip([odds.drop, odds.duplicate, odds.reorder]) {
            self.config.set(slot, (odds * 65536.0) as u32, 0).unwrap();
        }
    }
}

fn load() -> Ebpf {
    Ebpf::load(aya::include_bytes_aligned!("../../../../ebpf/prebuilt/testing.bpf.o")).unwrap()
}

fn attach(ebpf: &mut Ebpf, program: &str, device: &str, way: TcAttachType) {
    let program: &mut SchedClassifier = ebpf.program_mut(program).unwrap().try_into().unwrap();
    program.load().unwrap();
    program.attach(device, way).unwrap();
}

/// A new pair of interfaces that slow packets down and are connected to nothing else: each packet counts as 2000 bytes
/// more than it has, the queue lets one go at once, and a second waits for about a millisecond.
fn detour(ns: &Ns) -> (String, String) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let n = NUMBER.fetch_add(1, Ordering::Relaxed);
    let (near, far) = (format!("detour{n}a"), format!("detour{n}b"));
    let on = |words: &[&str]| ip(&[&["-n", ns.name(), "link"][..], words].concat());
    on(&["add", &near, "type", "veth", "peer", "name", &far]);
    for end in [&near, &far] {
        on(&["set", end, "addrgenmode", "none", "up"]);
    }
    let queue = "stab overhead 2000 linklayer ethernet tbf rate 24mbit burst 3600 limit 400000";
    let words = ["tc", "qdisc", "add", "dev", &near, "root"];
    ns.must(&words.into_iter().chain(queue.split(' ')).collect::<Vec<_>>());
    (near, far)
}

/// Packets as they would be on a wire. TCP builds large ones in spite of `ethtool`, and segments them after the egress
/// hook: only the limit on segments keeps them small there.
pub(crate) fn single_segments(ns: &Ns, device: &str) {
    ns.must(&["ethtool", "-K", device, "gro", "off", "gso", "off", "tso", "off"]);
    ns.must(&["ip", "link", "set", device, "gso_max_segs", "1"]);
}

/// A counter of `/proc/net/netstat`, such as `TCPOFOQueue` of the group `TcpExt`.
pub(crate) fn netstat(ns: &Ns, group: &str, name: &str) -> u64 {
    let text = ns.must(&["cat", "/proc/net/netstat", "/proc/net/snmp"]);
    let mut lines = text
        .lines()
        .filter_map(|line| line.strip_prefix(group)?.strip_prefix(": "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|n| n == name);
    let at = at.unwrap_or_else(|| panic!("no {group} {name}"));
    values.split(' ').nth(at).unwrap().parse().unwrap()
}
