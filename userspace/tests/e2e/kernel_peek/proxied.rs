//! PROXY headers that the program writes in front of first data, also where packets are lost.

use crate::lab;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;

use lab::cut::{self, CutLab, Hosts, finish};
use lab::impair::{Impaired, Odds};
use lab::tiers::ping;
use lab::{Router, Signalbox, config, http, lab_test, servers};
use signalbox_core::wire::peek::proxy::v2_header;

use super::{PEEK, doors, exits, expect_routes};

const PROXY: &str = "proxy_protocol: v2";

/// Reads a host's bytes, which must be these.
fn expect(mut host: &TcpStream, bytes: &[u8], what: &str) {
    let mut got = vec![0; bytes.len()];
    host.read_exact(&mut got).unwrap();
    assert_eq!(got, bytes, "{what}");
}

/// Signalbox in front of hosts that the test serves.
fn start(lab: &CutLab) -> (Hosts, Vec<servers::Server>, Signalbox) {
    let hosts = Hosts::start(lab);
    let health = ["east-1", "west-1"].map(|host| servers::healthy(lab.host(host)));
    let sb = Signalbox::start(lab, &cut::body_with(PEEK, PROXY));
    sb.wait_healthy(&["east-1", "west-1"]);
    expect_routes(&sb, 4);
    (hosts, health.into(), sb)
}

#[lab_test]
fn the_header_is_the_one_that_a_worker_writes() {
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    let (hosts, _health, sb) = start(&lab);
    for door in doors() {
        // In one segment, and in two, of which the second one begins in the middle of the data.
        for length in [door.first.len(), 2600] {
            let mut first = door.first.clone();
            if door.port == 80 && length > first.len() {
                let filler = "x".repeat(length - first.len() - 8);
                first.splice(first.len() - 2.., format!("A: {filler}\r\n\r\n").into_bytes());
            }
            let what = format!("{} bytes to {}", first.len(), door.at);
            let before = exits(&sb, "routed");
            let mut client = lab.client.connect(door.at);
            client.write_all(&first).unwrap();
            let host: Arc<TcpStream> = hosts.accept(door.host, door.port);
            let name = if door.cluster == "east" { "a.test" } else { "b.test" };
            let at: SocketAddr = door.at.parse().unwrap();
            expect(&host, &v2_header(client.local_addr().unwrap(), at, Some(name)), &what);
            expect(&host, &first, &what);
            assert_eq!(exits(&sb, "routed") - before, 1, "{what}");
            ping(&client, &host);
            ping(&host, &client);
            finish(&client, &host);
        }
    }
    cut::expect_none(&sb);
}

/// Signalbox in front of an HAProxy that demands the header, or gets none.
fn start_haproxy(lab: &CutLab, gets_header: bool) -> (Router, Signalbox) {
    let (router, proxy) = if gets_header {
        (Router::accept_proxy(lab, "east-1"), PROXY)
    } else {
        (Router::start(lab, "east-1"), "proxy_protocol: none")
    };
    let east = config::cluster("east", &[proxy, cut::PATIENT[1]], &["east-1"]);
    let body = format!(
        "{PEEK}\n{}clusters:\n{east}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
        config::WEB_LISTENERS
    );
    let sb = Signalbox::start(lab, &body);
    sb.wait_healthy(&["east-1"]);
    expect_routes(&sb, 2);
    (router, sb)
}

/// Asks for a page, with a head of some 2600 bytes or a small one, and expects the host to know the client.
fn ask(lab: &CutLab, is_long: bool) {
    let answer = answer(lab, is_long);
    assert_eq!((answer.status, answer.field("client")), (200, "10.1.0.2".into()));
    assert_eq!(answer.field("to"), "10.1.0.1:80");
}

