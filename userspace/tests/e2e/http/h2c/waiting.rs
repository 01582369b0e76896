//! A client that sends only preface and SETTINGS before it has heard the server's, seen byte for byte at both ends.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use super::{ACK, DATA, END_STREAM, PING, PREFACE, SETTINGS, TIERS, body, frame, read_frame, request};
use crate::cut::peek::{noise, receive};
use crate::lab::cut::{self, expect_none, expect_tier, finish};
use crate::lab::tiers::ping;
use crate::lab::{Lab, SOON, Signalbox, eventually, lab_test, servers};

/// Bytes of a transfer after the beginning, each way.
const BULK: usize = 3 << 20;

fn send(mut to: &TcpStream, bytes: &[u8], segment: usize) {
    for part in bytes.chunks(segment) {
        to.write_all(part).unwrap();
    }
}

/// A client that has been greeted.
fn greeted(lab: &Lab, at: &str) -> TcpStream {
    let client = lab.client.connect(at);
    client.set_nodelay(true).unwrap();
    send(&client, &[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat(), 64);
    assert_eq!(read_frame(&client), Some((SETTINGS, 0, 0, vec![])), "{at}");
    client
}

/// Bytes that a client sends after the balancer's SETTINGS, and those of them that are for the host.
struct Beginning {
    what: &'static str,
    sends: Vec<u8>,
    expected: Vec<u8>,
}

fn beginnings() -> [Beginning; 3] {
    let (ack, asks) = (frame(SETTINGS, ACK, 0, &[]), request("a.test", 0));
    let more = frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]);
    let data = frame(DATA, 0, 1, &noise(9, 16_000));
    let large = data.repeat(4);
    [
        Beginning {
            what: "acknowledged first",
            sends: [&ack[..], &asks].concat(),
            expected: asks.clone(),
        },
        Beginning {
            what: "acknowledged behind a body that fills the first window",
            sends: [&asks[..], &large, &ack].concat(),
            expected: [&asks[..], &large].concat(),
        },
        Beginning {
            what: "acknowledged among other frames",
            sends: [&more[..], &ack, &more, &asks, &data].concat(),
            expected: [&more[..], &more, &asks, &data].concat(),
        },
    ]
}

fn start(lab: &Lab, keys: &[&str]) -> (Vec<servers::Server>, Receiver<Arc<TcpStream>>, Signalbox) {
    let health = servers::healthy(lab.host("east-1"));
    let (server, hosts) = servers::hand_over(lab.host("east-1"), "[::]:80");
    let sb = Signalbox::start(lab, &body("", keys, &["east-1"]));
    sb.wait_healthy(&["east-1"]);
    (vec![health, server], hosts, sb)
}

#[lab_test]
fn a_client_awaiting_settings_is_heard_and_its_ack_is_kept_back() {
    let lab = cut::lab();
    let (_servers, hosts, sb) = start(&lab, &[]);
    let opening = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    for (at, tier) in TIERS {
        for Beginning { what, sends, expected } in beginnings() {
            for segment in [3, 1 << 20] {
                let case = format!("{tier}, {what}, {segment} bytes a segment");
                let client = greeted(&lab, at);
                send(&client, &sends, segment);
                let host = hosts.recv_timeout(SOON).unwrap();
                // A server's own SETTINGS come as soon as it is connected.
                let first = frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]);
                send(&host, &first, 64);
                receive(&client, &first, &case);
                receive(&host, &[&opening[..], &expected].concat(), &case);
                let (up, down) = (noise(1, BULK), noise(2, BULK));
                std::thread::scope(|scope| {
                    scope.spawn(|| send(&client, &up, BULK));
                    scope.spawn(|| send(&host, &down, BULK));
                    scope.spawn(|| receive(&client, &down, &case));
                    receive(&host, &up, &case);
                });
                let mut shown = expect_tier(&sb, &client, tier);
                // A cut flow counts the client's whole stream, with the acknowledgement; others count the bytes that
                // the host was given.
                let whole = (opening.len() + expected.len() + up.len()) as u64;
                let taken = if shown["tier"] == "cut" { 9 } else { 0 };
                let counts = (whole + taken, (first.len() + down.len()) as u64);
                // Counts of tier sockmap are updated every other second.
                let are_right = eventually(SOON, || {
                    shown = cut::shown(&sb, client.local_addr().unwrap());
                    (shown["bytes_in"].as_u64(), shown["bytes_out"].as_u64()) == (Some(counts.0), Some(counts.1))
                });
                assert!(are_right, "{case}: {counts:?}, {shown}");
                finish(&client, &host);
            }
        }
    }
    expect_none(&sb);
}

