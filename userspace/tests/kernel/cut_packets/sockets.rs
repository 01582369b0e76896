//! Packets of this machine's own sockets on a flow that is cut.

use signalbox_common::Reason;
use signalbox_common::cut::CutFlow;
use signalbox_common::cut::flow::{
    HANDED_OFF, HANDOFF_KNOWN, HANDOFF_UNKNOWN, LAST_REQUEST, ORPHANED, SOCKETS_CLOSED, TS_DELTA_KNOWN, state,
};
use signalbox_common::net::header::{ACK, FIN, RST, SYN};

use super::flows::INDEX;
use super::options::usual_stamps;
use super::packet::Packet;
use super::scene::{CLIENT_ON_B, HOST_ON_A, LEG_A, LEG_B, over_both};

#[test]
fn a_packet_that_was_forwarded_leaves() {
    over_both(|mut scene| {
        scene.put(&scene.flow());
        let packet = scene.host_receives(5, 5);
        let outcome = scene.programs.leaves(&packet.bytes(), LEG_A, LEG_B);
        outcome.passed_as(Reason::CutEgressForwarded, &packet);
    });
}

#[test]
fn socket_packets_without_a_flow_leave_unchanged() {
    over_both(|scene| {
        for flags in [ACK, SYN, SYN | ACK, RST, FIN | ACK] {
            for packet in [scene.client_receives(5, 5), scene.host_receives(5, 5)] {
                let packet = Packet { flags, ..packet };
                scene.leaves(&packet).passed_as(Reason::CutEgressMiss, &packet);
            }
        }
    });
}

#[test]
fn the_sockets_own_acknowledgement_is_silenced() {
    over_both(|mut scene| {
        for drained in [HANDOFF_UNKNOWN, HANDOFF_KNOWN, HANDED_OFF, SOCKETS_CLOSED] {
            let flow = CutFlow {
                handoff_state: drained,
                ..scene.flow()
            };
            scene.put(&flow);
            scene
                .leaves(&scene.client_receives(0, 100))
                .dropped(Reason::CutSilenced);
            if drained >= HANDED_OFF {
                scene.leaves(&scene.host_receives(0, 0)).dropped(Reason::CutSilenced);
            }
            assert_eq!(scene.flow_now(), flow);
        }
    });
}

/// Userspace informs the host of a long answer that it may send, when the sockets are gone and not before.
#[test]
fn a_window_for_the_host_of_a_long_answer_leaves() {
    over_both(|mut scene| {
        for handoff_state in [HANDED_OFF, SOCKETS_CLOSED] {
            let mut flow = CutFlow {
                handoff_state,
                ..scene.flow()
            };
            flow.dirs[0].flags |= LAST_REQUEST;
            scene.put(&flow);
            let told = scene.host_receives(0, 0);
            if handoff_state == SOCKETS_CLOSED {
                scene.leaves(&told).passed_as(Reason::CutHandoff, &told);
            } else {
                scene.leaves(&told).dropped(Reason::CutSilenced);
            }
            for flags in [RST, FIN | ACK] {
                let packet = Packet {
                    flags,
                    ..scene.host_receives(0, 0)
                };
                scene.leaves(&packet).dropped(Reason::CutSilenced);
            }
            scene.leaves(&scene.client_receives(0, 0)).dropped(Reason::CutSilenced);
            assert_eq!(scene.flow_now(), flow);
        }
    });
}

/// A socket that is closed when all is handed off resets its leg, or ends it: neither end may notice.
#[test]
fn a_drained_socket_closes_in_silence() {
    over_both(|mut scene| {
        scene.put(&scene.flow());
        for flags in [RST, RST | ACK, FIN | ACK] {
            for packet in [scene.client_receives(0, 0), scene.host_receives(0, 0)] {
                scene.leaves(&Packet { flags, ..packet }).dropped(Reason::CutSilenced);
            }
        }
        assert_eq!(scene.flow_now(), scene.flow());
    });
}

