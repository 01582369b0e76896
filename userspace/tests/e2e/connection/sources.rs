//! Limits by source address, and clients behind a proxy that names them.

use crate::lab;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use lab::signalbox::PEEK_IN_USERSPACE;
use lab::topology::OTHER_CLIENTS;
use lab::{Lab, Router, SOON, Signalbox, config, eventually, http, lab_test};

use crate::http::https::scene::{certificate, shake_hands, trusting};

const HTTP: &str = "10.1.0.1:80";
/// The client that the limits are tried on.
const GREEDY: &str = "10.1.0.2";

fn start(limits: &str) -> (Lab, Router, Signalbox) {
    start_on("", limits)
}

/// Starts signalbox with a line that says where names are peeked at.
fn start_on(path: &str, limits: &str) -> (Lab, Router, Signalbox) {
    let lab = Lab::new();
    let router = Router::start(&lab, "east-1");
    let east = config::cluster("east", &[], &["east-1"]);
    let body = format!(
        "{path}\nlimits: {{ per_source: {{ {limits} }} }}\n{}clusters:\n{east}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
        config::WEB_LISTENERS
    );
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1"]);
    (lab, router, sb)
}

/// Connects and asks from one of the client's addresses; the connection, if it is served.
fn served(lab: &Lab, from: &str) -> Option<TcpStream> {
    let stream = lab.client.connect_from(from, HTTP);
    let answer = http::get(&stream, "a.test", "/");
    answer.is_ok_and(|a| a.status == 200).then_some(stream)
}

#[lab_test]
fn a_source_may_have_so_many_connections_that_say_nothing() {
    // Silent clients cost the kernel peek nothing, so they are not counted there.
    let (lab, _router, sb) = start_on(PEEK_IN_USERSPACE, "peeking: 4");
    let established: Vec<_> = (0..10)
        .map(|_| served(&lab, GREEDY).expect("peeked at, no longer counted"))
        .collect();
    let silent: Vec<_> = (0..4).map(|_| lab.client.connect_from(GREEDY, HTTP)).collect();
    // The accept queue is worked off in its own time.
    assert!(
        eventually(SOON, || served(&lab, GREEDY).is_none()),
        "a fifth is refused"
    );
    assert!(sb.metric("signalbox_refused_total{listener=\"http\"}") >= 1.0);
    assert!(
        served(&lab, OTHER_CLIENTS[0]).is_some(),
        "another source is not concerned"
    );
    for stream in &established {
        assert_eq!(http::get(stream, "a.test", "/").unwrap().status, 200);
    }
    drop(silent);
    assert!(
        eventually(SOON, || served(&lab, GREEDY).is_some()),
        "and is served again afterwards"
    );
}

#[lab_test]
fn a_source_may_have_so_many_connections_at_once() {
    let (lab, _router, sb) = start("concurrent: 5");
    let mut held: Vec<_> = (0..5).map(|_| served(&lab, GREEDY).unwrap()).collect();
    for _ in 0..3 {
        assert!(served(&lab, GREEDY).is_none(), "a sixth is refused");
    }
    assert!(served(&lab, OTHER_CLIENTS[0]).is_some());
    assert_eq!(sb.metric("signalbox_refused_total{listener=\"http\"}"), 3.0);
    held.pop();
    assert!(
        eventually(SOON, || served(&lab, GREEDY).is_some()),
        "a place has become free"
    );
}

#[lab_test]
fn a_source_may_open_so_many_connections_a_second() {
    let (lab, _router, sb) = start("per_second: 10");
    std::thread::sleep(Duration::from_secs(1));
    let count = lab
        .client
        .run(|| (0..100).filter(|_| http::ask_here(HTTP, "a.test").is_ok()).count());
    assert!((5..100).contains(&count), "{count} of 100 at once");
    assert!(served(&lab, OTHER_CLIENTS[1]).is_some());
    let refused = sb.metric("signalbox_refused_total{listener=\"http\"}");
    assert_eq!(refused, 100.0 - count as f64);
    assert!(eventually(SOON, || served(&lab, GREEDY).is_some()), "and later again");
}

