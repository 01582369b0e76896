//! Real hosts of HTTP/2, nghttpd and nginx, for clients of every version: curl, h2load.

use std::fs::File;
use std::path::PathBuf;

use crate::http::h2c::clients::{h2load, is_installed};
use crate::http::https::scene::{body, certificate, certificates, connect};
use crate::http::request::scene::{HTTP, ROUTE, body_of, file_digest, noise_digest, send_noise};
use crate::lab::{Lab, Proc, Router, SOON, Server, Signalbox, config, eventually, http, lab_test, privileged, servers};

/// Most connections that the workers of a balancer make at a time.
const WORKERS: f64 = 2.0;

/// Starts nghttpd on east-1, in plain, for the files of a directory, with more arguments in `words`.
fn nghttpd(lab: &Lab, words: &[&str]) -> (Server, Proc, PathBuf) {
    let files = lab.dir().join("files");
    std::fs::create_dir_all(&files).unwrap();
    let ns = lab.host("east-1");
    let mut command = ns.command("nghttpd");
    command.args(["--no-tls", "-d", files.to_str().unwrap()]);
    command.args(words).arg("80");
    let server = Proc::spawn("nghttpd", command, lab.dir());
    assert!(eventually(SOON, || {
        ns.run(|| std::net::TcpStream::connect("127.0.0.1:80").is_ok())
    }));
    (servers::healthy(ns), server, files)
}

fn start(lab: &Lab, extra: &str) -> Signalbox {
    let cluster = config::cluster("east-1", &["h2c: true"], &["east-1"]);
    let sb = Signalbox::start(lab, &body_of(extra, &cluster, &[ROUTE]));
    sb.wait_healthy(&["east-1"]);
    sb
}

fn connections(sb: &Signalbox) -> f64 {
    sb.metric("signalbox_host_http2_connections_total{cluster=\"east-1\"}")
}

#[lab_test]
fn clients_of_every_version_get_what_the_host_has() {
    if !is_installed("nghttpd", "nghttp2-server") {
        return;
    }
    let lab = Lab::new();
    let (_health, _server, files) = nghttpd(&lab, &["--echo-upload"]);
    let sb = start(&lab, "");
    let (sent, got) = (lab.dir().join("sent"), lab.dir().join("got"));
    let (data, out) = (format!("@{}", sent.display()), got.to_str().unwrap().to_owned());
    for length in [0, 1, 70_000, 5 << 20] {
        // nghttpd remembers what a file was like.
        send_noise(
            File::create(files.join(format!("noise{length}"))).unwrap(),
            length,
            false,
        )
        .unwrap();
        send_noise(File::create(&sent).unwrap(), length, false).unwrap();
        for version in ["--http1.0", "--http1.1", "--http2-prior-knowledge"] {
            let head = [version, "-sS", "-w", "%{http_code}", "-H", "Host: a.test", "-o", &out];
            let url = format!("http://{HTTP}/noise{length}");
            let said = http::curl(&lab, "10.1.0.1", &[&head[..], &[&url]].concat());
            assert_eq!(said.body, "200", "{version} {length}: {}", said.trace);
            assert_eq!(file_digest(&got), noise_digest(length), "{version} {length}");
            let said = http::curl(&lab, "10.1.0.1", &[&head[..], &["--data-binary", &data, &url]].concat());
            assert_eq!(said.body, "200", "{version} {length}: {}", said.trace);
            assert_eq!(file_digest(&got), noise_digest(length), "{version} {length} echoed");
        }
        let url = format!("http://{HTTP}/noise{length}");
        let said = http::curl(&lab, "10.1.0.1", &["-I", "-H", "Host: a.test", &url]);
        assert!(
            said.body.contains(&format!("content-length: {length}\r\n")),
            "{}",
            said.body
        );
    }
    assert!(connections(&sb) <= WORKERS, "{}", connections(&sb));
}

