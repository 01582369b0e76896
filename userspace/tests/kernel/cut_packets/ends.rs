//! Ends of a flow, and packets that end none.

use signalbox_common::cut::flow::{CutFlow, FIN_SEEN, PEER_FIN_ACKED, RESET, RESET_TENTATIVE};
use signalbox_common::net::header::{ACK, FIN, RST};

use super::flows::{INDEX, NO_FLOW};
use super::packet::Packet;
use super::scene::{Scene, over_both};

#[test]
fn a_fin_and_its_acknowledgement_end_the_flow_and_are_told() {
    over_both(|mut scene| {
        scene.put(&scene.flow());
        let fin = |packet: Packet| with_flags(packet, FIN | ACK);
        scene
            .arrives(&fin(scene.client_sends(0, 0)))
            .forwarded_as(&fin(scene.host_receives(0, 0)));
        scene
            .arrives(&scene.host_sends(0, 1))
            .forwarded_as(&scene.client_receives(0, 1));
        let [client, host] = scene.flow_now().dirs.map(|way| way.flags);
        assert_eq!((client, host), (FIN_SEEN, PEER_FIN_ACKED), "half closed");
        scene
            .arrives(&fin(scene.host_sends(0, 1)))
            .forwarded_as(&fin(scene.client_receives(0, 1)));
        assert!(!scene.flow_now().ended());
        assert_eq!(scene.programs.told(), NO_FLOW, "the client has not acknowledged it");
        scene
            .arrives(&scene.client_sends(1, 1))
            .forwarded_as(&scene.host_receives(1, 1));
        assert!(scene.flow_now().ended());
        assert_eq!(scene.programs.told(), [INDEX]);
        scene
            .arrives(&scene.client_sends(1, 1))
            .forwarded_as(&scene.host_receives(1, 1));
        assert_eq!(scene.programs.told(), NO_FLOW, "once");
        assert_eq!(scene.flow_now().dirs.map(|way| way.bytes), [0, 0], "a FIN is no byte");
        // The host's socket is gone, and answers the second acknowledgement with a reset.
        scene.reset(false, 1, RST);
        assert!(scene.flow_now().finished(), "the flow had finished before the reset");
    });
}

#[test]
fn a_reset_at_the_expected_number_ends_the_flow_and_is_reported() {
    over_both(|mut scene| {
        for (from_client, flags) in [(true, RST), (true, RST | ACK), (false, RST), (false, RST | ACK)] {
            scene.put(&scene.flow());
            scene.reset(from_client, 0, flags);
            let way = scene.flow_now().dirs[usize::from(!from_client)];
            assert_eq!(way.flags, RESET);
            assert!(scene.flow_now().ended());
            assert_eq!(scene.programs.told(), [INDEX]);
        }
    });
}

/// The reset is forwarded, because its receiver knows best: it answers with an acknowledgement (RFC 5961).
#[test]
fn a_reset_off_its_number_changes_nothing() {
    over_both(|mut scene| {
        for at in [1, 1000, u32::MAX] {
            for from_client in [true, false] {
                scene.put(&scene.flow());
                scene.reset(from_client, at, RST);
                assert_eq!(scene.but_for_counts(from_client), scene.flow());
                assert_eq!(scene.programs.told(), NO_FLOW);
            }
        }
    });
}

/// A sender that aborts with bytes under way writes such a reset. It counts if they have all arrived.
#[test]
fn a_reset_behind_bytes_that_are_under_way_is_doubted() {
    over_both(|mut scene| {
        for from_client in [true, false] {
            scene.put(&scene.flow());
            scene.says(from_client, 0, ACK, 100);
            scene.reset(from_client, 100, RST);
            let way = usize::from(!from_client);
            assert_eq!(scene.flow_now().dirs[way].flags, RESET_TENTATIVE);
            assert_eq!(scene.programs.told(), NO_FLOW);
            scene.says(from_client, 100, ACK, 100);
            assert_eq!(scene.flow_now().dirs[way].flags, 0, "it goes on");
        }
    });
}

/// An attacker who knows addresses and ports, but no numbers.
#[test]
fn a_segment_far_off_the_numbers_changes_nothing() {
    over_both(|mut scene| {
        for from_client in [true, false] {
            for flags in [ACK, FIN | ACK, FIN] {
                for at in [1 << 30, 1 << 31, 0xc000_0000] {
                    scene.put(&scene.flow());
                    scene.says(from_client, at, flags, 5);
                    assert_eq!(scene.but_for_counts(from_client), scene.flow(), "{at:#x}");
                }
            }
        }
        assert_eq!(scene.programs.told(), NO_FLOW);
    });
}

impl Scene {
    /// A packet that is forwarded.
    #[track_caller]
    fn says(&self, from_client: bool, at: u32, flags: u8, payload: usize) {
        let of = |packet: Packet| Packet {
            flags,
            // Not translated in packets without ACK, where it has no meaning.
            ack: if flags & ACK == 0 { 0 } else { packet.ack },
            payload: vec![7; payload],
            ..packet
        };
        let (comes, goes) = if from_client {
            (self.client_sends(at, 0), self.host_receives(at, 0))
        } else {
            (self.host_sends(at, 0), self.client_receives(at, 0))
        };
        self.arrives(&of(comes)).forwarded_as(&of(goes));
    }

    #[track_caller]
    fn reset(&self, from_client: bool, at: u32, flags: u8) {
        self.says(from_client, at, flags, 0);
    }

    /// The flow as it is now, without the one packet of this direction.
    #[track_caller]
    fn but_for_counts(&self, from_client: bool) -> CutFlow {
        let mut flow = self.flow_now();
        let way = &mut flow.dirs[usize::from(!from_client)];
        assert_eq!(std::mem::take(&mut way.packets), 1);
        assert_ne!(std::mem::take(&mut way.last_seen), 0);
        flow
    }
}

fn with_flags(packet: Packet, flags: u8) -> Packet {
    Packet { flags, ..packet }
}
