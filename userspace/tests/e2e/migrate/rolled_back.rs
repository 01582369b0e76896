//! A bad cluster is rolled back because of its traffic, while its checks pass, and without probes of names.

use crate::lab;

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use lab::{Router, Server, Signalbox, cut, http, lab_test, servers};
use serde_json::json;

use super::{APP, HTTP, body, migration, newest, shares, under_load};

/// Migrates to west, which must be rolled back at the step of 25 % with a reason that has these words, and exit code 4.
fn must_go_back(lab: &lab::Lab, sb: &Signalbox, reason: &str) -> Vec<String> {
    let words = migration(APP, "25,100", "60s", "--max-latency 0 --no-probe");
    must_go_back_by(lab, sb, &words, reason)
}

/// Runs the migration of these words, which must be rolled back as [`must_go_back`] says.
fn must_go_back_by(lab: &lab::Lab, sb: &Signalbox, words: &[&str], reason: &str) -> Vec<String> {
    let (output, _, failures) = under_load(lab, || sb.cli(words));
    let report = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(report.contains("Outcome: **rolled back**"), "{report}");
    let why = newest(sb)["reason"].as_str().unwrap().to_owned();
    assert!(why.starts_with("at 25 %") && why.contains(reason), "{why}");
    assert_eq!(shares(sb), json!([["east", 1], ["west", 0]]), "as before, by the file");
    for _ in 0..10 {
        assert_eq!(http::ask(lab, HTTP, APP).field("host"), "east-1");
    }
    failures
}

#[lab_test]
fn a_refusing_cluster_is_rolled_back_and_no_request_fails() {
    let lab = cut::lab();
    let _router = Router::start(&lab, "east-1");
    let _health = servers::healthy(lab.host("west-1"));
    let sb = Signalbox::start(&lab, &body("connection", &["ejection: { failures: 0 }"]));
    sb.wait_healthy(&["east-1", "west-1"]);
    let failures = must_go_back(&lab, &sb, "connects failed");
    assert!(
        failures.is_empty(),
        "the old cluster takes what is refused: {failures:?}"
    );
}

#[lab_test]
fn a_cluster_that_resets_connections_is_rolled_back() {
    let lab = cut::lab();
    let _router = Router::start(&lab, "east-1");
    let _health = servers::healthy(lab.host("west-1"));
    // Closed with the request unread: its kernel answers with RST.
    let _west = Server::start(lab.host("west-1"), "[::]:80", |_| {});
    let sb = Signalbox::start(&lab, &body("connection", &[]));
    sb.wait_healthy(&["east-1", "west-1"]);
    must_go_back(&lab, &sb, "connections were reset or ended without an answer");
}

#[lab_test]
fn a_cluster_that_answers_5xx_is_rolled_back() {
    let lab = cut::lab();
    let _router = Router::start(&lab, "east-1");
    let _health = servers::healthy(lab.host("west-1"));
    let _west = Server::start(lab.host("west-1"), "[::]:80", |stream| {
        let mut request = [0; 4096];
        while (&*stream).read(&mut request).is_ok_and(|n| n > 0) {
            let _ = (&*stream).write_all(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let sb = Signalbox::start(&lab, &body("request", &[]));
    sb.wait_healthy(&["east-1", "west-1"]);
    let failures = must_go_back(&lab, &sb, "requests were answered with 5xx");
    assert!(failures.iter().all(|failure| failure == "status 503"), "{failures:?}");
}

#[lab_test]
fn a_slow_cluster_is_rolled_back_and_no_request_fails() {
    let lab = cut::lab();
    let _router = Router::start(&lab, "east-1");
    let _health = servers::healthy(lab.host("west-1"));
    let _west = Server::start(lab.host("west-1"), "[::]:80", |stream| {
        let mut request = [0; 4096];
        while (&*stream).read(&mut request).is_ok_and(|n| n > 0) {
            std::thread::sleep(Duration::from_millis(200));
            let _ = (&*stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhost=west-1");
        }
    });
    let sb = Signalbox::start(&lab, &body("request", &[]));
    sb.wait_healthy(&["east-1", "west-1"]);
    let words = migration(APP, "25,100", "120s", "--min-samples 4");
    let failures = must_go_back_by(&lab, &sb, &words, " for their answer");
    assert!(failures.is_empty(), "{failures:?}");
    assert!(newest(&sb)["failed_guard"] == "latency", "{}", newest(&sb));
}

/// Both answer one request in twenty with 503.
#[lab_test]
fn an_equal_cluster_with_faults_is_not_rolled_back() {
    let lab = cut::lab();
    let _health = ["east-1", "west-1"].map(|host| servers::healthy(lab.host(host)));
    static ANSWERED: AtomicU32 = AtomicU32::new(0);
    let _hosts = ["east-1", "west-1"].map(|host| {
        Server::start(lab.host(host), "[::]:80", |stream| {
            let mut request = [0; 4096];
            while (&*stream).read(&mut request).is_ok_and(|n| n > 0) {
                // By a hash, so that the faults of both come at random.
                let number = ANSWERED.fetch_add(1, Relaxed);
                let status = if number.wrapping_mul(0x9e37_79b1) >> 16 & 0xff < 13 {
                    "503 Service Unavailable"
                } else {
                    "200 OK"
                };
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 10\r\n\r\nhost=equal");
                let _ = (&*stream).write_all(answer.as_bytes());
            }
        })
    });
    let sb = Signalbox::start(&lab, &body("request", &[]));
    sb.wait_healthy(&["east-1", "west-1"]);
    let words = migration(APP, "25,50,100", "3s", "--max-latency 0 --no-probe");
    let (output, answers, failures) = under_load(&lab, || sb.cli(&words));
    assert!(output.status.success(), "{}", newest(&sb));
    assert!(failures.len() > answers / 50, "{} of {answers}", failures.len());
}
