//! HTTP/2 from clients, by curl: the protocols offered, and the view of the host and the client.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use super::scene::{body, certificate, certificates, connect, trusting, try_connect};
use crate::http::request::scene::{WebHost, field, file_digest, noise_digest, send_noise};
use crate::lab::http::{self, Curl};
use crate::lab::{Lab, SOON, Signalbox, eventually, lab_test, servers};

const EDGE: &str = "{ host: a.test, clusters: { east-1: 1 }, tls: { termination: edge, hsts: max-age=60 } }";
const PASSED: &str = "{ host: pass.a.test, clusters: { east-1: 1 } }";

fn start(lab: &Lab) -> (WebHost, Signalbox) {
    let east = WebHost::start(lab, "east-1");
    let pem = certificate(lab, "lb", &["a.test"]);
    let sb = Signalbox::start(lab, &body("", &certificates(&pem), &[("east-1", "")], &[EDGE, PASSED]));
    sb.wait_healthy(&["east-1"]);
    (east, sb)
}

/// Runs curl, which must speak HTTP/2.
fn curl(lab: &Lab, words: &[&str]) -> Curl {
    let said = http::curl(
        lab,
        "10.1.0.1",
        &[&["--http2", "-w", " v=%{http_version} s=%{http_code}"], words].concat(),
    );
    assert_eq!(
        (said.code, &*http::field(&said.body, "v")),
        (0, "2"),
        "{} {}",
        said.body,
        said.trace
    );
    said
}

/// Protocol that a handshake for a name chooses.
fn alpn(lab: &Lab, name: &str) -> String {
    let mut settings = trusting(lab);
    settings.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let mut client = try_connect(lab, name, Arc::new(settings)).unwrap();
    let chosen = client.inner().conn.alpn_protocol().unwrap_or_default();
    String::from_utf8_lossy(chosen).into_owned()
}

#[lab_test]
fn a_proxy_header_names_the_protocol_of_the_clients_tls() {
    let lab = Lab::new();
    let _health = servers::healthy(lab.host("east-1"));
    let (_host, connections) = servers::hand_over(lab.host("east-1"), "[::]:80");
    let pem = certificate(&lab, "lb", &["a.test"]);
    let tlvs = "proxy_protocol: { version: 2, tlvs: [alpn] }";
    let sb = Signalbox::start(&lab, &body("", &certificates(&pem), &[("east-1", tlvs)], &[EDGE]));
    sb.wait_healthy(&["east-1"]);
    for (words, alpn) in [
        (&["--http2"][..], &b"\x01\x00\x02h2"[..]),
        (&["--http1.1"], b"\x01\x00\x08http/1.1"),
        (&["--no-alpn"], b""),
    ] {
        std::thread::scope(|scope| {
            scope.spawn(|| http::curl(&lab, "10.1.0.1", &[words, &["https://a.test/"]].concat()));
            let host = connections.recv_timeout(SOON).unwrap();
            let mut host = &*host;
            let mut header = [0; 28];
            host.read_exact(&mut header).unwrap();
            let length = usize::from(u16::from_be_bytes([header[14], header[15]]));
            let mut rest = vec![0; length - 12];
            host.read_exact(&mut rest).unwrap();
            assert_eq!(rest, alpn, "{words:?}");
            host.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                .unwrap();
        });
    }
}

