//! Connections that are routed in the kernel, and those that get a socket instead.

use crate::lab;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use lab::cut::{self, expect_cut, expect_none, finish};
use lab::impair::{Impaired, Odds};
use lab::tiers::ping;
use lab::transfers::{self, Load};
use lab::{Router, SOON, Signalbox, config, eventually, http};

use super::{PEEK, doors, exits, expect_routes, sockets, start, start_with};

#[test]
fn a_name_leads_to_its_host_and_no_socket_takes_part() {
    let Some(lab) = super::lab("a_name_leads_to_its_host_and_no_socket_takes_part") else {
        return;
    };
    let (_health, hosts, sb) = start(&lab);
    for (n, door) in (1..).zip(doors()) {
        let (client, host) = door.enter(&lab, &hosts);
        assert_eq!(sockets(&lab), "", "{} at {}", door.listener, door.at);
        let shown = expect_cut(&sb, &client);
        for (key, expected) in [
            ("listener", door.listener),
            ("cluster", door.cluster),
            ("host", door.host),
        ] {
            assert_eq!(shown[key], expected, "{shown}");
        }
        let active = || sb.host(door.host)["active_connections"] == 1;
        assert!(eventually(SOON, active), "{}", sb.host(door.host));
        for _ in 0..20 {
            ping(&client, &host);
            ping(&host, &client);
        }
        assert_eq!((exits(&sb, "routed"), exits(&sb, "delivered")), (n, n));
        finish(&client, &host);
        expect_none(&sb);
        assert!(eventually(SOON, || sb.host(door.host)["active_connections"] == 0));
    }
    assert_eq!(exits(&sb, "passed_up"), 0);
}

/// A foreign program that accepts each packet: those after it in order see none.
#[test]
fn a_foreign_accept_all_program_hides_no_packet_from_the_peek() {
    let Some(lab) = super::lab("a_foreign_accept_all_program_hides_no_packet_from_the_peek") else {
        return;
    };
    let _foreign = ["client", "back"].map(|device| Impaired::new(&lab.lb, device, Odds::GOOD));
    let (_health, hosts, sb) = start(&lab);
    for (n, door) in (1..).zip(doors()) {
        let (client, host) = door.enter(&lab, &hosts);
        expect_cut(&sb, &client);
        ping(&client, &host);
        assert_eq!((exits(&sb, "routed"), exits(&sb, "delivered")), (n, n));
        finish(&client, &host);
    }
    assert_eq!(exits(&sb, "passed_up"), 0);
}

#[test]
fn bytes_arrive_whole_on_good_links_and_on_bad_ones() {
    let Some(lab) = super::lab("bytes_arrive_whole_on_good_links_and_on_bad_ones") else {
        return;
    };
    let _servers = transfers::servers_of(&lab, doors());
    let (_health, sb) = cut::start(&lab, PEEK);
    expect_routes(&sb, 4);
    let load = Load {
        at_once: 16,
        count: 200,
        most: 300_000,
        patience: Duration::from_secs(60),
    };
    for (seed, door) in (1..).zip(doors()) {
        load.must(&lab, &door, seed);
    }
    assert_eq!(exits(&sb, "routed"), 800, "{}", sb.get("/metrics").1);
    let _client = Impaired::client_link(&lab, Odds::ALL);
    let _hosts = ["east-1", "west-1"].map(|host| Impaired::host_link(&lab, host, Odds::ALL));
    for (seed, door) in (11..).zip(doors()) {
        load.must(&lab, &door, seed);
    }
    // First data after a lost acknowledgement or a lost SYN is still routed.
    assert!(exits(&sb, "routed") >= 1500, "{}", sb.get("/metrics").1);
    expect_none(&sb);
}

/// A request, in pieces, and the beginning of its answer.
struct Odd {
    what: &'static str,
    pieces: &'static [&'static str],
    ends: bool,
    answer: &'static str,
}