/// A listener that trusts 10.1.0.2, in front of a cluster whose HAProxy demands and trusts our own header.
fn start_proxied() -> (Lab, Router, Signalbox) {
    let lab = Lab::new();
    let router = Router::accept_proxy(&lab, "east-1");
    let east = config::cluster("east", &["proxy_protocol: v2"], &["east-1"]);
    let body = format!(
        r#"listeners:
  - {{ name: http,  protocol: http, listen: ["10.1.0.1:80", "[fd00:1::1]:80"], proxy_protocol: {{ trusted: ["{GREEDY}/32"] }} }}
  - {{ name: https, protocol: tls,  listen: ["10.1.0.1:443"], proxy_protocol: {{ trusted: ["{GREEDY}/32"] }} }}
clusters:
{east}routes:
  - {{ host: "*.test", clusters: {{ east: 1 }} }}
"#
    );
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1"]);
    (lab, router, sb)
}

/// A PROXY v2 header for a TCP client over IPv4 or IPv6.
fn v2(client: &str) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21".to_vec();
    match client.parse().unwrap() {
        std::net::IpAddr::V4(ip) => header.extend([&[0x11, 0, 12][..], &ip.octets(), &[10, 1, 0, 1]].concat()),
        std::net::IpAddr::V6(ip) => header.extend([&[0x21, 0, 36][..], &ip.octets(), &[0; 15], &[1]].concat()),
    }
    header.extend([0x15, 0xb3, 0, 80]);
    header
}

#[lab_test]
fn a_trusted_proxys_header_gives_the_client_address_to_the_host() {
    let (lab, _router, sb) = start_proxied();
    let v1 = b"PROXY TCP4 203.0.113.7 10.1.0.1 5555 80\r\n".to_vec();
    let v1_6 = b"PROXY TCP6 2001:db8::7 fd00:1::1 5555 80\r\n".to_vec();
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00".to_vec();
    for (header, client) in [
        (v1, "203.0.113.7"),
        (v1_6, "2001:db8::7"),
        (v2("203.0.113.8"), "203.0.113.8"),
        (v2("2001:db8::8"), "2001:db8::8"),
        (local, GREEDY),
        (b"PROXY UNKNOWN\r\n".to_vec(), GREEDY),
        // No header at all: a trusted address may also be a client.
        (Vec::new(), GREEDY),
    ] {
        for segment in [1, 4096] {
            let mut stream = lab.client.connect_from(GREEDY, HTTP);
            stream.set_nodelay(true).unwrap();
            for part in header.chunks(segment) {
                stream.write_all(part).unwrap();
            }
            let answer = http::get(&stream, "a.test", "/").unwrap_or_else(|e| panic!("{client}: {e}"));
            assert_eq!(
                (answer.status, answer.field("client")),
                (200, client.into()),
                "{header:?}"
            );
        }
    }
    let tls = http::curl(
        &lab,
        "10.1.0.1",
        &["--haproxy-protocol", "--interface", GREEDY, "https://a.test/"],
    );
    assert_eq!(
        (tls.code, http::field(&tls.body, "client")),
        (0, GREEDY.into()),
        "{}",
        tls.trace
    );
    let six = http::ask(&lab, "[fd00:1::1]:80", "a.test");
    assert_eq!(
        six.field("client"),
        "fd00:1::2",
        "an untrusted client of the other family"
    );
    drop(sb);
}

