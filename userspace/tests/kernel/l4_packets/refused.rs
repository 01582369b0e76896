//! Packets that are not sent on, and packets that are not touched.

use signalbox_common::Reason;
use signalbox_common::l4::mode;

use super::packet::{ACK, Packet, SYN, TCP, checksum, octets};
use super::world::*;

#[test]
fn packets_that_match_no_service_pass_unchanged() {
    with_each(|world| {
        world.serve(VIP, TCP, mode::NAT);
        let untouched = |bytes: &[u8], reason: Reason| {
            let outcome = world.run(bytes);
            outcome.is(Action::Pass, reason);
            assert_eq!(outcome.bytes, bytes);
        };
        let tcp = |to: &str| Packet::tcp(FROM_CLIENT, CLIENT, to, SYN).bytes();
        untouched(&tcp("198.51.100.1:3307"), Reason::L4Miss);
        untouched(&tcp("198.51.100.2:3306"), Reason::L4Miss);
        untouched(&Packet::udp(FROM_CLIENT, CLIENT, VIP).bytes(), Reason::L4Miss);
        let mut arp = tcp(VIP);
        arp[12..14].copy_from_slice(&[8, 6]);
        untouched(&arp, Reason::L4Miss);
        let mut gre = tcp(VIP);
        gre[14 + 9] = 47;
        untouched(&gre, Reason::L4Miss);
    });
}

#[test]
fn a_syn_to_another_machines_mac_address_is_left_alone() {
    with(Program::Tc, |world| {
        world.serve_all();
        let mut syn = Packet::tcp(FROM_CLIENT, CLIENT, VIP, SYN);
        syn.macs[5] = 9;
        world.arrives(&syn).is(Action::Pass, Reason::L4Miss);
    });
}

#[test]
fn headers_that_are_not_whole_are_the_kernels_business() {
    with_each(|world| {
        world.serve_all();
        for (client, vip) in [(CLIENT, VIP), (CLIENT6, VIP6)] {
            let whole = Packet::tcp(FROM_CLIENT, client, vip, SYN).bytes();
            let l3 = if client == CLIENT { 20 } else { 40 };
            for length in [14 + l3 + 1, 14 + l3 + 19] {
                let outcome = world.run(&whole[..length.max(14 + l3)]);
                outcome.is(Action::Pass, Reason::L4Malformed);
            }
            // A header longer than the packet, and one shorter than a header can be.
            for words in [15, 4] {
                let mut wrong = whole.clone();
                wrong[14 + l3 + 12] = words << 4;
                world.run(&wrong).is(Action::Pass, Reason::L4Malformed);
            }
        }
    });
}

#[test]
fn the_kernel_answers_clients_of_a_service_without_hosts() {
    with_each(|world| {
        world.serve_all();
        world.table(0, &[u16::MAX]);
        world.table(1, &[u16::MAX]);
        for (client, vip) in [(CLIENT, VIP), (CLIENT6, VIP6)] {
            let begins = Packet::tcp(FROM_CLIENT, client, vip, SYN);
            world.arrives(&begins).is(Action::Pass, Reason::L4NoHost);
            // Perhaps another node's connection, which a reset would end.
            let goes_on = Packet::tcp(FROM_CLIENT, client, vip, ACK);
            world.arrives(&goes_on).is(Action::Drop, Reason::L4NoHost);
        }
    });
}

#[test]
fn a_service_without_a_way_to_its_host_opens_nothing() {
    with_each(|world| {
        world.serve_all();
        let syn = Packet::tcp(FROM_CLIENT, CLIENT, VIP, SYN);
        world.table(0, &[0]);
        world.change_host(0, |host| host.ifindex = 0);
        world.arrives(&syn).is(Action::Drop, Reason::L4NoNeighbour);
        world.change_host(0, |host| {
            host.ifindex = IFINDEX;
            host.source_count = 0;
        });
        world
            .arrives(&Packet::tcp(FROM_CLIENT, "192.0.2.9:9", VIP, SYN))
            .is(Action::Pass, Reason::L4NoPort);
    });
}

#[test]
fn a_packet_without_hops_ends_here() {
    with_each(|world| {
        world.serve_all();
        for (client, vip) in [(CLIENT, VIP), (CLIENT6, VIP6)] {
            let mut syn = Packet::tcp(FROM_CLIENT, client, vip, SYN);
            syn.hops = 1;
            world.arrives(&syn).is(Action::Drop, Reason::L4Hops);
        }
    });
}

