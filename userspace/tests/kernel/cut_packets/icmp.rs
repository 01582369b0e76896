//! ICMP errors about packets that were forwarded: path MTU discovery of both ends still works.

use std::net::{IpAddr, SocketAddr};

use signalbox_common::Reason;
use signalbox_common::cut::flow::{CutFlow, HANDOFF_KNOWN, MTU_EXCEEDED, state};

use super::clock::ticks;
use super::outcome::{Action, Outcome};
use super::packet::{Packet, TCP, checksum};
use super::scene::{FROM_CLIENT, FROM_HOST, LEG_A, Scene, TO_CLIENT, TO_HOST, ip, over_both, over_ipv4};

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// Error by a router: type, code, and the rest of the header, with an MTU in it.
pub(crate) type Kind = (u8, u8, [u8; 4]);

const FRAGMENTATION_NEEDED: Kind = (3, 4, [0, 0, 5, 0x14]);
const PACKET_TOO_BIG: Kind = (2, 0, [0, 0, 5, 0x14]);

#[test]
fn icmp_fragmentation_needed_is_translated_to_the_other_leg() {
    over_both(|mut scene| {
        scene.put(&scene.flow());
        let kind = scene.too_big();
        let (about, rather) = (scene.host_receives(3000, 10), scene.client_sends(3000, 10));
        let comes = scene.error(kind, FROM_HOST, &about);
        let goes = scene.error(kind, TO_CLIENT, &rather);
        assert_eq!(forwarded(scene.programs.arrives(&comes, LEG_A)), goes);
        let (about, rather) = (scene.client_receives(2000, 10), scene.host_sends(2000, 10));
        let comes = scene.error(kind, FROM_CLIENT, &about);
        let goes = scene.error(kind, TO_HOST, &rather);
        let outcome = scene.programs.arrives(&comes, LEG_A);
        if scene.is_ipv4() {
            outcome.dropped(Reason::CutIcmp);
        } else {
            assert_eq!(forwarded(outcome), goes);
        }
        assert_eq!(scene.flow_now(), scene.flow());
    });
}

/// A host that learned of it would send small segments to all clients.
#[test]
fn a_clients_small_path_mtu_causes_fragments_not_a_host_error() {
    over_ipv4(|mut scene| {
        scene.put(&scene.flow());
        let sends = Packet {
            payload: vec![7; 1400],
            ..scene.host_sends(0, 0)
        };
        let receives = Packet {
            payload: vec![7; 1400],
            ..scene.client_receives(0, 0)
        };
        scene.arrives(&sends).forwarded_as(&receives);
        let too_big = |at| scene.error(FRAGMENTATION_NEEDED, FROM_CLIENT, &scene.client_receives(at, 0));
        // A sender that does not know the numbers.
        for at in [1401, u32::MAX] {
            scene.programs.arrives(&too_big(at), LEG_A).dropped(Reason::CutIcmp);
            assert_eq!(scene.flow_now().dirs[1].flags & MTU_EXCEEDED, 0, "{at}");
        }
        scene.programs.arrives(&too_big(0), LEG_A).dropped(Reason::CutIcmp);
        assert_eq!(scene.flow_now().dirs[1].flags & MTU_EXCEEDED, MTU_EXCEEDED);

        let outcome = scene.programs.arrives(&sends.bytes(), LEG_A);
        let mut after = outcome.expect(Action::Redirect, Reason::CutForwarded);
        assert_eq!(after[20] & 0x40, 0, "routers may fragment it");
        assert_eq!(checksum(&after[14..34]), 0, "and its header is right");
        let mut wanted = receives.bytes();
        for bytes in [&mut after, &mut wanted] {
            bytes[20] = 0;
            bytes[24..26].fill(0);
        }
        assert_eq!(after, wanted);

        // A number for the fragments, where there was none.
        let mut unnumbered = sends.bytes();
        unnumbered[18..20].fill(0);
        unnumbered[24..26].fill(0);
        let sum = checksum(&unnumbered[14..34]);
        unnumbered[24..26].copy_from_slice(&sum.to_be_bytes());
        let outcome = scene.programs.arrives(&unnumbered, LEG_A);
        let after = outcome.expect(Action::Redirect, Reason::CutForwarded);
        assert_ne!(after[18..20], [0, 0]);
        assert_eq!(checksum(&after[14..34]), 0);

        // The parts of a super-packet would all have one number: it is not split, and the host is informed after all.
        let outcome = scene.programs.arrives_as_super_packet(&unnumbered, LEG_A, 700);
        let after = outcome.expect(Action::Redirect, Reason::CutForwarded);
        assert_eq!((&after[18..20], after[20] & 0x40), (&[0, 0][..], 0x40));
        let told = scene.error(FRAGMENTATION_NEEDED, TO_HOST, &scene.host_sends(0, 0));
        assert_eq!(forwarded(scene.programs.arrives(&too_big(0), LEG_A)), told);

        let from_client = scene.client_sends(0, 1400);
        scene.arrives(&from_client).forwarded_as(&scene.host_receives(0, 1400));
    });
}

