//! A client, the balancer with its two addresses, and a host; the numbers of their two legs, and their packets.
//!
//! Packets are described by positions in the two streams: a packet sent on one leg is right on the other if it is at
//! the same positions there.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::MutexGuard;

use aya::programs::ProgramType;
use signalbox_common::net::header::ACK;
use signalbox_common::steer::SteerKey;

use super::clock::ticks;
use super::outcome::Outcome;
use super::packet::Packet;
use super::programs::Programs;
use crate::namespace;

/// Numbers of the first bytes, of both streams on both legs; three of them wrap soon.
pub(crate) const CLIENT_ON_A: u32 = 0xffff_ffff;
pub(crate) const CLIENT_ON_B: u32 = 0x1000_0000;
pub(crate) const HOST_ON_A: u32 = 0x7fff_fffe;
pub(crate) const HOST_ON_B: u32 = 0xffff_fff0;

/// Interfaces of the legs, and Ethernet addresses on them.
pub(crate) const LEG_A: u32 = 11;
pub(crate) const LEG_B: u32 = 12;
pub(crate) const FROM_CLIENT: [u8; 12] = [2, 0, 0, 0, 0, 0xa2, 2, 0, 0, 0, 0, 0xa1];
pub(crate) const TO_CLIENT: [u8; 12] = [2, 0, 0, 0, 0, 0xa1, 2, 0, 0, 0, 0, 0xa2];
pub(crate) const FROM_HOST: [u8; 12] = [2, 0, 0, 0, 0, 0xb2, 2, 0, 0, 0, 0, 0xb1];
pub(crate) const TO_HOST: [u8; 12] = [2, 0, 0, 0, 0, 0xb1, 2, 0, 0, 0, 0, 0xb2];

pub(crate) const WINDOW: u16 = 500;

pub(crate) struct Scene {
    pub(crate) client: SocketAddr,
    pub(crate) vip: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) host: SocketAddr,
    pub(crate) programs: MutexGuard<'static, Programs>,
    /// Tick until which the flow's next hops are good.
    pub(crate) until: u32,
}

/// Runs a test over IPv4 and over IPv6, in a separate network namespace that has the two interfaces.
pub(crate) fn over_both<F: Fn(Scene) + Send>(work: F) {
    in_a_scene(namespace::test_of::<F>(), &[4, 6], work);
}

/// Runs a test over IPv4 alone.
pub(crate) fn over_ipv4<F: Fn(Scene) + Send>(work: F) {
    in_a_scene(namespace::test_of::<F>(), &[4], work);
}

/// Runs a test over IPv6 alone.
pub(crate) fn over_ipv6<F: Fn(Scene) + Send>(work: F) {
    in_a_scene(namespace::test_of::<F>(), &[6], work);
}

fn in_a_scene(test: &str, families: &[u8], work: impl Fn(Scene) + Send) {
    let ip = ["link add leg-a index 11 type veth peer name leg-b index 12"];
    namespace::in_own_namespace(test, ProgramType::SchedClassifier, &ip, move || {
        for &family in families {
            println!("over IPv{family}");
            work(Scene::new(family));
        }
    });
}

impl Scene {
    fn new(family: u8) -> Self {
        let addresses = if family == 4 {
            [
                "198.51.100.7:40000",
                "192.0.2.1:443",
                "10.1.2.3:50123",
                "10.200.100.50:8443",
            ]
        } else {
            [
                "[2001:db8:c::7]:40000",
                "[2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:443",
                "[fd00:1:2:3:4:5:6:7]:50123",
                "[fd00:ffee::50]:8443",
            ]
        };
        let [client, vip, local, host] = addresses.map(|address| address.parse().unwrap());
        Self {
            client,
            vip,
            local,
            host,
            programs: Programs::fresh(),
            // Long enough that no route is looked up.
            until: ticks().wrapping_add(1 << 20),
        }
    }

    pub(crate) fn is_ipv4(&self) -> bool {
        self.client.is_ipv4()
    }

    /// Connections to the VIP may be cut.
    pub(crate) fn bind(&mut self) {
        let (family, address) = match self.vip.ip() {
            IpAddr::V4(ip) => (4, SteerKey::mapped(ip.octets())),
            IpAddr::V6(ip) => (6, ip.octets()),
        };
        let key = SteerKey::new(self.vip.port(), family, address);
        self.programs.bind(key);
    }

    /// A packet of the client's at position `at` of its stream, that acknowledges `heard` bytes of the host's.
    pub(crate) fn client_sends(&self, at: u32, heard: u32) -> Packet {
        let (seq, ack) = (CLIENT_ON_A.wrapping_add(at), HOST_ON_A.wrapping_add(heard));
        packet(FROM_CLIENT, self.client, self.vip, 64, seq, ack)
    }

    /// Returns the client's packet as it goes to the host.
    pub(crate) fn host_receives(&self, at: u32, heard: u32) -> Packet {
        let (seq, ack) = (CLIENT_ON_B.wrapping_add(at), HOST_ON_B.wrapping_add(heard));
        packet(TO_HOST, self.local, self.host, 63, seq, ack)
    }

    /// A packet of the host's.
    pub(crate) fn host_sends(&self, at: u32, heard: u32) -> Packet {
        let (seq, ack) = (HOST_ON_B.wrapping_add(at), CLIENT_ON_B.wrapping_add(heard));
        packet(FROM_HOST, self.host, self.local, 64, seq, ack)
    }

    /// Returns the host's packet as it goes to the client.
    pub(crate) fn client_receives(&self, at: u32, heard: u32) -> Packet {
        let (seq, ack) = (HOST_ON_A.wrapping_add(at), CLIENT_ON_A.wrapping_add(heard));
        packet(TO_CLIENT, self.vip, self.client, 63, seq, ack)
    }

    /// A packet comes in.
    pub(crate) fn arrives(&self, packet: &Packet) -> Outcome {
        self.programs.arrives(&packet.bytes(), LEG_A)
    }

    /// Runs `cut_out` on a packet of the machine itself.
    pub(crate) fn leaves(&self, packet: &Packet) -> Outcome {
        let ifindex = if packet.to == self.client { LEG_A } else { LEG_B };
        self.programs.leaves(&packet.bytes(), 0, ifindex)
    }
}

fn packet(macs: [u8; 12], from: SocketAddr, to: SocketAddr, hops: u8, seq: u32, ack: u32) -> Packet {
    Packet {
        macs,
        from,
        to,
        hops,
        seq,
        ack,
        flags: ACK,
        window: WINDOW,
        options: Vec::new(),
        payload: Vec::new(),
    }
}

/// Returns the output of `ip` in the namespace of the test.
pub(crate) fn ip(words: &str) -> String {
    let output = Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {words}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
