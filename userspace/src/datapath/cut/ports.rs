//! Source ports of leg B. The kernel forgets a port when its socket closes, so this is the only record.
//!
//! Each host's address and port has a list, oldest first. A used port is reused as late as possible, because the host
//! may keep the old connection in TIME_WAIT. Ports of the kernel's ephemeral range are left to the kernel, so that it
//! never picks one with a live flow. If that range covers nearly all ports, it is divided: the upper part is for cut
//! flows and services, the lower part for our connections whose port the kernel chooses. Layer-4 services have separate
//! ports, so that their flows never share the addresses and ports of a cut flow.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd as _;
use std::sync::OnceLock;

use foldhash::fast::FixedState;
use signalbox_core::availability::ha::floating::NodeShare;
use signalbox_core::model::FIRST_CUT_PORT;
use tokio::net::TcpSocket;

use crate::sys;

/// Minimum number of ports outside the ephemeral range. If there are fewer, that range is divided.
const MIN_PORTS: usize = 8192;

/// Parts of a divided range: `DIVIDED_KERNEL_PORTS` for the kernel's choice, `DIVIDED_CUT_PORTS` for cut flows.
const DIVIDED_KERNEL_PORTS: RangeInclusive<u16> = 1024..=20_479;
const DIVIDED_CUT_PORTS: RangeInclusive<u16> = 32_768..=u16::MAX;

/// Ports for cut flows from an address that moves between nodes: no other program on the machine connects from it.
const FLOATING_PORTS: RangeInclusive<u16> = FIRST_CUT_PORT..=u16::MAX;

/// Ports of layer-4 services, normally and if the ephemeral range is divided.
const SERVICE_PORTS: RangeInclusive<u16> = 1024..=FIRST_CUT_PORT - 1;
const DIVIDED_SERVICE_PORTS: RangeInclusive<u16> = 20_480..=32_767;

/// Ports of layer-4 services from an address that moves between nodes: below those of cut flows.
pub const FLOATING_SERVICE_PORTS: RangeInclusive<u16> = SERVICE_PORTS;

/// Makes a socket for a connection to `to` that will not be cut. The kernel chooses its source port, but none that is
/// reserved for cut flows.
pub fn uncut_socket(to: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if to.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    if let Some(range) = kernel_ports() {
        // Kernels before 6.3 refuse: they may choose the port of a live flow, and the connection is tried again.
        let _ = sys::set_local_port_range(socket.as_raw_fd(), &range);
    }
    Ok(socket)
}

/// Returns the ports from which the kernel may choose for our connections that will not be cut. `None` if its own range
/// can be used.
pub fn kernel_ports() -> Option<RangeInclusive<u16>> {
    static RANGE: OnceLock<Option<RangeInclusive<u16>>> = OnceLock::new();
    RANGE
        .get_or_init(|| (ports_outside(&ephemeral_range()).count() < MIN_PORTS).then_some(DIVIDED_KERNEL_PORTS))
        .clone()
}

/// Returns the source ports of layer-4 services in mode `nat`, unless others are configured.
#[must_use]
pub fn service_ports() -> RangeInclusive<u16> {
    let kernel = ephemeral_range();
    if ports_outside(&kernel).count() < MIN_PORTS {
        return DIVIDED_SERVICE_PORTS;
    }
    // If the kernel's range begins inside the services' range, the services' range ends before it.
    let last = if kernel.contains(SERVICE_PORTS.end()) && *kernel.start() > 2048 {
        kernel.start() - 1
    } else {
        *SERVICE_PORTS.end()
    };
    *SERVICE_PORTS.start()..=last
}

/// Source ports that programs claim themselves: a contiguous range outside the kernel's range, which is read again.
/// `None` if there is no such range.
#[must_use]
pub fn program_ports() -> Option<RangeInclusive<u16>> {
    program_ports_beside(&ephemeral_range())
}

fn program_ports_beside(ephemeral: &RangeInclusive<u16>) -> Option<RangeInclusive<u16>> {
    /// Ports of programs, normally and if the kernel's range is divided.
    const NORMAL: RangeInclusive<u16> = FIRST_CUT_PORT..=28_671;
    const DIVIDED: RangeInclusive<u16> = 32_768..=49_151;
    if ports_outside(ephemeral).count() < MIN_PORTS {
        return Some(DIVIDED);
    }
    let is_apart = NORMAL.end() < ephemeral.start() || NORMAL.start() > ephemeral.end();
    is_apart.then_some(NORMAL)
}

