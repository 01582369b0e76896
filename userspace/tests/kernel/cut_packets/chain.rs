//! Addresses that are moving between nodes: packets to their former owner, and ARP requests for them.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

use signalbox_common::Reason;
use signalbox_common::cut::flow::CutConfig;
use signalbox_common::cut::moving::{MovingAddress, role};
use signalbox_common::net::Tuple;
use signalbox_common::net::header::{ACK, FIN, RST, SYN};
use socket2::{Domain, Socket, Type};

use super::clock::ticks;
use super::outcome::Action;
use super::packet::Packet;
use super::scene::{FROM_CLIENT, LEG_A, LEG_B, Scene, ip, over_both, over_ipv4};

/// Ethernet address of the former owner.
const FORMER_OWNER: [u8; 6] = [2, 0, 0, 0, 0x0f, 0x01];

fn words(address: IpAddr) -> [u32; 4] {
    match address {
        IpAddr::V4(v4) => Tuple::mapped(v4.into()),
        IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            [96, 64, 32, 0].map(|shift| (bits >> shift) as u32)
        }
    }
}

fn taken() -> MovingAddress {
    MovingAddress {
        ifindex: LEG_A,
        until: ticks().wrapping_add(1 << 16),
        role: role::NEW_OWNER,
        mac: FORMER_OWNER,
    }
}

