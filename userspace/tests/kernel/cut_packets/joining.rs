//! Leg B's handshake: it offers what leg A has, and the host's answer makes the two a flow that is cut.

use log::Level;
use signalbox_common::Reason;
use signalbox_common::cut::flow::{
    CLIENT_FIN_SEEN, CutFlow, EARLY_FIN, FlowRef, OFFERED_SACK, OFFERED_SCALE, OFFERED_TIMESTAMPS, PAIRED,
    SYN_ACK_SEEN, ineligible, state,
};
use signalbox_common::cut::late::{LateCut, SocketNumbers};
use signalbox_common::cut::pending::HOLD;
use signalbox_common::cut::{PendingFlow, handshake};
use signalbox_common::net::header::{ACK, CWR, ECE, FIN, SYN};

use super::clock::{assert_within, milliseconds, ticks};
use super::flows::INDEX;
use super::options::{NOP, SACK_PERMITTED, mss, offer, scale, stamps};
use super::outcome::Action;
use super::packet::Packet;
use super::programs::Programs;
use super::scene::{CLIENT_ON_A, CLIENT_ON_B, HOST_ON_A, HOST_ON_B, LEG_A, Scene, over_both, over_ipv4};
use super::syns::{ALL, CLOCK_A, CLOCK_B, INJECTED};

#[test]
fn leg_bs_syn_offers_what_leg_a_has_and_no_more() {
    over_both(|mut scene| {
        let nothing = |length: usize| vec![NOP[0]; length];
        let cases = [
            (ALL, offer(1400, CLOCK_B, 0, 6)),
            (
                OFFERED_TIMESTAMPS | OFFERED_SCALE,
                [mss(1400), nothing(2), stamps(CLOCK_B, 0), nothing(1), scale(6)].concat(),
            ),
            (
                OFFERED_SACK | OFFERED_SCALE,
                [mss(1400), SACK_PERMITTED.into(), nothing(11), scale(6)].concat(),
            ),
            (0, [mss(1400), nothing(16)].concat()),
        ];
        for (agreed, options) in cases {
            scene.shaken(agreed);
            scene.connects();
            let asks = Packet {
                flags: SYN | ECE | CWR,
                ..scene.our_syn()
            };
            let offers = Packet {
                options,
                ..scene.our_syn()
            };
            scene.leaves(&asks).passed_as(Reason::CutSynRewritten, &offers);
            let connecting = scene.flow_now();
            assert_eq!(connecting.state, state::CONNECTING);
            scene.leaves(&asks).passed_as(Reason::CutSynRewritten, &offers);
            assert_eq!(scene.flow_now(), connecting, "sent again");
        }
    });
}

#[test]
fn options_of_leg_bs_syn_may_stand_at_odd_offsets() {
    over_both(|mut scene| {
        scene.shaken(OFFERED_SCALE);
        scene.connects();
        let with = |size, rest: &[u8]| Packet {
            options: [&NOP, &mss(size)[..], rest].concat(),
            ..scene.our_syn()
        };
        let asks = with(1460, &[&stamps(CLOCK_B, 0)[..], &SACK_PERMITTED, &scale(6)].concat());
        let offers = with(1400, &[&[NOP[0]; 12][..], &scale(6)].concat());
        scene.leaves(&asks).passed_as(Reason::CutSynRewritten, &offers);
    });
}

#[test]
fn leg_bs_syn_without_a_handshake_of_leg_a_is_an_ordinary_one() {
    over_both(|mut scene| {
        scene.connects();
        let syn = scene.our_syn();
        scene.leaves(&syn).passed_as(Reason::CutRefused, &syn);
        let flow = scene.flow_now();
        assert_eq!(
            (flow.state, flow.ineligible),
            (state::INELIGIBLE, ineligible::NO_HANDSHAKE)
        );
    });
}