/// Iterates over the ports outside the ranges of the kernel and of services.
fn ports_outside(ephemeral: &RangeInclusive<u16>) -> impl DoubleEndedIterator<Item = u16> {
    (SERVICE_PORTS.end() + 1..=u16::MAX).filter(|port| !ephemeral.contains(port))
}

/// Share of one worker of this node in all source ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortShare {
    pub worker: usize,
    pub workers: usize,
    pub node: NodeShare,
}

impl PortShare {
    /// Returns the worker of this node that a port belongs to. Nodes divide the ports of moving addresses by remainder.
    #[must_use]
    pub fn worker_of(port: u16, workers: usize, node: NodeShare) -> usize {
        usize::from(port / node.nodes) % workers.max(1)
    }

    fn has(self, port: u16) -> bool {
        Self::worker_of(port, self.workers, self.node) == self.worker
    }
}

/// Ends of leg B, except for the source port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortPool {
    pub source: IpAddr,
    /// True if the source address moves between nodes.
    pub is_floating: bool,
    pub host: SocketAddr,
}

pub(super) struct SourcePorts {
    /// The worker's share of all ports, in the order of first use.
    all: Vec<u16>,
    /// The worker's share for an address that moves between nodes: the kernel chooses none of its ports.
    floating: Vec<u16>,
    pools: RefCell<HashMap<PortPool, Pool, FixedState>>,
}

#[derive(Default)]
struct Pool {
    /// Number of ports in the list that have been used for this host.
    used: usize,
    returned: VecDeque<u16>,
    /// Ports in use by flows of an earlier process or another node.
    reserved: HashSet<u16, FixedState>,
}

impl SourcePorts {
    pub(super) fn new(share: PortShare) -> Self {
        Self::with_ephemeral(&ephemeral_range(), share)
    }

    fn with_ephemeral(ephemeral: &RangeInclusive<u16>, share: PortShare) -> Self {
        let mine = |port: &u16| share.has(*port);
        let all = if ports_outside(ephemeral).count() < MIN_PORTS {
            DIVIDED_CUT_PORTS.rev().filter(mine).collect()
        } else {
            ports_outside(ephemeral).rev().filter(mine).collect()
        };
        let floating = FLOATING_PORTS.rev().filter(mine);
        Self {
            all,
            floating: floating.filter(|port| share.node.has_port(*port)).collect(),
            pools: RefCell::default(),
        }
    }

    /// Takes a port for a connection.
    pub(super) fn take(&self, place: PortPool) -> Option<u16> {
        let mut pools = self.pools.borrow_mut();
        let pool = pools.entry(place).or_default();
        let list = self.list(place);
        while let Some(&port) = list.get(port_index(list, place, pool.used)) {
            pool.used += 1;
            if !pool.reserved.contains(&port) {
                return Some(port);
            }
        }
        pool.returned.pop_front()
    }

    pub(super) fn give_back(&self, place: PortPool, port: u16) {
        let mut pools = self.pools.borrow_mut();
        let pool = pools.entry(place).or_default();
        // A reserved port that has not been passed over yet is handed out in its turn.
        let was_reserved = pool.reserved.remove(&port);
        let list = self.list(place);
        let its_turn_comes = || (pool.used..list.len()).any(|n| list.get(port_index(list, place, n)) == Some(&port));
        if !(was_reserved && its_turn_comes()) {
            pool.returned.push_back(port);
        }
    }

    fn list(&self, place: PortPool) -> &[u16] {
        if place.is_floating { &self.floating } else { &self.all }
    }

    /// Reserves the port of a flow that an earlier process has made or another node carries.
    pub(super) fn reserve(&self, place: PortPool, port: u16) {
        let mut pools = self.pools.borrow_mut();
        let pool = pools.entry(place).or_default();
        if let Some(at) = pool.returned.iter().position(|returned| *returned == port) {
            pool.returned.remove(at);
        }
        pool.reserved.insert(port);
    }
}

