//! Decisions by the first bytes of a connection: where it goes, and how it is refused.

use crate::lab;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use lab::{Lab, Router, SOON, Server, Signalbox, config, eventually, hello, http, lab_test, servers};

const HTTP: &str = "10.1.0.1:80";
const HTTPS: &str = "10.1.0.1:443";

/// Hosts that keep the received bytes, on both ports, and name themselves at the end.
fn recording(lab: &Lab, names: &[&str]) -> (servers::Recorder, Vec<Server>) {
    let recorder = servers::Recorder::default();
    let mut running = Vec::new();
    for name in names {
        let ns = lab.host(name);
        running.extend([
            servers::healthy(ns),
            recorder.serve(ns, "[::]:80", name),
            recorder.serve(ns, "[::]:443", name),
        ]);
    }
    (recorder, running)
}

/// Clusters of one host each, by the host's name, and these routes.
fn config_of(extra: &str, hosts: &[&str], routes: &[(&str, &str)]) -> String {
    let clusters: String = hosts.iter().map(|host| config::cluster(host, &[], &[host])).collect();
    let route = |(name, host): &(&str, &str)| format!("{{ host: \"{name}\", clusters: {{ {host}: 1 }} }}");
    let routes: Vec<_> = routes.iter().map(route).collect();
    format!(
        "{extra}\n{}clusters:\n{clusters}routes:\n{}",
        config::WEB_LISTENERS,
        config::yaml_list("  ", &routes)
    )
}

/// Ends the sending side and returns everything that comes back.
fn finish(mut stream: TcpStream) -> Vec<u8> {
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

/// Waits for the end of a connection, in order or by reset; returns the bytes before it.
fn cut(mut stream: &TcpStream) -> Vec<u8> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return bytes,
            Ok(n) => bytes.extend_from_slice(&buffer[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => return bytes,
            Err(e) => panic!("neither ended nor reset: {e}"),
        }
    }
}

#[lab_test]
fn a_post_quantum_client_hello_arrives_exact_however_split() {
    let lab = Lab::new();
    let (recorder, _servers) = recording(&lab, &["east-1", "west-1"]);
    let body = config_of(
        "",
        &["east-1", "west-1"],
        &[("east.test", "east-1"), ("west.test", "west-1")],
    );
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1", "west-1"]);
    for (name, host) in [("east.test", "east-1"), ("west.test", "west-1")] {
        let message = hello::client_hello(Some(name));
        // The way the message is cut into records, and each into segments with a pause that the network may make.
        for (records, segment, pause) in [
            (1, 1400, 50),
            (1, 700, 20),
            (1, 1, 0),
            (3, 4096, 0),
            (3, 1, 0),
            (2, 1400, 50),
        ] {
            let mut bytes = hello::records(&message, records);
            bytes.extend(b"early data follows at once");
            let mut stream = lab.client.connect(HTTPS);
            stream.set_nodelay(true).unwrap();
            for part in bytes.chunks(segment) {
                stream.write_all(part).unwrap();
                std::thread::sleep(Duration::from_millis(pause));
            }
            let case = format!("{name} in {records} records, {segment} bytes a segment");
            assert_eq!(finish(stream), host.as_bytes(), "{case}");
            assert_eq!(recorder.take(), [bytes], "{case}");
        }
    }
    assert_eq!(
        sb.metric("signalbox_peek_total{listener=\"https\",outcome=\"sni\"}"),
        12.0
    );
}

#[lab_test]
fn http2_with_prior_knowledge_is_routed_by_its_authority() {
    let lab = Lab::new();
    let _routers = Router::start_all(&lab, &["east-1", "west-1"]);
    let body = config_of(
        "",
        &["east-1", "west-1"],
        &[("east.test", "east-1"), ("west.test", "west-1")],
    );
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1", "west-1"]);
    for (name, host) in [("east.test", "east-1"), ("west.test", "west-1")] {
        let words = [
            "--http2-prior-knowledge",
            "-w",
            "v=%{http_version}",
            &format!("http://{name}/"),
        ];
        let answer = http::curl(&lab, "10.1.0.1", &words);
        assert_eq!(answer.code, 0, "{}", answer.trace);
        assert_eq!(http::field(&answer.body, "host"), host);
        assert_eq!(http::field(&answer.body, "v"), "2");
    }
}