#[test]
fn other_errors_about_a_packet_are_translated_too() {
    over_both(|mut scene| {
        scene.put(&scene.flow());
        let kinds: [Kind; 2] = if scene.is_ipv4() {
            [(3, 1, [0; 4]), (11, 0, [0; 4])]
        } else {
            [(1, 3, [0; 4]), (3, 0, [0; 4])]
        };
        for kind in kinds {
            let comes = scene.error(kind, FROM_HOST, &scene.host_receives(1, 1));
            let goes = scene.error(kind, TO_CLIENT, &scene.client_sends(1, 1));
            assert_eq!(forwarded(scene.programs.arrives(&comes, LEG_A)), goes);
        }
    });
}

#[test]
fn icmp_that_is_about_no_flow_passes() {
    over_both(|mut scene| {
        let about = scene.host_receives(1, 1);
        let error = scene.error(scene.too_big(), FROM_HOST, &about);
        let passed = |outcome: Outcome, reason| outcome.expect(Action::Pass, reason);
        let after = passed(scene.programs.arrives(&error, LEG_A), Reason::CutMiss);
        assert_eq!(after, error);
        scene.put(&scene.flow());
        let echo = if scene.is_ipv4() { 8 } else { 128 };
        let echo = scene.error((echo, 0, [0; 4]), FROM_HOST, &about);
        let after = passed(scene.programs.arrives(&echo, LEG_A), Reason::CutNotTcp);
        assert_eq!(after, echo);
    });
}

#[test]
fn an_error_about_a_flow_that_closes_is_dropped() {
    over_both(|mut scene| {
        scene.put(&CutFlow {
            state: state::CLOSING,
            ..scene.flow()
        });
        let error = scene.error(scene.too_big(), FROM_HOST, &scene.host_receives(1, 1));
        scene.programs.arrives(&error, LEG_A).dropped(Reason::CutClosing);
    });
}

#[test]
fn an_error_without_hops_left_is_dropped() {
    over_both(|mut scene| {
        scene.put(&scene.flow());
        let mut error = scene.error(scene.too_big(), FROM_HOST, &scene.host_receives(1, 1));
        let at = if scene.is_ipv4() { 14 + 8 } else { 14 + 7 };
        error[at] = 1;
        scene.programs.arrives(&error, LEG_A).dropped(Reason::CutHops);
    });
}

/// Leg B's socket has sent the handed-off bytes itself: it must hear of it too.
#[test]
fn an_error_on_leg_b_is_given_to_its_socket_while_it_owes() {
    over_both(|mut scene| {
        scene.put(&CutFlow {
            handoff_state: HANDOFF_KNOWN,
            ..scene.flow()
        });
        let kind = scene.too_big();
        let error = scene.error(kind, FROM_HOST, &scene.host_receives(1, 1));
        let outcome = scene.programs.arrives(&error, LEG_A);
        assert_eq!(outcome.expect(Action::Pass, Reason::CutShared), error);
        let unreachable = if scene.is_ipv4() {
            (3, 1, [0; 4])
        } else {
            (1, 3, [0; 4])
        };
        let comes = scene.error(unreachable, FROM_CLIENT, &scene.client_receives(1, 1));
        let goes = scene.error(unreachable, TO_HOST, &scene.host_sends(1, 1));
        assert_eq!(forwarded(scene.programs.arrives(&comes, LEG_A)), goes);
    });
}

