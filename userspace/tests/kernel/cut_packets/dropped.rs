//! Packets that are not touched, and packets of a cut flow that cannot be forwarded. The latter are dropped, never
//! passed up: the kernel has no socket for the flow any more.

use signalbox_common::Reason;
use signalbox_common::cut::flow::{CutFlow, state};
use signalbox_common::net::header::{ACK, FIN, RST, SYN};

use super::outcome::Action;
use super::packet::{ETH, Packet, TCP};
use super::raw::{chained, extended, fragment, with_options};
use super::scene::{CLIENT_ON_B, HOST_ON_A, over_both, over_ipv4, over_ipv6};

/// IPv6 extension headers.
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const DESTINATION: u8 = 60;

#[test]
fn a_packet_of_no_flow_passes() {
    over_both(|mut scene| {
        scene.put(&scene.flow());
        let known = scene.client_sends(5, 5);
        let port = |mut packet: Packet, from: i32, to: i32| {
            packet.from.set_port((i32::from(packet.from.port()) + from) as u16);
            packet.to.set_port((i32::from(packet.to.port()) + to) as u16);
            packet
        };
        let mut swapped = known.clone();
        (swapped.from, swapped.to) = (known.to, known.from);
        for packet in [port(known.clone(), 1, 0), port(known, 0, -1), swapped] {
            for flags in [ACK, SYN, SYN | ACK, RST, FIN | ACK, 0] {
                let packet = Packet {
                    flags,
                    ..packet.clone()
                };
                scene.arrives(&packet).passed_as(Reason::CutMiss, &packet);
            }
        }
        assert_eq!(scene.flow_now(), scene.flow());
    });
}

#[test]
fn packets_other_than_plain_tcp_pass_unchanged() {
    over_both(|mut scene| {
        scene.put(&scene.flow());
        let packet = scene.client_sends(5, 5);
        let bytes = packet.bytes();
        let udp = [&bytes[..ETH], &packet.ip(17, 20), &packet.tcp()].concat();
        let mut arp = bytes.clone();
        arp[12..ETH].copy_from_slice(&[8, 6]);
        let tagged = [&bytes[..12], &[0x81, 0, 0, 5], &bytes[12..]].concat();
        for other in [udp, arp, tagged] {
            let after = scene.receives(&other).expect(Action::Pass, Reason::CutNotTcp);
            assert_eq!(after, other);
        }
        assert_eq!(scene.flow_now(), scene.flow());
    });
}

#[test]
fn a_fragment_of_a_cut_flow_is_dropped() {
    over_both(|mut scene| {
        let first = fragment(&scene.client_sends(5, 5));
        let after = scene.receives(&first).expect(Action::Pass, Reason::CutMiss);
        assert_eq!(after, first, "of no flow");
        scene.put(&scene.flow());
        let reason = if scene.is_ipv4() {
            Reason::CutFragment
        } else {
            Reason::CutExtended
        };
        scene.receives(&first).dropped(reason);
        scene.receives(&fragment(&scene.host_sends(5, 5))).dropped(reason);
        assert_eq!(scene.flow_now(), scene.flow());
    });
}

#[test]
fn an_ipv4_packet_with_options_of_a_flow_is_dropped() {
    over_ipv4(|mut scene| {
        for words in [1, 10] {
            let stranger = Packet {
                from: "198.51.100.7:40001".parse().unwrap(),
                ..scene.client_sends(5, 5)
            };
            let stranger = with_options(&stranger, words);
            scene.put(&scene.flow());
            let after = scene.receives(&stranger).expect(Action::Pass, Reason::CutMiss);
            assert_eq!(after, stranger, "of no flow");
            for ours in [scene.client_sends(5, 5), scene.host_sends(5, 5)] {
                let bytes = with_options(&ours, words);
                scene.receives(&bytes).dropped(Reason::CutExtended);
            }
        }
        assert_eq!(scene.flow_now(), scene.flow());
    });
}

#[test]
fn an_ipv6_packet_with_an_extension_header_of_a_flow_is_dropped() {
    over_ipv6(|mut scene| {
        for kind in [HOP_BY_HOP, ROUTING, DESTINATION] {
            for length in [8, 24] {
                let bytes = extended(&scene.client_sends(5, 5), kind, &vec![0; length]);
                scene.forget();
                let after = scene.receives(&bytes).expect(Action::Pass, Reason::CutMiss);
                assert_eq!(after, bytes, "of no flow");
                scene.put(&scene.flow());
                scene.receives(&bytes).dropped(Reason::CutExtended);
            }
        }
    });
}

