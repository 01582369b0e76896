//! A flow whose PROXY header the host has not acknowledged yet: no byte of the client's takes the header's place.

use signalbox_common::Reason;
use signalbox_common::cut::flow::{CutFlow, HEADER_UNACKED, PAIRED};
use signalbox_common::net::header::{ACK, FIN, PSH, RST};

use super::outcome::Action;
use super::packet::Packet;
use super::scene::{CLIENT_ON_A, CLIENT_ON_B, Scene, over_both};

/// Length of the header.
const HEADER: u32 = 37;

fn flow(scene: &Scene) -> CutFlow {
    let mut flow = CutFlow {
        seq_delta_in: (CLIENT_ON_B + HEADER).wrapping_sub(CLIENT_ON_A),
        handoff_end: CLIENT_ON_B + HEADER,
        ..scene.flow()
    };
    flow.dirs[0].flags = PAIRED | HEADER_UNACKED;
    flow
}

#[test]
fn bytes_before_the_clients_first_drop_until_the_header_arrives() {
    over_both(|mut scene| {
        scene.put(&flow(&scene));
        let sends = |scene: &Scene, at: u32, flags| Packet {
            flags,
            payload: vec![b'P'; 100],
            ..scene.client_sends(at, 0)
        };
        for before in [1, HEADER, HEADER + 1, 1000, 1 << 20] {
            for flags in [ACK, ACK | PSH, ACK | FIN] {
                let packet = sends(&scene, before.wrapping_neg(), flags);
                scene.arrives(&packet).dropped(Reason::CutHeaderLost);
            }
        }
        // The first byte is left to the kernel peek, which has the header; a reset and later bytes are forwarded.
        let first = sends(&scene, 0, ACK | PSH);
        scene.arrives(&first).passed_as(Reason::CutHeaderLost, &first);
        let later = sends(&scene, 500, ACK);
        scene.arrives(&later).expect(Action::Redirect, Reason::CutForwarded);
        // An acknowledgement of a part of the header is none of it.
        let part = scene.host_sends(0, HEADER - 1);
        scene.arrives(&part).expect(Action::Redirect, Reason::CutForwarded);
        assert_ne!(scene.flow_now().dirs[0].flags & HEADER_UNACKED, 0);
        let whole = scene.host_sends(0, HEADER);
        scene.arrives(&whole).expect(Action::Redirect, Reason::CutForwarded);
        assert_eq!(scene.flow_now().dirs[0].flags & HEADER_UNACKED, 0);
        scene.arrives(&first).expect(Action::Redirect, Reason::CutForwarded);
    });
    over_both(|mut scene| {
        scene.put(&flow(&scene));
        let reset = Packet {
            flags: RST,
            ..scene.client_sends(0, 0)
        };
        scene.arrives(&reset).expect(Action::Redirect, Reason::CutForwarded);
    });
}