fn answer(lab: &CutLab, is_long: bool) -> http::Response {
    let filler = if is_long { "x".repeat(2500) } else { String::new() };
    let request = format!("GET / HTTP/1.1\r\nHost: a.test\r\nA: {filler}\r\nConnection: close\r\n\r\n");
    http::request(lab.client.connect("10.1.0.1:80"), &request).unwrap()
}

#[lab_test]
fn haproxy_and_nginx_know_the_client_of_each_connection() {
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    let (_haproxy, sb) = start_haproxy(&lab, true);
    for _ in 0..20 {
        ask(&lab, false);
        ask(&lab, true);
    }
    let tls = http::curl(&lab, "10.1.0.1", &["https://a.test/"]);
    assert_eq!(http::field(&tls.body, "client"), "10.1.0.2", "{}", tls.trace);
    assert_eq!(http::field(&tls.body, "sni"), "a.test", "{}", tls.trace);
    assert!(exits(&sb, "routed") >= 41);

    let trust = "set_real_ip_from ::/0; real_ip_header proxy_protocol;";
    let _nginx = Router::nginx_with(&lab, "west-1", " proxy_protocol", trust);
    let west = config::cluster("west", &[PROXY], &["west-1"]);
    sb.reload(&format!(
        "{PEEK}\n{}clusters:\n{west}routes:\n  - {{ host: a.test, clusters: {{ west: 1 }} }}\n",
        config::WEB_LISTENERS
    ));
    sb.wait_healthy(&["west-1"]);
    let before = exits(&sb, "routed");
    let tls = http::curl(&lab, "[fd00:1::1]", &["https://a.test/"]);
    assert_eq!(http::field(&tls.body, "client"), "fd00:1::2", "{}", tls.trace);
    assert!(exits(&sb, "routed") > before);
}

#[lab_test]
fn each_packet_to_and_from_a_host_may_be_lost_in_turn() {
    if cut::lenient() {
        return;
    }
    for gets_header in [true, false] {
        let lab = cut::lab();
        let (_router, sb) = start_haproxy(&lab, gets_header);
        lose_each_packet(&lab, gets_header);
        assert_eq!(exits(&sb, "header_repeated") > 0, gets_header);
    }
}

fn lose_each_packet(lab: &CutLab, gets_header: bool) {
    let host = lab.host("east-1");
    host.must(&["sysctl", "-qw", "net.netfilter.nf_conntrack_acct=1"]);
    // A dropped SYN begins no connection of conntrack: its repetition would be the first packet again.
    for (way, hook, port, first) in [("original", "input", "dport", 2), ("reply", "output", "sport", 1)] {
        for number in first..=4 {
            let lost = format!("tcp {port} 80 ct {way} packets {number} counter drop");
            for words in [
                "add table inet lost".to_owned(),
                format!("add chain inet lost it {{ type filter hook {hook} priority 0 ; }}"),
                format!("add rule inet lost it {lost}"),
            ] {
                host.must(&["nft", &words]);
            }
            for is_long in [false, true] {
                if gets_header {
                    ask(lab, is_long);
                } else {
                    assert_eq!(answer(lab, is_long).status, 200);
                }
            }
            let counted = host.must(&["nft", "list table inet lost"]);
            assert!(
                number > 3 || !counted.contains("packets 0 bytes"),
                "nothing was lost: {counted}"
            );
            host.must(&["nft", "delete table inet lost"]);
        }
    }
}

#[lab_test]
fn a_bad_link_to_a_host_loses_no_header() {
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    let (_router, sb) = start_haproxy(&lab, true);
    let odds = Odds {
        drop: 0.05,
        ..Odds::ALL
    };
    let mut link = Impaired::host_link(&lab, "east-1", odds);
    thread::scope(|scope| {
        for n in 0..8 {
            let lab = &lab;
            scope.spawn(move || (0..25).for_each(|_| ask(lab, n % 2 == 0)));
        }
    });
    link.set(Odds::GOOD);
    assert!(exits(&sb, "header_repeated") > 0);
    cut::expect_none(&sb);
}
