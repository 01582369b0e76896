//! Senders that guess cookies, or whose answers would go elsewhere.

use crate::lab;

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use lab::raw::{ACK, SYN, Segment};
use lab::{Ns, Router, SOON, cut, eventually, http, lab_test};

use super::{PEEK, exits, start, start_with};

/// Tells a thread to stop when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Sends first data with wrong cookies, until `stop` is set.
fn guess(client: &Ns, stop: &AtomicBool) {
    for number in (0..u32::MAX).step_by(1 << 20).cycle() {
        if stop.load(Relaxed) {
            return;
        }
        let guess = Segment {
            from: "10.1.0.2:999".parse().unwrap(),
            to: "10.1.0.1:80".parse().unwrap(),
            seq: 1,
            ack: number,
            flags: ACK,
            payload: b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
        };
        guess.send(client);
    }
}

/// Without timestamps a cookie has 28 bits to guess.
#[test]
fn clients_of_a_source_that_guesses_have_sockets_meanwhile() {
    let Some(lab) = super::lab("clients_of_a_source_that_guesses_have_sockets_meanwhile") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let sb = start_with(&lab, &cut::body(PEEK), 2);
    sb.wait_healthy(&["east-1"]);
    let ask = || assert_eq!(http::ask(&lab, "10.1.0.1:80", "a.test").field("host"), "east-1");
    // The form of Windows' SYN without a window scale.
    lab.client.must(&[
        "sysctl",
        "-qw",
        "net.ipv4.tcp_timestamps=0",
        "net.ipv4.tcp_window_scaling=0",
    ]);
    ask();
    assert_eq!((exits(&sb, "syn_answered"), exits(&sb, "routed")), (1, 1));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A failed assertion too ends it.
        let _stop = Stop(&stop);
        scope.spawn(|| guess(&lab.client, &stop));
        // With many guesses in each second, some SYN comes after the first of them.
        let is_left = || {
            // A client that already has a cookie is reset.
            let mut client = lab.client.connect("10.1.0.1:80");
            let asked = client.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
            let _ = asked.and_then(|()| client.read_exact(&mut [0; 12]));
            exits(&sb, "syn_passed") >= 1
        };
        assert!(eventually(SOON, is_left), "{}", sb.get("/metrics").1);
        (0..20).for_each(|_| ask());
        assert!(exits(&sb, "cookie_wrong") >= 64);
        // Cookies with timestamps are still accepted.
        lab.client.must(&["sysctl", "-qw", "net.ipv4.tcp_timestamps=1"]);
        let before = (exits(&sb, "syn_passed"), exits(&sb, "routed"));
        ask();
        assert_eq!(
            (exits(&sb, "syn_passed"), exits(&sb, "routed")),
            (before.0, before.1 + 1)
        );
    });
    lab.client.must(&["sysctl", "-qw", "net.ipv4.tcp_timestamps=0"]);
    let is_believed = || {
        let before = exits(&sb, "routed");
        ask();
        exits(&sb, "routed") > before
    };
    assert!(eventually(SOON, is_believed), "{}", sb.get("/metrics").1);
}

/// TCP options without which a SYN has no cookie: an MSS of 1440, and selective acknowledgements.
const MSS_AND_SACK: [u8; 8] = [2, 4, 5, 160, 4, 2, 1, 1];

/// Linux drops IPv6 packets of an IPv4-mapped source, which the program would take for an IPv4 client.
#[test]
fn a_syn_of_an_ipv4_mapped_source_is_left_to_the_kernel() {
    let Some(lab) = super::lab("a_syn_of_an_ipv4_mapped_source_is_left_to_the_kernel") else {
        return;
    };
    let (_health, _hosts, sb) = start(&lab);
    for source in ["[::ffff:10.1.0.2]:999", "[fd00:1::2]:999"] {
        let syn = Segment {
            from: source.parse().unwrap(),
            to: "[fd00:1::1]:80".parse().unwrap(),
            seq: 1,
            ack: 0,
            flags: SYN,
            payload: &[],
        };
        syn.send_with_header(&lab.client, &MSS_AND_SACK);
    }
    // Both SYNs arrive in this order.
    assert!(
        eventually(SOON, || exits(&sb, "syn_answered") >= 1),
        "{}",
        sb.get("/metrics").1
    );
    assert_eq!((exits(&sb, "syn_answered"), exits(&sb, "syn_passed")), (1, 1));
}