/// Index of the `n`th port of a list for a host. Each host starts at another index: while a port is being connected
/// from, it cannot be used for another host.
fn port_index(list: &[u16], place: PortPool, n: usize) -> usize {
    if n >= list.len() {
        return n;
    }
    let host = place.host;
    let offset = signalbox_common::hash::addr(
        u64::from(host.port()),
        signalbox_core::wire::address::ipv4_mapped(host.ip()),
    );
    (offset as usize % list.len() + n) % list.len()
}

/// Reads the range that the kernel picks ephemeral ports from.
fn ephemeral_range() -> RangeInclusive<u16> {
    parse_ephemeral_range(&std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default())
}

fn parse_ephemeral_range(text: &str) -> RangeInclusive<u16> {
    let mut numbers = text.split_whitespace().filter_map(|word| word.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(first), Some(last)) => first..=last,
        _ => 32768..=60999,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: PortShare = PortShare {
        worker: 0,
        workers: 1,
        node: NodeShare::ALL,
    };

    fn host(port: u16) -> PortPool {
        PortPool {
            source: [10, 0, 0, 2].into(),
            is_floating: false,
            host: SocketAddr::new([10, 0, 0, 1].into(), port),
        }
    }

    fn with_ports(all: &[u16]) -> SourcePorts {
        SourcePorts {
            all: all.to_vec(),
            floating: all.to_vec(),
            pools: RefCell::default(),
        }
    }

    #[test]
    fn workers_share_the_ports_and_leave_the_kernels_alone() {
        let range = parse_ephemeral_range("32768\t60999\n");
        let share = |worker| PortShare {
            worker,
            workers: 2,
            ..ALONE
        };
        let [a, b] = [0, 1].map(|worker| SourcePorts::with_ephemeral(&range, share(worker)));
        assert_eq!(a.all.len() + b.all.len(), 65536 - 16_384 - 28232);
        assert!(a.all.iter().all(|port| !b.all.contains(port) && !range.contains(port)));
        let all = SourcePorts::with_ephemeral(&(1024..=65000), ALONE);
        assert_eq!(
            all.all.len(),
            DIVIDED_CUT_PORTS.len(),
            "the kernel is told to keep to the rest"
        );
    }

    /// Two nodes with two workers each: no two of the four use the same port of a moving address.
    #[test]
    fn nodes_and_workers_share_out_the_ports_of_a_moving_address() {
        let mut seen = HashSet::new();
        for (slot, worker) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let node = NodeShare { slot, nodes: 2 };
            let share = PortShare {
                worker,
                workers: 2,
                node,
            };
            let ports = SourcePorts::with_ephemeral(&(32768..=60999), share);
            for port in ports.floating {
                assert!(seen.insert(port), "{port}");
                assert_eq!(PortShare::worker_of(port, 2, node), worker);
            }
        }
        assert_eq!(seen.len(), FLOATING_PORTS.len());
    }

    #[test]
    fn a_port_comes_back_last_and_hosts_do_not_share() {
        let ports = SourcePorts::with_ephemeral(&(32768..=60999), ALONE);
        let ports = with_ports(&ports.all[..3]);
        let first = ports.take(host(80)).unwrap();
        let other = [(); 3].map(|()| ports.take(host(443)).unwrap());
        assert!(other.contains(&first));
        ports.give_back(host(80), first);
        let (second, third) = (ports.take(host(80)).unwrap(), ports.take(host(80)).unwrap());
        assert!(first != second && second != third);
        assert_eq!(ports.take(host(80)), Some(first));
        assert_eq!(ports.take(host(80)), None);
        let elsewhere = PortPool {
            source: [10, 0, 0, 3].into(),
            ..host(80)
        };
        assert!(
            ports.take(elsewhere).is_some(),
            "another source address has ports of its own"
        );
    }

    #[test]
    fn ports_of_an_earlier_process_are_free_when_their_flow_ends() {
        let ports = with_ports(&[5000, 5001]);
        ports.reserve(host(80), 5000);
        assert_eq!(
            (ports.take(host(80)), ports.take(host(80))),
            (Some(5001), None),
            "5000 is taken"
        );
        ports.give_back(host(80), 5000);
        assert_eq!(ports.take(host(80)), Some(5000));
        // Another node has carried a flow in the meantime, which reserves a port that was given back.
        ports.give_back(host(80), 5001);
        ports.reserve(host(80), 5001);
        assert_eq!(ports.take(host(80)), None);
        ports.give_back(host(80), 5001);
        assert_eq!(ports.take(host(80)), Some(5001));
    }
}
