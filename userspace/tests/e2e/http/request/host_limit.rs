//! Limits of hosts' connections: a request that finds no room waits, first come, first served.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use socket2::SockRef;

use super::scene::{Client, HTTP, body_of};
use crate::lab::frames::{END_STREAM, FramePeer, HEADERS, RST_STREAM};
use crate::lab::servers::Server;
use crate::lab::{Lab, SOON, Signalbox, config, eventually, lab_test, servers};

/// Key of a cluster whose hosts have room for one.
const ONE: &str = "max_host_connections: 1";

fn waiting(sb: &Signalbox) -> f64 {
    sb.metric("signalbox_host_queue_waiting{cluster=\"east\"}")
}

/// Reads a request's head off a host's connection and returns its path.
fn path_of_next(host: &TcpStream) -> String {
    let (mut reader, mut first) = (BufReader::with_capacity(1, host), String::new());
    reader.read_line(&mut first).unwrap();
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "{first}");
    }
    first.split(' ').nth(1).unwrap_or_default().to_owned()
}

fn answer(mut host: &TcpStream) {
    host.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
}

fn ask(client: &mut Client, path: &str, more: &str) {
    client.send(&format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n{more}\r\n"));
}

/// A balancer in front of a host that has room for one connection, for which others wait for this long; the host's
/// servers, and the connections that it accepts.
fn one_place(lab: &Lab, queue: &str) -> ([Server; 2], Receiver<Arc<TcpStream>>, Signalbox) {
    let health = servers::healthy(lab.host("east-1"));
    let (host, accepted) = servers::hand_over(lab.host("east-1"), "[::]:80");
    let cluster = config::cluster("east", &[ONE], &["east-1"]);
    let timeouts = format!("timeouts: {{ queue: {queue} }}");
    let body = body_of(&timeouts, &cluster, &["{ host: a.test, clusters: { east: 1 } }"]);
    // Each worker has kept its own connections.
    let sb = Signalbox::start_with(lab, &body, &["--workers", "1"]);
    sb.wait_healthy(&["east-1"]);
    ([health, host], accepted, sb)
}

#[lab_test]
fn requests_wait_for_a_host_in_turn() {
    let lab = Lab::new();
    let (_host, accepted, sb) = one_place(&lab, "1h");
    let paths = ["/0", "/1", "/2", "/3"];
    let mut clients: Vec<Client> = Vec::new();
    let mut host: Option<Arc<TcpStream>> = None;
    for (before, path) in paths.iter().enumerate() {
        let mut client = Client::connect(&lab);
        ask(&mut client, path, "");
        clients.push(client);
        if before == 0 {
            let connection = accepted.recv_timeout(SOON).unwrap();
            assert_eq!(path_of_next(&connection), "/0");
            host = Some(connection);
        }
        assert!(eventually(SOON, || waiting(&sb) == before as f64), "{}", waiting(&sb));
    }
    let host = host.unwrap();
    for (client, next) in clients.iter_mut().zip(["/1", "/2", "/3", ""]) {
        answer(&host);
        assert_eq!(client.answer("GET").status, 200);
        if !next.is_empty() {
            // Over the connection that was kept.
            assert_eq!(path_of_next(&host), next);
        }
    }
    assert!(accepted.try_recv().is_err(), "the host never had two connections");
    assert_eq!(waiting(&sb), 0.0);
    assert_eq!(sb.metric("signalbox_host_queue_timeouts_total{cluster=\"east\"}"), 0.0);
}

#[lab_test]
fn a_request_that_waits_for_too_long_is_told_so() {
    let lab = Lab::new();
    let (_host, accepted, sb) = one_place(&lab, "1s");
    let mut first = Client::connect(&lab);
    ask(&mut first, "/", "");
    let host = accepted.recv_timeout(SOON).unwrap();
    let mut second = Client::connect(&lab);
    assert_eq!(second.get("a.test", "/").status, 503);
    assert_eq!(sb.metric("signalbox_request_refused_total{reason=\"hosts_full\"}"), 1.0);
    assert_eq!(sb.metric("signalbox_host_queue_timeouts_total{cluster=\"east\"}"), 1.0);
    path_of_next(&host);
    answer(&host);
    assert_eq!(first.answer("GET").status, 200);
    ask(&mut second, "/again", "");
    assert_eq!(
        path_of_next(&host),
        "/again",
        "the client's connection is kept, and there is room"
    );
}

#[lab_test]
fn requests_of_clients_that_have_gone_reach_no_host() {
    let lab = Lab::new();
    let (_host, accepted, sb) = one_place(&lab, "1h");
    let mut first = Client::connect(&lab);
    ask(&mut first, "/first", "");
    let host = accepted.recv_timeout(SOON).unwrap();
    assert_eq!(path_of_next(&host), "/first");
    let waits = |path: &str| {
        let mut client = Client::connect(&lab);
        ask(&mut client, path, "");
        client
    };
    let (closed, reset) = (waits("/closed"), waits("/reset"));
    let mut uploads = Client::connect(&lab);
    uploads.send("POST /body HTTP/1.1\r\nHost: a.test\r\nContent-Length: 100000\r\n\r\nbeginning");
    let mut streams = FramePeer::connect(&lab, HTTP, 65_535);
    streams.get(1, "/stream");
    streams.get(3, "/stays");
    let mut broken = FramePeer::connect(&lab, HTTP, 65_535);
    broken.get(1, "/broken");
    let mut last = waits("/last");
    assert!(eventually(SOON, || waiting(&sb) == 7.0), "{}", waiting(&sb));
    drop(closed);
    SockRef::from(reset.stream()).set_linger(Some(Duration::ZERO)).unwrap();
    drop((reset, uploads, broken));
    streams.send(RST_STREAM, 0, 1, &8_u32.to_be_bytes());
    assert!(eventually(SOON, || waiting(&sb) == 2.0), "{}", waiting(&sb));
    assert_eq!(sb.metric("signalbox_host_queue_abandoned_total{cluster=\"east\"}"), 5.0);
    assert_eq!(
        sb.metric("signalbox_request_refused_total{reason=\"client_gone\"}"),
        5.0
    );
    // The host gets those whose clients are there, and no other.
    answer(&host);
    let mut next = [path_of_next(&host), String::new()];
    answer(&host);
    next[1] = path_of_next(&host);
    answer(&host);
    next.sort();
    assert_eq!(next, ["/last", "/stays"]);
    assert_eq!(first.answer("GET").status, 200);
    assert_eq!(last.answer("GET").status, 200);
    assert!(accepted.try_recv().is_err(), "another request has come");
}

#[lab_test]
fn a_client_waits_for_its_cookies_host_while_others_do_not() {
    let lab = Lab::new();
    let hosts = ["east-1", "east-2"];
    let _health = hosts.map(|host| servers::healthy(lab.host(host)));
    let (_one, first) = servers::hand_over(lab.host("east-1"), "[::]:80");
    let (_two, second) = servers::hand_over(lab.host("east-2"), "[::]:80");
    let cluster = config::cluster("east", &[ONE, "balance: round-robin"], &hosts);
    let route = "{ host: a.test, clusters: { east: 1 }, affinity: { cookie: sb, to: host } }";
    let text = body_of("timeouts: { queue: 1h }", &cluster, &[route]);
    let sb = Signalbox::start_with(&lab, &text, &["--workers", "1"]);
    sb.wait_healthy(&hosts);
    let mut opener = Client::connect(&lab);
    ask(&mut opener, "/open", "");
    let (at, other, host) = match first.recv_timeout(SOON / 4) {
        Ok(host) => (&first, &second, host),
        Err(_) => (&second, &first, second.recv_timeout(SOON).unwrap()),
    };
    path_of_next(&host);
    answer(&host);
    let head = opener.answer("GET").head;
    let cookie = super::scene::field(&head, "set-cookie").unwrap();
    let cookie = format!("Cookie: {}\r\n", cookie.split(';').next().unwrap());
    // The client's host is busy, and so is the client that waits for it.
    ask(&mut opener, "/busy", &cookie);
    assert_eq!(path_of_next(&host), "/busy");
    let mut waits = Client::connect(&lab);
    ask(&mut waits, "/waits", &cookie);
    // Another one goes to the other host at once.
    let mut goes_on = Client::connect(&lab);
    ask(&mut goes_on, "/other", "");
    let free = other.recv_timeout(SOON).unwrap();
    assert_eq!(path_of_next(&free), "/other");
    answer(&free);
    assert_eq!(goes_on.answer("GET").status, 200);
    answer(&host);
    assert_eq!(opener.answer("GET").status, 200);
    assert_eq!(path_of_next(&host), "/waits");
    answer(&host);
    assert_eq!(waits.answer("GET").status, 200);
    assert!(at.try_recv().is_err(), "one connection was enough");
}

/// Flows that the kernel carries count, too.
#[lab_test]
fn connections_wait_for_cut_flows_to_end() {
    let lab = crate::lab::cut::lab();
    let hosts = ["east-1", "east-2"];
    let _health = hosts.map(|host| servers::healthy(lab.host(host)));
    let _echo = hosts.map(|host| servers::echo(lab.host(host), "[::]:3306"));
    let cluster = config::cluster("east", &[ONE], &hosts);
    let listener = "{ name: mysql, protocol: tcp, listen: [\"10.1.0.1:3306\"], cluster: east }";
    let text = format!("timeouts: {{ queue: 1h }}\nlisteners:\n  - {listener}\nclusters:\n{cluster}");
    let sb = Signalbox::start(&lab, &text);
    sb.wait_healthy(&hosts);
    let echoed = |mut client: &TcpStream| {
        let mut byte = [0];
        client.read_exact(&mut byte).map(|()| byte[0])
    };
    let open = || {
        let client = lab.client.connect("10.1.0.1:3306");
        (&client).write_all(b"x").unwrap();
        client
    };
    let (one, two) = (open(), open());
    for client in [&one, &two] {
        assert_eq!(echoed(client).unwrap(), b'x');
        crate::lab::cut::expect_cut(&sb, client);
    }
    let three = open();
    assert!(eventually(SOON, || waiting(&sb) == 1.0));
    drop(one);
    assert_eq!(echoed(&three).unwrap(), b'x');
    assert_eq!(waiting(&sb), 0.0);
}

/// The streams of a client may use more than the one descriptor for a host that its connection is given: the process
/// never has more than it planned for.
#[lab_test]
fn streams_stay_within_the_descriptors_planned_for_connections() {
    const REQUESTS: u32 = 8;
    let lab = Lab::new();
    let _health = servers::healthy(lab.host("east-1"));
    let (_host, accepted) = servers::hand_over(lab.host("east-1"), "[::]:80");
    let cluster = config::cluster("east", &[], &["east-1"]);
    let limits = "limits: { max_connections: 3 }\ntimeouts: { queue: 1h }";
    let body = body_of(limits, &cluster, &["{ host: a.test, clusters: { east: 1 } }"]);
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1"]);
    let mut client = FramePeer::connect(&lab, HTTP, 65_535);
    for n in 0..REQUESTS {
        client.get(2 * n + 1, "/");
    }
    // Three connections have six descriptors: one for the client, and with half a connection's to spare four for hosts.
    let hosts: Vec<_> = (0..4).map(|_| accepted.recv_timeout(SOON).unwrap()).collect();
    assert!(eventually(SOON, || {
        sb.metric("signalbox_accept_paused_total{reason=\"streams\"}") > 0.0
    }));
    assert!(accepted.try_recv().is_err(), "there is room for no other");
    std::thread::scope(|scope| {
        for host in &hosts {
            // Until the balancer closes it.
            scope.spawn(move || {
                let (mut reader, mut line) = (BufReader::new(&**host), String::new());
                while reader.read_line(&mut line).is_ok_and(|n| n > 0) {
                    if line == "\r\n" {
                        answer(host);
                    }
                    line.clear();
                }
            });
        }
        let mut ended = 0;
        while ended < REQUESTS {
            let frame = client.next(SOON).unwrap();
            ended += u32::from(frame.kind == HEADERS && frame.flags & END_STREAM != 0);
        }
        drop(sb);
    });
    assert!(accepted.try_recv().is_err(), "connections were used again");
}
