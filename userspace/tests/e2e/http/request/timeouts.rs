//! Time limits of requests, and their lines in the access log.

use std::time::Duration;

use serde_json::{Value, json};

use super::scene::{Client, ROUTE, WebHost, config_of, field, one_host};
use crate::lab::{Lab, SOON, Signalbox, eventually, lab_test, servers};

#[lab_test]
fn a_slow_client_gets_408_and_a_slow_host_causes_504() {
    let lab = Lab::new();
    let _health = servers::healthy(lab.host("east-1"));
    let (_host, accepted) = servers::hand_over(lab.host("east-1"), "[::]:80");
    let limits = "timeouts: { keep_alive: 1s, body: 1s, answer: 1s }";
    let sb = Signalbox::start(&lab, &config_of(limits, &["east-1"], &[ROUTE]));
    sb.wait_healthy(&["east-1"]);
    let mut client = Client::connect(&lab);
    // No answer comes: the client gets an error, is kept, and then closed.
    let answer = client.get("a.test", "/");
    assert_eq!((answer.status, field(&answer.head, "connection")), (504, None));
    assert!(client.is_at_end());
    // A body stalls.
    let mut client = Client::connect(&lab);
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 9\r\n\r\nhalf");
    let answer = client.answer("POST");
    assert_eq!((answer.status, field(&answer.head, "connection")), (408, Some("close")));
    // The 100 does not come: that is the host's fault.
    let mut client = Client::connect(&lab);
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.answer("POST").status, 504);
    let count = |reason: &str| sb.metric(&format!("signalbox_request_refused_total{{reason=\"{reason}\"}}"));
    assert_eq!((count("answer_timeout"), count("request_timeout")), (2.0, 1.0));
    // An answer that stalls is cut off: never a second head.
    let mut client = Client::connect(&lab);
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let host = std::iter::from_fn(|| accepted.recv_timeout(Duration::from_secs(20)).ok())
        .nth(3)
        .unwrap();
    std::io::Write::write_all(&mut &*host, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").unwrap();
    assert!(client.try_answer("GET").is_err());
    assert_eq!(count("answer_timeout"), 3.0);
}

#[lab_test]
fn a_route_may_be_silent_in_a_body_for_longer() {
    let lab = Lab::new();
    let _health = servers::healthy(lab.host("east-1"));
    let (_host, accepted) = servers::hand_over(lab.host("east-1"), "[::]:80");
    let routes = [
        "{ host: events.test, clusters: { east-1: 1 }, timeouts: { body: 10m } }",
        "{ host: other.test, clusters: { east-1: 1 } }",
    ];
    let sb = Signalbox::start(&lab, &config_of("timeouts: { body: 1s }", &["east-1"], &routes));
    sb.wait_healthy(&["east-1"]);
    let begin = |name: &str| {
        let mut client = Client::connect(&lab);
        client.send(&format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n"));
        let host = accepted.recv_timeout(SOON).unwrap();
        std::io::Write::write_all(&mut &*host, b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf").unwrap();
        (client, host)
    };
    let (mut events, host) = begin("events.test");
    // The other one, which began later, has been cut off when the first continues.
    let (mut other, _other_host) = begin("other.test");
    assert!(other.try_answer("GET").is_err());
    std::io::Write::write_all(&mut &*host, b"half").unwrap();
    assert_eq!(events.answer("GET").text, "halfhalf");
}

#[lab_test]
fn each_request_is_a_line_of_the_log() {
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let path = lab.dir().join("connections.log");
    let log = format!("log: {{ connections: {{ to: {} }} }}\n", path.display());
    let sb = Signalbox::start(&lab, &config_of(&log, &["east-1"], &[ROUTE]));
    sb.wait_healthy(&["east-1"]);
    let mut client = Client::connect(&lab);
    let address = client.stream().local_addr().unwrap().to_string();
    for _ in 0..2 {
        assert_eq!(client.host_of("a.test"), "east-1");
    }
    assert_eq!(client.get("b.test", "/").status, 404);
    let mut lines: Vec<Value> = Vec::new();
    assert!(eventually(SOON, || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        lines.retain(|line: &Value| line["client"] == address.as_str());
        lines.len() >= 3
    }));
    let hosts: Vec<_> = lines.iter().map(|line| line["host"].clone()).collect();
    assert_eq!(hosts, [json!("east-1"), json!("east-1"), Value::Null], "{lines:#?}");
}

#[lab_test]
fn idle_connections_of_a_host_that_leaves_are_closed() {
    let lab = Lab::new();
    let (_east, sb) = one_host(&lab);
    let mut client = Client::connect(&lab);
    let idle = || sb.metric("signalbox_pool_connections{state=\"idle\"}");
    assert_eq!(client.host_of("a.test"), "east-1");
    assert_eq!(idle(), 1.0);
    let rotate = |action: &str| {
        let asked = json!({ "action": action, "names": ["host:east-1/east-1"], "force": true }).to_string();
        let answer = sb.unix("POST", "/api/v1/rotations", &asked);
        assert_eq!(answer.status / 100, 2, "{}", answer.body);
    };
    rotate("out");
    assert!(eventually(SOON, || idle() == 0.0));
    assert_eq!(client.get("a.test", "/").status, 503);
    rotate("in");
    assert_eq!(client.host_of("a.test"), "east-1");
}