#[test]
fn an_oversized_packet_gets_an_icmp_error_unless_fragmentable() {
    with_each(|world| {
        world.serve_all();
        world.change_host(0, |host| host.mtu = 1400);
        world.change_host(1, |host| host.mtu = 1400);
        for (client, vip, room, quoted) in [(CLIENT, VIP, 28, 40), (CLIENT6, VIP6, 48, 60)] {
            let mut large = Packet::tcp(FROM_CLIENT, client, vip, ACK);
            large.payload = vec![7; 1400];
            let bytes = large.bytes();
            let outcome = world.run(&bytes);
            let told = outcome.sent_bytes(Reason::L4TooBig);
            assert_eq!(told.len(), 14 + room + quoted);
            assert_eq!(told[..12], TO_CLIENT);
            assert_eq!(told[14 + room..], bytes[14..14 + quoted], "the packet that it is about");
            let icmp = &told[14 + room - 8..];
            if room == 28 {
                assert_eq!(checksum(&told[14..34]), 0, "the IP header's checksum");
                assert_eq!((icmp[0], icmp[1]), (3, 4));
                assert_eq!(checksum(icmp), 0);
            } else {
                assert_eq!((icmp[0], icmp[1]), (2, 0));
                let pseudo = [
                    octets(large.to.ip()),
                    octets(large.from.ip()),
                    vec![0, 58, 0, icmp.len() as u8],
                ]
                .concat();
                assert_eq!(checksum(&[&pseudo[..], icmp].concat()), 0);
            }
            assert_eq!(icmp[4..8], 1400u32.to_be_bytes());
            // From the intended receiver, to the sender.
            let (at, size) = if room == 28 { (26, 4) } else { (22, 16) };
            assert_eq!(told[at..at + size], octets(large.to.ip()));
            assert_eq!(told[at + size..at + 2 * size], octets(large.from.ip()));
        }
        // A sender that lets routers fragment is not informed; the packet is lost.
        let mut large = Packet::udp(FROM_CLIENT, CLIENT, VIP);
        large.payload = vec![7; 1400];
        let mut bytes = large.bytes();
        bytes[14 + 6] = 0;
        let sum = {
            bytes[14 + 10..14 + 12].fill(0);
            checksum(&bytes[14..34])
        };
        bytes[14 + 10..14 + 12].copy_from_slice(&sum.to_be_bytes());
        world.run(&bytes).is(Action::Drop, Reason::L4TooBig);
    });
}

#[test]
fn anything_at_all_is_survived() {
    with_each(|world| {
        world.serve_all();
        let mut state = 0x1234_5678_9abc_def0_u64;
        let mut random = move || {
            state = signalbox_common::hash::mix(state);
            state as usize
        };
        let seeds = [
            Packet::tcp(FROM_CLIENT, CLIENT, VIP, SYN).bytes(),
            Packet::tcp(FROM_CLIENT, CLIENT6, VIP6, ACK).bytes(),
            Packet::udp(FROM_CLIENT, CLIENT, VIP).bytes(),
            Packet::udp(FROM_CLIENT, CLIENT6, VIP6).bytes(),
        ];
        for round in 0..4000 {
            let mut bytes = seeds[round % seeds.len()].clone();
            for _ in 0..1 + random() % 6 {
                let at = 14 + random() % (bytes.len() - 14);
                bytes[at] = random() as u8;
            }
            if random() % 4 == 0 {
                // Packets that end before their IP header are refused by the kernel itself.
                let least = if bytes[12] == 8 { 34 } else { 54 };
                bytes.truncate(least + random() % bytes.len());
            }
            // With any verdict, the program ends, and counts one reason.
            let outcome = world.run(&bytes);
            assert_eq!(outcome.reasons.len(), 1, "{bytes:02x?}");
        }
    });
}

#[test]
fn a_frame_to_another_machine_begins_nothing() {
    with_each(|world| {
        world.serve_all();
        world.owns([2, 0, 0, 0, 0, 1]);
        for (client, vip) in [(CLIENT, VIP), (CLIENT6, VIP6)] {
            for flags in [SYN, ACK] {
                let mut packet = Packet::tcp(FROM_CLIENT, client, vip, flags);
                packet.macs[5] = 2;
                world.arrives(&packet).is(Action::Pass, Reason::L4Miss);
                assert_eq!(world.opening.keys().count(), 0);
            }
        }
        world
            .arrives(&Packet::tcp(FROM_CLIENT, CLIENT, VIP, SYN))
            .sent(Reason::L4Opened);
    });
}
