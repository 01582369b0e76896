//! The shield: packets that get no further than this, and the reasons.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

use ipnet::IpNet;
use signalbox_common::Reason;
use signalbox_common::net::Target;
use signalbox_common::net::target::PortBit;
use signalbox_common::shield::abi::{NO_TABLE, SAMPLE_QUOTA, flag};
use signalbox_common::shield::source::{mask_v4, mask_v6};
use signalbox_common::shield::{ConnCountKey, Decision, DroppedPacket, Guard, Limit, Settings};
use signalbox_common::steer::SteerKey;
use signalbox_core::limits::prefixes::{Verdict, build};
use signalbox_core::wire::address::ipv4_mapped;

use super::packet::{ACK, FIN, Packet, RST, SYN, TCP, UDP};
use super::world::*;

const SEED: u64 = 99;

impl World {
    pub(crate) fn clear_shield(&mut self) {
        let nothing = Settings {
            seed: SEED,
            buckets: 256,
            drop_unparsable: 0,
            shared_prefixes: NO_TABLE,
            generation: self.next_round(),
        };
        self.shield.set_settings(&nothing).unwrap();
        self.settings = nothing;
        self.shield.for_each_sample(|_| {}).unwrap();
        for (key, _) in self.shield.conn_counts().unwrap() {
            self.shield.set_conn_count(&key, 0).unwrap();
        }
        for table in 0..4 {
            let _ = self.shield.swap_own(table, &[]);
        }
        for (vip, protocol) in [(VIP, TCP), (VIP6, TCP), (VIP, UDP), (VIP6, UDP)] {
            self.shield.set_target(&target(vip, protocol), None).unwrap();
        }
    }

    /// Sets rules for an address and port.
    fn guards(&mut self, number: u32, vip: &str, protocol: u8, change: impl FnOnce(&mut Guard)) {
        let mut guard = Guard {
            mask_v4: mask_v4(32),
            mask_v6: mask_v6(64),
            ..Guard::default()
        };
        change(&mut guard);
        self.shield.set_guard(number, &guard).unwrap();
        self.shield.set_target(&target(vip, protocol), Some(number)).unwrap();
        let at: SocketAddr = vip.parse().unwrap();
        let bit = PortBit::new(at.port(), protocol);
        self.shield.set_ports(bit.word, 1 << bit.bit).unwrap();
        self.settings(|_| {});
    }

    /// Makes programs look again which guard has which targets.
    fn settings(&mut self, change: impl FnOnce(&mut Settings)) {
        self.settings.generation = self.next_round();
        change(&mut self.settings);
        self.shield.set_settings(&self.settings).unwrap();
    }

    fn next_round(&self) -> u32 {
        static ROUND: AtomicU32 = AtomicU32::new(1);
        ROUND.fetch_add(1, Ordering::Relaxed)
    }

    /// The prefixes of one guard, or of all.
    fn prefixes(&mut self, guard: Option<u32>, deny: &[&str], allow: &[&str]) {
        let of = |list: &[&str], verdict| -> Vec<(IpNet, Verdict)> {
            list.iter().map(|net| (net.parse().unwrap(), verdict)).collect()
        };
        let nodes = build([of(deny, Verdict::Deny), of(allow, Verdict::Allow)].concat());
        match guard {
            Some(guard) => self.shield.swap_own(guard, &nodes).unwrap(),
            None => {
                let common = self
                    .shield
                    .write_shared_prefixes(&nodes, self.settings.shared_prefixes)
                    .unwrap();
                self.settings(|settings| settings.shared_prefixes = common);
            }
        }
    }

    /// Returns the samples of dropped packets since the last call.
    fn told(&self) -> Vec<DroppedPacket> {
        let mut all = Vec::new();
        self.shield.for_each_sample(|dropped| all.push(dropped)).unwrap();
        all
    }
}

fn target(vip: &str, protocol: u8) -> Target {
    let at: SocketAddr = vip.parse().unwrap();
    Target::new(words(at.ip()), at.port(), protocol)
}

fn syn(client: &str, vip: &str) -> Packet {
    Packet::tcp(FROM_CLIENT, client, vip, SYN)
}

fn service(guard: &mut Guard) {
    guard.flags |= flag::SERVICE;
}

