//! Options whose numbers belong to a leg: selective acknowledgements and timestamps.

use signalbox_common::cut::flow::{CUT_LATE, TS_DELTA_KNOWN, TS_DELTA_UNKNOWN};

use super::clock::milliseconds;
use super::options::{NOP, sack, stamps, usual_stamps};
use super::packet::Packet;
use super::scene::{CLIENT_ON_A, CLIENT_ON_B, HOST_ON_A, HOST_ON_B, over_both};

#[test]
fn sack_blocks_and_timestamps_are_translated() {
    over_both(|mut scene| {
        let mut flow = scene.flow();
        (flow.ts_delta_in, flow.ts_delta_out) = (1000, u32::MAX);
        flow.dirs[0].flags = TS_DELTA_KNOWN;
        scene.put(&flow);
        // Options may be at odd offsets too.
        let options = |stamp: (u32, u32), first: u32| {
            let blocks = [(100, 200), (300, 400)].map(|(a, b)| (first.wrapping_add(a), first.wrapping_add(b)));
            [&NOP, &stamps(stamp.0, stamp.1)[..], &sack(&blocks), &NOP, &NOP, &NOP].concat()
        };
        let with = |packet: Packet, options| Packet { options, ..packet };
        let sent = with(scene.client_sends(0, 10), options((u32::MAX, 77), HOST_ON_A));
        let received = with(scene.host_receives(0, 10), options((999, 78), HOST_ON_B));
        scene.arrives(&sent).forwarded_as(&received);
        assert_eq!(scene.flow_now().dirs[0].ts_val, 999, "the latest one written");
        let sent = with(scene.host_sends(0, 10), options((5000, 1077), CLIENT_ON_B));
        let received = with(scene.client_receives(0, 10), options((4999, 77), CLIENT_ON_A));
        scene.arrives(&sent).forwarded_as(&received);
    });
}

/// PAWS: the host has seen leg B's socket's clock.
#[test]
fn the_clients_clock_goes_on_where_leg_bs_socket_stopped() {
    over_both(|mut scene| {
        let mut flow = scene.flow();
        let ahead = 5_000_000;
        flow.dirs[1].ts_val = ahead;
        flow.ts_delta_out = 300;
        scene.put(&flow);
        let with = |packet: Packet, value, echo| Packet {
            options: usual_stamps(value, echo),
            ..packet
        };
        let early = with(scene.host_sends(0, 0), 1000, 42);
        scene
            .arrives(&early)
            .forwarded_as(&with(scene.client_receives(0, 0), 1300, 0));
        let before = milliseconds();
        let outcome = scene.arrives(&with(scene.client_sends(0, 0), 70, 1300));
        let t1 = scene.flow_now().ts_delta_in;
        let value = t1.wrapping_add(70);
        outcome.forwarded_as(&with(scene.host_receives(0, 0), value, 1000));
        let elapsed = value.wrapping_sub(ahead).wrapping_sub(before);
        assert!(elapsed <= milliseconds() - before, "{elapsed} ms ahead");
        assert_ne!(scene.flow_now().dirs[0].flags & TS_DELTA_KNOWN, 0);
        let later = with(scene.client_sends(0, 0), 75, 1300);
        scene
            .arrives(&later)
            .forwarded_as(&with(scene.host_receives(0, 0), value + 5, 1000));
        let without_echo = with(scene.client_sends(0, 0), 76, 0);
        scene
            .arrives(&without_echo)
            .forwarded_as(&with(scene.host_receives(0, 0), value + 6, 0));
        let answer = with(scene.host_sends(0, 0), 1001, value);
        scene
            .arrives(&answer)
            .forwarded_as(&with(scene.client_receives(0, 0), 1301, 70));
    });
}

/// Retransmissions of leg B's socket bear the latest clock that the host can have seen: with that of an overtaken
/// packet they would be refused forever.
#[test]
fn a_packet_that_was_overtaken_does_not_turn_the_clock_back() {
    over_both(|mut scene| {
        let mut flow = scene.flow();
        flow.ts_delta_in = 100;
        flow.dirs[0].flags = TS_DELTA_KNOWN;
        flow.dirs[0].ts_val = u32::MAX;
        scene.put(&flow);
        for (value, latest) in [(10, 110), (7, 110), (11, 111)] {
            let packet = Packet {
                options: usual_stamps(value, 0),
                ..scene.client_sends(0, 0)
            };
            scene.arrives(&packet);
            assert_eq!(scene.flow_now().dirs[0].ts_val, latest);
        }
    });
}

/// PAWS: the client has seen leg A's socket's clock, which the host's need not have kept pace with.
#[test]
fn a_late_cut_continues_the_clock_that_leg_as_socket_used() {
    over_both(|mut scene| {
        let mut flow = scene.flow();
        let clock = 7_000_000;
        (flow.isn_host, flow.ts_delta_out) = (clock, 12_345);
        flow.dirs[0].flags = TS_DELTA_KNOWN | CUT_LATE;
        flow.dirs[1].flags = TS_DELTA_UNKNOWN;
        scene.put(&flow);
        let with = |packet: Packet, value, echo| Packet {
            options: usual_stamps(value, echo),
            ..packet
        };
        // The echoed value is of a clock that the host does not know yet.
        let early = with(scene.client_sends(0, 0), 5, 99);
        scene
            .arrives(&early)
            .forwarded_as(&with(scene.host_receives(0, 0), 5, 0));
        let before = milliseconds();
        let outcome = scene.arrives(&with(scene.host_sends(0, 0), 1000, 0));
        let now = scene.flow_now();
        let value = now.ts_delta_out.wrapping_add(1000);
        outcome.forwarded_as(&with(scene.client_receives(0, 0), value, 0));
        assert!(value.wrapping_sub(clock).wrapping_sub(before) <= milliseconds() - before);
        assert_eq!(now.dirs[1].flags & TS_DELTA_UNKNOWN, 0);
        let later = with(scene.host_sends(0, 0), 1007, 0);
        scene
            .arrives(&later)
            .forwarded_as(&with(scene.client_receives(0, 0), value + 7, 0));
        let answer = with(scene.client_sends(0, 0), 6, value);
        scene
            .arrives(&answer)
            .forwarded_as(&with(scene.host_receives(0, 0), 6, 1000));
    });
}
