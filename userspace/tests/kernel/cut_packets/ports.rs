//! Reused addresses and ports: a SYN on those of a flow.

use signalbox_common::Reason;
use signalbox_common::cut::flow::{
    BEING_REMOVED, CutFlow, HANDED_OFF, HANDOFF_KNOWN, HANDOFF_UNKNOWN, PEER_FIN_ACKED, RESET, SOCKETS_CLOSED,
    SUPERSEDED, SYN_ON_LIVE_FLOW, ineligible, state,
};
use signalbox_common::net::header::{RST, SYN};

use super::flows::{INDEX, NO_FLOW};
use super::outcome::Action;
use super::packet::Packet;
use super::scene::{CLIENT_ON_A, CLIENT_ON_B, Scene, over_both};

/// Number of the new connection's first byte, and of the first byte of our answer.
const NEW_CLIENT: u32 = 123_456;
const NEW_VIP: u32 = 654_321;

/// A stray SYN does no harm to a listening socket, and must do none to the flow.
#[test]
fn a_syn_on_a_live_flow_goes_to_the_listener_and_the_flow_lives() {
    over_both(|mut scene| {
        scene.bind();
        scene.put(&scene.flow());
        let syn = scene.new_syn();
        scene.arrives(&syn).passed_as(Reason::CutSynOnLiveFlow, &syn);
        assert_eq!(scene.flow_now().dirs[0].flags, SYN_ON_LIVE_FLOW);
        assert_eq!(scene.shake().unwrap().isn_client, NEW_CLIENT);
        scene
            .arrives(&scene.client_sends(0, 0))
            .forwarded_as(&scene.host_receives(0, 0));
        scene
            .arrives(&scene.host_sends(0, 0))
            .forwarded_as(&scene.client_receives(0, 0));
        assert_eq!(scene.programs.told(), NO_FLOW);
    });
}

#[test]
fn a_client_that_confirms_its_new_syn_abandons_the_old_flow() {
    over_both(|mut scene| {
        scene.bind();
        scene.put(&scene.flow());
        let syn = scene.new_syn();
        scene.arrives(&syn).passed_as(Reason::CutSynOnLiveFlow, &syn);
        let confirms = Packet {
            seq: NEW_CLIENT,
            ack: NEW_VIP,
            ..scene.client_sends(0, 0)
        };
        let early = scene.arrives(&confirms);
        early.expect(Action::Redirect, Reason::CutForwarded);
        let answer = Packet {
            seq: NEW_VIP.wrapping_sub(1),
            ack: NEW_CLIENT,
            ..scene.our_answer()
        };
        scene.leaves(&answer).passed_as(Reason::CutSynAckRecorded, &answer);
        let wrong = Packet {
            ack: NEW_VIP + 1,
            ..confirms.clone()
        };
        scene.arrives(&wrong).expect(Action::Redirect, Reason::CutForwarded);
        assert_eq!(scene.programs.told(), NO_FLOW);
        scene.arrives(&confirms).passed_as(Reason::CutSuperseded, &confirms);
        assert_eq!(scene.programs.told(), [INDEX]);
        assert_eq!(scene.flow_now().dirs[0].flags, SYN_ON_LIVE_FLOW | RESET | SUPERSEDED);
        assert_eq!(scene.tuples().map(|tuple| scene.is_known(&tuple)), [false, true]);
    });
}

#[test]
fn our_answer_to_a_syn_that_nobody_doubts_is_silenced() {
    over_both(|mut scene| {
        scene.put(&scene.flow());
        scene.leaves(&scene.our_answer()).dropped(Reason::CutSilenced);
    });
}

#[test]
fn a_syn_on_a_flow_that_has_ended_frees_its_ports() {
    over_both(|mut scene| {
        scene.bind();
        let mut ended = scene.flow();
        ended.dirs[0].flags = PEER_FIN_ACKED;
        ended.dirs[1].flags = PEER_FIN_ACKED;
        scene.put(&ended);
        let syn = scene.new_syn();
        scene.arrives(&syn).passed_as(Reason::CutSuperseded, &syn);
        assert_eq!(scene.flow_now().dirs[0].flags, PEER_FIN_ACKED | SUPERSEDED);
        assert_eq!(scene.tuples().map(|tuple| scene.is_known(&tuple)), [false, true]);
        assert_eq!(scene.shake().unwrap().isn_client, NEW_CLIENT);
    });
}

