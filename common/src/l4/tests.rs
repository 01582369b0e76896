//! Tests of the programs' common code: packets and their replies, and random bytes.

extern crate std;

use std::vec::Vec;

use proptest::prelude::*;

use super::PacketScratch;
use super::abi::state;
use super::decide::balance;
use super::model::ModelMaps;
use super::verdict::Action;
use crate::Reason;
use crate::net::ip::{TCP, UDP};
use crate::net::{Key, ParsedHeaders, checksum, packet};

const VIP4: [u32; 4] = [0, 0, 0xffff, 0xc633_6401];
const VIP6: [u32; 4] = [0x2001_0db8, 2, 0, 1];

/// A packet without an Ethernet header.
#[derive(Clone, Debug)]
struct Packet {
    key: Key,
    hops: u8,
    seq: u32,
    ack: u32,
    flags: u8,
    payload: Vec<u8>,
}

fn be(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

impl Packet {
    fn is_v4(&self) -> bool {
        self.key.source[2] == 0xffff && self.key.source[0] == 0
    }

    fn bytes(&self) -> Vec<u8> {
        let mut l4 = be(&[self.key.ports]);
        let field = if self.key.protocol == TCP {
            l4.extend(be(&[self.seq, self.ack]));
            l4.extend([5 << 4, self.flags, 1, 0, 0, 0, 0, 0]);
            16
        } else {
            l4.extend(((8 + self.payload.len()) as u16).to_be_bytes());
            l4.extend([0, 0]);
            6
        };
        l4.extend(&self.payload);
        let addresses = if self.is_v4() {
            be(&[self.key.source[3], self.key.destination[3]])
        } else {
            [be(&self.key.source), be(&self.key.destination)].concat()
        };
        let mut all = addresses.clone();
        all.extend(be(&[self.key.protocol, l4.len() as u32]));
        all.extend(&l4);
        let mut sum = checksum::of(&all, 0);
        if sum == 0 && self.key.protocol == UDP {
            sum = 0xffff;
        }
        l4[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        let mut ip = Vec::new();
        if self.is_v4() {
            ip.extend([0x45, 0]);
            ip.extend(((20 + l4.len()) as u16).to_be_bytes());
            ip.extend([0, 1, 0x40, 0, self.hops, self.key.protocol as u8, 0, 0]);
            ip.extend(addresses);
            let sum = checksum::of(&ip, 0);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            ip.extend([0x60, 0, 0, 0]);
            ip.extend((l4.len() as u16).to_be_bytes());
            ip.extend([self.key.protocol as u8, self.hops]);
            ip.extend(addresses);
        }
        [ip, l4].concat()
    }
}

fn packet() -> impl Strategy<Value = Packet> {
    (
        (any::<bool>(), any::<bool>(), 1u16..),
        any::<[u32; 4]>(),
        (any::<u32>(), any::<u32>(), 2u8..),
        prop::collection::vec(any::<u8>(), 0..80),
    )
        .prop_map(|((is_v4, is_tcp, port), source, (seq, ack, hops), payload)| {
            let mut source = source;
            if is_v4 {
                source = [0, 0, 0xffff, source[3]];
            } else {
                source[0] |= 0x2000_0000;
            }
            Packet {
                key: Key {
                    source,
                    destination: if is_v4 { VIP4 } else { VIP6 },
                    ports: u32::from(port) << 16 | 80,
                    protocol: if is_tcp { TCP } else { UDP },
                },
                hops,
                seq,
                ack,
                flags: 0x02,
                payload,
            }
        })
}

/// Runs a packet: the verdict, and the bytes with the checksum that the hooks would write.
fn run(maps: &ModelMaps, packet: &Packet, s: &mut PacketScratch) -> (u32, u32, Vec<u8>) {
    let mut bytes = packet.bytes();
    let version = if packet.is_v4() { 4 } else { 6 };
    let verdict = balance(bytes.as_mut_slice(), maps, 0, version, s);
    if verdict.action() == Action::Send as u32 && s.out.checksum_offset != 0 {
        let at = s.out.checksum_offset as usize;
        let mut changes = s.out.checksum_diffs.addresses;
        changes.merge(s.out.checksum_diffs.rest);
        let mut sum = changes.apply_to(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        if sum == 0 && packet.key.protocol == UDP {
            sum = 0xffff;
        }
        bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    (verdict.reason(), verdict.action(), bytes)
}

/// Whether two checksums are equal: 0 and 0xffff are the same number in ones' complement.
fn same(a: &[u8], b: &[u8], field: usize) -> bool {
    let sum = |bytes: &[u8]| u16::from_be_bytes([bytes[field], bytes[field + 1]]) % 0xffff;
    a.len() == b.len() && sum(a) == sum(b) && a[..field] == b[..field] && a[field + 2..] == b[field + 2..]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// The host gets the packet that a client at our address would have sent it; the client gets the reply that the
    /// service's own address would have sent.
    #[test]
    fn a_packet_goes_there_and_its_answer_back(packet in packet(), answer in prop::collection::vec(any::<u8>(), 0..80)) {
        let maps = ModelMaps::with_services(VIP4, VIP6);
        let mut s = PacketScratch::default();
        let l3 = if packet.is_v4() { 20 } else { 40 };
        let field = l3 + if packet.key.protocol == TCP { 16 } else { 6 };
        let (reason, action, at_host) = run(&maps, &packet, &mut s);
        prop_assert_eq!((reason, action), (Reason::L4Opened as u32, Action::Send as u32));
        let flow = *maps.half_open.borrow()[&packet.key];
        let there = Packet {
            key: Key { source: flow.source, destination: flow.destination, ports: flow.ports, protocol: packet.key.protocol },
            hops: packet.hops - 1,
            ..packet.clone()
        };
        prop_assert!(same(&at_host, &there.bytes(), field), "{:02x?}\n{:02x?}", at_host, there.bytes());
        let back = Packet {
            key: there.key.reversed(),
            hops: 9,
            flags: 0x12,
            payload: answer,
            ..packet.clone()
        };
        let (reason, _, at_client) = run(&maps, &back, &mut s);
        prop_assert_eq!(reason, Reason::L4Replied as u32);
        let want = Packet { key: packet.key.reversed(), hops: 8, ..back };
        prop_assert!(same(&at_client, &want.bytes(), field));
        // The client's next packet, confirmed: it goes where the first one went.
        let third = Packet { flags: 0x10, ack: packet.seq.wrapping_add(1), ..packet.clone() };
        let (reason, _, _) = run(&maps, &third, &mut s);
        prop_assert_eq!(reason, Reason::L4Forwarded as u32);
        let established = maps.established.borrow();
        prop_assert_eq!(established.len(), 2);
        prop_assert!(established.values().filter(|flow| flow.state & state::REPLY != 0).count() == 1);
    }

    /// Flows to an address that moves have sources and ports of their own group only.
    #[test]
    fn a_groups_flows_leave_from_its_sources(packets in prop::collection::vec(packet(), 1..40)) {
        let mut maps = ModelMaps::with_services(VIP4, VIP6);
        let [v4, v6] = [maps.sources[0], maps.sources[1]];
        let other = |[a, b, c, d]: [u32; 4], n: u32| [a, b, c, d + n];
        // For the hosts of each family: the ordinary source, then those of two groups.
        maps.sources = [v4, other(v4, 1), other(v4, 2), v6, other(v6, 1), other(v6, 2)].into();
        for (number, host) in &mut maps.hosts {
            host.first_source = if *number < 8 { 0 } else { 3 };
        }
        for service in maps.services.values_mut() {
            service.group = 2;
        }
        let mut s = PacketScratch::default();
        for packet in &packets {
            run(&maps, packet, &mut s);
        }
        let config = maps.config;
        for flow in maps.half_open.borrow().values().filter(|flow| flow.state & state::REPLY == 0) {
            prop_assert!(flow.source == other(v4, 2) || flow.source == other(v6, 2));
            let port = flow.ports >> 16;
            prop_assert_eq!((port - config.floating_first_port) % config.floating_port_step, 0);
            prop_assert!(port < config.floating_first_port + config.floating_port_count * config.floating_port_step);
        }
    }

    /// No two flows of the same address and port of a host have a source port in common, for any clients.
    #[test]
    fn no_two_flows_look_alike_to_a_host(packets in prop::collection::vec(packet(), 1..60)) {
        let maps = ModelMaps::with_services(VIP4, VIP6);
        let mut s = PacketScratch::default();
        for packet in &packets {
            run(&maps, packet, &mut s);
        }
        let half_open = maps.half_open.borrow();
        let forward = half_open.iter().filter(|(_, flow)| flow.state & state::REPLY == 0);
        let mut seen = std::collections::HashSet::new();
        for (key, flow) in forward {
            prop_assert!(seen.insert((flow.source, flow.destination, flow.ports, key.protocol)));
            let reply = super::decide::reverse_key(flow, key.protocol);
            let reply = half_open.get(&reply).expect("the reply");
            prop_assert_eq!((reply.destination, reply.source), (key.source, key.destination));
        }
    }

    /// Random changes to a packet: nothing is read or written beyond it, and nothing loops.
    #[test]
    fn noise_is_survived(packet in packet(), changes in prop::collection::vec((any::<u8>(), any::<u8>()), 0..8), cut: u8) {
        let maps = ModelMaps::with_services(VIP4, VIP6);
        let mut s = PacketScratch::default();
        let mut bytes = packet.bytes();
        for (at, value) in changes {
            let at = usize::from(at) % bytes.len();
            bytes[at] = value;
        }
        bytes.truncate(usize::from(cut).max(1));
        for version in [4, 6] {
            let mut bytes = bytes.clone();
            let verdict = balance(bytes.as_mut_slice(), &maps, 0, version, &mut s);
            prop_assert!(verdict.reason() < crate::reason::REASON_COUNT && verdict.action() <= Action::TooBig as u32);
        }
    }

    /// The short way of reading headers and the long way agree.
    #[test]
    fn both_ways_of_reading_agree(packet in packet(), changes in prop::collection::vec((0u8..60, any::<u8>()), 0..4), cut: u8) {
        let mut bytes = packet.bytes();
        for (at, value) in changes {
            let at = usize::from(at) % bytes.len();
            bytes[at] = value;
        }
        bytes.truncate(usize::from(cut).max(20));
        let bytes = bytes.as_slice();
        let mut long = ParsedHeaders::default();
        let is_read = packet::parse_ip(bytes, 0, 4, bytes.len() as u32, &mut long).is_ok()
            && matches!(long.key.protocol, 6 | 17)
            && long.fragment != packet::LATER_FRAGMENT
            && packet::parse_ports(bytes, &mut long).is_ok();
        if let Some(key) = packet::parse_plain_key(bytes, 0) {
            prop_assert!(is_read, "{:02x?}", bytes);
            let mut straight = ParsedHeaders::default();
            prop_assert!(packet::parse_plain(bytes, 0, &mut straight).is_some());
            prop_assert_eq!(key, long.key);
            prop_assert_eq!(straight, long);
        } else if is_read {
            let is_short = bytes.len() < 40;
            let has_options = long.l4 != 20;
            let is_part = long.fragment != packet::NOT_FRAGMENTED;
            let says_too_little = long.length < long.l4 + long.header_length;
            prop_assert!(is_short || has_options || is_part || says_too_little, "{:02x?}", bytes);
        }
    }
}