#[test]
fn denied_sources_are_dropped_and_the_longest_prefix_decides() {
    with_each(|world| {
        world.serve_all();
        for (vip, protocol) in [(VIP, TCP), (VIP6, TCP), (VIP, UDP), (VIP6, UDP)] {
            world.guards(1, vip, protocol, service);
        }
        let before = world.shield.decisions(1)[Decision::Denied as usize];
        world.prefixes(
            None,
            &["192.0.2.0/24", "192.0.2.8/32", "2001:db8:1::/48"],
            &["192.0.2.8/29", "2001:db8:1::7/128"],
        );
        for (client, is_denied) in [
            ("192.0.2.7:40000", true),
            ("192.0.2.8:40000", true),
            ("192.0.2.9:40000", false),
            ("192.0.3.7:40000", false),
        ] {
            for packet in [syn(client, VIP), Packet::udp(FROM_CLIENT, client, VIP)] {
                let outcome = world.arrives(&packet);
                if is_denied {
                    outcome.is(Action::Drop, Reason::ShieldDenied);
                } else {
                    outcome.sent(Reason::L4Opened);
                }
            }
        }
        world
            .arrives(&syn("[2001:db8:1::8]:40000", VIP6))
            .is(Action::Drop, Reason::ShieldDenied);
        world
            .arrives(&syn("[2001:db8:1::7]:40000", VIP6))
            .sent(Reason::L4Opened);
        assert_eq!(world.shield.decisions(1)[Decision::Denied as usize] - before, 5);
        world.prefixes(None, &[], &[]);
        world.arrives(&syn("192.0.2.7:40000", VIP)).sent(Reason::L4Opened);
    });
}

#[test]
fn a_services_prefixes_are_its_own_and_lift_no_shared_deny() {
    with_each(|world| {
        world.serve_all();
        world.guards(1, VIP, TCP, |guard| guard.flags |= flag::SERVICE | flag::PREFIXES);
        world.guards(2, VIP, UDP, service);
        world.prefixes(Some(1), &["0.0.0.0/0"], &["192.0.2.0/24"]);
        let outcome = |client: &str| world.arrives(&syn(client, VIP));
        outcome("192.0.2.7:40000").sent(Reason::L4Opened);
        outcome("203.0.113.7:40000").is(Action::Drop, Reason::ShieldDenied);
        let datagram = Packet::udp(FROM_CLIENT, "203.0.113.7:40000", VIP);
        world.arrives(&datagram).sent(Reason::L4Opened);
        world.prefixes(None, &["192.0.2.7/32"], &[]);
        world
            .arrives(&syn("192.0.2.7:40001", VIP))
            .is(Action::Drop, Reason::ShieldDenied);
        world.arrives(&syn("192.0.2.8:40001", VIP)).sent(Reason::L4Opened);
    });
}

#[test]
fn a_listener_on_a_prefix_guards_only_its_addresses_and_port() {
    with_each(|world| {
        let place = SteerKey::new(3306, 4, ipv4_mapped("198.51.100.0".parse().unwrap()));
        world.guards(1, "203.0.113.99:3306", TCP, |_| {});
        world.shield.set_prefixed(96 + 24, &place, Some(1)).unwrap();
        world.settings(|_| {});
        world.prefixes(None, &["192.0.2.0/24"], &[]);
        world.arrives(&syn(CLIENT, VIP)).is(Action::Drop, Reason::ShieldDenied);
        world
            .arrives(&syn("192.0.3.7:40000", VIP))
            .is(Action::Pass, Reason::ShieldPassed);
        world
            .arrives(&syn(CLIENT, "198.51.101.1:3306"))
            .is(Action::Pass, Reason::L4Miss);
        world
            .arrives(&syn(CLIENT, "198.51.100.1:22"))
            .is(Action::Pass, Reason::L4Miss);
        world.shield.set_prefixed(96 + 24, &place, None).unwrap();
    });
}

