//! The `sk_lookup` program, run by the kernel on packets that a test describes (BPF_PROG_TEST_RUN, Linux 5.14):
//! verdict, socket and counters of every single run. Attached to nothing; real SYNs are in `kernel_syn`.

use crate::namespace;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use aya::Ebpf;
use aya::maps::lpm_trie::Key;
use aya::maps::{LpmTrie, MapData, PerCpuArray, SockMap};
use aya::programs::{ProgramType, SkLookup};
use signalbox::kernel::object;
use signalbox::sys;
use signalbox_common::Reason;
use signalbox_common::steer::{SLOT_V4, SLOT_V6, STEER_FIXED_BITS, SteerKey, SteerValue};

const TCP: u32 = libc::IPPROTO_TCP as u32;
const UDP: u32 = libc::IPPROTO_UDP as u32;
/// `enum sk_action`.
const SK_DROP: u32 = 0;
const SK_PASS: u32 = 1;

#[test]
fn a_syn_to_a_bound_ipv4_address_goes_to_the_socket_in_its_slot() {
    in_own_namespace(|| {
        let mut steer = Steer::load();
        let web = steer.listen("127.0.0.1:0", SLOT_V4);
        steer.bind("192.0.2.1", 32, 443, (7, SLOT_V4));
        assert_eq!(steer.run(TCP, "192.0.2.1:443"), given_to(&web, 7));
        assert_eq!(steer.run(TCP, "192.0.2.2:443"), missed(), "its neighbour is not bound");
    });
}

#[test]
fn a_syn_to_a_bound_ipv6_address_goes_to_the_socket_in_its_slot() {
    in_own_namespace(|| {
        let mut steer = Steer::load();
        let _other = steer.listen("127.0.0.1:0", SLOT_V4);
        let web = steer.listen("[::1]:0", SLOT_V6);
        steer.bind("2001:db8::1", 128, 443, (3, SLOT_V6));
        assert_eq!(steer.run(TCP, "[2001:db8::1]:443"), given_to(&web, 3));
        assert_eq!(
            steer.run(TCP, "[2001:db8::2]:443"),
            missed(),
            "its neighbour is not bound"
        );
    });
}

#[test]
fn a_syn_to_a_port_nobody_bound_goes_on_as_if_we_were_not_there() {
    in_own_namespace(|| {
        let mut steer = Steer::load();
        let web = steer.listen("127.0.0.1:0", SLOT_V4);
        // 0xbb01 is 443 with its bytes swapped.
        steer.bind("192.0.2.1", 32, 443, (0, SLOT_V4));
        for address in ["192.0.2.1:22", "192.0.2.1:444", "192.0.2.1:0", "192.0.2.1:47873"] {
            assert_eq!(steer.run(TCP, address), missed(), "{address}");
        }
        assert_eq!(steer.run(TCP, "192.0.2.1:443"), given_to(&web, 0));
    });
}

#[test]
fn a_bound_prefix_takes_its_first_and_last_address_and_no_other() {
    in_own_namespace(|| {
        let mut steer = Steer::load();
        let (v4, v6) = (steer.listen("127.0.0.1:0", SLOT_V4), steer.listen("[::1]:0", SLOT_V6));
        // The prefixes do not end at a byte boundary.
        steer.bind("192.0.2.64", 26, 80, (1, SLOT_V4));
        steer.bind("2001:db8:0:20::", 59, 80, (2, SLOT_V6));
        for inside in ["192.0.2.64:80", "192.0.2.100:80", "192.0.2.127:80"] {
            assert_eq!(steer.run(TCP, inside), given_to(&v4, 1), "{inside}");
        }
        for inside in ["[2001:db8:0:20::]:80", "[2001:db8:0:3f:ffff:ffff:ffff:ffff]:80"] {
            assert_eq!(steer.run(TCP, inside), given_to(&v6, 2), "{inside}");
        }
        let outside = [
            "192.0.2.63:80",
            "192.0.2.128:80",
            "[2001:db8:0:1f::1]:80",
            "[2001:db8:0:40::]:80",
        ];
        for outside in outside {
            assert_eq!(steer.run(TCP, outside), missed(), "{outside}");
        }
    });
}

#[test]
fn the_longer_prefix_wins_whichever_was_bound_first() {
    in_own_namespace(|| {
        let mut steer = Steer::load();
        let (wide, narrow) = (steer.listen("127.0.0.1:0", 10), steer.listen("127.0.0.1:0", 11));
        steer.bind("10.0.0.0", 8, 80, (0, 10));
        steer.bind("10.1.2.3", 32, 80, (1, 11));
        steer.bind("10.1.0.0", 16, 80, (2, 10));
        assert_eq!(steer.run(TCP, "10.9.9.9:80"), given_to(&wide, 0));
        assert_eq!(steer.run(TCP, "10.1.2.3:80"), given_to(&narrow, 1));
        assert_eq!(steer.run(TCP, "10.1.2.4:80"), given_to(&wide, 2));
    });
}