#[lab_test]
fn a_ping_before_the_request_is_answered() {
    let lab = cut::lab();
    let (_servers, hosts, sb) = start(&lab, &[]);
    for (at, tier) in TIERS {
        let client = greeted(&lab, at);
        send(&client, &frame(PING, 0, 0, b"are you?"), 64);
        assert_eq!(
            read_frame(&client),
            Some((PING, ACK, 0, b"are you?".to_vec())),
            "{tier}"
        );
        let asks = request("a.test", END_STREAM);
        send(&client, &[frame(SETTINGS, ACK, 0, &[]), asks.clone()].concat(), 64);
        let host = hosts.recv_timeout(SOON).unwrap();
        let expected = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &asks].concat();
        receive(&host, &expected, tier);
        let (up, down) = (noise(3, 500_000), noise(4, 500_000));
        send(&host, &down, BULK);
        receive(&client, &down, tier);
        send(&client, &up, BULK);
        receive(&host, &up, tier);
        if tier == "cut" {
            expect_tier(&sb, &client, tier);
        }
        finish(&client, &host);
    }
    expect_none(&sb);
}

#[lab_test]
fn a_proxy_header_precedes_kept_bytes_and_refusals_are_retried() {
    let lab = cut::lab();
    // Port 80 of east-2 has no listener, though its check is healthy.
    let health = ["east-1", "east-2"].map(|host| servers::healthy(lab.host(host)));
    let (_server, hosts) = servers::hand_over(lab.host("east-1"), "[::]:80");
    let keys = [
        "proxy_protocol: v2",
        "balance: round-robin",
        "ejection: { failures: 0 }",
    ];
    let sb = Signalbox::start(&lab, &body("", &keys, &["east-1", "east-2"]));
    sb.wait_healthy(&["east-1", "east-2"]);
    for (at, tier) in TIERS {
        for _ in 0..4 {
            let client = greeted(&lab, at);
            let asks = request("a.test", 0);
            send(&client, &[asks.clone(), frame(SETTINGS, ACK, 0, &[])].concat(), 64);
            let host = &*hosts.recv_timeout(SOON).unwrap();
            let mut header = [0; 16];
            (&*host).read_exact(&mut header).unwrap();
            assert_eq!(&header[..12], b"\r\n\r\n\0\r\nQUIT\n", "{tier}");
            let mut rest = vec![0; usize::from(u16::from_be_bytes([header[14], header[15]]))];
            (&*host).read_exact(&mut rest).unwrap();
            receive(host, &[PREFACE, &frame(SETTINGS, 0, 0, &[]), &asks].concat(), tier);
            let (up, down) = (noise(5, 500_000), noise(6, 500_000));
            send(host, &down, BULK);
            receive(&client, &down, tier);
            send(&client, &up, BULK);
            receive(host, &up, tier);
            if tier == "cut" {
                expect_tier(&sb, &client, tier);
            }
            finish(&client, host);
        }
    }
    let refused = sb.metric("signalbox_backend_refused_total{cluster=\"east\",host=\"east-2\"}");
    assert!(refused >= 4.0, "{refused}");
    expect_none(&sb);
    drop(health);
}

/// A FIN that comes before the flow is cut, after bytes of the balancer that the programs have not seen acknowledged.
#[lab_test]
fn a_client_that_finishes_at_once_gets_its_answer() {
    let lab = cut::lab();
    let (_servers, hosts, sb) = start(&lab, &[]);
    for (at, tier) in TIERS {
        for acknowledges in [true, false, true] {
            let client = greeted(&lab, at);
            let asks = request("a.test", END_STREAM);
            let ack = if acknowledges {
                frame(SETTINGS, ACK, 0, &[])
            } else {
                Vec::new()
            };
            send(&client, &[ack, asks.clone()].concat(), 64);
            client.shutdown(Shutdown::Write).unwrap();
            let mut host = &*hosts.recv_timeout(SOON).unwrap();
            let mut received = Vec::new();
            host.read_to_end(&mut received).unwrap();
            let expected = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &asks].concat();
            assert_eq!(received, expected, "{tier}");
            let answer = noise(7, 300_000);
            send(host, &answer, BULK);
            host.shutdown(Shutdown::Write).unwrap();
            let mut received = Vec::new();
            (&client).read_to_end(&mut received).unwrap();
            assert!(received == answer, "{tier}: {} bytes", received.len());
        }
    }
    expect_none(&sb);
}

#[lab_test]
fn greeted_cut_flows_in_both_address_families_outlive_a_kill() {
    let lab = cut::lab();
    let hosts = cut::Hosts::start(&lab);
    let (_health, mut sb) = cut::start(&lab, "");
    let flows = [0, 1].map(|family| {
        let (at, name) = cut::HTTP[family];
        let client = greeted(&lab, at);
        let asks = request(name, 0);
        send(&client, &[frame(SETTINGS, ACK, 0, &[]), asks.clone()].concat(), 64);
        let host = hosts.accept(["east-1", "west-1"][family], 80);
        receive(&host, &[PREFACE, &frame(SETTINGS, 0, 0, &[]), &asks].concat(), at);
        ping(&host, &client);
        ping(&client, &host);
        expect_tier(&sb, &client, "cut");
        (client, host)
    });
    if !cut::lenient() {
        sb.kill9();
    }
    for (client, host) in &flows {
        let (up, down) = (noise(10, BULK), noise(11, BULK));
        std::thread::scope(|scope| {
            scope.spawn(|| send(client, &up, BULK));
            scope.spawn(|| send(host, &down, BULK));
            scope.spawn(|| receive(client, &down, "down"));
            receive(host, &up, "up");
        });
        finish(client, host);
    }
}
