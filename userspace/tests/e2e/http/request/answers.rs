//! Answers without a body, answers that end with the connection, interim answers, tunnels, HTTP/1.0.

use std::io::{Read, Write};
use std::net::Shutdown;

use super::scene::{Client, WebHost, field, noise_digest, one_host};
use crate::http::https::scene::{self, certificate, certificates, connect};
use crate::lab::{Lab, SOON, Signalbox, eventually, lab_test};

#[lab_test]
fn answers_end_as_http_says_and_pipelined_ones_come_in_order() {
    let lab = Lab::new();
    let (_east, _sb) = one_host(&lab);
    let mut client = Client::connect(&lab);
    client.send("HEAD / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let answer = client.answer("HEAD");
    assert_eq!(
        (answer.status, field(&answer.head, "content-length")),
        (200, Some("12"))
    );
    for status in [204, 304] {
        assert_eq!(client.get("a.test", &format!("/status/{status}")).status, status);
    }
    client.send("GET /interim HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let hints = client.answer("GET");
    assert_eq!((hints.status, field(&hints.head, "link")), (103, Some("</a.css>")));
    assert_eq!(client.answer("GET").status, 200);
    // Pipelined: in one segment, with a body between, and a HEAD.
    client.send(
        "GET /bytes/7 HTTP/1.1\r\nHost: a.test\r\n\r\nPOST /digest HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc\
         HEAD / HTTP/1.1\r\nHost: a.test\r\n\r\nGET /chunked/9 HTTP/1.1\r\nHost: a.test\r\n\r\n\
         GET /bytes/11 HTTP/1.1\r\nHost: a.test\r\n\r\n",
    );
    assert_eq!(client.answer("GET").body.length, 7);
    assert!(client.answer("POST").text.starts_with("3 "));
    assert_eq!(client.answer("HEAD").body.length, 0);
    assert_eq!(client.answer("GET").body.length, 9);
    assert_eq!(client.answer("GET").body.length, 11);
    // An answer up to the end of the host's connection ends the client's too.
    let answer = client.get("a.test", "/close");
    assert_eq!((answer.status, &*answer.text), (200, "up to the end"));
    assert_eq!(field(&answer.head, "connection"), Some("close"));
    assert!(answer.head.starts_with("HTTP/1.1 "), "{}", answer.head);
}

#[lab_test]
fn http_1_0_clients_are_served() {
    let lab = Lab::new();
    let (east, _sb) = one_host(&lab);
    let mut client = Client::connect(&lab);
    client.send("GET / HTTP/1.0\r\nHost: a.test\r\nConnection: keep-alive\r\n\r\n");
    let answer = client.answer("GET");
    assert_eq!(
        (answer.status, field(&answer.head, "connection")),
        (200, Some("keep-alive"))
    );
    client.send("GET / HTTP/1.0\r\nHost: a.test\r\n\r\n");
    let answer = client.answer("GET");
    assert_eq!((answer.status, field(&answer.head, "connection")), (200, Some("close")));
    assert!(client.is_at_end());
    assert!(east.take().iter().all(|head| head.starts_with("GET / HTTP/1.0\r\n")));
    let mut client = Client::connect(&lab);
    client.send("GET / HTTP/1.0\r\n\r\n");
    assert_eq!(client.answer("GET").status, 404, "no name, no route");
}

#[lab_test]
fn chunks_are_taken_apart_for_clients_of_http_1_0() {
    let lab = Lab::new();
    let east = WebHost::start(&lab, "east-1");
    let pem = certificate(&lab, "lb", &["a.test"]);
    let route = "{ host: a.test, clusters: { east-1: 1 }, tls: { termination: edge } }";
    let body = scene::body("", &certificates(&pem), &[("east-1", "")], &[route]);
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1"]);
    read_apart(&sb, || Client::connect(&lab));
    read_apart(&sb, || connect(&lab, "a.test"));
    assert!(east.take().iter().all(|head| head.contains(" HTTP/1.0\r\n")));
}

/// Asks for answers in chunks in HTTP/1.0, over a connection each.
fn read_apart<S: Read + Write>(sb: &Signalbox, connect: impl Fn() -> Client<S>) {
    let ask = |path: &str| {
        let mut client = connect();
        client.send(&format!(
            "GET {path} HTTP/1.0\r\nHost: a.test\r\nConnection: keep-alive\r\n\r\n"
        ));
        client
    };
    for length in [0, 5, 100_000, 3_000_000] {
        let mut client = ask(&format!("/chunked/{length}"));
        let answer = client.answer("GET");
        assert_eq!(answer.status, 200);
        assert_eq!(field(&answer.head, "connection"), Some("close"), "{}", answer.head);
        for name in ["transfer-encoding", "trailer", "content-length"] {
            assert_eq!(field(&answer.head, name), None, "{}", answer.head);
        }
        assert_eq!(
            (answer.body.length, answer.body.hex()),
            (length, noise_digest(length)),
            "{length}"
        );
    }
    let cut_off = || sb.metric("signalbox_request_refused_total{reason=\"answer_cut_off\"}");
    let before = cut_off();
    assert!(
        ask("/cut-off").try_answer("GET").is_err(),
        "an answer that breaks off passes for a whole one"
    );
    assert!(eventually(SOON, || cut_off() > before));
}

#[lab_test]
fn a_websocket_becomes_a_tunnel() {
    let lab = Lab::new();
    let (east, sb) = one_host(&lab);
    let mut client = Client::connect(&lab);
    assert_eq!(client.host_of("a.test"), "east-1");
    east.take();
    // Bytes after the request wait for the 101, and then come first.
    client.send("GET /ws HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nahead");
    let answer = client.answer("GET");
    assert_eq!(
        (answer.status, field(&answer.head, "upgrade")),
        (101, Some("websocket"))
    );
    assert_eq!(client.read(10), b"helloahead");
    for round in 0..100 {
        let text = format!("frame {round:04}");
        client.send(&text);
        assert_eq!(client.read(text.len()), text.as_bytes());
    }
    assert!(
        east.take()[0]
            .to_ascii_lowercase()
            .contains("\r\nconnection: upgrade\r\n")
    );
    client.stream().shutdown(Shutdown::Write).unwrap();
    assert!(client.is_at_end());
    assert!(eventually(SOON, || sb.flows("").is_empty()));
    assert_eq!(sb.metric("signalbox_requests_total{code=\"1xx\"}"), 1.0);
    // The host is not asked for any other protocol.
    let mut client = Client::connect(&lab);
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n");
    assert_eq!(client.answer("GET").status, 200);
    assert!(!east.take()[0].to_ascii_lowercase().contains("upgrade"));
}