#[test]
fn a_hop_limit_of_one_is_dropped() {
    over_both(|mut scene| {
        scene.put(&scene.flow());
        for hops in [1, 0] {
            for packet in [scene.client_sends(5, 5), scene.host_sends(5, 5)] {
                let packet = Packet { hops, ..packet };
                scene.arrives(&packet).dropped(Reason::CutHops);
            }
        }
        assert_eq!(scene.flow_now(), scene.flow());
        let with = |packet: Packet, hops| Packet { hops, ..packet };
        let two = with(scene.client_sends(5, 5), 2);
        scene.arrives(&two).forwarded_as(&with(scene.host_receives(5, 5), 1));
    });
}

#[test]
fn a_packet_that_cannot_be_understood_is_dropped() {
    over_both(|mut scene| {
        scene.put(&scene.flow());
        let good = scene.client_sends(5, 5);
        let options = |options: [u8; 4]| {
            let options = options.to_vec();
            Packet {
                options,
                ..good.clone()
            }
            .bytes()
        };
        let tcp = good.bytes().len() - 20;
        let header_length = |words: u8| {
            let mut bytes = good.bytes();
            bytes[tcp + 12] = words << 4;
            bytes
        };
        let cut_off = good.bytes()[..tcp + 8].to_vec();
        // An option longer than the header, one without an end, a header below the least, one beyond the packet.
        for bytes in [
            options([1, 8, 10, 0]),
            options([5, 0, 0, 0]),
            header_length(4),
            header_length(6),
            cut_off,
        ] {
            scene.receives(&bytes).dropped(Reason::CutMalformed);
        }
        assert_eq!(scene.flow_now(), scene.flow());
    });
}

#[test]
fn a_closing_flow_drops() {
    over_both(|mut scene| {
        scene.put(&CutFlow {
            state: state::CLOSING,
            ..scene.flow()
        });
        for heard in [900, 100] {
            scene.arrives(&scene.client_sends(0, heard)).dropped(Reason::CutClosing);
        }
        scene.arrives(&scene.host_sends(0, 500)).dropped(Reason::CutClosing);
        let reset = Packet {
            flags: RST | ACK,
            ..scene.host_sends(0, 7000)
        };
        scene.arrives(&reset).dropped(Reason::CutClosing);
        // The numbers that both ends expect are kept for the resets that userspace sends.
        let mut wanted = scene.flow();
        wanted.state = state::CLOSING;
        wanted.dirs[0].ack = HOST_ON_A.wrapping_add(900);
        wanted.dirs[1].ack = CLIENT_ON_B.wrapping_add(500);
        assert_eq!(scene.flow_now(), wanted);
    });
}

/// The kernel answers with a reset that `cut_out` drops.
#[test]
fn an_ipv6_packet_with_two_extension_headers_goes_to_the_kernel() {
    over_ipv6(|mut scene| {
        scene.put(&scene.flow());
        let mut headers = vec![0; 16];
        (headers[0], headers[8]) = (DESTINATION, TCP);
        let bytes = chained(&scene.client_sends(5, 5), ROUTING, &headers);
        assert_eq!(scene.receives(&bytes).expect(Action::Pass, Reason::CutNotTcp), bytes);
        assert_eq!(scene.flow_now(), scene.flow());
    });
}

#[test]
fn an_ipv6_packet_with_a_long_extension_goes_to_the_kernel() {
    over_ipv6(|mut scene| {
        scene.put(&scene.flow());
        let bytes = extended(&scene.client_sends(5, 5), DESTINATION, &[0; 136]);
        assert_eq!(scene.receives(&bytes).expect(Action::Pass, Reason::CutMiss), bytes);
        assert_eq!(scene.flow_now(), scene.flow());
    });
}

/// The host would drop it, and the flow would count bytes that do not exist.
#[test]
fn a_packet_that_ends_before_it_says_is_dropped() {
    over_both(|mut scene| {
        scene.put(&scene.flow());
        let whole = Packet {
            payload: vec![1; 1000],
            ..scene.client_sends(0, 0)
        };
        let bytes = whole.bytes();
        scene
            .receives(&bytes[..bytes.len() - 900])
            .dropped(Reason::CutMalformed);
        assert_eq!(scene.flow_now(), scene.flow());
    });
}

/// A reset at a number that a stranger has made up does not reach its end.
#[test]
fn an_ack_far_out_of_range_does_not_move_a_closing_flow() {
    over_both(|mut scene| {
        let closing = CutFlow {
            state: state::CLOSING,
            ..scene.flow()
        };
        scene.put(&closing);
        for packet in [scene.client_sends(0, 1 << 30), scene.host_sends(0, 1 << 30)] {
            scene.arrives(&packet).dropped(Reason::CutClosing);
        }
        assert_eq!(scene.flow_now(), closing);
    });
}
