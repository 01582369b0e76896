//! Source ports of leg B. The kernel forgets a port when its socket closes, so this is the only record.
//!
//! Each host's address and port has a list, oldest first: a port that has just been used comes back as late as can be,
//! for the host may keep the old connection in TIME_WAIT. Ports of the kernel's ephemeral range are left to the kernel,
//! so that it never picks one with a live flow. Where that range is nearly everything it is divided: the upper part for
//! cut flows and services, the lower part for connections of ours that the kernel chooses a port for. Layer-4 services
//! have ports of their own among the rest, so that no flow of theirs ever has the addresses and ports of a cut one.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd as _;
use std::sync::OnceLock;

use foldhash::fast::FixedState;
use tokio::net::TcpSocket;

use crate::sys;

/// Least number of ports outside the ephemeral range; with fewer, that range is divided.
const MIN_PORTS: usize = 8192;

/// Parts of a divided range: `DIVIDED_KERNEL_PORTS` for the kernel's choice, `DIVIDED_CUT_PORTS` for cut flows.
const DIVIDED_KERNEL_PORTS: RangeInclusive<u16> = 1024..=20_479;
const DIVIDED_CUT_PORTS: RangeInclusive<u16> = 32_768..=u16::MAX;

/// Ports of layer-4 services, normally and where the ephemeral range is divided.
const SERVICE_PORTS: RangeInclusive<u16> = 1024..=16_383;
const DIVIDED_SERVICE_PORTS: RangeInclusive<u16> = 20_480..=32_767;

/// Makes a socket for a connection to `to` that is not to be cut: the kernel chooses its source port, but none that is
/// reserved for cut flows.
pub fn uncut_socket(to: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if to.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    if let Some(range) = kernel_ports() {
        // A kernel before 6.3 refuses: a port of a live flow may be chosen then, and the connection is tried again.
        let _ = sys::set_local_port_range(socket.as_raw_fd(), &range);
    }
    Ok(socket)
}

/// Returns the ports that the kernel may choose from for our connections that are not to be cut. `None` where its own
/// range will do.
pub fn kernel_ports() -> Option<RangeInclusive<u16>> {
    static RANGE: OnceLock<Option<RangeInclusive<u16>>> = OnceLock::new();
    RANGE
        .get_or_init(|| (ports_outside(&ephemeral_range()).count() < MIN_PORTS).then_some(DIVIDED_KERNEL_PORTS))
        .clone()
}

/// Returns the source ports that layer-4 services use for mode `nat`, where nothing else is configured.
#[must_use]
pub fn service_ports() -> RangeInclusive<u16> {
    let kernel = ephemeral_range();
    if ports_outside(&kernel).count() < MIN_PORTS {
        return DIVIDED_SERVICE_PORTS;
    }
    // Where the kernel's range begins inside that of the services, theirs ends before it.
    let last = if kernel.contains(SERVICE_PORTS.end()) && *kernel.start() > 2048 {
        kernel.start() - 1
    } else {
        *SERVICE_PORTS.end()
    };
    *SERVICE_PORTS.start()..=last
}

/// Iterates over the ports outside the kernel's range and that of services.
fn ports_outside(ephemeral: &RangeInclusive<u16>) -> impl DoubleEndedIterator<Item = u16> {
    (SERVICE_PORTS.end() + 1..=u16::MAX).filter(|port| !ephemeral.contains(port))
}

pub(super) struct SourcePorts {
    /// The worker's share of all ports, in the order in which they are first used.
    all: Vec<u16>,
    pools: RefCell<HashMap<SocketAddr, Pool, FixedState>>,
}

#[derive(Default)]
struct Pool {
    /// Number of ports of `ours` that have been used for this host.
    used: usize,
    returned: VecDeque<u16>,
    /// Ports in use by flows of an earlier process.
    reserved: HashSet<u16, FixedState>,
}

impl SourcePorts {
    pub(super) fn new(worker: usize, workers: usize) -> Self {
        Self::with_ephemeral(&ephemeral_range(), worker, workers)
    }