/// A link whose MTU was lowered under the flow: the sender is informed, as by a router, and never more often than the
/// next hop is looked up.
#[test]
fn a_packet_that_its_next_link_does_not_take_is_answered() {
    over_both(|mut scene| {
        ip("link set leg-b mtu 1300 up");
        let mut flow = scene.flow();
        flow.dirs[0].hop_expires = ticks().wrapping_sub(1);
        scene.put(&flow);
        let header = if scene.is_ipv4() { 40 } else { 60 };
        let of_length = |scene: &Scene, length: usize| Packet {
            payload: vec![7; length - header],
            ..scene.client_sends(3000, 10)
        };
        let large = of_length(&scene, 1301);
        assert_eq!(
            scene.arrives(&large).expect(Action::Redirect, Reason::CutTooBig),
            scene.answer((FROM_CLIENT, 1300), &large)
        );
        assert_eq!(scene.flow_now(), flow, "not a packet of the flow that counts");
        // Until the next look-up the link may treat it in any way.
        let fresh = scene.flow();
        scene.put(&fresh);
        scene.arrives(&large).expect(Action::Redirect, Reason::CutForwarded);
        scene.put(&flow);
        let fits = of_length(&scene, 1300);
        scene.arrives(&fits).expect(Action::Redirect, Reason::CutForwarded);
        if scene.is_ipv4() {
            scene.put(&flow);
            let mut may_be_fragmented = large.bytes();
            may_be_fragmented[14 + 6] = 0;
            let sum = checksum(&[&may_be_fragmented[14..24], &[0, 0], &may_be_fragmented[26..34]].concat());
            may_be_fragmented[24..26].copy_from_slice(&sum.to_be_bytes());
            let outcome = scene.programs.arrives(&may_be_fragmented, LEG_A);
            outcome.expect(Action::Redirect, Reason::CutForwarded);
        }
    });
}

#[track_caller]
fn forwarded(outcome: Outcome) -> Vec<u8> {
    outcome.expect(Action::Redirect, Reason::CutIcmp)
}

impl Scene {
    pub(crate) fn too_big(&self) -> Kind {
        if self.is_ipv4() {
            FRAGMENTATION_NEEDED
        } else {
            PACKET_TOO_BIG
        }
    }

    /// Our own answer to a packet that was too large, back to where it came from.
    fn answer(&self, (macs, mtu): ([u8; 12], u16), about: &Packet) -> Vec<u8> {
        let back = Packet {
            macs: [&macs[6..], &macs[..6]].concat().try_into().unwrap(),
            from: about.to,
            to: about.from,
            hops: 64,
            ..about.clone()
        };
        let quoted = &about.bytes()[14..][..if self.is_ipv4() { 40 } else { 60 }];
        let [high, low] = mtu.to_be_bytes();
        let (protocol, kind) = if self.is_ipv4() {
            (ICMP, [3, 4])
        } else {
            (ICMPV6, [2, 0])
        };
        let mut icmp = [&kind[..], &[0, 0, 0, 0, high, low], quoted].concat();
        let mut header = back.ip(protocol, icmp.len());
        let sum = if self.is_ipv4() {
            // Packets of the kernel itself have no service class and no number.
            header[1] = 0;
            header[4..8].fill(0);
            header[10..12].fill(0);
            let sum = checksum(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            checksum(&icmp)
        } else {
            header[..4].copy_from_slice(&[0x60, 0, 0, 0]);
            back.checksum(ICMPV6, &icmp)
        };
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        [&back.macs[..], &about.bytes()[12..14], &header, &icmp].concat()
    }

    /// A router's error about a packet, for its sender. It quotes the beginning: the IP header, and of TCP as much as
    /// every router does. Forwarded ones have made one hop more.
    pub(crate) fn error(&self, (kind, code, rest): Kind, macs: [u8; 12], about: &Packet) -> Vec<u8> {
        let router: IpAddr = if self.is_ipv4() {
            [172, 16, 0, 9].into()
        } else {
            "2001:db8:9::9".parse().unwrap()
        };
        let forwarded = macs == TO_CLIENT || macs == TO_HOST;
        let outer = Packet {
            from: SocketAddr::new(router, 0),
            to: about.from,
            hops: if forwarded { 63 } else { 64 },
            ..about.clone()
        };
        // Quoted with the hops that it had left at the router.
        let quoted = Packet {
            hops: 61,
            payload: vec![0; 1400],
            ..about.clone()
        };
        let tcp = quoted.tcp();
        let mut icmp = [&[kind, code, 0, 0][..], &rest, &quoted.ip(TCP, tcp.len()), &tcp[..8]].concat();
        let (protocol, sum) = if self.is_ipv4() {
            (ICMP, checksum(&icmp))
        } else {
            (ICMPV6, outer.checksum(ICMPV6, &icmp))
        };
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        let ethertype = if self.is_ipv4() { [8, 0] } else { [0x86, 0xdd] };
        [&macs[..], &ethertype, &outer.ip(protocol, icmp.len()), &icmp].concat()
    }
}