#[lab_test]
fn a_request_arrives_exact_and_an_absolute_form_overrides_host() {
    let lab = Lab::new();
    let (recorder, _servers) = recording(&lab, &["east-1", "west-1"]);
    let body = config_of(
        "",
        &["east-1", "west-1"],
        &[("east.test", "east-1"), ("west.test", "west-1")],
    );
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1", "west-1"]);
    for (text, host) in [
        (
            "GET /a?b#c HTTP/1.1\r\nX-Odd:  spaces \r\nhOST: EAST.test:80\r\n\r\n",
            "east-1",
        ),
        ("GET http://west.test/ HTTP/1.1\r\nHost: east.test\r\n\r\n", "west-1"),
        (
            "POST / HTTP/1.0\r\nHost: east.test.\r\nContent-Length: 4\r\n\r\nbody",
            "east-1",
        ),
        (
            "GET /1 HTTP/1.1\r\nHost: east.test\r\n\r\nGET /2 HTTP/1.1\r\nHost: east.test\r\n\r\n",
            "east-1",
        ),
    ] {
        for segment in [1, 4096] {
            let mut stream = lab.client.connect(HTTP);
            stream.set_nodelay(true).unwrap();
            for part in text.as_bytes().chunks(segment) {
                stream.write_all(part).unwrap();
            }
            assert_eq!(finish(stream), host.as_bytes(), "{text}");
            assert_eq!(recorder.take(), [text.as_bytes()]);
        }
    }
}

#[lab_test]
fn an_exact_name_beats_a_wildcard_and_a_longer_one_a_shorter() {
    let lab = Lab::new();
    let hosts = ["east-1", "east-2", "west-2"];
    let _routers = Router::start_all(&lab, &hosts);
    let routes = [
        ("*.test", "west-2"),
        ("*.apps.test", "east-2"),
        ("one.apps.test", "east-1"),
    ];
    let sb = Signalbox::start(&lab, &config_of("", &hosts, &routes));
    sb.wait_healthy(&hosts);
    for (name, host) in [
        ("one.apps.test", "east-1"),
        ("two.apps.test", "east-2"),
        ("other.test", "west-2"),
    ] {
        assert_eq!(http::ask(&lab, HTTP, name).field("host"), host, "{name}");
        // `-k`, because the certificate need not match the name: the host must be right.
        let tls = http::curl(&lab, "10.1.0.1", &["-k", &format!("https://{name}/")]);
        assert_eq!(http::field(&tls.body, "host"), host, "{name}: {}", tls.trace);
    }
    assert_eq!(http::ask(&lab, HTTP, "elsewhere.org").status, 404);
}

/// The refusals, in the words of each protocol.
#[lab_test]
fn unroutable_connections_are_refused_in_their_own_protocol() {
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    // West-2 runs no server: its route exists and leads nowhere.
    let body = config_of(
        "",
        &["east-1", "west-2"],
        &[("up.test", "east-1"), ("down.test", "west-2")],
    );
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1"]);
    assert!(eventually(SOON, || sb.host("west-2")["health"] == "unhealthy"));

    let long = format!(
        "GET / HTTP/1.1\r\nHost: up.test\r\nX-Long: {}\r\n\r\n",
        "x".repeat(40 << 10)
    );
    for (text, status) in [
        ("GET / HTTP/1.1\r\nHost: nobody.test\r\n\r\n", 404),
        ("GET / HTTP/1.0\r\n\r\n", 404),
        ("GET / HTTP/1.1\r\nHost: 10.1.0.1\r\n\r\n", 404),
        ("GET / HTTP/1.1\r\nHost: down.test\r\n\r\n", 503),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: up.test\r\nHost: down.test\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: up.test\r\nbad header\r\n\r\n", 400),
        (&long, 431),
    ] {
        let stream = lab.client.connect(HTTP);
        let line: String = text.chars().take(90).collect();
        let answer = http::request(&stream, text).unwrap_or_else(|e| panic!("{e}: {line:?}"));
        assert_eq!(answer.status, status, "{line:?}");
        assert_eq!(
            answer.headers.get("connection").map(String::as_str),
            Some("close"),
            "{line:?}"
        );
        assert!(cut(&stream).is_empty());
    }
    for (sni, alert) in [(Some("nobody.test"), 112), (Some("down.test"), 80)] {
        let mut stream = lab.client.connect(HTTPS);
        stream.write_all(&hello::records(&hello::client_hello(sni), 1)).unwrap();
        let bytes = cut(&stream);
        assert_eq!(bytes.len(), 7, "one alert: {bytes:x?}");
        assert_eq!(
            (bytes[0], bytes[1], &bytes[3..]),
            (0x15, 3, &[0, 2, 2, alert][..]),
            "{sni:?}: {bytes:x?}"
        );
    }
    let mut nameless = lab.client.connect(HTTPS);
    nameless
        .write_all(&hello::records(&hello::client_hello(None), 1))
        .unwrap();
    assert_eq!(cut(&nameless).first(), Some(&0x15), "an alert");
    for outcome in [
        "http\",outcome=\"malformed",
        "http\",outcome=\"too_large",
        "https\",outcome=\"no_sni",
    ] {
        let count = sb.metric(&format!("signalbox_peek_total{{listener=\"{outcome}\"}}"));
        assert!(count >= 1.0, "{outcome} is counted");
    }
    assert!(sb.metric("signalbox_refused_total{listener=\"http\"}") >= 4.0);
    assert!(sb.metric("signalbox_refused_total{listener=\"https\"}") >= 3.0);
}

