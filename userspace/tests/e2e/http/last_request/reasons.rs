//! Requests that userspace has to see through, and the reports of that.

use std::io::{Read, Write};
use std::net::Shutdown;

use super::scene::{DOORS, ON, Scene, answer_and_end, read_request, read_to_end};
use crate::http::late_cut::read_head;
use crate::lab::cut;
use crate::lab::{SOON, eventually};

const CLOSE: &str = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";

/// Asks, answers as the host, and reads the answer; `behind` is sent when the host has the first part.
fn exchange(scene: &Scene, request: &str, behind: &str) {
    let mut client = scene.send(DOORS[0], request);
    let host = scene.accept(DOORS[0]);
    if behind.is_empty() {
        read_request(&host);
    } else {
        read_head(&host).unwrap();
        client.write_all(behind.as_bytes()).unwrap();
        (&*host).read_exact(&mut [0; 5]).unwrap();
    }
    answer_and_end(&host, "answer");
    let text = read_to_end(&client);
    assert!(text.ends_with("\r\n\r\nanswer"), "{request}: {text}");
}

#[test]
fn a_last_request_not_cut_is_counted_and_explained_by_reason() {
    let test = "a_last_request_not_cut_is_counted_and_explained_by_reason";
    let Some(mut scene) = Scene::begin(test, ON, "") else {
        return;
    };
    let log = scene.lab.dir().join("requests.log");
    let log = format!("{ON}\nlog: {{ connections: {{ to: {} }} }}", log.display());
    for (top, route, why) in [
        (ON, "affinity: { cookie: sb, to: host }", "answer_edited"),
        (ON, "headers: { response: { set: { X-Served: 1 } } }", "answer_edited"),
        (ON, "timeouts: { answer: 20s }", "answer_timeout"),
        (ON, "limits: { concurrent: 5 }", "counted_request"),
        (ON, "limits: { requests: { rate: 1000 } }", "cut"),
        (ON, "timeouts: { tunnel: 20s }", "cut"),
        (&log, "", "logged"),
        ("datapath: { last_requests: on, cut: off }", "", "off"),
        ("datapath: { last_requests: on, tier: splice }", "", "off"),
        ("datapath: { last_requests: off }", "", "routed_per_request"),
        ("", "", "routed_per_request"),
        (ON, "", "cut"),
    ] {
        scene.reload(top, route);
        let count = |scene: &Scene| {
            if why == "cut" { scene.cut() } else { scene.not_cut(why) }
        };
        let before = count(&scene);
        exchange(&scene, CLOSE, "");
        let is_counted = eventually(SOON, || count(&scene) - before >= 1.0);
        let reasons = cut::reasons(&scene.sb);
        assert!(
            is_counted && count(&scene) - before < 1.5,
            "{why} by {top} {route}: {reasons}"
        );
        let said = scene.sb.json("/api/v1/explain?host=a.test&client=10.1.0.2").to_string();
        let label = if why == "cut" { "\"last_request\":null" } else { why };
        assert!(said.contains(label), "{why} by {top} {route}: {said}");
    }
}

#[test]
fn a_request_not_whole_or_not_alone_is_served_without_a_cut() {
    let test = "a_request_not_whole_or_not_alone_is_served_without_a_cut";
    let Some(scene) = Scene::begin(test, ON, "") else {
        return;
    };
    let head = "Host: a.test\r\nConnection: close\r\n";
    for (request, behind, why) in [
        (
            format!("GET / HTTP/1.1\r\n{head}\r\nGET / HTTP/1.1\r\n"),
            "",
            "bytes_behind_request",
        ),
        (
            format!("POST / HTTP/1.1\r\n{head}Content-Length: 0\r\n\r\n\r\n"),
            "",
            "bytes_behind_request",
        ),
        (
            format!("POST / HTTP/1.1\r\n{head}Content-Length: 5\r\n\r\nhel"),
            "lo",
            "body_outstanding",
        ),
        (
            format!("POST / HTTP/1.1\r\n{head}Expect: 100-continue\r\nContent-Length: 5\r\n\r\nhello"),
            "",
            "body_outstanding",
        ),
        (
            format!("POST / HTTP/1.1\r\n{head}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            "",
            "body_outstanding",
        ),
    ] {
        let before = scene.not_cut(why);
        exchange(&scene, &request, behind);
        let reasons = cut::reasons(&scene.sb);
        assert_eq!(scene.not_cut(why) - before, 1.0, "{why} of {request}: {reasons}");
    }
    assert_eq!(scene.cut(), 0.0);
    // The last of several requests: its connection was counted with the first.
    let mut client = scene.send(DOORS[0], "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let host = scene.accept(DOORS[0]);
    read_request(&host);
    (&*host)
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        .unwrap();
    read_head(&client).unwrap();
    client.write_all(CLOSE.as_bytes()).unwrap();
    read_request(&host);
    answer_and_end(&host, "answer");
    assert!(read_to_end(&client).ends_with("\r\n\r\nanswer"));
    assert_eq!(scene.not_cut("routed_per_request"), 1.0);
    assert_eq!(scene.cut(), 0.0);
}

/// A client that has closed its sending side when it has asked is not handed to hosts, many of which would take that
/// for its end.
#[test]
fn a_client_that_half_closes_with_its_request_is_seen_through() {
    let test = "a_client_that_half_closes_with_its_request_is_seen_through";
    let Some(scene) = Scene::begin(test, ON, "") else {
        return;
    };
    // The balancer has not processed the request before the end has come.
    scene.sb.stand_still(true);
    let client = scene.send(DOORS[0], CLOSE);
    client.shutdown(Shutdown::Write).unwrap();
    let has_come = || !scene.lab.lb.must(&["ss", "-Htn", "state", "close-wait"]).is_empty();
    assert!(eventually(SOON, has_come));
    scene.sb.stand_still(false);
    let host = scene.accept(DOORS[0]);
    read_request(&host);
    answer_and_end(&host, "answer");
    assert!(read_to_end(&client).ends_with("\r\n\r\nanswer"));
    assert_eq!(scene.not_cut("client_half_closed"), 1.0);
}
