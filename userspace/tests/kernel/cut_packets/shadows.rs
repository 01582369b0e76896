//! Shadows, flows of other balancers: promoted by a packet that is addressed to this machine, and by no other.

use signalbox_common::Reason;
use signalbox_common::cut::CutFlow;
use signalbox_common::cut::flow::{RESYNC, state};
use signalbox_common::net::header::{ACK, FIN, RST, SYN};
use signalbox_core::availability::sync::{FlowRecord, RecordClock};

use super::clock::ticks;
use super::flows::{INDEX, NO_FLOW};
use super::packet::Packet;
use super::scene::{FROM_CLIENT, HOST_ON_A, Scene, ip, over_both};

/// The flow of the scene as another balancer keeps it, with next hops that it has found.
fn shadow(scene: &Scene) -> CutFlow {
    let clock = RecordClock { tick: ticks(), ms: 0 };
    let original = scene.flow();
    let mut shadow = FlowRecord::of(INDEX, &original, clock).shadow(clock);
    for (dir, known) in shadow.dirs.iter_mut().zip(original.dirs) {
        (dir.hop_ifindex, dir.macs, dir.hop_expires) = (known.hop_ifindex, known.macs, known.hop_expires);
    }
    shadow
}

/// Gives the interface of leg A the address that the client's packets have: they are for this machine then.
fn own_address() {
    let address: Vec<_> = FROM_CLIENT[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    ip(&format!("link set leg-a address {}", address.join(":")));
}

#[test]
fn a_packet_for_this_machine_promotes_a_shadow() {
    over_both(|mut scene| {
        own_address();
        let before = shadow(&scene);
        scene.put(&before);
        let data = Packet {
            payload: vec![7; 100],
            ..scene.client_sends(5000, 900)
        };
        let there = Packet {
            payload: vec![7; 100],
            ..scene.host_receives(5000, 900)
        };
        scene.arrives(&data).forwarded_as(&there);
        let flow = scene.flow_now();
        assert_eq!(flow.state, state::CUT);
        assert_eq!(scene.programs.told(), [INDEX], "userspace is told");
        assert_eq!(flow.dirs[0].flags & RESYNC, 0);
        assert_ne!(flow.dirs[1].flags & RESYNC, 0, "the host has said nothing yet");
        assert_eq!(flow.dirs[0].bytes, 0, "bytes count from the next packet on");
        scene
            .arrives(&scene.host_sends(900, 5100))
            .forwarded_as(&scene.client_receives(900, 5100));
        assert_eq!(scene.flow_now().dirs[1].flags & RESYNC, 0);
        // From here on the flow is followed to its end.
        for (packet, there) in [
            (scene.client_sends(5100, 900), scene.host_receives(5100, 900)),
            (scene.host_sends(900, 5101), scene.client_receives(900, 5101)),
        ] {
            let fin = |packet: Packet| Packet {
                flags: FIN | ACK,
                ..packet
            };
            scene.arrives(&fin(packet)).forwarded_as(&fin(there));
        }
        assert_eq!(scene.programs.told(), NO_FLOW);
        scene
            .arrives(&scene.client_sends(5101, 901))
            .forwarded_as(&scene.host_receives(5101, 901));
        assert!(scene.flow_now().ended());
        assert_eq!(scene.programs.told(), [INDEX]);
    });
}

/// A bridge shows this machine frames of others: they prove nothing about where the addresses are.
#[test]
fn a_packet_for_another_machine_promotes_nothing() {
    over_both(|mut scene| {
        own_address();
        let before = shadow(&scene);
        scene.put(&before);
        let mut other = scene.client_sends(0, 0);
        other.macs[5] ^= 1;
        scene.arrives(&other).dropped(Reason::CutClosing);
        assert_eq!(scene.flow_now().state, state::SHADOW);
        assert_eq!(scene.programs.told(), NO_FLOW);
    });
}

#[test]
fn a_reset_or_a_handshake_says_no_numbers() {
    over_both(|mut scene| {
        own_address();
        scene.put(&shadow(&scene));
        let reset = |packet: Packet| Packet {
            flags: RST | ACK,
            ..packet
        };
        let sent = scene.arrives(&reset(scene.client_sends(77, 0)));
        sent.forwarded_as(&reset(scene.host_receives(77, 0)));
        let flow = scene.flow_now();
        assert_eq!(
            flow.state,
            state::CUT,
            "it is carried: the host knows whether it means it"
        );
        assert!(!flow.ended());
        assert_ne!(flow.dirs[0].flags & RESYNC, 0);
        let syn = Packet {
            flags: SYN,
            ..scene.client_sends(77, 0)
        };
        scene.arrives(&syn);
        assert_ne!(scene.flow_now().dirs[0].flags & RESYNC, 0);
    });
}

/// Neither end has spoken since the addresses moved, and the flow must be ended: the number at which an end accepts a
/// reset is asked for.
#[test]
fn the_numbers_of_a_silent_flow_are_asked_for() {
    over_both(|mut scene| {
        own_address();
        let closing = CutFlow {
            state: state::CLOSING,
            ..shadow(&scene)
        };
        scene.put(&closing);
        // The question of userspace goes out, a reset of the kernel's own does not.
        let question = scene.client_receives(123, 456);
        scene.leaves(&question).passed_as(Reason::CutReset, &question);
        let reset = Packet {
            flags: RST,
            ..scene.client_receives(123, 456)
        };
        scene.leaves(&reset).dropped(Reason::CutSilenced);
        // The client's answer is kept, and goes no further.
        scene
            .arrives(&scene.client_sends(5000, 900))
            .dropped(Reason::CutClosing);
        let flow = scene.flow_now();
        assert_eq!(flow.dirs[0].ack, HOST_ON_A.wrapping_add(900));
        assert_eq!(flow.dirs[0].flags & RESYNC, 0);
        // Resets are put at the number that the end has sent.
        let put = Packet {
            flags: RST,
            ..scene.client_receives(900, 456)
        };
        let bytes = scene
            .leaves(&reset)
            .expect(super::outcome::Action::Pass, Reason::CutReset);
        assert_eq!(Packet::read(&bytes).seq, put.seq);
    });
}