/// A cookie proves that its client gets packets sent to its address: a client that only claims the address never sees
/// it.
#[test]
fn a_syn_from_where_its_sender_is_not_is_left_to_the_kernel() {
    let Some(lab) = super::lab("a_syn_from_where_its_sender_is_not_is_left_to_the_kernel") else {
        return;
    };
    let (_health, _hosts, sb) = start(&lab);
    // The kernel gives programs routes only where it forwards.
    lab.lb.sysctl(&["net.ipv4.ip_forward=1"]).unwrap();
    let neighbour = lab.host("east-1");
    neighbour
        .ip("addr add 10.1.0.77/32 dev lo\nroute add 10.1.0.0/24 via 10.2.0.1")
        .unwrap();
    neighbour.run(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let from: SocketAddr = "10.1.0.77:0".parse().unwrap();
        socket.bind(&from.into()).unwrap();
        let to: SocketAddr = "10.1.0.1:80".parse().unwrap();
        let _ = socket.connect_timeout(&to.into(), Duration::from_millis(300));
    });
    assert!(
        eventually(SOON, || exits(&sb, "syn_passed") >= 1),
        "{}",
        sb.get("/metrics").1
    );
    assert_eq!(exits(&sb, "syn_answered"), 0);
}

/// The kernel takes no connection from such an address, or rules alone decide.
#[lab_test]
fn syns_from_addresses_of_no_client_are_left_to_the_kernel() {
    let lab = cut::lab();
    let (_health, _hosts, sb) = start(&lab);
    // The client answers for all of them, and nothing else refuses their packets.
    lab.lb
        .sysctl(&["net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.client.rp_filter=0"])
        .unwrap();
    lab.lb.must(&["ip", "route", "add", "default", "via", "10.1.0.2"]);
    let answered = |from: &str| {
        let from: SocketAddr = from.parse().unwrap();
        let to = if from.is_ipv4() {
            "10.1.0.1:80"
        } else {
            "[fd00:1::1]:80"
        };
        let syn = Segment {
            from,
            to: to.parse().unwrap(),
            seq: 1,
            ack: 0,
            flags: SYN,
            payload: &[],
        };
        let seen = || (exits(&sb, "syn_answered"), exits(&sb, "syn_passed"));
        let before = seen();
        syn.send_with_header(&lab.client, &MSS_AND_SACK);
        assert!(
            eventually(SOON, || seen() != before),
            "{from}: {}",
            sb.get("/metrics").1
        );
        seen().0 > before.0
    };
    // The second one is an address like any other, since Linux 5.3.
    for client in ["10.1.0.2:999", "0.1.2.3:999", "[fd00:1::2]:999"] {
        assert!(answered(client), "{client}");
    }
    for other in [
        "127.9.9.9:999",
        "224.1.1.1:999",
        "239.255.255.255:999",
        "255.255.255.255:999",
    ] {
        assert!(!answered(other), "{other}");
    }
    for other in ["[::]:999", "[::1]:999", "[ff02::9]:999"] {
        assert!(!answered(other), "{other}");
    }
}

/// A machine that does not forward gives programs no routes: they answer by the interface that the SYN came by, if the
/// path back leads there.
#[test]
fn without_forwarding_only_a_syn_with_a_path_back_is_answered() {
    let test = "without_forwarding_only_a_syn_with_a_path_back_is_answered";
    let Some(lab) = super::lab(test) else { return };
    lab.lb.sysctl(&["net.ipv4.ip_forward=0"]).unwrap();
    let (_health, _hosts, sb) = start(&lab);
    let is_answered = || {
        let before = (exits(&sb, "syn_answered"), exits(&sb, "syn_passed"));
        drop(lab.client.connect("10.1.0.1:80"));
        let after = (exits(&sb, "syn_answered"), exits(&sb, "syn_passed"));
        assert_eq!(after.0 + after.1, before.0 + before.1 + 1, "{}", sb.get("/metrics").1);
        after.0 > before.0
    };
    assert!(eventually(SOON, is_answered), "no interface has a router");
    // Other networks are reached by another interface: a client that is not on the link would not get the answer.
    lab.lb.ip("route add default via 10.2.0.2").unwrap();
    assert!(eventually(SOON, || !is_answered()));
    lab.lb.ip("route replace default via 10.1.0.2").unwrap();
    assert!(eventually(SOON, is_answered));
}