#[test]
fn a_source_gets_its_limits_of_packets_bytes_and_connections() {
    with_each(|world| {
        world.serve_all();
        // A third of a second for each: a slow test may see one more, but not two.
        let (few, one) = (Limit::new(3, 4), Limit::new(1, 1));
        for (client, vip) in [(CLIENT, VIP), (CLIENT6, VIP6)] {
            let fresh = world.program as u32 * 100 + u32::from(vip == VIP6) * 10;
            let counted = |outcome: &Outcome, reason| outcome.reasons == [reason];
            world.guards(fresh + 1, vip, TCP, |guard| {
                guard.flags |= flag::SERVICE | flag::RATES;
                guard.limits[1] = few;
            });
            let all: Vec<_> = (0..20).map(|_| world.arrives(&syn(client, vip))).collect();
            let dropped = all.iter().filter(|o| counted(o, Reason::ShieldPackets)).count();
            assert!((14..=16).contains(&dropped), "{dropped}: {all:?}");
            world.guards(fresh + 2, vip, TCP, |guard| {
                guard.flags |= flag::SERVICE | flag::RATES;
                guard.limits[2] = Limit::new(1, 100);
            });
            let length = syn(client, vip).bytes().len() - 14;
            let outcome: Vec<_> = (0..4).map(|_| world.arrives(&syn(client, vip)).reasons[0]).collect();
            let passes = 100 / length;
            assert!(
                outcome[..passes].iter().all(|reason| *reason != Reason::ShieldBytes),
                "{outcome:?}"
            );
            assert!(
                outcome[passes..].iter().all(|reason| *reason == Reason::ShieldBytes),
                "{outcome:?}"
            );
            world.guards(fresh + 3, vip, TCP, |guard| {
                guard.flags |= flag::SERVICE;
                guard.limits[0] = one;
            });
            let port = |port: u16| {
                let mut packet = syn(client, vip);
                packet.from.set_port(port);
                packet
            };
            world.connect(&port(50_001).from.to_string(), vip);
            world.arrives(&port(50_002)).is(Action::Drop, Reason::ShieldConnections);
            // An established flow continues.
            let mut next = port(50_001);
            next.flags = ACK;
            world.arrives(&next).sent(Reason::L4Forwarded);
            // A second source has its own bucket.
            let mut other = port(50_003);
            other.from.set_ip(
                if vip == VIP { "192.0.2.8" } else { "2001:db8:1:1::7" }
                    .parse()
                    .unwrap(),
            );
            world.arrives(&other).sent(Reason::L4Opened);
        }
    });
}

#[test]
fn a_source_of_ipv6_is_its_prefix() {
    with_each(|world| {
        world.serve_all();
        let number = 40 + world.program as u32;
        world.guards(number, VIP6, TCP, |guard| {
            guard.flags |= flag::SERVICE;
            guard.limits[0] = Limit::new(1, 1);
        });
        world
            .arrives(&syn("[2001:db8:5::1]:40000", VIP6))
            .sent(Reason::L4Opened);
        world
            .arrives(&syn("[2001:db8:5::2]:40000", VIP6))
            .is(Action::Drop, Reason::ShieldConnections);
    });
}

#[test]
fn a_source_has_no_more_connections_at_once_than_it_may_have() {
    with_each(|world| {
        world.serve_all();
        world.guards(3, VIP, TCP, |guard| {
            service(guard);
            guard.concurrent = 2;
        });
        let key = ConnCountKey {
            source: words("192.0.2.7".parse().unwrap()),
            guard: 3,
        };
        world.connect("192.0.2.7:40000", VIP);
        assert_eq!(world.shield.conn_count(&key).unwrap(), 1);
        world.connect("192.0.2.7:40001", VIP);
        world
            .arrives(&syn("192.0.2.7:40002", VIP))
            .is(Action::Drop, Reason::ShieldConcurrent);
        world
            .arrives(&Packet::tcp(FROM_CLIENT, "192.0.2.7:40001", VIP, ACK))
            .sent(Reason::L4Forwarded);
        world.arrives(&syn("192.0.2.8:40002", VIP)).sent(Reason::L4Opened);
        // A FIN of only one side does not end the connection yet; FINs of both do, however often they are repeated.
        let finish = Packet::tcp(FROM_CLIENT, "192.0.2.7:40001", VIP, FIN | ACK);
        let to_host = world.arrives(&finish).sent(Reason::L4Forwarded);
        world
            .arrives(&syn("192.0.2.7:40002", VIP))
            .is(Action::Drop, Reason::ShieldConcurrent);
        let mut answer = Packet::tcp(FROM_HOST, HOST, HOST, FIN | ACK);
        (answer.from, answer.to) = (to_host.to, to_host.from);
        world.arrives(&answer).sent(Reason::L4Replied);
        for _ in 0..2 {
            world.arrives(&finish).sent(Reason::L4Forwarded);
        }
        assert_eq!(world.shield.conn_count(&key).unwrap(), 1);
        world.arrives(&syn("192.0.2.7:40002", VIP)).sent(Reason::L4Opened);
    });
}