#[test]
fn all_of_ipv6_does_not_take_ipv4_nor_the_other_way_round() {
    in_own_namespace(|| {
        let mut steer = Steer::load();
        let (v4, v6) = (steer.listen("127.0.0.1:0", SLOT_V4), steer.listen("[::1]:0", SLOT_V6));
        steer.bind("::", 0, 80, (0, SLOT_V6));
        assert_eq!(steer.run(TCP, "192.0.2.1:80"), missed());
        assert_eq!(steer.run(TCP, "[2001:db8::1]:80"), given_to(&v6, 0));
        steer.bind("0.0.0.0", 0, 81, (1, SLOT_V4));
        assert_eq!(steer.run(TCP, "[2001:db8::1]:81"), missed());
        // The form that IPv4 has in the keys, arriving as IPv6: still not IPv4.
        assert_eq!(steer.run(TCP, "[::ffff:192.0.2.1]:81"), missed());
        assert_eq!(steer.run(TCP, "192.0.2.1:81"), given_to(&v4, 1));
    });
}

#[test]
fn udp_to_a_bound_port_passes() {
    in_own_namespace(|| {
        let mut steer = Steer::load();
        let _web = steer.listen("127.0.0.1:0", SLOT_V4);
        steer.bind("192.0.2.1", 32, 443, (0, SLOT_V4));
        let not_ours = Outcome {
            verdict: SK_PASS,
            reason: Reason::SteerNotTcp,
            ..missed()
        };
        assert_eq!(steer.run(UDP, "192.0.2.1:443"), not_ours);
    });
}

#[test]
fn a_bound_address_without_a_listening_socket_drops_and_counts() {
    in_own_namespace(|| {
        let mut steer = Steer::load();
        let dropped = Outcome {
            verdict: SK_DROP,
            reason: Reason::SteerNoSocket,
            ..missed()
        };
        steer.bind("192.0.2.1", 32, 443, (0, SLOT_V4));
        steer.bind("192.0.2.2", 32, 443, (0, u32::MAX));
        assert_eq!(steer.run(TCP, "192.0.2.1:443"), dropped, "before there was one");
        assert_eq!(steer.run(TCP, "192.0.2.2:443"), dropped, "a slot that does not exist");
        let web = steer.listen("127.0.0.1:0", SLOT_V4);
        assert_eq!(steer.run(TCP, "192.0.2.1:443"), given_to(&web, 0));
        drop(web);
        assert_eq!(steer.run(TCP, "192.0.2.1:443"), dropped, "after it was closed");
    });
}

#[test]
fn a_socket_of_the_other_family_is_dropped_and_counted() {
    in_own_namespace(|| {
        let mut steer = Steer::load();
        let _wrong = steer.listen("[::1]:0", SLOT_V4);
        steer.bind("192.0.2.1", 32, 443, (0, SLOT_V4));
        let failed = Outcome {
            verdict: SK_DROP,
            reason: Reason::SteerAssignFailed,
            ..missed()
        };
        assert_eq!(steer.run(TCP, "192.0.2.1:443"), failed);
    });
}

/// Outcome of one run of the program.
#[derive(Debug, PartialEq)]
struct Outcome {
    verdict: u32,
    /// Cookie of the selected socket.
    socket: Option<u64>,
    /// The one reason that was counted.
    reason: Reason,
    /// The listeners whose counter of steered connections went up by one.
    steered: Vec<u32>,
}

fn given_to(socket: &TcpListener, listener: u32) -> Outcome {
    Outcome {
        verdict: SK_PASS,
        socket: Some(sys::cookie(socket.as_raw_fd()).unwrap()),
        reason: Reason::SteerAssigned,
        steered: vec![listener],
    }
}

fn missed() -> Outcome {
    Outcome {
        verdict: SK_PASS,
        socket: None,
        reason: Reason::SteerMiss,
        steered: Vec::new(),
    }
}

/// `struct bpf_sk_lookup` (`include/uapi/linux/bpf.h`).
#[repr(C)]
#[derive(Default)]
struct LookupContext {
    cookie: u64,
    family: u32,
    protocol: u32,
    remote_ip4: u32,
    remote_ip6: [u32; 4],
    remote_port: u16,
    _zero: u16,
    local_ip4: u32,
    local_ip6: [u32; 4],
    local_port: u32,
    ingress_ifindex: u32,
    _pad: u32,
}

/// The part of `union bpf_attr` that BPF_PROG_TEST_RUN uses.
#[repr(C)]
#[derive(Default)]
struct TestRunAttr {
    prog_fd: u32,
    retval: u32,
    data_sizes: [u32; 2],
    data: [u64; 2],
    repeat: u32,
    duration: u32,
    ctx_sizes: [u32; 2],
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    _pad: u32,
}

/// The loaded program, attached to nothing, and its maps.
struct Steer {
    program: OwnedFd,
    bindings: LpmTrie<MapData, SteerKey, SteerValue>,
    listeners: SockMap<MapData>,
    exits: PerCpuArray<MapData, u64>,
    steered: PerCpuArray<MapData, u64>,
    _ebpf: Ebpf,
}

