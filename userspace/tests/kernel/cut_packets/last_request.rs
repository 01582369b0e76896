//! A flow of a request that is its client's last: acknowledgements, FINs and resets of the client are forwarded, and
//! not a byte of its stream.

use signalbox_common::Reason;
use signalbox_common::cut::flow::{CutFlow, FIN_SEEN, HANDOFF_KNOWN, LAST_REQUEST, PAIRED, RESET, RESYNC, state};
use signalbox_common::net::header::{ACK, FIN, RST};
use signalbox_core::availability::sync::{FlowRecord, RecordClock};

use super::clock::ticks;
use super::flows::INDEX;
use super::outcome::Action;
use super::packet::Packet;
use super::scene::{CLIENT_ON_A, CLIENT_ON_B, HOST_ON_B, Scene, ip, over_both};
use super::syns::ALL;

/// Length of the client's request, and of the one that the host has got in its place.
const ASKED: u32 = 300;
const GOT: u32 = 340;

/// The flow of a request that has been handed off, and that the host has acknowledged.
fn flow(scene: &Scene) -> CutFlow {
    let mut flow = CutFlow {
        // The byte after the one request is the byte after the other.
        seq_delta_in: (CLIENT_ON_B + GOT).wrapping_sub(CLIENT_ON_A.wrapping_add(ASKED)),
        handoff_end: CLIENT_ON_B + GOT,
        snd_nxt_b: CLIENT_ON_B + GOT,
        ..scene.flow()
    };
    flow.dirs[0].flags = PAIRED | LAST_REQUEST;
    flow.dirs[0].snd_max = CLIENT_ON_A.wrapping_add(ASKED);
    flow.dirs[1].ack = CLIENT_ON_B + GOT;
    flow
}

#[test]
fn no_byte_of_the_client_is_forwarded() {
    over_both(|mut scene| {
        scene.put(&flow(&scene));
        for (at, length) in [
            (ASKED, 1),
            (ASKED, 1000),
            (ASKED + 1000, 1000),
            // The request once more, in whole and in part, alone and with bytes after it.
            (0, ASKED),
            (0, 1),
            (ASKED - 1, 1),
            (ASKED - 10, 500),
            // In front of everything that the client may send.
            (10u32.wrapping_neg(), 20),
            (1 << 30, 7),
        ] {
            for flags in [ACK, ACK | FIN, ACK | RST, RST, 0] {
                let packet = Packet {
                    flags,
                    payload: vec![b'G'; length as usize],
                    ..scene.client_sends(at, 0)
                };
                scene.arrives(&packet).dropped(Reason::CutBehindRequest);
            }
        }
        assert_eq!(scene.flow_now(), flow(&scene), "nothing is noted of it");
        // The host's stream and the client's acknowledgements of it are forwarded.
        let data = |packet: Packet| Packet {
            payload: vec![9; 700],
            ..packet
        };
        let (said, heard) = (data(scene.host_sends(0, GOT)), data(scene.client_receives(0, ASKED)));
        scene.arrives(&said).forwarded_as(&heard);
        scene
            .arrives(&scene.client_sends(ASKED, 700))
            .forwarded_as(&scene.host_receives(GOT, 700));
    });
}

#[test]
fn acks_beyond_dropped_bytes_move_to_the_hosts_expected_number() {
    over_both(|mut scene| {
        scene.put(&flow(&scene));
        for beyond in [0, 1, 1000, 1 << 20] {
            scene
                .arrives(&scene.client_sends(ASKED + beyond, 5))
                .forwarded_as(&scene.host_receives(GOT, 5));
        }
        // An older acknowledgement stays so.
        scene
            .arrives(&scene.client_sends(ASKED - 1, 5))
            .forwarded_as(&scene.host_receives(GOT - 1, 5));
    });
}