#[test]
fn the_hosts_answer_cuts_the_flow() {
    over_both(|mut scene| {
        scene.bind();
        let (ticked, clocked) = (ticks(), milliseconds());
        scene
            .arrives(&scene.client_syn())
            .expect(Action::Pass, Reason::CutSynRecorded);
        let answer = scene.our_answer();
        scene.leaves(&answer).passed_as(Reason::CutSynAckRecorded, &answer);
        scene.connects();
        let syn = scene.our_syn();
        scene.leaves(&syn).expect(Action::Pass, Reason::CutSynRewritten);
        let answer = scene.hosts_answer();
        let stray = Packet {
            ack: answer.ack + 1,
            ..answer.clone()
        };
        scene.arrives(&stray).passed_as(Reason::CutMiss, &stray);
        scene.arrives(&answer).passed_as(Reason::CutPaired, &answer);

        let flow = scene.flow_now();
        // The host's clock is at 900 when leg A's is a little beyond where it was.
        assert!(flow.ts_delta_out.wrapping_add(900).wrapping_sub(CLOCK_A) <= milliseconds() - clocked);
        assert_within(CLOCK_B.wrapping_sub(flow.dirs[1].ts_val), clocked);
        for way in flow.dirs {
            assert!(way.last_seen.wrapping_sub(ticked) <= ticks().wrapping_sub(ticked));
            assert!(way.hop_expires.wrapping_sub(ticked).wrapping_sub(950) <= ticks().wrapping_sub(ticked));
        }
        let first_b = CLIENT_ON_B.wrapping_sub(INJECTED);
        let mut wanted = CutFlow {
            handoff_state: 0,
            scale_a: 6 | 7 << 4,
            scale_b: 6 | 9 << 4,
            handoff_end: first_b,
            snd_nxt_b: first_b,
            isn_b: first_b,
            ts_delta_out: flow.ts_delta_out,
            ..scene.flow()
        };
        wanted.dirs[0].flags = PAIRED;
        wanted.dirs[1].ack = first_b;
        wanted.dirs[1].ts_val = flow.dirs[1].ts_val;
        for (wanted, way) in wanted.dirs.iter_mut().zip(flow.dirs) {
            (wanted.last_seen, wanted.hop_expires) = (way.last_seen, way.hop_expires);
        }
        assert_eq!(flow, wanted);
        let entries = scene
            .tuples()
            .map(|tuple| scene.programs.tuples.get(&tuple, 0).unwrap());
        assert_eq!(entries, [0, 1].map(|way| FlowRef { index: INDEX, dir: way }));

        let said = Packet {
            window: 8,
            ..scene.client_sends(0, 0)
        };
        let delivered = Packet {
            window: 8,
            // The host expects the injected bytes first.
            ..scene.host_receives(INJECTED.wrapping_neg(), 0)
        };
        scene.arrives(&said).forwarded_as(&delivered);
    });
}

#[test]
fn legs_that_differ_are_not_joined() {
    over_both(|mut scene| {
        let without_stamps = [mss(1460), SACK_PERMITTED.into(), vec![1, 1, 1], scale(9)].concat();
        let without_sack = [mss(1460), vec![1, 1, 1], stamps(900, 1), scale(9)].concat();
        let cases = [
            (without_stamps.clone(), ALL, ineligible::TIMESTAMPS),
            (without_sack.clone(), ALL, ineligible::SACK),
            (
                offer(1460, 900, 1, 9),
                ALL & !OFFERED_TIMESTAMPS,
                ineligible::TIMESTAMPS,
            ),
            (offer(1460, 900, 1, 9), ALL & !OFFERED_SACK, ineligible::SACK),
            (offer(1459, 900, 1, 9), ALL, ineligible::MSS),
            (vec![2, 0, 0, 0], ALL, ineligible::MALFORMED),
        ];
        for (options, agreed, reason) in cases {
            scene.shaken(agreed);
            scene.connects();
            scene
                .leaves(&scene.our_syn())
                .expect(Action::Pass, Reason::CutSynRewritten);
            let answer = Packet {
                options,
                ..scene.hosts_answer()
            };
            scene.arrives(&answer).passed_as(Reason::CutIneligible, &answer);
            let flow = scene.flow_now();
            assert_eq!((flow.state, flow.ineligible), (state::INELIGIBLE, reason));
            assert_eq!(scene.tuples().map(|tuple| scene.is_known(&tuple)), [false, false]);
        }
    });
}