/// Userspace would remove the new connection's entry in place of the old one's, if it found the tuple taken over.
#[test]
fn a_tuple_that_userspace_is_removing_is_not_taken_over() {
    over_both(|mut scene| {
        scene.bind();
        let mut ended = scene.flow();
        ended.dirs[0].flags = PEER_FIN_ACKED | BEING_REMOVED;
        ended.dirs[1].flags = PEER_FIN_ACKED | BEING_REMOVED;
        scene.put(&ended);
        scene.arrives(&scene.new_syn()).dropped(Reason::CutClosing);
        let behind = Packet {
            seq: scene.client_sends(0, 0).seq.wrapping_add(1_000_000),
            ..scene.client_sends(0, 0)
        };
        scene.arrives(&behind).dropped(Reason::CutClosing);
        let other = INDEX + 1;
        let wanted = CutFlow {
            state: state::REQUESTED,
            ..scene.flow()
        };
        scene.programs.flows.set(other, wanted, 0).unwrap();
        scene.programs.expect_from(scene.local.port(), other);
        scene.leaves(&scene.our_syn()).dropped(Reason::CutRefused);
        let refused = scene.programs.flows.get(&other, 0).unwrap();
        assert_eq!(
            (refused.state, refused.ineligible),
            (state::INELIGIBLE, ineligible::PORT_BUSY)
        );
        assert_eq!(
            scene.flow_now().dirs.map(|way| way.flags),
            ended.dirs.map(|way| way.flags)
        );
        assert_eq!(scene.tuples().map(|tuple| scene.is_known(&tuple)), [true, true]);
    });
}

/// A cookie has answered the new connection's SYN, before this program saw it.
#[test]
fn an_ack_beyond_a_flows_end_belongs_to_another_connection() {
    over_both(|mut scene| {
        // From the same ports a moment later, and any number.
        for (behind, ack) in [(1 << 20, 0), (NEW_CLIENT.wrapping_sub(CLIENT_ON_A), 1 << 30)] {
            let confirms = scene.client_sends(behind, ack);
            for (drained, flags, is_another) in [
                (SOCKETS_CLOSED, PEER_FIN_ACKED, true),
                (HANDED_OFF, PEER_FIN_ACKED, false),
                (SOCKETS_CLOSED, 0, false),
            ] {
                let mut flow = CutFlow {
                    handoff_state: drained,
                    ..scene.flow()
                };
                flow.dirs.iter_mut().for_each(|way| way.flags = flags);
                scene.put(&flow);
                let outcome = scene.arrives(&confirms);
                if is_another {
                    outcome.passed_as(Reason::CutSuperseded, &confirms);
                } else {
                    outcome.forwarded_as(&scene.host_receives(behind, ack));
                }
                assert_eq!(scene.is_known(&scene.tuples()[0]), !is_another);
            }
        }
        // The old connection's own, late.
        let mut flow = CutFlow {
            handoff_state: SOCKETS_CLOSED,
            ..scene.flow()
        };
        flow.dirs.iter_mut().for_each(|way| way.flags = PEER_FIN_ACKED);
        scene.put(&flow);
        scene
            .arrives(&scene.client_sends(0, 0))
            .forwarded_as(&scene.host_receives(0, 0));
    });
}

/// Leg A's socket would take the SYN for a stray one. It has received everything that must be handed off.
#[test]
fn a_syn_on_a_just_ended_flow_follows_a_reset_of_the_old_socket() {
    over_both(|mut scene| {
        scene.bind();
        for drained in [HANDOFF_UNKNOWN, HANDOFF_KNOWN, HANDED_OFF] {
            let mut ended = CutFlow {
                handoff_state: drained,
                handoff_end: CLIENT_ON_B + 100,
                ..scene.flow()
            };
            assert_ne!(drained, SOCKETS_CLOSED);
            ended.dirs[1].flags = RESET;
            scene.put(&ended);
            let syn = scene.new_syn();
            let reset = Packet {
                flags: RST,
                seq: CLIENT_ON_A.wrapping_add(100),
                ..syn.clone()
            };
            scene.arrives(&syn).passed_as(Reason::CutStaleSocketReset, &reset);
            assert_eq!(scene.tuples().map(|tuple| scene.is_known(&tuple)), [false, true]);
        }
    });
}