#[lab_test]
fn curl_speaks_http2_and_the_host_learns_it() {
    let lab = Lab::new();
    let (east, sb) = start(&lab);
    let said = curl(&lab, &["-D-", "-b", "a=1; b=2", "https://a.test/"]);
    assert!(
        said.body.contains("strict-transport-security: max-age=60"),
        "{}",
        said.body
    );
    assert!(said.body.contains("host=east-1"), "{}", said.body);
    let head = east.take().remove(0);
    for (name, value) in [
        ("host", "a.test"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-proto-version", "h2"),
        ("cookie", "a=1; b=2"),
    ] {
        assert_eq!(field(&head, name), Some(value), "{head}");
    }
    assert_eq!(
        http::field(&curl(&lab, &["-I", "https://a.test/bytes/5"]).body, "s"),
        "200"
    );
    assert_eq!(
        http::field(&curl(&lab, &["https://a.test/status/204"]).body, "s"),
        "204"
    );
    // As many as a host may send; the balancer adds one.
    assert_eq!(
        http::field(&curl(&lab, &["-o/dev/null", "https://a.test/fields/128"]).body, "s"),
        "200"
    );
    assert!(curl(&lab, &["https://a.test/close"]).body.contains("up to the end"));
    assert!(curl(&lab, &["https://a.test/interim"]).body.contains("host=east-1"));
    assert_eq!(
        http::field(&curl(&lab, &["-d", "x", "https://a.test/early"]).body, "s"),
        "413"
    );
    // A browser would use the connection for another name of its certificate, or one that it believes to be.
    let other = ["-H", "Host: pass.a.test", "https://a.test/"];
    assert_eq!(http::field(&curl(&lab, &other).body, "s"), "421");
    assert!(sb.metric("signalbox_http2_connections_total{listener=\"https\"}") > 7.5);
    let active = || sb.metric("signalbox_http2_streams_active{listener=\"https\"}");
    assert!(eventually(SOON, || active() < 0.5));
    // HTTP/1.1 still works beside it.
    let mut client = connect(&lab, "a.test");
    client.send("GET /ws HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nfirst");
    assert_eq!(client.answer("GET").status, 101);
    assert_eq!(client.read(10), b"hellofirst");
}

#[lab_test]
fn bodies_of_streams_arrive_whole_in_both_directions() {
    let lab = Lab::new();
    let (_east, _sb) = start(&lab);
    let (sent, got) = (lab.dir().join("sent"), lab.dir().join("got"));
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    for length in [0, 1, 16_384, 1 << 20, 30 << 20] {
        for kind in ["bytes", "chunked"] {
            curl(&lab, &["-o", &path(&got), &format!("https://a.test/{kind}/{length}")]);
            assert_eq!(file_digest(&got), noise_digest(length), "{kind} {length}");
        }
        send_noise(File::create(&sent).unwrap(), length, false).unwrap();
        let expected = format!("{length} {}", noise_digest(length));
        for unknown in [&[][..], &["-H", "Content-Length:"]] {
            let data = format!("@{}", path(&sent));
            let words = [&["--data-binary", &data, "https://a.test/digest"], unknown].concat();
            assert!(curl(&lab, &words).body.starts_with(&expected), "{length} {unknown:?}");
        }
    }
}

#[lab_test]
fn http2_is_offered_by_the_rule() {
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let one = certificate(&lab, "one", &["a.test"]);
    let wild = certificate(&lab, "wild", &["*.a.test", "b.test"]);
    let route = |host: &str| format!("{{ host: {host}, clusters: {{ east-1: 1 }}, tls: {{ termination: edge }} }}");
    let edges = ["a.test", "www.a.test", "b.test"].map(route);
    let text = |rule: &str, passed: &[&str]| {
        let edges = edges.iter().map(String::as_str);
        let extra = format!(
            "certificates: [{{ cert: {} }}, {{ cert: {} }}]\ntls: {{ http2: {rule} }}",
            one.display(),
            wild.display()
        );
        let routes: Vec<_> = edges.chain(passed.iter().copied()).collect();
        body("", &extra, &[("east-1", "")], &routes)
    };
    let sb = Signalbox::start(&lab, &text("auto", &[]));
    sb.wait_healthy(&["east-1"]);
    let chosen = || ["a.test", "www.a.test", "b.test"].map(|name| alpn(&lab, name));
    assert_eq!(chosen(), ["h2", "h2", "h2"]);
    sb.reload(&text("auto", &[PASSED]));
    assert_eq!(
        chosen(),
        ["h2", "http/1.1", "http/1.1"],
        "the wildcard covers a passthrough route"
    );
    sb.reload(&text("unique", &[]));
    assert_eq!(chosen(), ["h2", "http/1.1", "http/1.1"]);
    sb.reload(&text("off", &[]));
    assert_eq!(chosen(), ["http/1.1", "http/1.1", "http/1.1"]);
}

#[lab_test]
fn h2load_finds_no_failed_request() {
    let lab = Lab::new();
    let (_east, sb) = start(&lab);
    let words = [
        "h2load",
        "-n",
        "2000",
        "-c",
        "4",
        "-m",
        "32",
        "--connect-to=10.1.0.1:443",
        "https://a.test/chunked/3000",
    ];
    let said = lab.client.output(&words);
    let text = String::from_utf8_lossy(&said.stdout);
    assert!(
        text.contains("2000 succeeded, 0 failed, 0 errored, 0 timeout"),
        "{text}"
    );
    assert!(text.contains("status codes: 2000 2xx"), "{text}");
    assert!(eventually(SOON, || sb.flow_count() == 0));
}
