//! Hosts that answer clients themselves: modes `dsr-l2` and `dsr-ipip`.

use signalbox_common::Reason;
use signalbox_common::l4::mode;

use super::packet::{ACK, Packet, SYN, TCP, UDP, checksum, octets};
use super::world::*;

#[test]
fn a_dsr_packet_changes_only_its_ethernet_addresses() {
    with_each(|world| {
        for (client, vip) in [(CLIENT, VIP), (CLIENT6, VIP6)] {
            world.serve(vip, TCP, mode::DSR_L2);
            for flags in [SYN, ACK] {
                let packet = Packet::tcp(FROM_CLIENT, client, vip, flags);
                let reason = if flags == SYN {
                    Reason::L4Opened
                } else {
                    Reason::L4Forwarded
                };
                let want = Packet {
                    macs: TO_HOST,
                    ..packet.clone()
                };
                assert_eq!(world.arrives(&packet).sent(reason), want);
            }
        }
    });
}

#[test]
fn a_packet_is_tunnelled_from_a_source_that_varies_by_flow() {
    with_each(|world| {
        // (client, address, the table of the address, a host of either family)
        for (client, vip, table) in [(CLIENT, VIP, 0), (CLIENT6, VIP6, 1)] {
            world.serve(vip, UDP, mode::DSR_IPIP);
            for (host, number) in [(HOST, 0u16), (HOST6, 1)] {
                world.table(table, &[number]);
                let mut sources = std::collections::HashSet::new();
                for port in 1..=20u16 {
                    let mut packet = Packet::udp(FROM_CLIENT, client, vip);
                    packet.from.set_port(1000 * (1 + number) + port);
                    let bytes = packet.bytes();
                    let outcome = world.run(&bytes);
                    let sent = outcome.sent_bytes(Reason::L4Opened);
                    let v4 = number == 0;
                    let outer = if v4 { 20 } else { 40 };
                    assert_eq!(sent[..12], TO_HOST);
                    assert_eq!(sent[12..14], if v4 { [8, 0] } else { [0x86, 0xdd] });
                    assert_eq!(sent[14 + outer..], bytes[14..], "what is in it is as it was");
                    let host: std::net::SocketAddr = host.parse().unwrap();
                    let inner = if client == CLIENT { 4 } else { 41 };
                    let ip = &sent[14..14 + outer];
                    if v4 {
                        assert_eq!(checksum(ip), 0, "the outer header's checksum");
                        assert_eq!((ip[0], ip[8], ip[9]), (0x45, 64, inner));
                        assert_eq!(u16::from_be_bytes([ip[2], ip[3]]) as usize, sent.len() - 14);
                        assert_eq!(ip[16..20], octets(host.ip()));
                        assert_eq!(ip[12..14], [172, 16]);
                        sources.insert(ip[12..16].to_vec());
                    } else {
                        assert_eq!((ip[0] >> 4, ip[6], ip[7]), (6, inner, 64));
                        assert_eq!(u16::from_be_bytes([ip[4], ip[5]]) as usize, sent.len() - 54);
                        assert_eq!(ip[24..40], octets(host.ip()));
                        assert_eq!(ip[8..10], [1, 0]);
                        sources.insert(ip[8..24].to_vec());
                    }
                }
                assert!(sources.len() > 15, "{} sources of 20 flows", sources.len());
            }
        }
    });
}

#[test]
fn a_packet_too_big_for_the_tunnel_is_answered_with_its_mtu() {
    with_each(|world| {
        world.serve(VIP, TCP, mode::DSR_IPIP);
        let mut packet = Packet::tcp(FROM_CLIENT, CLIENT, VIP, ACK);
        packet.payload = vec![1; 1440];
        world.arrives(&packet).sent_bytes(Reason::L4Opened);
        packet.payload = vec![1; 1441];
        let outcome = world.arrives(&packet);
        let told = outcome.sent_bytes(Reason::L4TooBig);
        assert_eq!(told[14 + 20 + 4..14 + 20 + 8], 1480u32.to_be_bytes());
    });
}

#[test]
fn a_flow_keeps_its_host_when_the_table_changes() {
    with_each(|world| {
        world.serve(VIP, TCP, mode::DSR_L2);
        world.host(2, "10.0.0.10:0", 0);
        world.change_host(2, |host| host.macs[0] = 0x0200_00ff);
        let syn = Packet::tcp(FROM_CLIENT, CLIENT, VIP, SYN);
        let before = world.arrives(&syn).sent(Reason::L4Opened).macs;
        world.table(0, &[2]);
        for _ in 0..4 {
            let data = Packet::tcp(FROM_CLIENT, CLIENT, VIP, ACK);
            assert_eq!(world.arrives(&data).sent(Reason::L4Forwarded).macs, before);
        }
        assert_eq!(
            world.established.keys().count(),
            1,
            "three packets show a client that means it"
        );
        let other = Packet::tcp(FROM_CLIENT, "192.0.2.8:1", VIP, SYN);
        assert_ne!(world.arrives(&other).sent(Reason::L4Opened).macs, before);
    });
}

#[test]
fn one_way_flows_get_no_more_than_their_part_of_the_table() {
    with_each(|world| {
        world.serve(VIP, TCP, mode::DSR_L2);
        world.serve("198.51.100.1:3307", TCP, mode::NAT);
        world.one_way(0, 2);
        let speak = |world: &World, client: &str| {
            world
                .arrives(&Packet::tcp(FROM_CLIENT, client, VIP, SYN))
                .sent(Reason::L4Opened);
            for _ in 0..3 {
                world
                    .arrives(&Packet::tcp(FROM_CLIENT, client, VIP, ACK))
                    .sent(Reason::L4Forwarded);
            }
        };
        for client in ["192.0.2.7:1", "192.0.2.7:2", "192.0.2.7:3"] {
            speak(world, client);
        }
        let counts = |world: &World| (world.established.keys().count(), world.opening.keys().count());
        assert_eq!(counts(world), (2, 1), "the third is carried, but makes room for others");
        // A flow of another kind has shown that both sides confirm it.
        world.connect_to(CLIENT, "198.51.100.1:3307", "10.0.0.9:3307");
        assert_eq!(counts(world), (4, 1));
        // The sweep has found that one is gone.
        world.one_way(1, 2);
        world
            .arrives(&Packet::tcp(FROM_CLIENT, "192.0.2.7:3", VIP, ACK))
            .sent(Reason::L4Forwarded);
        assert_eq!(counts(world), (5, 0));
    });
}