/// The client is done with it, whether or not our reset has reached it; its sockets may outlive a process that was
/// killed.
#[test]
fn a_syn_on_a_flow_that_closes_frees_its_ports() {
    over_both(|mut scene| {
        scene.bind();
        let syn = scene.new_syn();
        for (drained, reason, first) in [
            (
                HANDOFF_KNOWN,
                Reason::CutStaleSocketReset,
                Packet {
                    flags: RST,
                    seq: CLIENT_ON_A.wrapping_add(100),
                    ..syn.clone()
                },
            ),
            (SOCKETS_CLOSED, Reason::CutSuperseded, syn.clone()),
        ] {
            scene.put(&CutFlow {
                state: state::CLOSING,
                handoff_state: drained,
                handoff_end: CLIENT_ON_B + 100,
                ..scene.flow()
            });
            scene.arrives(&syn).passed_as(reason, &first);
            assert_eq!(scene.tuples().map(|tuple| scene.is_known(&tuple)), [false, true]);
            assert_eq!(scene.flow_now().dirs[0].flags, SUPERSEDED);
        }
    });
}

#[test]
fn a_syn_on_a_flow_that_is_being_removed_is_dropped() {
    over_both(|mut scene| {
        scene.bind();
        scene.put(&CutFlow {
            state: state::DELETING,
            ..scene.flow()
        });
        let syn = scene.new_syn();
        scene.arrives(&syn).dropped(Reason::CutClosing);
        assert_eq!(scene.tuples().map(|tuple| scene.is_known(&tuple)), [true, true]);
    });
}

/// The host still knows the old connection, and must not open another past every route.
#[test]
fn a_syn_of_the_hosts_is_never_forwarded() {
    over_both(|mut scene| {
        for drained in [HANDOFF_UNKNOWN, HANDOFF_KNOWN, HANDED_OFF, SOCKETS_CLOSED] {
            let flow = CutFlow {
                handoff_state: drained,
                ..scene.flow()
            };
            scene.put(&flow);
            let syn = Packet {
                flags: SYN,
                ..scene.hosts_answer()
            };
            scene.arrives(&syn).dropped(Reason::CutStray);
            let again = scene.hosts_answer();
            if drained < HANDED_OFF {
                scene.arrives(&again).passed_as(Reason::CutToSocket, &again);
            }
            // An answer to another SYN than ours.
            for (seq, ack) in [(1, 0), (0, 1)] {
                let other = Packet {
                    seq: again.seq.wrapping_add(seq),
                    ack: again.ack.wrapping_add(ack),
                    ..scene.hosts_answer()
                };
                if drained >= HANDED_OFF {
                    scene.arrives(&other).dropped(Reason::CutStray);
                }
            }
            assert_eq!(scene.flow_now(), flow);
        }
    });
}

#[test]
fn leg_bs_syn_on_the_ports_of_a_live_flow_is_refused() {
    over_both(|mut scene| {
        scene.put(&scene.flow());
        let other = INDEX + 1;
        scene.programs.expect_from(scene.local.port(), other);
        let wanted = CutFlow {
            state: state::REQUESTED,
            ..scene.flow()
        };
        scene.programs.flows.set(other, wanted, 0).unwrap();
        scene.leaves(&scene.our_syn()).dropped(Reason::CutRefused);
        let refused = scene.programs.flows.get(&other, 0).unwrap();
        assert_eq!(
            (refused.state, refused.ineligible),
            (state::INELIGIBLE, ineligible::PORT_BUSY)
        );
        assert_eq!(scene.flow_now(), scene.flow());
    });
}

#[test]
fn leg_bs_syn_takes_the_ports_of_a_flow_that_has_ended() {
    over_both(|mut scene| {
        scene.shaken(super::syns::ALL);
        let mut ended = scene.flow();
        ended.dirs[0].flags = RESET;
        scene.put(&ended);
        // Host and port are those of the flow, for another client.
        let [client, host] = scene.tuples();
        scene.programs.tuples.remove(&client).unwrap();
        let other = INDEX + 1;
        let wanted = CutFlow {
            state: state::REQUESTED,
            ..scene.flow()
        };
        scene.programs.flows.set(other, wanted, 0).unwrap();
        scene.programs.expect_from(scene.local.port(), other);
        scene
            .leaves(&scene.our_syn())
            .expect(Action::Pass, Reason::CutSynRewritten);
        assert_eq!(scene.flow_now().dirs.map(|way| way.flags), [RESET, SUPERSEDED]);
        assert!(!scene.is_known(&host));
        assert_eq!(scene.programs.flows.get(&other, 0).unwrap().state, state::CONNECTING);
    });
}

impl Scene {
    /// The client's address and port open another connection.
    fn new_syn(&self) -> Packet {
        Packet {
            seq: NEW_CLIENT.wrapping_sub(1),
            ..self.client_syn()
        }
    }
}
