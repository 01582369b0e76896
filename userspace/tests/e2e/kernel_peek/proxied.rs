//! PROXY headers that the program writes in front of first data, also where packets are lost.

use crate::lab;

use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;

use lab::cut::{self, CutLab, Hosts, finish};
use lab::impair::{Impaired, Odds};
use lab::tiers::ping;
use lab::{Router, SOON, Signalbox, config, eventually, http, lab_test, servers};
use serde_json::Value;
use signalbox_common::peek::proxy::ConnectionId;
use signalbox_core::wire::peek::proxy::{ProxyTlvs, ToldConnection, v2_header};

use super::{PEEK, doors, exits, expect_routes};
use crate::connection::access_log::{lines, log_at};

const PROXY: &str = "proxy_protocol: { version: 2, tlvs: [authority, alpn, unique_id, crc32c] }";

const ALL: ProxyTlvs = ProxyTlvs {
    authority: true,
    alpn: true,
    unique_id: true,
    crc32c: true,
};

/// Reads a host's bytes.
fn read(mut host: &TcpStream, length: usize) -> Vec<u8> {
    let mut got = vec![0; length];
    host.read_exact(&mut got).unwrap();
    got
}

/// The id in a header, whose unique id is the first TLV.
fn id_in(header: &[u8]) -> ConnectionId {
    let end = 16 + usize::from(u16::from_be_bytes([header[14], header[15]]));
    let tlvs = &header[if header[13] == 0x11 { 28 } else { 52 }..end];
    assert_eq!(tlvs[..3], [5, 0, 32]);
    let number = |at: usize| u64::from_str_radix(str::from_utf8(&tlvs[at..at + 16]).unwrap(), 16).unwrap();
    ConnectionId {
        seed: number(3),
        number: number(19),
    }
}

/// Signalbox in front of hosts that the test serves.
fn start(lab: &CutLab, more: &str, proxy: &str) -> (Hosts, Vec<servers::Server>, Signalbox) {
    let hosts = Hosts::start(lab);
    let health = ["east-1", "west-1"].map(|host| servers::healthy(lab.host(host)));
    let sb = Signalbox::start(lab, &cut::body_with(&format!("{PEEK}\n{more}"), proxy));
    sb.wait_healthy(&["east-1", "west-1"]);
    expect_routes(&sb, 4);
    (hosts, health.into(), sb)
}

#[lab_test]
fn the_header_is_the_one_that_a_worker_writes() {
    if cut::lenient() {
        return;
    }
    for (proxy, tlvs) in [
        ("proxy_protocol: v2", ProxyTlvs::DEFAULT),
        ("proxy_protocol: { version: 2, tlvs: [] }", ProxyTlvs::NONE),
        (
            "proxy_protocol: { version: 2, tlvs: [crc32c] }",
            ProxyTlvs {
                crc32c: true,
                ..ProxyTlvs::NONE
            },
        ),
        (PROXY, ALL),
    ] {
        compare_headers(proxy, tlvs);
    }
}

fn compare_headers(proxy: &str, tlvs: ProxyTlvs) {
    let lab = cut::lab();
    let file = lab.dir().join("connections.log");
    let (hosts, _health, sb) = start(&lab, &log_at(&file, ""), proxy);
    let mut ids = HashSet::new();
    for door in doors() {
        // In one segment, and in two, of which the second one begins in the middle of the data.
        for length in [door.first.len(), 2600] {
            let mut first = door.first.clone();
            if door.port == 80 && length > first.len() {
                let filler = "x".repeat(length - first.len() - 8);
                first.splice(first.len() - 2.., format!("A: {filler}\r\n\r\n").into_bytes());
            }
            let what = format!("{} bytes to {}, {proxy}", first.len(), door.at);
            let before = exits(&sb, "routed");
            let mut client = lab.client.connect(door.at);
            client.write_all(&first).unwrap();
            let host: Arc<TcpStream> = hosts.accept(door.host, door.port);
            let name = if door.cluster == "east" { "a.test" } else { "b.test" };
            let at: SocketAddr = door.at.parse().unwrap();
            let mut told = ToldConnection {
                client: client.local_addr().unwrap(),
                destination: at,
                name: Some(name),
                alpn: None,
                id: tlvs.unique_id.then_some(ConnectionId { seed: 0, number: 0 }),
            };
            let header = read(&host, v2_header(&told, tlvs).len());
            told.id = told.id.map(|_| id_in(&header));
            assert!(told.id.is_none_or(|id| ids.insert(id.to_string())), "{what}");
            assert_eq!(header, v2_header(&told, tlvs), "{what}");
            assert_eq!(read(&host, first.len()), first, "{what}");
            assert_eq!(exits(&sb, "routed") - before, 1, "{what}");
            ping(&client, &host);
            ping(&host, &client);
            finish(&client, &host);
        }
    }
    cut::expect_none(&sb);
    let mut logged = HashSet::new();
    let are_logged = eventually(SOON, || {
        let known = |line: Value| Some(line["connection_id"].as_str()?.to_owned());
        logged = lines(&file).into_iter().filter_map(known).collect();
        logged == ids
    });
    assert!(are_logged, "{logged:?} and not {ids:?}");
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
    assert_eq!(
        (answer.field("authority"), answer.field("id").len()),
        ("a.test".into(), 32)
    );
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
    assert_eq!(http::field(&tls.body, "id").len(), 32, "{}", tls.body);
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
