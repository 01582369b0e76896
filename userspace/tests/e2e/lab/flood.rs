//! A flood of SYNs whose senders do not exist: a separate namespace with a cable to the balancer, which sends frames
//! with forged sources as fast as one CPU can, and ignores the answers.

use std::net::SocketAddrV4;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::{Pid, SysconfVar, sysconf};
use signalbox_lab::Worker;
use socket2::{Domain, SockAddr, SockAddrStorage, Socket, Type};

use super::namespace::Ns;
use super::syn::Syn;
use super::topology::Lab;

/// Number of forged senders: 198.18.0.0 and those that follow it (RFC 2544's range for benchmarks).
pub(crate) const SENDERS: u32 = 10_000;
/// The interface of the balancer's side.
const DEVICE: &str = "flood";
const HERE: [u8; 6] = [2, 0, 0, 0, 4, 2];
const THERE: [u8; 6] = [2, 0, 0, 0, 4, 1];
/// Frames in one call of the kernel.
const AT_ONCE: usize = 100;

/// Source of floods.
pub(crate) struct Source {
    ns: Ns,
}

impl Source {
    /// Makes the namespace and the cable. The balancer has a route back to the forged senders, so that its answers cost
    /// as much as on a real network; there they are neither forwarded nor answered.
    pub(crate) fn new(lab: &Lab) -> Self {
        let ns = Ns::create(&lab.client.name().replace("client", "flood"));
        let mac = |bytes: [u8; 6]| bytes.map(|byte| format!("{byte:02x}")).join(":");
        let (here, there) = (mac(HERE), mac(THERE));
        lab.lb.cable(DEVICE, &["10.4.0.1/24"], &ns, &["10.4.0.2/24"]).unwrap();
        let neighbour = format!("link set {DEVICE} address {there}\nneigh replace 10.4.0.2 lladdr {here} dev {DEVICE}");
        lab.lb
            .ip(&format!("{neighbour}\nroute add 198.18.0.0/15 via 10.4.0.2"))
            .unwrap();
        ns.ip(&format!("link set eth0 address {here}")).unwrap();
        ns.sysctl(&["net.ipv4.ip_forward=0"]).unwrap();
        Self { ns }
    }

    /// Floods an address until the flood is dropped.
    pub(crate) fn flood(&self, to: SocketAddrV4) -> Flood {
        let socket = self.ns.run(|| packets("eth0"));
        let sent = Arc::<AtomicU64>::default();
        let counter = Arc::clone(&sent);
        let worker = Worker::start(move |stop| {
            stay_on_last_cpu();
            send(&socket, to, &counter, stop);
        });
        Flood { sent, _worker: worker }
    }
}

/// A flood that is going on.
pub(crate) struct Flood {
    sent: Arc<AtomicU64>,
    _worker: Worker,
}

impl Flood {
    /// SYNs so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

/// A socket to send whole frames of an interface; frames that the interface receives are not copied to it.
pub(crate) fn packets(device: &str) -> Socket {
    frames(device, 0)
}

/// A socket for whole frames of an interface, those that it receives and those that it sends.
pub(crate) fn all_packets(device: &str) -> Socket {
    frames(device, libc::ETH_P_ALL as u16)
}

fn frames(device: &str, protocol: u16) -> Socket {
    let socket = Socket::new(Domain::PACKET, Type::RAW, None).unwrap();
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: the storage is large enough for any address, and all zero is a valid sockaddr_ll.
    let address = unsafe { storage.view_as::<libc::sockaddr_ll>() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = nix::net::if_::if_nametoindex(device).unwrap().cast_signed();
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: a sockaddr_ll of this length has been written to it.
    socket.bind(&unsafe { SockAddr::new(storage, length) }).unwrap();
    socket
}

/// Keeps this thread on the flood's CPU, which also handles the softirqs of the flood's packets.
pub(crate) fn stay_on_last_cpu() {
    // All CPUs of the machine, not those that this thread may use: it may have been bound to one before.
    let cpus = sysconf(SysconfVar::_NPROCESSORS_ONLN).unwrap().unwrap();
    let mut set = CpuSet::new();
    set.set(cpus as usize - 1).unwrap();
    sched_setaffinity(Pid::from_raw(0), &set).unwrap();
}

fn send(socket: &Socket, to: SocketAddrV4, sent: &AtomicU64, stop: &AtomicBool) {
    let mut syns: Vec<Syn> = (0..SENDERS)
        .map(|n| Syn::new([THERE, HERE], (0xc612_0000 + n).into(), to))
        .collect();
    for round in 0.. {
        for part in syns.chunks_mut(AT_ONCE) {
            for syn in &mut *part {
                syn.begin(1024 + (round % 64_000) as u16, round);
            }
            sent.fetch_add(send_frames(socket, part), Ordering::Relaxed);
            if stop.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

/// Sends frames; returns how many the interface took.
fn send_frames(socket: &Socket, syns: &mut [Syn]) -> u64 {
    let mut parts: Vec<libc::iovec> = syns.iter_mut().map(Syn::part).collect();
    let message = |part: &mut libc::iovec| {
        // SAFETY: all zero is a valid mmsghdr: no address, no control data, no parts.
        let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
        message.msg_hdr.msg_iov = part;
        message.msg_hdr.msg_iovlen = 1;
        message
    };
    let mut messages: Vec<_> = parts.iter_mut().map(message).collect();
    // SAFETY: each message has one part, which is a frame of `syns`; all of them outlive the call.
    let taken = unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), messages.len() as u32, 0) };
    // A full queue is the flood's own business.
    u64::try_from(taken).unwrap_or(0)
}