impl Steer {
    fn load() -> Self {
        let mut ebpf = Ebpf::load(object::STEERING).unwrap();
        let program: &mut SkLookup = ebpf.program_mut("steer").unwrap().try_into().unwrap();
        program.load().unwrap();
        Self {
            program: program.fd().unwrap().as_fd().try_clone_to_owned().unwrap(),
            bindings: ebpf.take_map("STEER_BINDINGS").unwrap().try_into().unwrap(),
            listeners: ebpf.take_map("STEER_LISTENERS").unwrap().try_into().unwrap(),
            exits: ebpf.take_map("COUNTERS").unwrap().try_into().unwrap(),
            steered: ebpf.take_map("STEER_STATS").unwrap().try_into().unwrap(),
            _ebpf: ebpf,
        }
    }

    /// Opens a listening socket and puts it into a slot.
    fn listen(&mut self, at: &str, slot: u32) -> TcpListener {
        let socket = TcpListener::bind(at).unwrap();
        self.listeners.set(slot, &socket, 0).unwrap();
        socket
    }

    fn bind(&mut self, network: &str, prefix: u32, port: u16, (listener, slot): (u32, u32)) {
        let network: IpAddr = network.parse().unwrap();
        let before = if network.is_ipv4() { 96 } else { 0 };
        let key = Key::new(STEER_FIXED_BITS + before + prefix, key_of(network, port));
        self.bindings.insert(&key, SteerValue { listener, slot }, 0).unwrap();
    }

    /// Runs the program once, as for the first packet of a connection to this address.
    fn run(&self, protocol: u32, to: &str) -> Outcome {
        let to: SocketAddr = to.parse().unwrap();
        let mut context = LookupContext {
            protocol,
            remote_port: 40_000u16.to_be(),
            local_port: u32::from(to.port()),
            ..LookupContext::default()
        };
        match to.ip() {
            IpAddr::V4(ip) => {
                context.family = libc::AF_INET as u32;
                context.remote_ip4 = u32::from_ne_bytes([198, 51, 100, 7]);
                context.local_ip4 = u32::from_ne_bytes(ip.octets());
            }
            IpAddr::V6(ip) => {
                context.family = libc::AF_INET6 as u32;
                context.remote_ip6[3] = 1u32.to_be();
                for (word, bytes) in context.local_ip6.iter_mut().zip(ip.octets().chunks(4)) {
                    *word = u32::from_ne_bytes(bytes.try_into().unwrap());
                }
            }
        }
        let before = self.counted();
        let verdict = test_run(&self.program, &mut context).unwrap();
        let after = self.counted();
        let up = |before: &[u64], after: &[u64]| -> Vec<u32> {
            assert!(before.iter().zip(after).all(|(b, a)| a - b <= 1), "one run, one count");
            (0..)
                .zip(before.iter().zip(after))
                .filter(|(_, (b, a))| a > b)
                .map(|(i, _)| i)
                .collect()
        };
        let reasons = up(&before.0, &after.0);
        assert_eq!(reasons.len(), 1, "every exit counts one reason: {reasons:?}");
        Outcome {
            verdict,
            socket: (context.cookie != 0).then_some(context.cookie),
            reason: Reason::ALL[reasons[0] as usize],
            steered: up(&before.1, &after.1),
        }
    }

    fn counted(&self) -> (Vec<u64>, Vec<u64>) {
        let all =
            |map: &PerCpuArray<MapData, u64>| (0..map.len()).map(|at| map.get(&at, 0).unwrap().iter().sum()).collect();
        (all(&self.exits), all(&self.steered))
    }
}

fn test_run(program: &OwnedFd, context: &mut LookupContext) -> io::Result<u32> {
    const BPF_PROG_TEST_RUN: libc::c_long = 10;
    let at = std::ptr::from_mut(context) as u64;
    let mut attr = TestRunAttr {
        prog_fd: program.as_raw_fd() as u32,
        ctx_sizes: [size_of::<LookupContext>() as u32; 2],
        ctx_in: at,
        ctx_out: at,
        ..TestRunAttr::default()
    };
    let size = size_of::<TestRunAttr>();
    // SAFETY: the attribute and the context, which the kernel reads and then writes, live for the call and have the
    // sizes that are passed.
    match unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, &raw mut attr, size) } {
        0 => Ok(attr.retval),
        _ => Err(io::Error::last_os_error()),
    }
}

fn key_of(ip: IpAddr, port: u16) -> SteerKey {
    match ip {
        IpAddr::V4(ip) => SteerKey::new(port, 4, SteerKey::mapped(ip.octets())),
        IpAddr::V6(ip) => SteerKey::new(port, 6, ip.octets()),
    }
}

/// Runs a test in a separate network namespace.
fn in_own_namespace<F: FnOnce() + Send>(work: F) {
    namespace::in_own_namespace(namespace::test_of::<F>(), ProgramType::SkLookup, &[], work);
}
