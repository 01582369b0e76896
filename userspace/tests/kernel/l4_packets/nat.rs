//! Mode `nat`: there and back again.

use signalbox_common::Reason;
use signalbox_common::l4::abi::state;
use signalbox_common::l4::mode;

use super::packet::{ACK, FIN, Packet, SYN, TCP, UDP, sum};
use super::world::*;

const FAMILIES: [(&str, &str, &str, &str); 2] = [(CLIENT, VIP, HOST, OURS), (CLIENT6, VIP6, HOST6, OURS6)];

#[test]
fn a_connection_goes_to_the_host_and_its_answers_come_back() {
    with_each(|world| {
        world.serve_all();
        for (client, vip, host, ours) in FAMILIES {
            let syn = Packet::tcp(FROM_CLIENT, client, vip, SYN);
            let at_host = world.arrives(&syn).sent(Reason::L4Opened);
            assert_eq!(at_host.to, host.parse().unwrap());
            assert_eq!(at_host.from.ip().to_string(), ours);
            let port = u32::from(at_host.from.port());
            assert!((FIRST_PORT..FIRST_PORT + PORTS).contains(&port), "port {port}");
            assert_eq!((at_host.macs, at_host.hops), (TO_HOST, 63));
            assert_eq!((at_host.flags, at_host.seq), (SYN, 1000));

            let mut answer = Packet::tcp(FROM_HOST, host, host, SYN | ACK);
            answer.to = at_host.from;
            let at_client = world.arrives(&answer).sent(Reason::L4Replied);
            assert_eq!((at_client.from, at_client.to), (syn.to, syn.from));
            assert_eq!((at_client.macs, at_client.hops), (TO_CLIENT, 63));

            let mut data = Packet::tcp(FROM_CLIENT, client, vip, ACK);
            (data.seq, data.ack) = (1001, 1001);
            let again = world.arrives(&data).sent(Reason::L4Forwarded);
            assert_eq!((again.from, again.to), (at_host.from, at_host.to));
            assert_eq!(again.payload, data.payload);
        }
        let tally = world.tally();
        assert_eq!((tally.flows, tally.packets_in, tally.packets_out), (2, 4, 2));
    });
}

/// A service whose address moves has its group's sources, and this node's share of their ports.
#[test]
fn a_connection_to_a_moving_address_uses_its_groups_source() {
    with_each(|world| {
        world.serve_all();
        // The host's second group has the third address.
        world.set_group(VIP, TCP, 2);
        for n in 0..FLOATING_PORTS / 4 {
            let client = format!("192.0.2.7:{}", 41_000 + n);
            let at_host = world
                .arrives(&Packet::tcp(FROM_CLIENT, &client, VIP, SYN))
                .sent(Reason::L4Opened);
            assert_eq!(at_host.from.ip().to_string(), FLOATING);
            let number = u32::from(at_host.from.port()) - FLOATING_FIRST_PORT;
            assert_eq!(number % FLOATING_PORT_STEP, 0);
            assert!(number / FLOATING_PORT_STEP < FLOATING_PORTS);
            let mut answer = Packet::tcp(FROM_HOST, HOST, HOST, SYN | ACK);
            answer.to = at_host.from;
            let at_client = world.arrives(&answer).sent(Reason::L4Replied);
            assert_eq!(
                (at_client.from, at_client.to),
                (VIP.parse().unwrap(), client.parse().unwrap())
            );
        }
    });
}

#[test]
fn a_datagram_goes_to_the_host_and_its_answers_come_back() {
    with_each(|world| {
        world.serve_all();
        for (client, vip, host, _) in FAMILIES {
            let question = Packet::udp(FROM_CLIENT, client, vip);
            let at_host = world.arrives(&question).sent(Reason::L4Opened);
            assert_eq!(at_host.to, host.parse().unwrap());
            assert_eq!(at_host.payload, question.payload);
            let mut answer = Packet::udp(FROM_HOST, host, host);
            answer.to = at_host.from;
            answer.payload = b"an answer of an odd length.".to_vec();
            let at_client = world.arrives(&answer).sent(Reason::L4Replied);
            assert_eq!((at_client.from, at_client.to), (question.to, question.from));
            assert_eq!(at_client.payload, answer.payload);
        }
    });
}

