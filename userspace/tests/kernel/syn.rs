//! The `sk_lookup` program attached to a network namespace: the fate of real SYNs on its loopback.

use crate::namespace;

use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::lpm_trie::Key;
use aya::maps::{LpmTrie, MapData, PerCpuArray, SockMap};
use aya::programs::{ProgramType, SkLookup};
use signalbox::kernel::object;
use signalbox_common::Reason;
use signalbox_common::steer::{SLOT_V4, SLOT_V6, STEER_FIXED_BITS, SteerKey, SteerValue};
use socket2::{Domain, Socket, Type};

#[test]
fn connections_spread_over_our_socket_group_and_no_foreign_one() {
    in_own_namespace(|| {
        let mut steer = Steer::attach();
        // A foreign socket that listens on all addresses: for bound addresses, only we answer.
        let other = listen("0.0.0.0:443");
        let group = [listen("127.0.0.1:8443"), listen("127.0.0.1:8443")];
        steer.listeners.set(SLOT_V4, &group[0], 0).unwrap();
        let bound = steer.bind("192.0.2.0", 24, 443, (5, SLOT_V4));
        for host in 1..=40 {
            connect(&format!("192.0.2.{host}:443")).unwrap();
        }
        let accepted = group.each_ref().map(|socket| accepted(socket).len());
        assert_eq!(accepted.iter().sum::<usize>(), 40);
        assert!(
            accepted.iter().all(|&n| n > 0),
            "the socket stands for its whole group: {accepted:?}"
        );
        assert!(accepted_by(&other).is_empty());
        let steered: u64 = steer.steered.get(&5, 0).unwrap().iter().sum();
        assert_eq!(steered, 40, "one to a connection");
        drop(group);
        let refused = connect("192.0.2.1:443").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        assert!(
            accepted_by(&other).is_empty(),
            "dropped rather than given to another process"
        );
        steer.bindings.remove(&bound).unwrap();
        connect("192.0.2.1:443").unwrap();
        assert_eq!(
            accepted_by(&other),
            ["192.0.2.1:443"],
            "unbound, it is the other process's again"
        );
    });
}

#[test]
fn the_accepted_socket_knows_the_address_that_was_asked_for() {
    in_own_namespace(|| {
        let mut steer = Steer::attach();
        let (v4, v6) = (listen("127.0.0.1:8443"), listen("[::1]:8443"));
        steer.listeners.set(SLOT_V4, &v4, 0).unwrap();
        steer.listeners.set(SLOT_V6, &v6, 0).unwrap();
        steer.bind("192.0.2.0", 24, 443, (0, SLOT_V4));
        steer.bind("2001:db8::", 64, 443, (0, SLOT_V6));
        connect("192.0.2.77:443").unwrap();
        connect("[2001:db8::77]:443").unwrap();
        assert_eq!(accepted_by(&v4), ["192.0.2.77:443"]);
        assert_eq!(accepted_by(&v6), ["[2001:db8::77]:443"]);
    });
}

#[test]
fn a_connection_survives_the_loss_of_its_binding_and_listener() {
    in_own_namespace(|| {
        let mut steer = Steer::attach();
        let web = listen("127.0.0.1:8443");
        steer.listeners.set(SLOT_V4, &web, 0).unwrap();
        let bound = steer.bind("192.0.2.1", 32, 443, (0, SLOT_V4));
        let client = connect("192.0.2.1:443").unwrap();
        let server = accepted(&web).pop().unwrap();
        steer.bindings.remove(&bound).unwrap();
        drop((web, steer));
        for (mut from, mut to) in [(&client, &server), (&server, &client)] {
            let mut bytes = [0; 5];
            io::Write::write_all(&mut from, b"hello").unwrap();
            io::Read::read_exact(&mut to, &mut bytes).unwrap();
            assert_eq!(&bytes, b"hello");
        }
    });
}

#[test]
fn a_connection_to_an_unbound_port_is_counted_and_left_alone() {
    in_own_namespace(|| {
        let mut steer = Steer::attach();
        let (web, sshd) = (listen("127.0.0.1:8443"), listen("0.0.0.0:22"));
        steer.listeners.set(SLOT_V4, &web, 0).unwrap();
        steer.bind("192.0.2.1", 32, 443, (0, SLOT_V4));
        connect("192.0.2.1:22").unwrap();
        assert_eq!(accepted_by(&sshd), ["192.0.2.1:22"]);
        assert_eq!(
            (steer.exits(Reason::SteerMiss), steer.exits(Reason::SteerAssigned)),
            (1, 0)
        );
    });
}

