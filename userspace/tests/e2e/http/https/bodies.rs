//! Bodies of every framing, in both directions, between clients of each kind and a host: the received bytes have the
//! digest of the sent ones, however slow an end is, and an end that reads nothing costs the balancer little memory.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use super::scene::{body, certificate, certificates, connect};
use crate::http::request::scene::{Client, Dribble, WebHost, file_digest, noise_digest, send_noise};
use crate::lab::{Lab, Signalbox, http, lab_test};

const ROUTE: &str = "{ host: a.test, clusters: { east-1: 1 }, tls: { termination: edge, insecure: allow } }";

fn start(lab: &Lab) -> (WebHost, Signalbox) {
    let east = WebHost::start(lab, "east-1");
    let pem = certificate(lab, "lb", &["a.test"]);
    let sb = Signalbox::start(lab, &body("", &certificates(&pem), &[("east-1", "")], &[ROUTE]));
    sb.wait_healthy(&["east-1"]);
    (east, sb)
}

/// Asks for an answer and compares it.
fn check_answer<S: Read + Write>(client: &mut Client<S>, path: &str, expected: &(u64, String)) {
    let answer = client.get("a.test", path);
    assert_eq!((answer.body.length, answer.body.hex()), *expected, "{path}");
}

/// Sends a body to `/digest` by one framing and another.
fn check_requests<S: Read + Write>(client: &mut Client<S>, (length, digest): &(u64, String)) {
    for is_chunked in [false, true] {
        let framing = match is_chunked {
            false => format!("Content-Length: {length}"),
            true => "Transfer-Encoding: chunked".to_owned(),
        };
        client.send(&format!("POST /digest HTTP/1.1\r\nHost: a.test\r\n{framing}\r\n\r\n"));
        send_noise(client.inner(), *length, is_chunked).unwrap();
        client.inner().flush().unwrap();
        assert_eq!(client.answer("POST").text, format!("{length} {digest}"), "{framing}");
    }
}

/// Sends and fetches a body by a client of HTTP/1.1.
fn carry_http1<S: Read + Write>(connect: impl Fn() -> Client<S>, expected: &(u64, String)) {
    let mut client = connect();
    check_requests(&mut client, expected);
    for framing in ["bytes", "chunked", "close"] {
        check_answer(&mut client, &format!("/{framing}/{}", expected.0), expected);
    }
}

/// Sends and fetches a body by curl, in HTTP/2.
fn carry_http2(lab: &Lab, words: &[&str], url: &str, (length, digest): &(u64, String)) {
    let (sent, got) = (lab.dir().join("sent"), lab.dir().join("got"));
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let curl = |more: &[&str]| {
        let said = http::curl(lab, "10.1.0.1", &[words, &["-w", " v=%{http_version}"], more].concat());
        assert_eq!(
            (said.code, &*http::field(&said.body, "v")),
            (0, "2"),
            "{more:?}: {}",
            said.trace
        );
        said.body
    };
    for framing in ["bytes", "chunked", "close"] {
        curl(&["-o", &path(&got), &format!("{url}/{framing}/{length}")]);
        assert_eq!(file_digest(&got), *digest, "{url}/{framing}/{length}");
    }
    send_noise(File::create(&sent).unwrap(), *length, false).unwrap();
    let (from, to) = (path(&sent), format!("{url}/digest"));
    for unknown in [&[][..], &["-H", "Content-Length:"]] {
        let upload = [&["-X", "POST", "-T", &from, &to], unknown].concat();
        let said = curl(&upload);
        assert!(said.starts_with(&format!("{length} {digest}")), "{upload:?}: {said}");
    }
}

fn carry(lab: &Lab, lengths: &[u64]) {
    let (_east, _sb) = start(lab);
    for &length in lengths {
        let expected = (length, noise_digest(length));
        carry_http1(|| Client::connect(lab), &expected);
        carry_http1(|| connect(lab, "a.test"), &expected);
        carry_http2(lab, &["--http2"], "https://a.test", &expected);
        carry_http2(lab, &["--http2-prior-knowledge"], "http://a.test", &expected);
    }
}

#[lab_test]
fn bodies_of_every_framing_arrive_whole_by_every_protocol() {
    carry(&Lab::new(), &[0, 1, 65_537, 64 << 20]);
}

mod share_5 {
    use super::*;