/// Has the VIP move, in a scene whose packets of leg A are for this machine.
fn vip_moves(scene: &mut Scene, entry: MovingAddress) {
    let address: Vec<_> = FROM_CLIENT[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    ip(&format!("link set leg-a address {}", address.join(":")));
    let config = CutConfig {
        has_moving_addresses: 1,
        ..CutConfig::default()
    };
    scene.programs.config.set(0, config, 0).unwrap();
    scene.programs.chain.insert(words(scene.vip.ip()), entry, 0).unwrap();
}

/// A packet of a client whose connection is not known here.
fn stranger(scene: &Scene) -> Packet {
    let mut packet = Packet {
        payload: vec![7; 100],
        ..scene.client_sends(0, 0)
    };
    packet.from.set_port(40001);
    packet
}

/// The packet as the former owner gets it.
fn passed_on(packet: &Packet) -> Packet {
    let mut sent = packet.clone();
    sent.macs[..6].copy_from_slice(&FORMER_OWNER);
    sent.macs[6..].copy_from_slice(&packet.macs[..6]);
    sent
}

#[track_caller]
fn goes_on(scene: &Scene, packet: &Packet) {
    let bytes = scene.arrives(packet).expect(Action::Redirect, Reason::CutChained);
    assert_eq!(Packet::read(&bytes), passed_on(packet));
}

#[track_caller]
fn stays(scene: &Scene, packet: &Packet) {
    scene.arrives(packet).passed_as(Reason::CutMiss, packet);
}

#[test]
fn a_packet_of_no_connection_goes_to_the_former_owner() {
    over_both(|mut scene| {
        vip_moves(&mut scene, taken());
        for flags in [ACK, FIN | ACK, RST, RST | ACK] {
            let packet = Packet {
                flags,
                ..stranger(&scene)
            };
            goes_on(&scene, &packet);
        }
    });
}

#[test]
fn flows_of_this_machine_and_new_connections_do_not() {
    over_both(|mut scene| {
        vip_moves(&mut scene, taken());
        let flow = scene.flow();
        scene.put(&flow);
        let (data, there) = (scene.client_sends(5000, 900), scene.host_receives(5000, 900));
        scene.arrives(&data).forwarded_as(&there);
        let syn = Packet {
            flags: SYN,
            ..stranger(&scene)
        };
        stays(&scene, &syn);
        let mut elsewhere = stranger(&scene);
        elsewhere.to = scene.host;
        stays(&scene, &elsewhere);
    });
}

#[test]
fn nothing_goes_on_behind_the_drain_or_from_elsewhere() {
    over_both(|mut scene| {
        let packet = stranger(&scene);
        for entry in [
            MovingAddress {
                until: ticks().wrapping_sub(1),
                ..taken()
            },
            MovingAddress {
                ifindex: LEG_B,
                ..taken()
            },
            MovingAddress {
                role: role::FORMER_OWNER,
                ..taken()
            },
        ] {
            vip_moves(&mut scene, entry);
            stays(&scene, &packet);
        }
        vip_moves(&mut scene, taken());
        goes_on(&scene, &packet);
        // A bridge shows this machine frames of others.
        let mut for_another = packet.clone();
        for_another.macs[5] ^= 1;
        stays(&scene, &for_another);
        scene.programs.config.set(0, CutConfig::default(), 0).unwrap();
        stays(&scene, &packet);
    });
}

/// Two nodes that take each other for the former owner would send the packet to and fro forever.
#[test]
fn a_packet_from_the_former_owner_does_not_go_back() {
    over_both(|mut scene| {
        vip_moves(&mut scene, taken());
        let mut packet = stranger(&scene);
        packet.macs[6..].copy_from_slice(&FORMER_OWNER);
        stays(&scene, &packet);
    });
}

fn connect(from: SocketAddr, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::for_address(from), Type::STREAM, None).unwrap();
    socket.bind(&from.into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
}

#[test]
fn packets_of_this_machines_sockets_do_not_go_on() {
    over_both(|mut scene| {
        vip_moves(&mut scene, taken());
        let nodad = if scene.is_ipv4() { "" } else { " nodad" };
        let length = if scene.is_ipv4() { 32 } else { 128 };
        for address in [scene.client.ip(), scene.vip.ip()] {
            // The kernel itself adds the route of an IPv6 address a moment after `addr add` has returned
            // (net/ipv6/addrconf.c, addrconf_dad_work).
            ip(&format!("route add local {address}/{length} dev lo"));
            ip(&format!("addr add {address}/{length} dev lo{nodad}"));
        }
        let stranger = stranger(&scene);
        let listener = TcpListener::bind(scene.vip).unwrap();
        goes_on(&scene, &stranger);
        let client = connect(stranger.from, scene.vip);
        stays(&scene, &stranger);
        let (accepted, _) = listener.accept().unwrap();
        stays(&scene, &stranger);
        // The end that closes first waits for stray packets, and is still a socket.
        drop(accepted);
        stays(&scene, &stranger);
        drop((client, listener));
        stays(&scene, &stranger);
    });
}

/// An ARP request for an address, over IPv4 alone.
fn arp(operation: u8, target: [u8; 4]) -> Vec<u8> {
    let mut bytes = FROM_CLIENT.to_vec();
    bytes.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
    bytes.extend(&FROM_CLIENT[6..]);
    bytes.extend([198, 51, 100, 7]);
    bytes.extend([0; 6]);
    bytes.extend(target);
    bytes
}

#[test]
fn a_former_owner_answers_no_arp_requests() {
    over_ipv4(|mut scene| {
        let IpAddr::V4(vip) = scene.vip.ip() else {
            unreachable!()
        };
        let given_up = MovingAddress {
            role: role::FORMER_OWNER,
            ..taken()
        };
        let request = arp(1, vip.octets());
        let arrives = |scene: &Scene, bytes: &[u8]| scene.programs.arrives(bytes, LEG_A);
        let pass = |scene: &Scene, bytes: &[u8]| {
            assert_eq!(arrives(scene, bytes).expect(Action::Pass, Reason::CutNotTcp), bytes);
        };
        pass(&scene, &request);
        vip_moves(&mut scene, given_up);
        arrives(&scene, &request).dropped(Reason::CutArpIgnored);
        // Others' addresses, and others' answers: the kernel's.
        pass(&scene, &arp(1, [192, 0, 2, 2]));
        pass(&scene, &arp(2, vip.octets()));
        pass(&scene, &request[..30]);
        vip_moves(&mut scene, taken());
        pass(&scene, &request);
    });
}

/// An address that leaves while its former owner still drains: both at once.
#[test]
fn a_node_between_two_owners_is_silent_and_sends_on() {
    over_ipv4(|mut scene| {
        let IpAddr::V4(vip) = scene.vip.ip() else {
            unreachable!()
        };
        let leaving = MovingAddress {
            role: role::FORMER_OWNER | role::NEW_OWNER,
            ..taken()
        };
        vip_moves(&mut scene, leaving);
        goes_on(&scene, &stranger(&scene));
        let request = arp(1, vip.octets());
        scene.programs.arrives(&request, LEG_A).dropped(Reason::CutArpIgnored);
    });
}