#[lab_test]
fn a_client_that_dawdles_is_told_408_or_cut() {
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    let short = "timeouts: { peek_http: 1s, peek_tls: 1s }";
    let sb = Signalbox::start(&lab, &config_of(short, &["east-1"], &[("a.test", "east-1")]));
    sb.wait_healthy(&["east-1"]);
    let mut half = lab.client.connect(HTTP);
    half.write_all(b"GET / HTTP/1.1\r\nHost: a.te").unwrap();
    assert_eq!(http::read_response(&half).unwrap().status, 408);

    // A byte now and then does not extend the limit.
    let mut slow = lab.client.connect(HTTPS);
    slow.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let bytes = hello::records(&hello::client_hello(Some("a.test")), 1);
    let ended = bytes.iter().take(200).any(|byte| {
        let mut buffer = [0; 64];
        let unsent = slow.write_all(&[*byte]).is_err();
        let end = match slow.read(&mut buffer) {
            Ok(n) => n == 0,
            Err(e) => e.kind() == ErrorKind::ConnectionReset,
        };
        unsent || end
    });
    assert!(ended, "a ClientHello of twenty seconds and more");
    for listener in ["http", "https"] {
        let key = format!("signalbox_peek_total{{listener=\"{listener}\",outcome=\"timeout\"}}");
        assert_eq!(sb.metric(&key), 1.0, "{key}");
    }
    assert_eq!(http::ask(&lab, HTTP, "a.test").status, 200);
}

#[lab_test]
fn garbage_is_refused_and_counted_while_good_clients_are_served() {
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    let sb = Signalbox::start(&lab, &config_of("", &["east-1"], &[("a.test", "east-1")]));
    sb.wait_healthy(&["east-1"]);
    let served = sb.host("east-1")["total_connections"].as_u64().unwrap();
    let mut noise = vec![0xff; 600];
    lab::exchange::Noise::new(7).fill(&mut noise[1..]);
    let tls = hello::records(&hello::client_hello(Some("a.test")), 1);
    let kinds: [&[u8]; 4] = [
        &noise,
        b"SSH-2.0-OpenSSH_9.2\r\n",
        &[0; 600],
        b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10",
    ];
    let rounds = 10;
    let good = std::thread::scope(|scope| {
        let good = scope.spawn(|| {
            (0..100)
                .filter(|_| lab.client.run(|| http::ask_here(HTTP, "a.test")) == Ok("east-1".into()))
                .count()
        });
        for _ in 0..rounds {
            for (at, other) in [(HTTP, &tls[..]), (HTTPS, b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")] {
                for bytes in kinds.iter().copied().chain([other]) {
                    let mut stream = lab.client.connect(at);
                    stream.write_all(bytes).unwrap();
                    let answer = cut(&stream);
                    assert!(!answer.starts_with(b"HTTP/1.1 200"), "garbage reached a host");
                }
            }
        }
        good.join().unwrap()
    });
    assert_eq!(good, 100);
    for listener in ["http", "https"] {
        let count = |outcome| {
            sb.metric(&format!(
                "signalbox_peek_total{{listener=\"{listener}\",outcome=\"{outcome}\"}}"
            ))
        };
        let bad = count("wrong_protocol") + count("malformed") + count("too_large") + count("plain_http");
        assert_eq!(bad, f64::from(rounds * 5), "{listener}");
    }
    assert_eq!(
        sb.host("east-1")["total_connections"],
        served + 100,
        "only the good ones came to a host"
    );
}
