//! Upgrades to other protocols than WebSocket.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use super::scene::{Client, config_of, field};
use crate::http::https::scene::{body, certificate, certificates, connect};
use crate::http::https::websocket::late_cuts;
use crate::lab::{Lab, SOON, Server, Signalbox, cut, eventually, lab_test, servers};

const ROUTE: &str = "{ host: a.test, clusters: { east-1: 1 }, upgrades: [websocket, spdy/3.1, DERP] }";

/// Switches to the offered protocol, or to that of the path, and sends each byte back; answers other requests with the
/// Upgrade field that it has got.
fn serve(stream: &TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head)? > 0 {}
    let path = head
        .split(' ')
        .nth(1)
        .unwrap_or_default()
        .trim_start_matches('/')
        .to_owned();
    let offered = head.lines().find_map(|line| {
        line.to_ascii_lowercase()
            .starts_with("upgrade: ")
            .then(|| line[9..].to_owned())
    });
    let protocol = match offered {
        Some(offered) if path.is_empty() => offered,
        _ if !path.is_empty() => path,
        offered => {
            let text = format!("{offered:?}");
            return write!(
                &*stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}",
                text.len()
            );
        }
    };
    write!(
        &*stream,
        "HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\nhello"
    )?;
    std::io::copy(&mut reader, &mut &*stream).map(drop)
}

fn host(lab: &Lab) -> [Server; 2] {
    let ns = lab.host("east-1");
    let echo = Server::start(ns, "[::]:80", |stream: Arc<TcpStream>| {
        let _ = serve(&stream);
    });
    [servers::healthy(ns), echo]
}

fn ask(protocol: &str, path: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\nContent-Length: 0\r\n\r\n"
    )
}

/// Talks with the echo after a 101, once the tunnel `is_ready`.
fn converse(client: &mut Client<impl Read + Write>, protocol: &str, is_ready: impl FnMut() -> bool) {
    client.send(&ask(protocol, "/"));
    let answer = client.answer("POST");
    let chosen = field(&answer.head, "upgrade");
    assert_eq!((answer.status, chosen), (101, Some(protocol)), "{}", answer.head);
    assert_eq!(client.read(5), b"hello");
    assert!(eventually(SOON, is_ready), "{protocol}: the tunnel is not cut");
    for round in 0..50 {
        let word = format!("{round:05}");
        client.send(&word);
        assert_eq!(client.read(5), word.as_bytes());
    }
}

#[lab_test]
fn a_route_lets_other_protocols_through() {
    let lab = cut::lab();
    let _host = host(&lab);
    let sb = Signalbox::start(&lab, &config_of("", &["east-1"], &[ROUTE]));
    sb.wait_healthy(&["east-1"]);
    for protocol in ["SPDY/3.1", "derp", "websocket"] {
        let before = late_cuts(&sb);
        converse(&mut Client::connect(&lab), protocol, || {
            cut::lenient() || late_cuts(&sb) > before
        });
    }
}

#[lab_test]
fn a_protocol_that_no_route_allows_is_not_offered() {
    let lab = Lab::new();
    let _host = host(&lab);
    let other = ROUTE
        .replace("a.test", "b.test")
        .replace(", upgrades: [websocket, spdy/3.1, DERP]", "");
    let sb = Signalbox::start(&lab, &config_of("", &["east-1"], &[ROUTE, &other]));
    sb.wait_healthy(&["east-1"]);
    for (name, protocol) in [
        ("a.test", "tcp"),
        ("a.test", "SPDY/3.1, tcp"),
        ("a.test", "h2c"),
        ("b.test", "SPDY/3.1"),
    ] {
        let mut client = Client::connect(&lab);
        client.send(&ask(protocol, "/").replace("a.test", name));
        let answer = client.answer("POST");
        assert_eq!((answer.status, &*answer.text), (200, "None"), "{name} {protocol}");
    }
    // A host that switches to something else, or unasked, is not followed.
    for (asked, path) in [("SPDY/3.1", "/DERP"), ("websocket", "/tcp"), ("tcp", "/tcp")] {
        let mut client = Client::connect(&lab);
        client.send(&ask(asked, path));
        assert_eq!(client.answer("POST").status, 502, "{asked} {path}");
    }
}

#[lab_test]
fn another_protocol_is_carried_where_tls_ends_here() {
    let lab = Lab::new();
    let _host = host(&lab);
    let pem = certificate(&lab, "lb", &["a.test"]);
    let route =
        ROUTE
            .replace(" }", ", tls: { termination: edge } }")
            .replacen(", tls: { termination: edge } }", " }", 1);
    let sb = Signalbox::start(&lab, &body("", &certificates(&pem), &[("east-1", "")], &[&route]));
    sb.wait_healthy(&["east-1"]);
    converse(&mut connect(&lab, "a.test"), "SPDY/3.1", || true);
}