#[test]
fn the_end_of_the_client_goes_on() {
    over_both(|mut scene| {
        scene.put(&flow(&scene));
        let with = |flags, packet| Packet { flags, ..packet };
        scene
            .arrives(&with(FIN | ACK, scene.client_sends(ASKED, 0)))
            .forwarded_as(&with(FIN | ACK, scene.host_receives(GOT, 0)));
        assert_ne!(scene.flow_now().dirs[0].flags & FIN_SEEN, 0);
        scene.put(&flow(&scene));
        scene
            .arrives(&with(RST | ACK, scene.client_sends(ASKED, 0)))
            .forwarded_as(&with(RST | ACK, scene.host_receives(GOT, 0)));
        assert_ne!(scene.flow_now().dirs[0].flags & RESET, 0);
    });
}

/// Leg B's socket has not delivered everything: bytes of the client in its place would be others than those for the
/// host.
#[test]
fn no_byte_of_the_client_overtakes_the_hand_off() {
    over_both(|mut scene| {
        let owing = CutFlow {
            handoff_state: HANDOFF_KNOWN,
            ..flow(&scene)
        };
        scene.put(&owing);
        let again = Packet {
            payload: vec![b'G'; ASKED as usize],
            ..scene.client_sends(0, 0)
        };
        scene.arrives(&again).dropped(Reason::CutBehindRequest);
        let acks = scene.host_sends(0, GOT - 40);
        scene.arrives(&acks).expect(Action::Pass, Reason::CutShared);
        assert_eq!(scene.flow_now().handoff_state, HANDOFF_KNOWN);
    });
}

#[test]
fn a_flow_is_one_of_a_last_request_from_its_first_moment_on() {
    over_both(|mut scene| {
        scene.shaken(ALL);
        scene.connects();
        let mut waiting = scene.flow_now();
        waiting.dirs[0].flags = LAST_REQUEST;
        scene.programs.flows.set(INDEX, waiting, 0).unwrap();
        scene
            .leaves(&scene.our_syn())
            .expect(Action::Pass, Reason::CutSynRewritten);
        scene
            .arrives(&scene.hosts_answer())
            .expect(Action::Pass, Reason::CutPaired);
        let paired = scene.flow_now();
        assert_eq!(
            (paired.state, paired.dirs[0].flags),
            (state::CUT, PAIRED | LAST_REQUEST)
        );
        let smuggled = Packet {
            payload: b"GET /admin HTTP/1.1\r\n\r\n".to_vec(),
            ..scene.client_sends(0, 0)
        };
        scene.arrives(&smuggled).dropped(Reason::CutBehindRequest);
    });
}

/// Another balancer takes the flow over: it forwards no more than the first one.
#[test]
fn a_shadow_of_a_last_request_forwards_no_byte_of_the_client() {
    over_both(|mut scene| {
        ip("link set leg-a address 02:00:00:00:00:a2");
        let clock = RecordClock { tick: ticks(), ms: 0 };
        let original = flow(&scene);
        let mut shadow = FlowRecord::of(INDEX, &original, clock).shadow(clock);
        for (dir, known) in shadow.dirs.iter_mut().zip(original.dirs) {
            (dir.hop_ifindex, dir.macs, dir.hop_expires) = (known.hop_ifindex, known.macs, known.hop_expires);
        }
        scene.put(&shadow);
        let smuggled = Packet {
            payload: vec![1; 100],
            ..scene.client_sends(ASKED, 0)
        };
        scene.arrives(&smuggled).dropped(Reason::CutBehindRequest);
        let promoted = scene.flow_now();
        assert_eq!(promoted.state, state::CUT);
        assert_ne!(promoted.dirs[0].flags & RESYNC, 0, "its number is not believed either");
        // It is not known yet which number the host expects.
        scene
            .arrives(&scene.client_sends(ASKED, 0))
            .forwarded_as(&scene.host_receives(GOT, 0));
        scene
            .arrives(&scene.host_sends(0, GOT))
            .forwarded_as(&scene.client_receives(0, ASKED));
        assert_eq!(scene.flow_now().dirs[1].snd_max, HOST_ON_B);
        scene
            .arrives(&scene.client_sends(ASKED + 100, 0))
            .forwarded_as(&scene.host_receives(GOT, 0));
    });
}
