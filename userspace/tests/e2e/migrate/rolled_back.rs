//! A bad cluster is rolled back because of its traffic, while its checks pass.

use crate::lab;

use std::io::{Read, Write};
use std::time::Duration;

use lab::{Router, Server, Signalbox, cut, http, lab_test, servers};
use serde_json::json;

use super::{APP, HTTP, body, migration, newest, shares, under_load};

/// Migrates to west, which must be rolled back at the step of 25 % with a reason that has these words, and exit code 4.
fn must_go_back(lab: &lab::Lab, sb: &Signalbox, reason: &str) -> Vec<String> {
    let words = migration(APP, "25,100", "60s", "--max-latency 0");
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
            std::thread::sleep(Duration::from_millis(1500));
            let _ = (&*stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhost=west-1");
        }
    });
    let sb = Signalbox::start(&lab, &body("request", &[]));
    sb.wait_healthy(&["east-1", "west-1"]);
    let words = migration(APP, "25,100", "60s", "--min-samples 4");
    let failures = must_go_back_by(&lab, &sb, &words, "the start of an answer takes");
    assert!(failures.is_empty(), "{failures:?}");
    assert!(newest(&sb)["failed_guard"] == "latency", "{}", newest(&sb));
}