#[test]
fn leg_bs_socket_sends_what_it_owes_with_the_clients_latest_ack() {
    over_both(|mut scene| {
        for drained in [HANDOFF_UNKNOWN, HANDOFF_KNOWN] {
            let mut flow = CutFlow {
                snd_nxt_b: CLIENT_ON_B,
                ..scene.owing(drained)
            };
            flow.dirs[0].ack = HOST_ON_A.wrapping_add(500);
            (flow.dirs[0].flags, flow.dirs[0].ts_val) = (TS_DELTA_KNOWN, 4321);
            scene.put(&flow);
            let with = |packet: Packet, stamp| Packet {
                payload: vec![3; 100],
                options: usual_stamps(stamp, 9),
                ..packet
            };
            let said = with(scene.host_receives(0, 0), 4000);
            let delivered = with(scene.host_receives(0, 500), 4321);
            scene.leaves(&said).passed_as(Reason::CutHandoff, &delivered);
            let wanted = CutFlow {
                snd_nxt_b: CLIENT_ON_B + 100,
                ..flow
            };
            assert_eq!(scene.flow_now(), wanted);
            // Sent again: it does not go back.
            let again = Packet {
                payload: vec![3; 50],
                ..scene.host_receives(0, 600)
            };
            scene.leaves(&again).passed_as(Reason::CutHandoff, &again);
            assert_eq!(scene.flow_now(), wanted);
        }
    });
}

#[test]
fn a_fin_that_is_owed_is_delivered() {
    over_both(|mut scene| {
        let flow = CutFlow {
            snd_nxt_b: CLIENT_ON_B,
            ..scene.owing(HANDOFF_KNOWN)
        };
        scene.put(&flow);
        let last = Packet {
            flags: FIN | ACK,
            payload: vec![3; 99],
            ..scene.host_receives(0, 0)
        };
        scene.leaves(&last).passed_as(Reason::CutHandoff, &last);
        let sent_b = CLIENT_ON_B + 100;
        assert_eq!(
            scene.flow_now(),
            CutFlow {
                snd_nxt_b: sent_b,
                ..flow
            }
        );
    });
}

/// The kernel closes the sockets of a process that has died. Bytes not yet handed off are lost: both ends must know.
#[test]
fn a_flow_whose_process_dies_before_handoff_is_reset_both_ways() {
    over_both(|mut scene| {
        for flags in [FIN | ACK, RST | ACK] {
            let mut flow = scene.owing(HANDOFF_KNOWN);
            flow.dirs[0].ack = HOST_ON_A.wrapping_add(500);
            flow.dirs[1].ack = CLIENT_ON_B + 60;
            scene.put(&flow);
            let dying = Packet {
                flags,
                ..scene.host_receives(20, 0)
            };
            // The reset has the number that the host expects.
            let reset = Packet {
                flags: RST | ACK,
                ..scene.host_receives(60, 0)
            };
            scene.leaves(&dying).passed_as(Reason::CutReset, &reset);
            assert_eq!(scene.flow_now().dirs.map(|way| way.flags), [0, ORPHANED]);
            assert_eq!(
                (scene.flow_now().state, scene.programs.told()),
                (state::CUT, vec![INDEX])
            );
            let dying = Packet {
                flags,
                ..scene.client_receives(0, 100)
            };
            let reset = Packet {
                flags: RST | ACK,
                ..scene.client_receives(500, 100)
            };
            scene.leaves(&dying).passed_as(Reason::CutReset, &reset);
            assert_eq!(scene.flow_now().state, state::CLOSING);
            assert_eq!(scene.programs.told(), [INDEX]);
        }
    });
}

#[test]
fn a_closing_flow_sends_only_resets_at_the_expected_number() {
    over_both(|mut scene| {
        let mut flow = CutFlow {
            state: state::CLOSING,
            ..scene.flow()
        };
        flow.dirs[0].ack = HOST_ON_A.wrapping_add(70);
        scene.put(&flow);
        scene.leaves(&scene.client_receives(70, 0)).dropped(Reason::CutSilenced);
        let of = |packet: Packet| Packet { flags: RST, ..packet };
        let wanted = of(scene.client_receives(70, 0));
        scene
            .leaves(&of(scene.client_receives(0, 0)))
            .passed_as(Reason::CutReset, &wanted);
        assert_eq!(scene.flow_now(), flow);
    });
}