#[lab_test]
fn the_destination_that_a_proxy_names_is_told_on() {
    let lab = Lab::new();
    let _router = Router::accept_proxy(&lab, "east-1");
    let pem = certificate(&lab, "lb", &["edge.test"]);
    let east = config::cluster("east", &["proxy_protocol: v2"], &["east-1"]);
    let proxied = format!("proxy_protocol: {{ trusted: [\"{GREEDY}/32\"] }}");
    let sb = Signalbox::start(
        &lab,
        &format!(
            r#"certificates: [{{ cert: {} }}]
listeners:
  - {{ name: http, protocol: http, listen: ["{HTTP}"], {proxied} }}
  - {{ name: requests, protocol: http, routing: request, listen: ["10.1.0.1:8080"], {proxied} }}
  - {{ name: https, protocol: https, listen: ["10.1.0.1:8443"], {proxied} }}
clusters:
{east}routes:
  - {{ host: "*.test", clusters: {{ east: 1 }} }}
  - {{ host: edge.test, clusters: {{ east: 1 }}, tls: {{ termination: edge }} }}
"#,
            pem.display()
        ),
    );
    sb.wait_healthy(&["east-1"]);
    let v1 = b"PROXY TCP4 203.0.113.7 198.51.100.9 5555 443\r\n".to_vec();
    let mut v2 = v2("203.0.113.7");
    v2[20..24].copy_from_slice(&[198, 51, 100, 9]);
    v2[26..].copy_from_slice(&443u16.to_be_bytes());
    let none = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00".to_vec();
    for (header, is_named) in [
        (v1, true),
        (v2, true),
        (b"PROXY UNKNOWN\r\n".to_vec(), false),
        (none, false),
    ] {
        let begin = |at: &str| {
            let mut stream = lab.client.connect_from(GREEDY, at);
            stream.write_all(&header).unwrap();
            stream
        };
        let to = |at: &str| if is_named { "198.51.100.9:443" } else { at }.to_owned();
        for at in [HTTP, "10.1.0.1:8080"] {
            let answer = http::get(begin(at), "a.test", "/").unwrap();
            assert_eq!(answer.field("to"), to(at), "{header:?}");
            if at != HTTP {
                assert_eq!(answer.field("port"), if is_named { "443" } else { "8080" });
            }
        }
        for name in ["a.test", "edge.test"] {
            let settings = Arc::new(trusting(&lab));
            let mut client = shake_hands(begin("10.1.0.1:8443"), name, settings).unwrap();
            let answer = client.get(name, "/").text;
            assert_eq!(http::field(&answer, "to"), to("10.1.0.1:8443"), "{name} {header:?}");
            if name == "edge.test" {
                assert_eq!(http::field(&answer, "port"), if is_named { "443" } else { "8443" });
            }
        }
    }
}

#[lab_test]
fn a_header_from_anyone_else_is_garbage() {
    let (lab, _router, sb) = start_proxied();
    let other = OTHER_CLIENTS[0];
    for header in [
        b"PROXY TCP4 203.0.113.7 10.1.0.1 5555 80\r\n".to_vec(),
        v2("203.0.113.7"),
    ] {
        let mut stream = lab.client.connect_from(other, HTTP);
        stream.write_all(&header).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        // Refused politely or not, but never served.
        let _ = stream.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer);
        assert!(!text.contains("host=east-1"), "{text}");
    }
    let count = |outcome| {
        sb.metric(&format!(
            "signalbox_peek_total{{listener=\"http\",outcome=\"{outcome}\"}}"
        ))
    };
    assert_eq!(count("wrong_protocol") + count("malformed"), 2.0);
    let plain = lab.client.connect_from(other, HTTP);
    assert_eq!(http::get(&plain, "a.test", "/").unwrap().field("client"), other);

    let mut broken = lab.client.connect_from(GREEDY, HTTP);
    broken
        .write_all(b"PROXY TCP4 not-an-address\r\nGET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
        .unwrap();
    let mut answer = Vec::new();
    let _ = broken.read_to_end(&mut answer);
    assert!(
        !String::from_utf8_lossy(&answer).contains("host=east-1"),
        "a broken header from a trusted source"
    );
}
