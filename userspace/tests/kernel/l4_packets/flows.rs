//! Memory of flows, and its duration.

use log::Level;
use signalbox_common::Reason;
use signalbox_common::l4::L4Flow;
use signalbox_common::l4::abi::{service, state};
use signalbox_common::l4::mode;

use super::packet::{ACK, FIN, Packet, RST, SYN, TCP, UDP};
use super::world::*;

#[test]
fn a_flow_keeps_its_host_when_the_table_changes() {
    with_each(|world| {
        world.serve_all();
        world.host(2, "10.0.0.10:0", 0);
        let at_host = world.connect(CLIENT, VIP);
        world.table(0, &[2]);
        let data = Packet::tcp(FROM_CLIENT, CLIENT, VIP, ACK);
        assert_eq!(world.arrives(&data).sent(Reason::L4Forwarded).to, at_host.to);
        let other = world.connect_to("192.0.2.8:77", VIP, "10.0.0.10:3306");
        assert_eq!(other.to, "10.0.0.10:3306".parse().unwrap());
    });
}

#[test]
fn a_new_connection_on_an_ended_flows_ports_is_a_new_flow() {
    with_each(|world| {
        world.serve_all();
        world.host(2, "10.0.0.10:0", 0);
        for end in [FIN | ACK, RST] {
            world.connect(CLIENT, VIP);
            let mut last = Packet::tcp(FROM_CLIENT, CLIENT, VIP, end);
            last.ack = 7001;
            world.arrives(&last).sent(Reason::L4Forwarded);
            world.table(0, &[2]);
            // A late packet still finds its host.
            let mut late = Packet::tcp(FROM_CLIENT, CLIENT, VIP, ACK);
            late.ack = 7001;
            assert_eq!(world.arrives(&late).sent(Reason::L4Forwarded).to, HOST.parse().unwrap());
            let syn = Packet::tcp(FROM_CLIENT, CLIENT, VIP, SYN);
            assert_eq!(
                world.arrives(&syn).sent(Reason::L4Opened).to,
                "10.0.0.10:3306".parse().unwrap()
            );
            assert_eq!(world.established.keys().count(), 0, "nothing is left of the old one");
            world.table(0, &[0]);
            world.forget();
        }
    });
}

#[test]
fn a_syn_on_a_living_connection_goes_to_the_host_that_has_it() {
    with_each(|world| {
        world.serve_all();
        world.host(2, "10.0.0.10:0", 0);
        let at_host = world.connect(CLIENT, VIP);
        world.table(0, &[2]);
        let syn = Packet::tcp(FROM_CLIENT, CLIENT, VIP, SYN);
        assert_eq!(world.arrives(&syn).sent(Reason::L4Forwarded).to, at_host.to);
    });
}

#[test]
fn a_session_of_udp_that_has_been_idle_is_a_new_one() {
    with_each(|world| {
        world.serve_all();
        world.host(2, "10.0.0.10:0", 0);
        let question = Packet::udp(FROM_CLIENT, CLIENT, VIP);
        let at_host = world.arrives(&question).sent(Reason::L4Opened);
        let mut answer = Packet::udp(FROM_HOST, HOST, HOST);
        answer.to = at_host.from;
        world.arrives(&answer).sent(Reason::L4Replied);
        world.arrives(&question).sent(Reason::L4Forwarded);
        assert_eq!(world.established.keys().count(), 2, "both have spoken");
        world.table(0, &[2]);
        assert_eq!(world.arrives(&question).sent(Reason::L4Forwarded).to, at_host.to);
        let age = |world: &mut World, packet: &Packet| {
            let mut flow = world.established.get(&key(packet), 0).unwrap();
            flow.last_seen = flow.last_seen.wrapping_sub(flow.idle_ticks + 1);
            world.established.insert(key(packet), flow, 0).unwrap();
        };
        age(world, &question);
        let again = world.arrives(&question).sent(Reason::L4Forwarded);
        assert_eq!(again.to, at_host.to, "a host that speaks keeps it alive, too");
        age(world, &question);
        age(world, &answer);
        assert_eq!(
            world.arrives(&question).sent(Reason::L4Opened).to,
            "10.0.0.10:3306".parse().unwrap()
        );
    });
}

#[test]
fn flows_go_on_without_an_entry_in_a_full_established_table() {
    with_each(|world| {
        world.serve_all();
        // The tests' table has 64 entries.
        for port in 1..=80u16 {
            world.connect(&format!("192.0.2.9:{port}"), VIP);
        }
        let full = world.established.keys().count();
        assert!((60..=64).contains(&full), "{full}");
        for port in 1..=80u16 {
            let mut data = Packet::tcp(FROM_CLIENT, &format!("192.0.2.9:{port}"), VIP, ACK);
            data.ack = 7001;
            world.arrives(&data).sent(Reason::L4Forwarded);
        }
        assert_eq!(world.established.keys().count(), full);
    });
    let text = "A flow of a service cannot be established, because L4_CT_ESTABLISHED takes no entry: errno=-7";
    let logged = World::fresh(Program::Xdp).messages.take();
    // One message a second on each CPU, however many flows there are.
    assert!((1..100).contains(&logged.len()), "{logged:?}");
    assert!(
        logged
            .iter()
            .all(|(level, message)| *level == Level::Warn && message == text),
        "{logged:?}"
    );
}