#[test]
fn packets_that_are_not_possible_end_here() {
    with_each(|world| {
        world.serve_all();
        for (vip, protocol) in [(VIP, TCP), (VIP, UDP), (VIP6, TCP), (VIP6, UDP)] {
            world.guards(1, vip, protocol, |guard| guard.flags |= flag::SERVICE | flag::MALFORMED);
        }
        let dropped = |packet: &Packet| world.arrives(packet).is(Action::Drop, Reason::ShieldMalformed);
        for (client, vip) in [(CLIENT, VIP), (CLIENT6, VIP6)] {
            for flags in [0, FIN, SYN | FIN, SYN | RST, 0x29, 0xff] {
                dropped(&Packet::tcp(FROM_CLIENT, client, vip, flags));
            }
            let mut packet = syn(client, vip);
            packet.from.set_port(0);
            dropped(&packet);
            packet.from = vip.parse().unwrap();
            dropped(&packet);
            world.arrives(&syn(client, vip)).sent(Reason::L4Opened);
            let whole = Packet::udp(FROM_CLIENT, client, vip).bytes();
            let udp = whole.len() - 18;
            for length in [7u8, 200] {
                let mut wrong = whole.clone();
                wrong[udp + 5] = length;
                world.run(&wrong).is(Action::Drop, Reason::ShieldMalformed);
            }
            // The frame is shorter than its packet.
            world
                .run(&whole[..whole.len() - 1])
                .is(Action::Drop, Reason::ShieldMalformed);
        }
        dropped(&syn("127.0.0.1:40000", VIP));
        dropped(&syn("224.0.0.1:40000", VIP));
        // Headers that end too early, for any target.
        let cut = &syn(CLIENT, VIP).bytes()[..14 + 20 + 19];
        world.run(cut).is(Action::Pass, Reason::L4Malformed);
        world.settings(|settings| settings.drop_unparsable = 1);
        world.run(cut).is(Action::Drop, Reason::ShieldMalformed);
    });
}

#[test]
fn dropped_packets_are_told_of_now_and_then() {
    with_each(|world| {
        world.serve_all();
        world.guards(1, VIP, TCP, service);
        world.prefixes(None, &["192.0.2.0/24"], &[]);
        world.arrives(&syn(CLIENT, VIP)).is(Action::Drop, Reason::ShieldDenied);
        let told = world.told();
        let one = told.first().unwrap();
        let packet = syn(CLIENT, VIP);
        assert_eq!(told.len(), 1);
        assert_eq!(
            (one.source, one.destination),
            (words(packet.from.ip()), words(packet.to.ip()))
        );
        assert_eq!((one.ports, one.protocol), (40_000 << 16 | 3306, u32::from(TCP)));
        assert_eq!(
            (one.guard, one.decision, one.flags),
            (1, Decision::Denied as u32, u32::from(SYN))
        );
        assert_eq!((one.length, one.ifindex), (40, IFINDEX));
        // Samples are bounded until userspace looks again.
        for _ in 0..100 {
            world.arrives(&syn(CLIENT, VIP)).is(Action::Drop, Reason::ShieldDenied);
        }
        let cpus = aya::util::nr_cpus().unwrap();
        let told = world.told().len();
        assert!((1..=SAMPLE_QUOTA as usize * cpus).contains(&told), "{told}");
        world.arrives(&syn(CLIENT, VIP)).is(Action::Drop, Reason::ShieldDenied);
        assert_eq!(world.told().len(), 1);
    });
}