#[test]
fn more_requests_than_a_host_has_streams_take_more_connections() {
    let name = "more_requests_than_a_host_has_streams_take_more_connections";
    if !privileged(name) || !is_installed("nghttpd", "nghttp2-server") {
        return;
    }
    let lab = Lab::new();
    let (_health, _server, files) = nghttpd(&lab, &["-m", "10"]);
    send_noise(File::create(files.join("noise")).unwrap(), 3000, false).unwrap();
    let sb = start(&lab, "");
    h2load(&lab, &format!("http://{HTTP}/noise"), 2000, 64);
    assert!(connections(&sb) > WORKERS);
    assert_eq!(
        sb.metric("signalbox_retries_total{cluster=\"east-1\"}"),
        0.0,
        "no stream was refused"
    );
}

#[lab_test]
fn a_host_that_ends_its_connections_loses_no_request() {
    let lab = Lab::new();
    // nginx sends GOAWAY after this many requests.
    let _east = Router::nginx_with(
        &lab,
        "east-1",
        " http2",
        "listen [::]:8080 ipv6only=off http2; keepalive_requests 50;",
    );
    let host = config::host("east-1").replace("http: 80", "http: 8080");
    let cluster = config::cluster_of("east-1", &["h2c: true"], &[host]);
    let sb = Signalbox::start(&lab, &body_of("", &cluster, &[ROUTE]));
    sb.wait_healthy(&["east-1"]);
    h2load(&lab, &format!("http://{HTTP}/noise"), 2000, 8);
    assert!(connections(&sb) > 30.0, "{}", connections(&sb));
}

#[lab_test]
fn hosts_choose_by_alpn() {
    let lab = Lab::new();
    let _east = Router::nginx(&lab, "east-1");
    let _west = Router::nginx_with(&lab, "east-2", "", "");
    let pem = certificate(&lab, "lb", &["a.test", "shop.example.com"]);
    let tls = |host: &str, alpn: &str| {
        let ca = lab.dir().join(format!("{host}.pem"));
        format!("backend_tls: {{ ca: {}{alpn} }}", ca.display())
    };
    let text = |alpn: &str| {
        let hosts = [("east-1", tls("east-1", alpn)), ("east-2", tls("east-2", alpn))];
        let hosts = [(hosts[0].0, &*hosts[0].1), (hosts[1].0, &*hosts[1].1)];
        let routes = [
            "{ host: a.test, clusters: { east-1: 1 }, tls: { termination: reencrypt } }",
            "{ host: shop.example.com, clusters: { east-2: 1 }, tls: { termination: reencrypt } }",
        ];
        body("", &certificates(&pem), &hosts, &routes)
    };
    let sb = Signalbox::start(&lab, &text(", alpn: [h2, http/1.1]"));
    sb.wait_healthy(&["east-1", "east-2"]);
    let ask = |name: &str, host: &str| {
        let answer = connect(&lab, name).get(name, "/");
        assert_eq!(
            (answer.status, &*http::field(&answer.text, "host")),
            (200, host),
            "{}",
            answer.head
        );
        assert_eq!(http::field(&answer.text, "sni"), name);
    };
    for _ in 0..6 {
        ask("a.test", "east-1");
        ask("shop.example.com", "east-2");
    }
    let of = |host: &str| sb.metric(&format!("signalbox_host_http2_connections_total{{cluster=\"{host}\"}}"));
    assert!((1.0..=WORKERS).contains(&of("east-1")), "{}", of("east-1"));
    assert_eq!(of("east-2"), 0.0, "the host has chosen HTTP/1.1");
    assert!(sb.host("east-2")["total_connections"].as_u64().unwrap() <= 2);
    // A WebSocket, which this host does not support, is still asked for in HTTP/1.1.
    let mut client = connect(&lab, "a.test");
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_eq!(client.answer("GET").status, 200);
    assert!(of("east-1") <= WORKERS);
    // By default hosts are offered HTTP/1.1 alone.
    let before = of("east-1");
    sb.reload(&text(""));
    ask("a.test", "east-1");
    assert_eq!(of("east-1"), before);
}

#[lab_test]
fn explain_says_which_version_hosts_are_spoken_to_in() {
    let lab = Lab::new();
    let _health = servers::healthy(lab.host("east-1"));
    let sb = start(&lab, "");
    let said = sb.cli(&["explain", "http://a.test/"]);
    let said = String::from_utf8_lossy(&said.stdout);
    assert!(
        said.contains("hosts are spoken to in HTTP/2 with prior knowledge"),
        "{said}"
    );
}