#[test]
fn a_forgotten_flow_finds_its_port_again_in_mid_connection() {
    with_each(|world| {
        world.serve_all();
        let before = world.connect(CLIENT, VIP);
        world.forget();
        let data = Packet::tcp(FROM_CLIENT, CLIENT, VIP, ACK);
        let after = world.arrives(&data).sent(Reason::L4Opened);
        assert_eq!((after.from, after.to), (before.from, before.to));
        let mut answer = Packet::tcp(FROM_HOST, HOST, HOST, ACK);
        answer.to = after.from;
        answer.seq = 5001;
        world.arrives(&answer).sent(Reason::L4Replied);
        world.arrives(&data).sent(Reason::L4Forwarded);
        assert_eq!(world.established.keys().count(), 2);
    });
}

#[test]
fn flows_of_a_source_go_to_one_host_where_that_is_wanted() {
    with_each(|world| {
        world.host(2, "10.0.0.10:0", 0);
        world.table(0, &[0, 2]);
        world.serve_with(VIP, UDP, mode::NAT, service::BY_SOURCE);
        world.serve(VIP, TCP, mode::NAT);
        let of = |protocol: u8| {
            let hosts = (1..=40u16).filter_map(|port| {
                let client = format!("192.0.2.50:{port}");
                let packet = if protocol == UDP {
                    Packet::udp(FROM_CLIENT, &client, VIP)
                } else {
                    Packet::tcp(FROM_CLIENT, &client, VIP, SYN)
                };
                let outcome = world.arrives(&packet);
                (outcome.action == Action::Send).then(|| outcome.sent(Reason::L4Opened).to)
            });
            hosts.collect::<std::collections::HashSet<_>>().len()
        };
        assert_eq!((of(UDP), of(TCP)), (1, 2));
    });
}

#[test]
fn both_directions_know_what_the_flow_is() {
    with_each(|world| {
        world.serve_all();
        let at_host = world.connect(CLIENT, VIP);
        let mut answer = Packet::tcp(FROM_HOST, HOST, HOST, ACK);
        answer.to = at_host.from;
        let find = |packet: &Packet| -> L4Flow { world.established.get(&key(packet), 0).unwrap() };
        let forward = find(&Packet::tcp(FROM_CLIENT, CLIENT, VIP, ACK));
        let reply = find(&answer);
        assert_eq!(
            (forward.state & state::REPLY, reply.state & state::REPLY),
            (0, state::REPLY)
        );
        assert_eq!((forward.packets, reply.packets), (2, 1));
        assert_eq!((forward.ack, reply.ack), (7001, 1001));
        assert_eq!((forward.ifindex, reply.ifindex), (IFINDEX, IFINDEX));
    });
}

#[test]
fn a_syn_that_nobody_has_answered_goes_to_the_host_of_today() {
    with_each(|world| {
        world.serve_all();
        world.host(2, "10.0.0.10:0", 0);
        let syn = Packet::tcp(FROM_CLIENT, CLIENT, VIP, SYN);
        assert_eq!(world.arrives(&syn).sent(Reason::L4Opened).to, HOST.parse().unwrap());
        world.table(0, &[2]);
        assert_eq!(
            world.arrives(&syn).sent(Reason::L4Opened).to,
            "10.0.0.10:3306".parse().unwrap()
        );
    });
}

#[test]
fn a_new_connection_after_the_hosts_reset_is_a_new_flow() {
    with_each(|world| {
        world.serve_all();
        let at_host = world.connect(CLIENT, VIP);
        let mut reset = Packet::tcp(FROM_HOST, HOST, HOST, RST);
        reset.to = at_host.from;
        world.arrives(&reset).sent(Reason::L4Replied);
        let syn = Packet::tcp(FROM_CLIENT, CLIENT, VIP, SYN);
        world.arrives(&syn).sent(Reason::L4Opened);
        assert_eq!(world.established.keys().count(), 0);
    });
}

#[test]
fn a_flow_whose_way_back_is_anothers_begins_anew() {
    with_each(|world| {
        world.serve_all();
        let question = Packet::udp(FROM_CLIENT, CLIENT, VIP);
        let before = world.arrives(&question).sent(Reason::L4Opened);
        let mut answer = Packet::udp(FROM_HOST, HOST, HOST);
        answer.to = before.from;
        let mut reply = world.opening.get(&key(&answer), 0).unwrap();
        reply.destination[3] += 1;
        world.opening.insert(key(&answer), reply, 0).unwrap();
        let after = world.arrives(&question).sent(Reason::L4Opened);
        assert_ne!(after.from, before.from);
        answer.to = after.from;
        assert_eq!(world.arrives(&answer).sent(Reason::L4Replied).to, question.from);
    });
}

#[test]
fn a_port_that_nobody_confirms_is_anothers_after_a_while() {
    with_each(|world| {
        world.serve_all();
        // The range has one port for all.
        world.only_port(25_000);
        world
            .arrives(&Packet::tcp(FROM_CLIENT, "192.0.2.1:1", VIP, SYN))
            .sent(Reason::L4Opened);
        let other = Packet::tcp(FROM_CLIENT, "192.0.2.2:2", VIP, SYN);
        world.arrives(&other).is(Action::Pass, Reason::L4NoPort);
        let held: Vec<_> = world.opening.keys().collect::<Result<_, _>>().unwrap();
        for key in held {
            let mut flow = world.opening.get(&key, 0).unwrap();
            flow.last_seen = flow.last_seen.wrapping_sub(60_001);
            world.opening.insert(key, flow, 0).unwrap();
        }
        assert_eq!(world.arrives(&other).sent(Reason::L4Opened).from.port(), 25_000);
    });
}