#[test]
fn a_datagram_without_a_checksum_stays_without_one() {
    with_each(|world| {
        world.serve_all();
        let question = Packet::udp(FROM_CLIENT, CLIENT, VIP);
        let mut bytes = question.bytes();
        bytes[14 + 20 + 6..14 + 20 + 8].fill(0);
        let outcome = world.run(&bytes);
        let sent = outcome.sent_bytes(Reason::L4Opened);
        assert_eq!(sent[14 + 20 + 6..14 + 20 + 8], [0, 0]);
    });
}

#[test]
fn a_checksum_of_a_datagram_is_never_written_as_none() {
    with_each(|world| {
        world.serve_all();
        let first = world
            .arrives(&Packet::udp(FROM_CLIENT, CLIENT, VIP))
            .sent(Reason::L4Opened);
        // The two bytes that make the checksum at the host 0, which is written as 0xffff.
        let mut at_host = first.clone();
        at_host.payload = vec![0, 0];
        let l4 = {
            let mut bytes = at_host.l4();
            bytes[6..8].fill(0);
            bytes
        };
        let now = sum(&[&at_host.pseudo(l4.len())[..], &l4].concat());
        let mut question = Packet::udp(FROM_CLIENT, CLIENT, VIP);
        question.payload = (0xffff - now).to_be_bytes().to_vec();
        let outcome = world.arrives(&question);
        let sent = outcome.sent_bytes(Reason::L4Forwarded);
        assert_eq!(sent[14 + 20 + 6..14 + 20 + 8], [0xff, 0xff]);
    });
}

#[test]
fn a_hosts_own_port_is_written_where_it_has_one() {
    with_each(|world| {
        world.host_port(0, 5353);
        let at_host = world
            .arrives(&Packet::udp(FROM_CLIENT, CLIENT, VIP))
            .sent(Reason::L4Opened);
        assert_eq!(at_host.to.port(), 5353);
        let mut answer = Packet::udp(FROM_HOST, HOST, HOST);
        (answer.from, answer.to) = (at_host.to, at_host.from);
        let at_client = world.arrives(&answer).sent(Reason::L4Replied);
        assert_eq!(at_client.from, VIP.parse().unwrap());
    });
}

/// A sender at a veth leaves the sum of the pseudo-header where the checksum belongs, for hardware to complete.
#[test]
fn a_checksum_left_to_hardware_is_completed_in_the_driver() {
    with(Program::Xdp, |world| {
        world.serve_all();
        for (client, vip, _, _) in FAMILIES {
            for (length, protocol) in [
                (0, TCP),
                (1, TCP),
                (63, UDP),
                (64, TCP),
                (131, UDP),
                (1001, TCP),
                (1400, UDP),
            ] {
                let mut packet = Packet::tcp(FROM_CLIENT, client, vip, ACK);
                if protocol == UDP {
                    packet = Packet::udp(FROM_CLIENT, client, vip);
                }
                packet.payload = (0..length).map(|at| (at * 7) as u8).collect();
                let mut bytes = packet.bytes();
                let at = 14 + if packet.to.is_ipv4() { 20 } else { 40 };
                let field = at + if protocol == TCP { 16 } else { 6 };
                let partial = sum(&packet.pseudo(bytes.len() - at));
                bytes[field..field + 2].copy_from_slice(&partial.to_be_bytes());
                // `read` refuses a wrong checksum.
                let at_host = Packet::read(&world.run(&bytes).bytes);
                assert_eq!(at_host.payload, packet.payload);
            }
        }
    });
}

#[test]
fn a_packet_in_a_vlan_leaves_as_its_way_out_has_it() {
    with(Program::Xdp, |world| {
        world.serve_all();
        let mut syn = Packet::tcp(FROM_CLIENT, CLIENT, VIP, SYN);
        syn.vlan = Some(7);
        let at_host = world.arrives(&syn).sent(Reason::L4Opened);
        assert_eq!((at_host.vlan, at_host.to), (None, HOST.parse().unwrap()));
        let mut answer = Packet::tcp(FROM_HOST, HOST, HOST, SYN | ACK);
        answer.to = at_host.from;
        let at_client = world.arrives(&answer).sent(Reason::L4Replied);
        assert_eq!((at_client.vlan, at_client.to), (Some(7), CLIENT.parse().unwrap()));
        world.change_host(0, |host| host.vlan = 9);
        let at_host = world.arrives(&syn).sent(Reason::L4Forwarded);
        assert_eq!(at_host.vlan, Some(9));
    });
}

