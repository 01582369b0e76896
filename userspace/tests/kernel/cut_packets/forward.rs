//! A packet of a cut flow is forwarded, in the numbers of the other leg.

use signalbox_common::Reason;
use signalbox_common::cut::CutFlow;
use signalbox_common::cut::flow::{HANDED_OFF, HANDOFF_KNOWN, HANDOFF_UNKNOWN};
use signalbox_common::net::header::ACK;

use super::outcome::Action;
use super::packet::Packet;
use super::scene::{CLIENT_ON_A, CLIENT_ON_B, HOST_ON_A, HOST_ON_B, LEG_A, over_both, over_ipv4};

const PSH: u8 = 8;

#[test]
fn clients_data_goes_to_the_host_with_the_hosts_numbers() {
    over_both(|mut scene| {
        scene.put(&scene.flow());
        let data = |packet: Packet| Packet {
            flags: ACK | PSH,
            payload: b"GET / HTTP/1.1\r\n\r\n!".to_vec(),
            ..packet
        };
        let sent = data(scene.client_sends(100, 7));
        scene.arrives(&sent).forwarded_as(&data(scene.host_receives(100, 7)));
        let [client, host] = scene.flow_now().dirs;
        assert_eq!(
            (client.packets, client.bytes),
            (1, 119),
            "as far as the client has come"
        );
        assert_eq!(client.snd_max, CLIENT_ON_A.wrapping_add(119));
        assert_eq!(client.ack, HOST_ON_A.wrapping_add(7));
        assert_eq!((host.packets, host.last_seen), (0, 0));
    });
}

#[test]
fn hosts_answer_goes_to_the_client() {
    over_both(|mut scene| {
        scene.put(&scene.flow());
        let data = |packet: Packet| Packet {
            payload: vec![0x5a; 1301],
            ..packet
        };
        let sent = data(scene.host_sends(50, 19));
        scene.arrives(&sent).forwarded_as(&data(scene.client_receives(50, 19)));
        let [client, host] = scene.flow_now().dirs;
        assert_eq!((host.packets, host.bytes), (1, 1351));
        assert_eq!(host.snd_max, HOST_ON_B.wrapping_add(1351));
        assert_eq!(host.ack, CLIENT_ON_B.wrapping_add(19));
        assert_eq!((client.packets, client.last_seen), (0, 0));
    });
}

#[test]
fn a_byte_that_is_sent_twice_counts_once() {
    over_both(|mut scene| {
        scene.put(&scene.flow());
        for payload in [100, 100, 40, 150] {
            let payload = vec![1; payload];
            let data = |packet: Packet| Packet {
                payload: payload.clone(),
                ..packet
            };
            let sent = data(scene.client_sends(0, 0));
            scene.arrives(&sent).forwarded_as(&data(scene.host_receives(0, 0)));
        }
        let client = scene.flow_now().dirs[0];
        assert_eq!((client.packets, client.bytes), (4, 150));
    });
}

/// Ethernet fills short packets up.
#[test]
fn padding_is_no_payload() {
    over_ipv4(|mut scene| {
        scene.put(&scene.flow());
        let padded = [scene.client_sends(10, 0).bytes(), vec![0; 6]].concat();
        let outcome = scene.programs.arrives(&padded, LEG_A);
        let after = outcome.expect(Action::Redirect, Reason::CutForwarded);
        assert_eq!(Packet::read(&after[..after.len() - 6]), scene.host_receives(10, 0));
        assert_eq!(scene.flow_now().dirs[0].snd_max, CLIENT_ON_A.wrapping_add(10));
    });
}

#[test]
fn a_window_is_rescaled() {
    over_both(|mut scene| {
        let mut flow = scene.flow();
        // The client writes windows in units of 4 bytes and reads in units of 512; leg B's socket writes in units of
        // 32, and the host in units of 256.
        (flow.scale_a, flow.scale_b) = (2 | 9 << 4, 5 | 8 << 4);
        scene.put(&flow);
        let with = |packet: Packet, window| Packet { window, ..packet };
        for (sent, received) in [(800, 100), (0, 0), (7, 0), (8, 1), (65_535, 8191)] {
            let packet = with(scene.client_sends(0, 0), sent);
            scene
                .arrives(&packet)
                .forwarded_as(&with(scene.host_receives(0, 0), received));
        }
        for (sent, received) in [(800, 400), (0, 0), (1, 0), (2, 1), (65_535, 32_767)] {
            let packet = with(scene.host_sends(0, 0), sent);
            scene
                .arrives(&packet)
                .forwarded_as(&with(scene.client_receives(0, 0), received));
        }
        flow.scale_a = 9 | 2 << 4;
        scene.put(&flow);
        let widest = with(scene.client_sends(0, 0), 65_535);
        scene
            .arrives(&widest)
            .forwarded_as(&with(scene.host_receives(0, 0), 65_535));
    });
}

/// A host drops bytes beyond its window, acknowledgement and all.
#[test]
fn a_bare_ack_ahead_of_delivered_data_is_set_back_for_the_host() {
    over_both(|mut scene| {
        for (drained, put_back) in [(HANDOFF_UNKNOWN, 0), (HANDOFF_KNOWN, 0), (HANDED_OFF, 100)] {
            scene.put(&CutFlow {
                handoff_state: drained,
                ..scene.flow()
            });
            let sent = scene.client_sends(100, 20);
            scene.arrives(&sent).forwarded_as(&scene.host_receives(put_back, 20));
            let data = |packet: Packet| Packet {
                payload: vec![1],
                ..packet
            };
            let sent = data(scene.client_sends(100, 20));
            scene.arrives(&sent).forwarded_as(&data(scene.host_receives(100, 20)));
        }
    });
}