/// A takeover: the new process attaches while the old one still is.
#[test]
fn while_two_are_attached_the_later_one_takes_the_connection() {
    in_own_namespace(|| {
        let attach = |at| {
            let (mut steer, socket) = (Steer::attach(), listen(at));
            steer.listeners.set(SLOT_V4, &socket, 0).unwrap();
            steer.bind("192.0.2.1", 32, 443, (0, SLOT_V4));
            (steer, socket)
        };
        let (old, new) = (attach("127.0.0.1:8001"), attach("127.0.0.1:8002"));
        connect("192.0.2.1:443").unwrap();
        assert_eq!((accepted(&old.1).len(), accepted(&new.1).len()), (0, 1));
        drop(new);
        connect("192.0.2.1:443").unwrap();
        assert_eq!(
            accepted(&old.1).len(),
            1,
            "the new one gave up: the old one still answers"
        );
    });
}

/// A takeover again: the new process has its bindings before it has its sockets, or lost them.
#[test]
fn a_steer_without_a_socket_drops_no_syn_that_another_one_takes() {
    in_own_namespace(|| {
        let (mut old, mut new) = (Steer::attach(), Steer::attach());
        let socket = listen("127.0.0.1:8001");
        old.listeners.set(SLOT_V4, &socket, 0).unwrap();
        old.bind("192.0.2.1", 32, 443, (0, SLOT_V4));
        new.bind("192.0.2.1", 32, 443, (0, SLOT_V4));
        connect("192.0.2.1:443").unwrap();
        assert_eq!(accepted_by(&socket), ["192.0.2.1:443"]);
        assert_eq!(
            (old.exits(Reason::SteerAssigned), new.exits(Reason::SteerNoSocket)),
            (1, 1)
        );
    });
}

/// The program, attached to the thread's namespace for as long as this lives.
struct Steer {
    bindings: LpmTrie<MapData, SteerKey, SteerValue>,
    listeners: SockMap<MapData>,
    exits: PerCpuArray<MapData, u64>,
    steered: PerCpuArray<MapData, u64>,
    _ebpf: Ebpf,
}

impl Steer {
    fn attach() -> Self {
        let mut ebpf = Ebpf::load(object::STEERING).unwrap();
        let program: &mut SkLookup = ebpf.program_mut("steer").unwrap().try_into().unwrap();
        program.load().unwrap();
        // `Kernel::steer` attaches to /proc/self, which is the first thread's namespace, the machine's own: not used
        // here.
        program.attach(File::open("/proc/thread-self/ns/net").unwrap()).unwrap();
        Self {
            bindings: ebpf.take_map("STEER_BINDINGS").unwrap().try_into().unwrap(),
            listeners: ebpf.take_map("STEER_LISTENERS").unwrap().try_into().unwrap(),
            exits: ebpf.take_map("COUNTERS").unwrap().try_into().unwrap(),
            steered: ebpf.take_map("STEER_STATS").unwrap().try_into().unwrap(),
            _ebpf: ebpf,
        }
    }

    fn bind(&mut self, network: &str, prefix: u32, port: u16, (listener, slot): (u32, u32)) -> Key<SteerKey> {
        let (before, key) = match network.parse().unwrap() {
            IpAddr::V4(ip) => (96, SteerKey::new(port, 4, SteerKey::mapped(ip.octets()))),
            IpAddr::V6(ip) => (0, SteerKey::new(port, 6, ip.octets())),
        };
        let key = Key::new(STEER_FIXED_BITS + before + prefix, key);
        self.bindings.insert(&key, SteerValue { listener, slot }, 0).unwrap();
        key
    }

    fn exits(&self, reason: Reason) -> u64 {
        self.exits.get(&(reason as u32), 0).unwrap().iter().sum()
    }
}

/// A non-blocking listening socket that shares its address.
fn listen(at: &str) -> TcpListener {
    let at: SocketAddr = at.parse().unwrap();
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, None).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.bind(&at.into()).unwrap();
    socket.listen(128).unwrap();
    socket.into()
}

fn connect(to: &str) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(&to.parse().unwrap(), Duration::from_secs(5))
}

/// Accepts the connections in the accept queue. On loopback a connection is there when `connect` returns.
fn accepted(socket: &TcpListener) -> Vec<TcpStream> {
    std::iter::from_fn(|| socket.accept().ok().map(|(stream, _)| stream)).collect()
}

/// The addresses those asked for.
fn accepted_by(socket: &TcpListener) -> Vec<String> {
    let to = |stream: &TcpStream| stream.local_addr().unwrap().to_string();
    accepted(socket).iter().map(to).collect()
}

/// Runs a test in a separate network namespace, where documentation addresses are local.
fn in_own_namespace<F: FnOnce() + Send>(work: F) {
    namespace::in_own_namespace(
        namespace::test_of::<F>(),
        ProgramType::SkLookup,
        &[
            "route add local 192.0.2.0/24 dev lo",
            "-6 route add local 2001:db8::/64 dev lo",
        ],
        work,
    );
}