/// The client's window could not be announced exactly; a host's smaller units matter only where its window has few of
/// the balancer's.
#[test]
fn windows_too_coarse_to_announce_leave_a_flow_to_another_tier() {
    assert!(handshake::fits_scale(0x8000, 7, 14), "a tuned balancer's scale");
    over_both(|mut scene| {
        let window = |scene: &Scene| {
            (scene.flow_now().state, scene.flow_now().ineligible) == (state::INELIGIBLE, ineligible::WINDOW_SCALE)
        };
        scene.shaken(ALL);
        scene.connects();
        let coarse = Packet {
            options: offer(1460, CLOCK_B, 0, 7),
            ..scene.our_syn()
        };
        scene.leaves(&coarse).passed_as(Reason::CutRefused, &coarse);
        assert!(window(&scene));
        // Our scale on leg A is 7: sixteen units are 2048 bytes.
        for (units, offered, is_cut) in [(6, 2047, false), (6, 2048, true), (7, 100, true), (0, 2047, false)] {
            scene.shaken(ALL);
            scene.connects();
            scene
                .leaves(&scene.our_syn())
                .expect(Action::Pass, Reason::CutSynRewritten);
            let answer = Packet {
                window: offered,
                options: offer(1460, 900, 1, units),
                ..scene.hosts_answer()
            };
            let reason = if is_cut {
                Reason::CutPaired
            } else {
                Reason::CutIneligible
            };
            scene.arrives(&answer).passed_as(reason, &answer);
            assert_eq!(window(&scene), !is_cut, "{offered} bytes at scale {units}");
            for tuple in scene.tuples() {
                let _ = scene.programs.tuples.remove(&tuple);
            }
        }
    });
}

/// Fragments have no ports: they cannot be forwarded.
#[test]
fn a_flow_whose_packets_may_be_fragmented_is_not_cut() {
    over_ipv4(|mut scene| {
        let may_be_fragmented = |packet: &Packet| {
            let mut bytes = packet.bytes();
            bytes[20] &= !0x40;
            let sum = u16::from_be_bytes([bytes[24], bytes[25]]);
            bytes[24..26].copy_from_slice(&(sum + 0x4000).to_be_bytes());
            bytes
        };
        let unfit = (state::INELIGIBLE, ineligible::FRAGMENTS);
        scene.bind();
        let syn = may_be_fragmented(&scene.client_syn());
        scene
            .programs
            .arrives(&syn, LEG_A)
            .expect(Action::Pass, Reason::CutSynRecorded);
        scene
            .leaves(&scene.our_answer())
            .expect(Action::Pass, Reason::CutSynAckRecorded);
        scene.connects();
        scene.leaves(&scene.our_syn()).expect(Action::Pass, Reason::CutRefused);
        assert_eq!((scene.flow_now().state, scene.flow_now().ineligible), unfit);

        scene.shaken(ALL);
        scene.connects();
        scene
            .leaves(&scene.our_syn())
            .expect(Action::Pass, Reason::CutSynRewritten);
        let answer = may_be_fragmented(&scene.hosts_answer());
        scene
            .programs
            .arrives(&answer, LEG_A)
            .expect(Action::Pass, Reason::CutIneligible);
        assert_eq!((scene.flow_now().state, scene.flow_now().ineligible), unfit);
    });
}

#[test]
fn a_host_without_window_scaling_is_joined_without_it() {
    over_both(|mut scene| {
        scene.shaken(ALL);
        scene.connects();
        scene
            .leaves(&scene.our_syn())
            .expect(Action::Pass, Reason::CutSynRewritten);
        let answer = Packet {
            options: [mss(1460), SACK_PERMITTED.into(), stamps(900, 1)].concat(),
            window: 65_160,
            ..scene.hosts_answer()
        };
        scene.arrives(&answer).passed_as(Reason::CutPaired, &answer);
        assert_eq!(scene.flow_now().scale_b, 0);
    });
}

/// The FIN has gone to leg A's socket: leg B's has to deliver it.
#[test]
fn a_fin_before_the_flow_is_cut_is_known_to_it() {
    over_both(|mut scene| {
        scene.shaken(ALL);
        scene.connects();
        scene
            .leaves(&scene.our_syn())
            .expect(Action::Pass, Reason::CutSynRewritten);
        let fin = Packet {
            flags: FIN | ACK,
            ..scene.client_sends(0, 0)
        };
        scene.arrives(&fin).passed_as(Reason::CutMiss, &fin);
        assert_eq!(scene.shake().unwrap().progress, SYN_ACK_SEEN | CLIENT_FIN_SEEN);
        let answer = scene.hosts_answer();
        scene.arrives(&answer).passed_as(Reason::CutPaired, &answer);
        assert_eq!(scene.flow_now().dirs.map(|way| way.flags), [EARLY_FIN | PAIRED, 0]);
    });
}

