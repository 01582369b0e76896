//! Packets of the host that leg B's socket still gets during the hand-off, and the end of that.

use signalbox_common::Reason;
use signalbox_common::cut::CutFlow;
use signalbox_common::cut::flow::{EARLY_FIN, HANDED_OFF, HANDOFF_KNOWN, HANDOFF_UNKNOWN, PEER_FIN_ACKED};

use super::options::{sack, usual_stamps};
use super::outcome::Action;
use super::packet::Packet;
use super::scene::{CLIENT_ON_B, Scene, over_both};

/// Leg B's socket never hears of a byte that it does not own.
#[test]
fn leg_bs_socket_hears_only_the_hosts_ack_of_its_own_bytes() {
    over_both(|mut scene| {
        let flow = CutFlow {
            snd_nxt_b: CLIENT_ON_B + 50,
            ..scene.owing(HANDOFF_KNOWN)
        };
        scene.put(&flow);
        for (acked, heard) in [(30, 30), (50, 50), (70, 50)] {
            let said = Packet {
                options: [usual_stamps(1, 2), vec![1, 1], sack(&[(5, 6)])].concat(),
                payload: vec![8; 1001],
                ..scene.host_sends(900, acked)
            };
            scene
                .arrives(&said)
                .passed_as(Reason::CutShared, &scene.host_sends(0, heard));
        }
        assert_eq!(scene.flow_now(), flow);
    });
}

#[test]
fn a_flow_is_handed_off_once_the_host_has_acked_all_owed_bytes() {
    over_both(|mut scene| {
        let hears = |scene: &Scene, acked| scene.arrives(&scene.host_sends(0, acked));
        scene.put(&scene.owing(HANDOFF_UNKNOWN));
        hears(&scene, 100).passed_as(Reason::CutShared, &scene.host_sends(0, 100));
        scene.put(&scene.owing(HANDOFF_KNOWN));
        hears(&scene, 99).passed_as(Reason::CutShared, &scene.host_sends(0, 99));
        assert_eq!(scene.flow_now().handoff_state, HANDOFF_KNOWN);
        hears(&scene, 100).forwarded_as(&scene.client_receives(0, 100));
        assert_eq!(scene.flow_now().handoff_state, HANDED_OFF);
    });
}

/// An attacker who guesses must not make the balancer drop bytes that must be handed off.
#[test]
fn an_acknowledgement_far_off_the_numbers_drains_nothing() {
    over_both(|mut scene| {
        scene.put(&scene.owing(HANDOFF_KNOWN));
        let far = 1 << 30;
        scene
            .arrives(&scene.host_sends(far, 100))
            .expect(Action::Pass, Reason::CutShared);
        scene
            .arrives(&scene.host_sends(0, far))
            .expect(Action::Pass, Reason::CutShared);
        assert_eq!(scene.flow_now(), scene.owing(HANDOFF_KNOWN));
    });
}

/// The client's FIN had come before the flow was cut: leg B's socket delivers it, and the acknowledgement comes from
/// the host.
#[test]
fn an_early_fin_is_acknowledged_with_all_that_is_owed() {
    over_both(|mut scene| {
        let mut flow = scene.owing(HANDOFF_KNOWN);
        flow.dirs[0].flags = EARLY_FIN;
        scene.put(&flow);
        scene
            .arrives(&scene.host_sends(0, 99))
            .expect(Action::Pass, Reason::CutShared);
        assert_eq!(scene.flow_now().dirs[1].flags, 0);
        scene
            .arrives(&scene.host_sends(0, 100))
            .forwarded_as(&scene.client_receives(0, 100));
        assert_eq!(scene.flow_now().dirs[1].flags, PEER_FIN_ACKED);
    });
}
