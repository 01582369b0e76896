//! Leg A's handshake: the remembered options, and the changed ones.

use signalbox_common::Reason;
use signalbox_common::cut::flow::{CutConfig, Handshake, SYN_ACK_SEEN};
use signalbox_common::net::header::{CWR, ECE, SYN};

use super::clock::{assert_within, milliseconds};
use super::flows::macs;
use super::options::{mss, offer};
use super::outcome::Action;
use super::packet::Packet;
use super::scene::{CLIENT_ON_A, HOST_ON_A, LEG_A, TO_CLIENT, over_both};
use super::syns::{ALL, CLOCK_A, CLOCK_B};

#[test]
fn client_syn_is_remembered() {
    over_both(|mut scene| {
        scene.bind();
        let syn = scene.client_syn();
        scene.arrives(&syn).passed_as(Reason::CutSynRecorded, &syn);
        let wanted = Handshake {
            isn_client: CLIENT_ON_A,
            mss_client: 1400,
            scale_client: 6,
            ..Handshake::default()
        };
        assert_eq!(scene.shake(), Some(wanted));
    });
}

#[test]
fn a_syn_to_what_is_not_bound_is_not_remembered() {
    over_both(|mut scene| {
        scene.bind();
        let mut syn = scene.client_syn();
        syn.to.set_port(444);
        scene.arrives(&syn).passed_as(Reason::CutMiss, &syn);
        assert_eq!(scene.programs.shakes.keys().count(), 0);
    });
}

#[test]
fn ecn_is_taken_out_of_a_clients_syn() {
    over_both(|mut scene| {
        scene.bind();
        let syn = scene.client_syn();
        let asks = Packet {
            flags: SYN | ECE | CWR,
            ..syn.clone()
        };
        scene.arrives(&asks).passed_as(Reason::CutSynRecorded, &syn);
        assert!(scene.shake().is_some());
    });
}

#[test]
fn our_answer_is_remembered_with_the_way_it_goes() {
    over_both(|mut scene| {
        scene.bind();
        scene
            .arrives(&scene.client_syn())
            .expect(Action::Pass, Reason::CutSynRecorded);
        let answer = scene.our_answer();
        let stray = Packet {
            ack: answer.ack.wrapping_add(1),
            ..answer.clone()
        };
        scene.leaves(&stray).passed_as(Reason::CutEgressMiss, &stray);
        assert_eq!(scene.shake().unwrap().progress, 0, "an answer to another SYN");
        let before = milliseconds();
        scene.leaves(&answer).passed_as(Reason::CutSynAckRecorded, &answer);
        let shake = scene.shake().unwrap();
        assert_within(CLOCK_A.wrapping_sub(shake.ts_clock), before);
        let wanted = Handshake {
            isn_client: CLIENT_ON_A,
            isn_vip: HOST_ON_A,
            ts_clock: shake.ts_clock,
            ifindex: LEG_A,
            mss_client: 1400,
            mss_vip: 1460,
            scale_client: 6,
            scale_vip: 7,
            agreed: ALL,
            progress: SYN_ACK_SEEN,
            macs: macs(TO_CLIENT),
        };
        assert_eq!(shake, wanted);
    });
}

#[test]
fn a_syn_ack_without_window_scaling_disables_the_clients_too() {
    over_both(|mut scene| {
        scene.bind();
        scene
            .arrives(&scene.client_syn())
            .expect(Action::Pass, Reason::CutSynRecorded);
        let answer = Packet {
            options: mss(1460),
            ..scene.our_answer()
        };
        scene.leaves(&answer).passed_as(Reason::CutSynAckRecorded, &answer);
        let shake = scene.shake().unwrap();
        assert_eq!((shake.scale_client, shake.scale_vip, shake.agreed), (0, 0, 0));
    });
}

#[test]
fn no_end_is_told_of_a_larger_segment_than_all_interfaces_take() {
    over_both(|mut scene| {
        let limit = if scene.is_ipv4() { 1200 } else { 1180 };
        let config = CutConfig {
            mss: 1200,
            ..CutConfig::default()
        };
        scene.programs.config.set(0, config, 0).unwrap();
        scene.bind();
        scene
            .arrives(&scene.client_syn())
            .expect(Action::Pass, Reason::CutSynRecorded);
        let with = |packet: Packet, mss, clock| Packet {
            options: offer(mss, clock, 0, 6),
            ..packet
        };
        let answer = with(scene.our_answer(), 1460, CLOCK_A);
        let small = with(scene.our_answer(), limit, CLOCK_A);
        scene.leaves(&answer).passed_as(Reason::CutSynAckRecorded, &small);
        assert_eq!(scene.shake().unwrap().mss_vip, limit);
        scene.connects();
        let syn = with(scene.our_syn(), 1460, CLOCK_B);
        let small = with(scene.our_syn(), limit, CLOCK_B);
        scene.leaves(&syn).passed_as(Reason::CutSynRewritten, &small);
    });
}