    fn with_ephemeral(ephemeral: &RangeInclusive<u16>, worker: usize, workers: usize) -> Self {
        let mine = |port: &u16| usize::from(*port) % workers.max(1) == worker;
        let ours = if ports_outside(ephemeral).count() < MIN_PORTS {
            DIVIDED_CUT_PORTS.rev().filter(mine).collect()
        } else {
            ports_outside(ephemeral).rev().filter(mine).collect()
        };
        Self {
            all: ours,
            pools: RefCell::default(),
        }
    }

    /// Takes a port for a connection to `host`.
    pub(super) fn take(&self, host: SocketAddr) -> Option<u16> {
        let mut pools = self.pools.borrow_mut();
        let pool = pools.entry(host).or_default();
        while let Some(&port) = self.all.get(self.port_index(host, pool.used)) {
            pool.used += 1;
            if !pool.reserved.contains(&port) {
                return Some(port);
            }
        }
        pool.returned.pop_front()
    }

    pub(super) fn give_back(&self, host: SocketAddr, port: u16) {
        let mut pools = self.pools.borrow_mut();
        let pool = pools.entry(host).or_default();
        // A marked port that has not been passed over yet will be handed out in its turn.
        let was_marked = pool.reserved.remove(&port);
        let its_turn_comes =
            || (pool.used..self.all.len()).any(|n| self.all.get(self.port_index(host, n)) == Some(&port));
        if !(was_marked && its_turn_comes()) {
            pool.returned.push_back(port);
        }
    }

    /// Index of the `n`th port for a host. Each host begins elsewhere: while a port is being connected from, it cannot
    /// be used for another host.
    fn port_index(&self, host: SocketAddr, n: usize) -> usize {
        if n >= self.all.len() {
            return n;
        }
        let offset =
            signalbox_common::hash::addr(u64::from(host.port()), signalbox_core::model::ipv4_mapped(host.ip()));
        (offset as usize % self.all.len() + n) % self.all.len()
    }

    /// Marks a port that a flow of an earlier process has.
    pub(super) fn reserve(&self, host: SocketAddr, port: u16) {
        self.pools.borrow_mut().entry(host).or_default().reserved.insert(port);
    }
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

    fn host(port: u16) -> SocketAddr {
        SocketAddr::new([10, 0, 0, 1].into(), port)
    }

    #[test]
    fn workers_share_the_ports_and_leave_the_kernels_alone() {
        let range = parse_ephemeral_range("32768\t60999\n");
        let (a, b) = (
            SourcePorts::with_ephemeral(&range, 0, 2),
            SourcePorts::with_ephemeral(&range, 1, 2),
        );
        assert_eq!(a.all.len() + b.all.len(), 65536 - 16_384 - 28232);
        assert!(a.all.iter().all(|port| !b.all.contains(port) && !range.contains(port)));
        let all = SourcePorts::with_ephemeral(&(1024..=65000), 0, 1);
        assert_eq!(
            all.all.len(),
            DIVIDED_CUT_PORTS.len(),
            "the kernel is told to keep to the rest"
        );
    }

    #[test]
    fn a_port_comes_back_last_and_hosts_do_not_share() {
        let ports = SourcePorts::with_ephemeral(&(32768..=60999), 0, 1);
        let ports = SourcePorts {
            all: ports.all[..3].to_vec(),
            ..ports
        };
        let first = ports.take(host(80)).unwrap();
        let other = [(); 3].map(|()| ports.take(host(443)).unwrap());
        assert!(other.contains(&first));
        ports.give_back(host(80), first);
        let (second, third) = (ports.take(host(80)).unwrap(), ports.take(host(80)).unwrap());
        assert!(first != second && second != third);
        assert_eq!(ports.take(host(80)), Some(first));
        assert_eq!(ports.take(host(80)), None);
    }

    #[test]
    fn ports_of_an_earlier_process_are_free_when_their_flow_ends() {
        let ports = SourcePorts {
            all: vec![5000, 5001],
            pools: RefCell::default(),
        };
        ports.reserve(host(80), 5000);
        assert_eq!(
            (ports.take(host(80)), ports.take(host(80))),
            (Some(5001), None),
            "5000 is taken"
        );
        ports.give_back(host(80), 5000);
        assert_eq!(ports.take(host(80)), Some(5000));
    }
}