#[test]
fn options_of_the_ip_header_are_carried_along() {
    with_each(|world| {
        world.serve_all();
        let v4 = Packet::udp(FROM_CLIENT, CLIENT, VIP);
        let v6 = Packet::udp(FROM_CLIENT, CLIENT6, VIP6);
        // No-operations; a hop-by-hop header and destination options of padding.
        let hop = [60, 0, 1, 4, 0, 0, 0, 0];
        let destination = [UDP, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let cases = [(v4, vec![1; 8], UDP), (v6, [&hop[..], &destination].concat(), 0)];
        for (packet, more, protocol) in cases {
            let l4 = packet.l4();
            let bytes = [packet.ethernet(), packet.ip(protocol, l4.len(), &more), l4.clone()].concat();
            let outcome = world.run(&bytes);
            let sent = outcome.sent_bytes(Reason::L4Opened);
            assert_eq!(sent.len(), bytes.len());
            let header = 14 + if packet.to.is_ipv4() { 20 } else { 40 };
            assert_eq!(sent[header..header + more.len()], more);
            // Without the options the packet is as usual.
            let port = u16::from_be_bytes([sent[header + more.len()], sent[header + more.len() + 1]]);
            let mut plain = packet.clone();
            plain.macs = TO_HOST;
            plain.hops = 63;
            (plain.from, plain.to) = if packet.to.is_ipv4() {
                (format!("{OURS}:{port}").parse().unwrap(), HOST.parse().unwrap())
            } else {
                (format!("[{OURS6}]:{port}").parse().unwrap(), HOST6.parse().unwrap())
            };
            assert_eq!(sent[header + more.len()..], plain.l4());
        }
    });
}

#[test]
fn a_client_behind_another_router_now_gets_its_answers_there() {
    with_each(|world| {
        world.serve_all();
        let at_host = world.connect(CLIENT, VIP);
        let elsewhere = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0xd];
        world
            .arrives(&Packet::tcp(elsewhere, CLIENT, VIP, ACK))
            .sent(Reason::L4Forwarded);
        let mut answer = Packet::tcp(FROM_HOST, HOST, HOST, ACK);
        answer.to = at_host.from;
        let at_client = world.arrives(&answer).sent(Reason::L4Replied);
        assert_eq!(at_client.macs, [2, 0, 0, 0, 0, 0xd, 2, 0, 0, 0, 0, 1]);
    });
}

/// Two clients get two ports, and a port of one of this machine's sockets is never given.
#[test]
fn a_port_is_not_given_twice() {
    with_each(|world| {
        world.serve_all();
        let mut seen = std::collections::HashSet::new();
        let mut failed = 0;
        for port in 40_000..40_700 {
            let client = format!("192.0.2.7:{port}");
            let outcome = world.arrives(&Packet::tcp(FROM_CLIENT, &client, VIP, SYN));
            if outcome.reasons == [Reason::L4NoPort] {
                failed += 1;
                continue;
            }
            assert!(seen.insert(outcome.sent(Reason::L4Opened).from), "a second time");
        }
        // Of a thousand ports, 16 are tried: of the last one's, 0.7^16 are taken.
        assert!(failed < 5, "{failed} of 700 found none");
    });
}

#[test]
fn a_flow_is_established_once_the_client_acks_the_hosts_answer() {
    with_each(|world| {
        world.serve_all();
        let syn = Packet::tcp(FROM_CLIENT, CLIENT, VIP, SYN);
        world.arrives(&syn).sent(Reason::L4Opened);
        let mut forged = Packet::tcp(FROM_CLIENT, CLIENT, VIP, ACK);
        forged.ack = 99;
        world.arrives(&forged).sent(Reason::L4Forwarded);
        assert_eq!(world.established.keys().count(), 0);
        world.connect("192.0.2.8:1", VIP);
        assert_eq!(world.established.keys().count(), 2);
        assert_eq!(world.opening.keys().count(), 2, "the forged one's");
        let flow = world
            .established
            .get(&key(&Packet::tcp(FROM_CLIENT, "192.0.2.8:1", VIP, 0)), 0)
            .unwrap();
        assert_eq!((flow.mode, flow.service, flow.host), (mode::NAT, 3, 0));
        let mut end = Packet::tcp(FROM_CLIENT, "192.0.2.8:1", VIP, FIN | ACK);
        end.ack = 7001;
        world.arrives(&end).sent(Reason::L4Forwarded);
        let flow = world.established.get(&key(&end), 0).unwrap();
        assert_eq!((flow.state & state::FIN, flow.ack), (state::FIN, 7001));
    });
}
