//! TLS that ends at the balancer, with plain HTTP to the host.

use std::io::{Read as _, Write as _};

use super::scene::{body, certificate, certificates, connect, is_shown};
use crate::http::request::scene::{WebHost, field, noise_digest, send_noise};
use crate::lab::{Lab, SOON, Signalbox, eventually, lab_test};

const ROUTE: &str = "{ host: a.test, clusters: { east-1: 1 }, tls: { termination: edge, hsts: max-age=60 } }";

fn start(lab: &Lab) -> (WebHost, Signalbox) {
    let east = WebHost::start(lab, "east-1");
    let pem = certificate(lab, "lb", &["a.test"]);
    let sb = Signalbox::start(lab, &body("", &certificates(&pem), &[("east-1", "")], &[ROUTE]));
    sb.wait_healthy(&["east-1"]);
    (east, sb)
}

#[lab_test]
fn tls_requests_are_routed_and_the_host_learns_the_protocol() {
    let lab = Lab::new();
    let (east, sb) = start(&lab);
    let mut client = connect(&lab, "a.test");
    assert!(is_shown(&mut client, &lab.dir().join("lb.pem")));
    for _ in 0..3 {
        let answer = client.get("a.test", "/");
        assert_eq!(answer.status, 200);
        assert_eq!(field(&answer.head, "strict-transport-security"), Some("max-age=60"));
    }
    let heads = east.take();
    assert_eq!(heads.len(), 3);
    assert!(
        heads
            .iter()
            .all(|head| field(head, "x-forwarded-proto") == Some("https"))
    );
    assert!(heads.iter().all(|head| field(head, "x-forwarded-port") == Some("443")));
    assert_eq!(
        sb.host("east-1")["total_connections"],
        1,
        "the host's connection is kept"
    );
    let handshakes = sb.metric("signalbox_tls_handshakes_total{listener=\"https\",version=\"1.3\",resumed=\"no\"}");
    assert!((handshakes - 1.0).abs() < 0.5, "{handshakes}");
    // An unknown name has no route, and its connection is kept.
    assert_eq!(
        client.get("b.test", "/").status,
        421,
        "the listener passes other names through"
    );
}

#[lab_test]
fn bodies_arrive_whole_in_both_directions() {
    let lab = Lab::new();
    let (_east, _sb) = start(&lab);
    let mut client = connect(&lab, "a.test");
    for length in [0, 1, 16_384, 1 << 20, 30 << 20] {
        for kind in ["bytes", "chunked"] {
            let answer = client.get("a.test", &format!("/{kind}/{length}"));
            assert_eq!(answer.status, 200, "{kind} {length}");
            if length >= 10_000 {
                assert_eq!(answer.body.hex(), noise_digest(length), "{kind} {length}");
            }
        }
        client.send(&format!(
            "POST /digest HTTP/1.1\r\nHost: a.test\r\nContent-Length: {length}\r\n\r\n"
        ));
        send_noise(client.inner(), length, false).unwrap();
        assert_eq!(client.answer("POST").text, format!("{length} {}", noise_digest(length)));
        client.send("POST /digest HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n");
        send_noise(client.inner(), length, true).unwrap();
        assert_eq!(client.answer("POST").text, format!("{length} {}", noise_digest(length)));
    }
}

#[lab_test]
fn a_websocket_in_tls_becomes_a_tunnel() {
    let lab = Lab::new();
    let (_east, sb) = start(&lab);
    let mut client = connect(&lab, "a.test");
    client.send("GET /ws HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nfirst");
    assert_eq!(client.answer("GET").status, 101);
    assert_eq!(client.read(10), b"hellofirst");
    let sent: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
    // Fewer bytes than the sockets on the way hold: the echo is not read until all are sent.
    for part in sent.chunks(50_000) {
        client.inner().write_all(part).unwrap();
        assert!(client.read(part.len()) == part);
    }
    client.inner().conn.send_close_notify();
    client.inner().flush().unwrap();
    let mut rest = Vec::new();
    client.inner().read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "the host's end comes after the client's");
    assert!(eventually(SOON, || sb.flow_count() == 0));
}

#[lab_test]
fn a_reader_that_never_reads_costs_little_memory() {
    let lab = Lab::new();
    let (_east, sb) = start(&lab);
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", sb.proc.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let before = resident();
    let mut readers: Vec<_> = (0..10).map(|_| connect(&lab, "a.test")).collect();
    for reader in &mut readers {
        reader.send("GET /bytes/268435456 HTTP/1.1\r\nHost: a.test\r\n\r\n");
    }
    let settled = || {
        let bytes = sb.metric("signalbox_bytes_total{cluster=\"east-1\",direction=\"out\"}");
        std::thread::sleep(std::time::Duration::from_millis(500));
        bytes > 0.0 && (sb.metric("signalbox_bytes_total{cluster=\"east-1\",direction=\"out\"}") - bytes) < 1.0
    };
    assert!(eventually(SOON, settled));
    let added = resident().saturating_sub(before);
    assert!(added < 16 * 1024, "{added} KiB for ten readers");
}
