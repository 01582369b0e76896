//! Hosts that go away: between requests, in the middle of one, by rotation.

use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;

use super::scene::{Client, HTTP, body_of, config_of};
use crate::lab::namespace::connect_here;
use crate::lab::{Lab, Router, SOON, Signalbox, StopOnDrop, config, eventually, http, lab_test, servers};

const ROUTE: &str = "{ host: a.test, clusters: { east: 1 } }";

fn two_hosts(lab: &Lab) -> Signalbox {
    let east = config::cluster("east", &["balance: round-robin"], &["east-1", "east-2"]);
    let sb = Signalbox::start(lab, &body_of("", &east, &[ROUTE]));
    sb.wait_healthy(&["east-1", "east-2"]);
    sb
}

#[lab_test]
fn a_host_killed_between_requests_goes_unnoticed_by_clients() {
    let lab = Lab::new();
    let mut routers = Router::start_all(&lab, &["east-1", "east-2"]);
    let sb = two_hosts(&lab);
    let mut client = Client::connect(&lab);
    for _ in 0..8 {
        client.host_of("a.test");
    }
    routers[0].kill();
    for _ in 0..20 {
        assert_eq!(client.host_of("a.test"), "east-2");
    }
    routers[0].restart();
    sb.wait_healthy(&["east-1"]);
    let back = |client: &mut Client| (0..4).any(|_| client.host_of("a.test") == "east-1");
    assert!(eventually(SOON, || back(&mut client)));
    // Restarted so fast that no check has noticed: the kept connections are stale.
    routers[1].restart();
    for _ in 0..8 {
        client.host_of("a.test");
    }
}

#[lab_test]
fn a_lost_answer_is_asked_for_again_only_where_that_is_safe() {
    let lab = Lab::new();
    let _health = servers::healthy(lab.host("east-1"));
    // Every connection ends with its second request, unanswered.
    let count = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&count);
    let _host = lab_server(&lab, counted);
    let sb = Signalbox::start(
        &lab,
        &config_of("", &["east-1"], &["{ host: a.test, clusters: { east-1: 1 } }"]),
    );
    sb.wait_healthy(&["east-1"]);
    let mut client = Client::connect(&lab);
    for _ in 0..3 {
        assert_eq!(client.get("a.test", "/").status, 200);
    }
    assert_eq!(sb.metric("signalbox_retries_total{cluster=\"east-1\"}"), 2.0);
    assert_eq!(count.load(Ordering::SeqCst), 5, "three requests, two of them twice");
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(client.answer("POST").status, 502);
    assert_eq!(count.load(Ordering::SeqCst), 6, "a POST is not sent twice");
    assert_eq!(sb.metric("signalbox_request_refused_total{reason=\"no_answer\"}"), 1.0);
    assert_eq!(client.get("a.test", "/").status, 200, "the client's connection is kept");
    // A client that has just connected would not ask again, so its POST is not sent on a kept connection.
    for _ in 0..4 {
        let mut other = Client::connect(&lab);
        other.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(other.answer("POST").status, 200);
    }
}

fn lab_server(lab: &Lab, count: std::sync::Arc<AtomicUsize>) -> crate::lab::Server {
    use std::io::{BufRead, BufReader, Write};
    crate::lab::Server::start(lab.host("east-1"), "[::]:80", move |stream| {
        let mut reader = BufReader::new(&*stream);
        for answers in [true, false] {
            let mut line = String::new();
            while line != "\r\n" {
                line.clear();
                if reader.read_line(&mut line).unwrap_or(0) == 0 {
                    return;
                }
            }
            count.fetch_add(1, Ordering::SeqCst);
            if answers {
                let _ = (&*stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            }
        }
        let _ = stream.shutdown(Shutdown::Both);
    })
}

#[lab_test]
fn rotating_a_host_under_keep_alive_load_loses_no_request() {
    const CLIENTS: usize = 8;
    let lab = Lab::new();
    let _routers = Router::start_all(&lab, &["east-1", "east-2"]);
    let sb = two_hosts(&lab);
    let (stop, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let ask = || {
            lab.client.run(|| {
                let stream = connect_here(HTTP).unwrap();
                while !stop.load(Ordering::SeqCst) {
                    let answer = http::get(&stream, "a.test", "/").unwrap();
                    assert_eq!(answer.status, 200, "{}", answer.body);
                    served.fetch_add(1, Ordering::SeqCst);
                }
            });
        };
        // Clients end with the test, however it ends.
        let _stop = StopOnDrop(&stop);
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(ask)).collect();
        let more = |n| {
            let from = served.load(Ordering::SeqCst);
            assert!(
                eventually(SOON, || served.load(Ordering::SeqCst) >= from + n),
                "requests stand still"
            );
        };
        for host in ["east-1", "east-2", "east-1"] {
            more(200);
            let rotated = sb.unix(
                "POST",
                "/api/v1/rotations",
                &json!({ "action": "out", "names": [host] }).to_string(),
            );
            assert!(rotated.status < 300, "{}", rotated.body);
            let cut_off = || sb.host(host)["active_connections"] == 0;
            assert!(eventually(SOON, cut_off), "{}", sb.host(host));
            more(200);
            let back = sb.unix(
                "POST",
                "/api/v1/rotations",
                &json!({ "action": "in", "names": [host] }).to_string(),
            );
            assert!(back.status < 300, "{}", back.body);
        }
        more(200);
        stop.store(true, Ordering::SeqCst);
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
    assert_eq!(sb.metric("signalbox_requests_total{code=\"5xx\"}"), 0.0);
}