#[test]
fn a_syn_to_a_listener_with_a_full_backlog_gets_a_cookie() {
    with_each(|world| {
        let run = |words: &[&str]| {
            assert!(
                std::process::Command::new(words[0])
                    .args(&words[1..])
                    .status()
                    .unwrap()
                    .success()
            );
        };
        run(&["ip", "address", "add", "198.51.100.1/32", "dev", "lo"]);
        run(&["ip", "address", "add", "2001:db8:2::1/128", "dev", "lo", "nodad"]);
        for (client, vip) in [(CLIENT, VIP), (CLIENT6, VIP6)] {
            let number = 50 + u32::from(vip == VIP6);
            let _listener = TcpListener::bind(vip).unwrap();
            world.guards(number, vip, TCP, |guard| guard.flags |= flag::COOKIES);
            let before = world.shield.decisions(number)[Decision::Cookie as usize];
            let mut packet = syn(client, vip);
            packet.seq = 0xffff_ffff;
            // 1: only while the backlog is full. 2: always.
            std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "1").unwrap();
            let outcome = world.arrives(&packet);
            outcome.is(Action::Pass, Reason::ShieldPassed);
            assert_eq!(outcome.bytes, packet.bytes(), "untouched");
            std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2").unwrap();
            for (frame, header) in [(packet.bytes(), 20), (with_options(&packet), 40)] {
                let outcome = world.run(&frame);
                let answer = Answer::read(outcome.sent_bytes(Reason::ShieldCookie), header);
                assert_eq!((answer.from, answer.to), (packet.to, packet.from));
                assert_eq!((&answer.macs[..], answer.hops), (&TO_CLIENT[..], 64));
                assert_eq!((answer.ack, answer.flags), (0, SYN | ACK));
                if let [2, 4, high, low, rest @ ..] = &answer.options[..] {
                    let mss = u16::from_be_bytes([*high, *low]);
                    assert!((1000..=1460).contains(&mss), "{mss}");
                    assert_eq!(rest, [0; 16], "the end of the list");
                } else {
                    assert_eq!((answer.options, header), (Vec::new(), 20));
                }
            }
            // A packet that is no SYN passes, and so does a SYN with data.
            let mut third = packet.clone();
            third.flags = ACK;
            world.arrives(&third).is(Action::Pass, Reason::ShieldPassed);
            let mut fast = packet.clone();
            fast.payload = b"data".to_vec();
            world.arrives(&fast).is(Action::Pass, Reason::ShieldPassed);
            assert_eq!(world.shield.decisions(number)[Decision::Cookie as usize] - before, 2);
            // Fewer in a second than a flood has: the socket is not asked.
            world.guards(number + 2 + 4 * world.program as u32, vip, TCP, |guard| {
                guard.flags |= flag::COOKIES;
                guard.syn_threshold = 3;
            });
            let reasons: Vec<_> = (0..9).map(|_| world.arrives(&packet).reasons[0]).collect();
            let passed = reasons.iter().filter(|reason| **reason == Reason::ShieldPassed).count();
            assert!((3..=6).contains(&passed), "{reasons:?}");
            assert_eq!(reasons.last(), Some(&Reason::ShieldCookie));
        }
    });
}

/// The packet with twenty bytes of options, as Linux sends them.
fn with_options(packet: &Packet) -> Vec<u8> {
    let mut l4 = packet.l4();
    l4[12] = 10 << 4;
    l4[16..18].fill(0);
    l4.extend([2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7]);
    let sum = packet.checksum(&l4);
    l4[16..18].copy_from_slice(&sum.to_be_bytes());
    [packet.ethernet(), packet.ip(TCP, l4.len(), &[]), l4].concat()
}

/// A SYN-ACK with right checksums.
struct Answer {
    macs: Vec<u8>,
    from: SocketAddr,
    to: SocketAddr,
    hops: u8,
    ack: u32,
    flags: u8,
    options: Vec<u8>,
}

impl Answer {
    #[track_caller]
    fn read(frame: &[u8], header: usize) -> Self {
        let (ip, l4) = frame[14..].split_at(frame.len() - 14 - header);
        let is_v4 = ip[0] >> 4 == 4;
        let addresses = if is_v4 { &ip[12..20] } else { &ip[8..40] };
        let all = [addresses, &[0, TCP, 0, header as u8], l4].concat();
        assert_eq!(super::packet::checksum(&all), 0, "TCP's checksum");
        if is_v4 {
            assert_eq!(super::packet::checksum(ip), 0, "IP's checksum");
        }
        let (from, to) = addresses.split_at(addresses.len() / 2);
        let end = |address: &[u8], at: usize| {
            let port = u16::from_be_bytes([l4[at], l4[at + 1]]);
            let ip = match <[u8; 4]>::try_from(address) {
                Ok(v4) => v4.into(),
                Err(_) => <[u8; 16]>::try_from(address).unwrap().into(),
            };
            SocketAddr::new(ip, port)
        };
        assert_eq!(usize::from(l4[12] >> 4) * 4, header);
        Self {
            macs: frame[..12].to_vec(),
            from: end(from, 0),
            to: end(to, 2),
            hops: if is_v4 { ip[8] } else { ip[7] },
            ack: u32::from_be_bytes(l4[8..12].try_into().unwrap()),
            flags: l4[13],
            options: l4[20..].to_vec(),
        }
    }
}