const ODD: [Odd; 7] = [
    Odd {
        what: "a name without a route",
        pieces: &["GET / HTTP/1.1\r\nHost: c.test\r\n\r\n"],
        ends: false,
        answer: "HTTP/1.1 404",
    },
    Odd {
        what: "no host",
        pieces: &["GET / HTTP/1.1\r\nAccept: */*\r\n\r\n"],
        ends: false,
        answer: "HTTP/1.1 400",
    },
    Odd {
        what: "two hosts",
        pieces: &["GET / HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n"],
        ends: false,
        answer: "HTTP/1.1 400",
    },
    Odd {
        what: "a head in pieces",
        pieces: &["GET / HTT", "P/1.1\r\nHo", "st: a.test\r\n\r\n"],
        ends: false,
        answer: "HTTP/1.1 200",
    },
    Odd {
        what: "the absolute form",
        pieces: &["GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n"],
        ends: false,
        answer: "HTTP/1.1 200",
    },
    Odd {
        what: "an end behind the request",
        pieces: &["GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"],
        ends: true,
        answer: "HTTP/1.1 200",
    },
    Odd {
        what: "no HTTP",
        pieces: &["\u{1}\u{2}\u{3}\u{4} nothing\r\n\r\n"],
        ends: false,
        answer: "HTTP/1.1 400",
    },
];

#[test]
fn requests_passed_up_by_the_kernel_peek_are_answered_as_usual() {
    let Some(lab) = super::lab("requests_passed_up_by_the_kernel_peek_are_answered_as_usual") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let sb = start_with(&lab, &cut::body(PEEK), 2);
    sb.wait_healthy(&["east-1"]);
    for odd in &ODD {
        let before = exits(&sb, "passed_up");
        let mut client = lab.client.connect("10.1.0.1:80");
        client.set_nodelay(true).unwrap();
        for piece in odd.pieces {
            client.write_all(piece.as_bytes()).unwrap();
            // Otherwise a piece would be put together with the one before in the client's queue.
            std::thread::sleep(Duration::from_millis(if odd.pieces.len() > 1 { 30 } else { 0 }));
        }
        if odd.ends {
            client.shutdown(Shutdown::Write).unwrap();
        }
        let mut answer = vec![0; odd.answer.len()];
        client
            .read_exact(&mut answer)
            .unwrap_or_else(|error| panic!("{}: {error}", odd.what));
        assert_eq!(String::from_utf8_lossy(&answer), odd.answer, "{}", odd.what);
        if !odd.ends {
            assert_eq!(exits(&sb, "passed_up"), before + 1, "{}", odd.what);
        }
    }
    assert_eq!(exits(&sb, "pass_up_failed"), 0);
}

#[test]
fn weights_are_exact_and_shared_with_what_userspace_says() {
    let Some(lab) = super::lab("weights_are_exact_and_shared_with_what_userspace_says") else {
        return;
    };
    let _routers = Router::start_all(&lab, &["east-1", "east-2", "east-3"]);
    let clusters = config::cluster("old", &["balance: round-robin"], &["east-1", "east-2"])
        + &config::cluster("new", &[], &["east-3"]);
    let with = |weights: &str| {
        format!(
            "{PEEK}\n{}clusters:\n{clusters}routes:\n  - {{ host: a.test, clusters: {{ {weights} }} }}\n",
            config::WEB_LISTENERS
        )
    };
    let sb = start_with(&lab, &with("old: 80, new: 10"), 2);
    sb.wait_healthy(&["east-1", "east-2", "east-3"]);
    // The hosts of a cluster take turns, too: forty for each of the old ones.
    let ninety = |sb: &Signalbox, expected: [usize; 3]| {
        let before = exits(sb, "routed");
        let answers: Vec<String> = (0..90)
            .map(|_| http::ask(&lab, "10.1.0.1:80", "a.test").field("host"))
            .collect();
        assert_eq!(exits(sb, "routed"), before + 90);
        let of = |name: &str| answers.iter().filter(|host| *host == name).count();
        assert_eq!(["east-1", "east-2", "east-3"].map(of), expected);
    };
    // Until all three are known to be up the turns differ.
    let settled = || {
        let hosts = ["east-1", "east-2", "east-3"];
        hosts.iter().all(|host| sb.host(host)["health"] == "healthy")
    };
    assert!(eventually(SOON, settled));
    std::thread::sleep(Duration::from_millis(200));
    ninety(&sb, [40, 40, 10]);
    sb.reload(&with("old: 10, new: 80"));
    std::thread::sleep(Duration::from_millis(200));
    ninety(&sb, [5, 5, 80]);
}