#[test]
fn a_full_table_leaves_the_flow_to_another_tier() {
    over_both(|mut scene| {
        // Room is missing for both of its entries, or for one.
        for room in [0, 1] {
            scene.shaken(ALL);
            scene.connects();
            scene
                .leaves(&scene.our_syn())
                .expect(Action::Pass, Reason::CutSynRewritten);
            scene.programs.fill_tuples(room);
            let answer = scene.hosts_answer();
            scene.arrives(&answer).passed_as(Reason::CutIneligible, &answer);
            let flow = scene.flow_now();
            assert_eq!(
                (flow.state, flow.ineligible),
                (state::INELIGIBLE, ineligible::TABLE_FULL)
            );
            assert_eq!(scene.tuples().map(|tuple| scene.is_known(&tuple)), [false, false]);
        }
    });
    let text = format!(
        "A connection is not cut, because CUT_CT takes no entry: errno=-{}",
        libc::E2BIG
    );
    let logged = Programs::fresh().messages.take();
    assert!(
        !logged.is_empty() && logged.iter().all(|message| *message == (Level::Warn, text.clone())),
        "{logged:?}"
    );
}

/// A flow that will be held is paired like any other, and its packets go to its sockets.
#[test]
fn a_held_flow_is_paired_and_left_to_its_sockets() {
    over_both(|mut scene| {
        scene.shaken(ALL);
        scene.connects();
        let waiting = scene.flow_now();
        let holds = PendingFlow {
            agreed: HOLD,
            state: state::REQUESTED,
            ports_a: waiting.ports_a,
            ports_b: waiting.ports_b,
            client: waiting.client,
            vip: waiting.vip,
            local: waiting.local,
            host_addr: waiting.host_addr,
            ..PendingFlow::default()
        };
        scene.programs.flows.set(INDEX, holds.to_entry(), 0).unwrap();
        scene
            .leaves(&scene.our_syn())
            .expect(Action::Pass, Reason::CutSynRewritten);
        let answer = scene.hosts_answer();
        scene.arrives(&answer).passed_as(Reason::CutHeld, &answer);
        let flow = scene.flow_now();
        assert_eq!(
            (flow.state, flow.scale_a, flow.scale_b),
            (state::HELD, 6 | 7 << 4, 6 | 9 << 4)
        );
        assert_eq!(scene.tuples().map(|tuple| scene.is_known(&tuple)), [false, false]);
        let said = scene.client_sends(0, 0);
        scene.arrives(&said).passed_as(Reason::CutMiss, &said);
        // Until userspace has checked both sockets once more, nothing reaches them.
        scene.put(&flow);
        scene.arrives(&said).expect(Action::Drop, Reason::CutClosing);
        let late = LateCut {
            sockets: [
                SocketNumbers {
                    next_sent: HOST_ON_A.wrapping_add(500),
                    next_expected: CLIENT_ON_A.wrapping_add(300),
                },
                SocketNumbers {
                    next_sent: CLIENT_ON_B.wrapping_add(280),
                    next_expected: HOST_ON_B.wrapping_add(520),
                },
            ],
            ..LateCut::default()
        };
        let mut cut = flow;
        late.apply_to(&mut cut);
        cut.state = state::CUT;
        scene.put(&cut);
        // Byte 300 of the client is byte 280 at the host, whose byte 520 is the client's 500.
        scene
            .arrives(&Packet {
                window: 8,
                ..scene.client_sends(300, 500)
            })
            .forwarded_as(&Packet {
                window: 8,
                ..scene.host_receives(280, 520)
            });
        scene
            .arrives(&Packet {
                window: 8,
                ..scene.host_sends(520, 280)
            })
            .forwarded_as(&Packet {
                window: 32,
                ..scene.client_receives(500, 300)
            });
    });
}
