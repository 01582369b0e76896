//! Packets for leg B's socket during the hand-off are forwarded all the same: a copy comes once more to the interface
//! that they came by. For these tests `cut_in` is attached there.

use std::io::Read as _;
use std::time::{Duration, Instant};

use aya::programs::TcAttachType;
use aya::programs::tc::{SchedClassifierLinkId, qdisc_add_clsact};
use signalbox_common::cut::flow::HANDOFF_KNOWN;
use socket2::{Domain, Protocol, Socket, Type};

use super::outcome::Action;
use super::packet::Packet;
use super::scene::{CLIENT_ON_B, FROM_HOST, HOST_ON_A, LEG_B, Scene, TO_CLIENT, WINDOW, ip, over_both};

/// Leg A's socket has acknowledged the client's bytes, so the client hears of no less.
#[test]
fn hosts_answer_goes_to_the_client_and_to_the_socket() {
    over_both(|mut scene| {
        scene.put(&scene.owing(HANDOFF_KNOWN));
        let wire = Wire::with(&mut scene);
        let data = |packet: Packet| Packet {
            payload: vec![8; 1001],
            ..packet
        };
        let said = data(scene.host_sends(0, 30));
        let outcome = scene.programs.arrives(&said.bytes(), LEG_B);
        assert_eq!(outcome.action, Action::Pass);
        assert_eq!(Packet::read(&outcome.bytes), scene.host_sends(0, 30));
        let forwarded = Packet {
            // 70 bytes less, of a window in units of 128.
            window: WINDOW - 1,
            ..data(scene.client_receives(0, 100))
        };
        assert_eq!(Packet::read(&wire.next_to_client()), forwarded);
        let host = scene.flow_now().dirs[1];
        assert_eq!((host.packets, host.bytes, host.ack), (1, 1001, CLIENT_ON_B + 30));
        wire.detach(&mut scene);
    });
}

#[test]
fn an_icmp_error_on_leg_b_goes_to_the_client_and_to_the_socket() {
    over_both(|mut scene| {
        scene.put(&scene.owing(HANDOFF_KNOWN));
        let wire = Wire::with(&mut scene);
        let comes = scene.error(scene.too_big(), FROM_HOST, &scene.host_receives(1, 1));
        let goes = scene.error(scene.too_big(), TO_CLIENT, &scene.client_sends(1, 1));
        let outcome = scene.programs.arrives(&comes, LEG_B);
        assert_eq!((outcome.action, outcome.bytes), (Action::Pass, comes));
        assert_eq!(wire.next_to_client(), goes);
        wire.detach(&mut scene);
    });
}

/// The socket that would answer is closed: the client is asked to, by a packet with a number that it already has.
#[test]
fn a_repeated_syn_ack_after_socket_close_becomes_a_client_probe() {
    over_both(|mut scene| {
        let flow = scene.flow();
        scene.put(&flow);
        let wire = Wire::with(&mut scene);
        let answer = Packet {
            ack: flow.isn_b,
            options: Vec::new(),
            ..scene.hosts_answer()
        };
        let outcome = scene.programs.arrives(&answer.bytes(), LEG_B);
        assert_eq!(outcome.action, Action::Drop, "{:?}", outcome.reasons);
        let probe = Packet {
            seq: HOST_ON_A.wrapping_sub(1),
            ..scene.client_receives(0, 0)
        };
        assert_eq!(Packet::read(&wire.next_to_client()), probe);
        let host = scene.flow_now().dirs[1];
        assert_eq!((host.packets, host.bytes, host.snd_max), (1, 0, flow.dirs[1].snd_max));
        wire.detach(&mut scene);
    });
}

/// Socket that sees all packets of the namespace.
struct Wire {
    socket: Socket,
    attached: SchedClassifierLinkId,
}

impl Wire {
    fn with(scene: &mut Scene) -> Self {
        bring_up(["leg-a", "leg-b"]);
        // Where the kernel has no TCX (before 6.6); a second time it is there.
        let _ = qdisc_add_clsact("leg-b");
        let all = Protocol::from(i32::from((libc::ETH_P_ALL as u16).to_be()));
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(all)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let attached = scene.programs.cut_in().attach("leg-b", TcAttachType::Ingress).unwrap();
        Self { socket, attached }
    }

    /// The next that goes to the client.
    fn next_to_client(&self) -> Vec<u8> {
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            let mut bytes = vec![0; 2000];
            let len = (&self.socket).read(&mut bytes).unwrap();
            bytes.truncate(len);
            if bytes.starts_with(&TO_CLIENT) {
                return bytes;
            }
        }
        panic!("nothing goes to the client");
    }

    fn detach(self, scene: &mut Scene) {
        scene.programs.cut_in().detach(self.attached).unwrap();
    }
}

/// Links that come up drop packets until the kernel has finished. Until then it holds a lock, for which the last
/// command waits.
fn bring_up(links: [&str; 2]) {
    let up = || links.map(|link| ip(&format!("link set {link} up")));
    let is_up = |link| ip(&format!("link show {link}")).contains("state UP");
    up();
    let end = Instant::now() + Duration::from_secs(10);
    while !links.iter().all(is_up) {
        assert!(Instant::now() < end, "the links do not come up");
        std::thread::sleep(Duration::from_millis(5));
    }
    up();
}