    #[lab_test]
    fn long_bodies_of_every_framing_arrive_whole_by_every_protocol() {
        carry(&Lab::new(), &[256 << 20]);
    }
}

#[lab_test]
fn slow_ends_get_all_bytes() {
    const LENGTH: u64 = 3 << 20;
    let lab = Lab::new();
    let (_east, _sb) = start(&lab);
    let expected = (LENGTH, noise_digest(LENGTH));
    let said = format!("{LENGTH} {}", expected.1);
    let url = |path: &str| format!("https://a.test{path}");
    // Clients that are slow to write and to read.
    let mut plain = Client::on(Dribble(lab.client.connect("10.1.0.1:80")));
    check_requests(&mut plain, &expected);
    check_answer(&mut plain, &format!("/chunked/{LENGTH}"), &expected);
    check_answer(&mut plain, &format!("/close/{LENGTH}"), &expected);
    let mut tls = Client::on(Dribble(connect(&lab, "a.test").into_inner()));
    check_requests(&mut tls, &expected);
    check_answer(&mut tls, &format!("/chunked/{LENGTH}"), &expected);
    check_answer(&mut tls, &format!("/close/{LENGTH}"), &expected);
    let (sent, got) = (lab.dir().join("sent"), lab.dir().join("got"));
    let (sent, got) = (sent.to_str().unwrap(), got.to_str().unwrap());
    send_noise(File::create(sent).unwrap(), LENGTH, false).unwrap();
    let slowly = ["--http2", "--limit-rate", "2M"];
    let curl = |words: &[&str]| {
        let answer = http::curl(&lab, "10.1.0.1", words);
        assert_eq!(answer.code, 0, "{words:?}: {}", answer.trace);
        answer.body
    };
    curl(&[&slowly[..], &["-o", got, &url(&format!("/bytes/{LENGTH}"))]].concat());
    assert_eq!(file_digest(Path::new(got)), expected.1);
    let upload = ["-X", "POST", "-T", sent];
    assert_eq!(curl(&[&slowly[..], &upload, &[&url("/digest")]].concat()), said);
    // A host that is slow to write and to read.
    let mut plain = Client::connect(&lab);
    check_answer(&mut plain, &format!("/dribble/{LENGTH}"), &expected);
    plain.send(&format!(
        "POST /slow HTTP/1.1\r\nHost: a.test\r\nContent-Length: {LENGTH}\r\n\r\n"
    ));
    send_noise(plain.inner(), LENGTH, false).unwrap();
    assert_eq!(plain.answer("POST").text, said);
    for version in ["--http1.1", "--http2"] {
        curl(&[version, "-o", got, &url(&format!("/dribble/{LENGTH}"))]);
        assert_eq!(file_digest(Path::new(got)), expected.1, "{version}");
        assert_eq!(
            curl(&[&[version][..], &upload, &[&url("/slow")]].concat()),
            said,
            "{version}"
        );
    }
}

/// Resident memory of a process in KiB.
fn resident(sb: &Signalbox) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", sb.proc.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Writes without waiting until nothing more is taken.
fn fill(client: &mut Client) {
    let stream = client.inner();
    stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let part = vec![0; 256 * 1024];
    while stream.write_all(&part).is_ok() {}
}

#[lab_test]
fn a_host_that_never_reads_costs_little_memory() {
    const LENGTH: u64 = 256 << 20;
    let lab = Lab::new();
    let (_east, sb) = start(&lab);
    let mut clients: Vec<_> = (0..10).map(|_| Client::connect(&lab)).collect();
    for client in &mut clients {
        assert_eq!(client.host_of("a.test"), "east-1");
    }
    let before = resident(&sb);
    for client in &mut clients {
        client.send(&format!(
            "POST /never HTTP/1.1\r\nHost: a.test\r\nContent-Length: {LENGTH}\r\n\r\n"
        ));
    }
    std::thread::scope(|scope| {
        for client in &mut clients {
            scope.spawn(|| fill(client));
        }
    });
    let sent = || sb.metric("signalbox_bytes_total{cluster=\"east-1\",direction=\"in\"}");
    assert!(sent() > 1e6, "{} bytes have gone to the host", sent());
    let grown = resident(&sb).saturating_sub(before);
    assert!(grown < 16 * 1024, "ten hosts that do not read cost {grown} KiB");
}
