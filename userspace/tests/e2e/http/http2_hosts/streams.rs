//! Streams to hosts: requests that a host refuses, ends of connections, back-pressure, resets of clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;

use crate::http::request::scene::{Client, HTTP, ROUTE, body_of};
use crate::lab::frames::{DATA, END_HEADERS, END_STREAM, Frame, FramePeer, GOAWAY, HEADERS, RST_STREAM};
use crate::lab::{Lab, SOON, Server, Signalbox, config, eventually, lab_test, servers};

/// Field block of `:status: 200`.
pub(super) const OK: &[u8] = b"\x88";

/// Reasons of RST_STREAM.
pub(super) const REFUSED_STREAM: [u8; 4] = [0, 0, 0, 7];
const CANCEL: [u8; 4] = [0, 0, 0, 8];

/// A host that answers each frame as a test says. The frame comes with the number of the connection.
pub(super) struct FrameHost {
    _health: Server,
    server: Server,
}

impl FrameHost {
    /// Starts the host on :80 of east-1. `window`: the bytes that balancers may send ahead on each stream.
    pub(super) fn start(
        lab: &Lab,
        window: u32,
        answer: impl Fn(&mut FramePeer, Frame, usize) + Send + Sync + 'static,
    ) -> Self {
        Self::start_on(lab, "east-1", window, answer)
    }

    /// Starts the host on :80 of another machine.
    fn start_on(
        lab: &Lab,
        name: &str,
        window: u32,
        answer: impl Fn(&mut FramePeer, Frame, usize) + Send + Sync + 'static,
    ) -> Self {
        let ns = lab.host(name);
        let connections = AtomicUsize::new(0);
        let server = Server::start(ns, "[::]:80", move |stream| {
            let Ok(mut host) = FramePeer::accept(&stream, window) else {
                return;
            };
            let connection = connections.fetch_add(1, Relaxed);
            while let Some(frame) = host.next(10 * SOON) {
                answer(&mut host, frame, connection);
            }
        });
        Self {
            _health: servers::healthy(ns),
            server,
        }
    }

    /// Number of connections so far.
    pub(super) fn accepted(&self) -> usize {
        self.server.accepted()
    }
}

/// Starts a balancer with further top-level lines in front of the host, which it knows to speak HTTP/2.
pub(super) fn start(lab: &Lab, extra: &str) -> Signalbox {
    let cluster = config::cluster("east-1", &["h2c: true"], &["east-1"]);
    let sb = Signalbox::start(lab, &body_of(extra, &cluster, &[ROUTE]));
    sb.wait_healthy(&["east-1"]);
    sb
}

pub(super) fn chunk(length: usize) -> Vec<u8> {
    vec![b'x'; length]
}

/// GOAWAY with the last stream that is served.
fn goaway(host: &mut FramePeer, last: u32) {
    host.send(GOAWAY, 0, 0, &[&last.to_be_bytes()[..], &[0; 4]].concat());
}

fn retries(sb: &Signalbox) -> f64 {
    sb.metric("signalbox_retries_total{cluster=\"east-1\"}")
}

const POST: &str = "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello";

#[lab_test]
fn a_request_that_the_host_refuses_is_sent_again() {
    let lab = Lab::new();
    let bodies = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&bodies);
    let _east = FrameHost::start(&lab, 65_535, move |host, frame, _| match (frame.kind, frame.stream) {
        (HEADERS, 1) => host.send(RST_STREAM, 0, 1, &REFUSED_STREAM),
        (DATA, stream) if frame.flags & END_STREAM != 0 && stream > 1 => {
            seen.fetch_add(frame.payload.len(), Relaxed);
            host.send(HEADERS, END_HEADERS | END_STREAM, stream, OK);
        }
        _ => {}
    });
    let sb = start(&lab, "");
    let mut client = Client::connect(&lab);
    client.send(POST);
    assert_eq!(client.answer("POST").status, 200);
    assert_eq!((bodies.load(Relaxed), retries(&sb)), (5, 1.0));
}

/// Answers requests whose body has come, if `takes` is true of the stream, and refuses others.
fn refusing(
    takes: impl Fn(u32) -> bool + Send + Sync + 'static,
    refused: &Arc<AtomicUsize>,
) -> impl Fn(&mut FramePeer, Frame, usize) + Send + Sync + 'static {
    let refused = Arc::clone(refused);
    move |host, frame, _| match frame.kind {
        HEADERS if !takes(frame.stream) => {
            refused.fetch_add(1, Relaxed);
            host.send(RST_STREAM, 0, frame.stream, &REFUSED_STREAM);
        }
        DATA if frame.flags & END_STREAM != 0 && takes(frame.stream) => {
            host.send(HEADERS, END_HEADERS | END_STREAM, frame.stream, OK);
        }
        _ => {}
    }
}

#[lab_test]
fn a_request_that_a_host_refuses_goes_to_another_host() {
    let lab = Lab::new();
    let (refused, never) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let _east = FrameHost::start(&lab, 65_535, refusing(|_| false, &refused));
    let other = FrameHost::start_on(&lab, "east-2", 65_535, refusing(|_| true, &never));
    let cluster = config::cluster("east", &["h2c: true", "balance: round-robin"], &["east-1", "east-2"]);
    let route = "{ host: a.test, clusters: { east: 1 } }";
    let sb = Signalbox::start(&lab, &body_of("", &cluster, &[route]));
    sb.wait_healthy(&["east-1", "east-2"]);
    let mut client = Client::connect(&lab);
    for _ in 0..6 {
        client.send(POST);
        assert_eq!(client.answer("POST").status, 200);
    }
    let refusals = refused.load(Relaxed);
    assert!(
        (1..=6).contains(&refusals),
        "each request is refused once at the most: {refusals}"
    );
    assert_eq!(sb.metric("signalbox_retries_total{cluster=\"east\"}"), refusals as f64);
    // The other host is gone, which is not noticed yet: the first gets the request again, and refuses it for good.
    drop(other);
    client.send(POST);
    assert_eq!(client.answer("POST").status, 502);
    assert!(refused.load(Relaxed) >= refusals + 2);
}

#[lab_test]
fn streams_behind_the_last_of_a_goaway_are_sent_again() {
    let lab = Lab::new();
    let east = FrameHost::start(&lab, 65_535, |host, frame, connection| match (connection, frame.kind) {
        (0, HEADERS) => goaway(host, 0),
        (_, DATA) if frame.flags & END_STREAM != 0 => {
            host.send(HEADERS, END_HEADERS | END_STREAM, frame.stream, OK);
        }
        _ => {}
    });
    let sb = start(&lab, "");
    let mut client = Client::connect(&lab);
    client.send(POST);
    assert_eq!(client.answer("POST").status, 200);
    assert_eq!((east.accepted(), retries(&sb)), (2, 1.0));
}

#[lab_test]
fn a_stream_in_front_of_a_goaway_is_served_to_its_end() {
    let lab = Lab::new();
    let east = FrameHost::start(&lab, 65_535, |host, frame, _| {
        if frame.kind == HEADERS {
            host.send(HEADERS, END_HEADERS, frame.stream, OK);
            host.send(DATA, 0, frame.stream, b"one ");
            goaway(host, frame.stream);
            host.send(DATA, END_STREAM, frame.stream, b"two");
        }
    });
    let sb = start(&lab, "");
    for served in 1..4 {
        let answer = Client::connect(&lab).get("a.test", "/");
        assert_eq!((answer.status, answer.body.length), (200, 7));
        assert_eq!(east.accepted(), served, "another connection each time");
    }
    assert_eq!(retries(&sb), 0.0);
}

#[lab_test]
fn an_early_answer_and_a_reset_without_error_are_whole() {
    let lab = Lab::new();
    // RFC 9113, section 8.1: a host that has answered may not want the rest of the request.
    let _east = FrameHost::start(&lab, 65_535, |host, frame, _| {
        if frame.kind == HEADERS {
            host.send(HEADERS, END_HEADERS, frame.stream, OK);
            host.send(DATA, END_STREAM, frame.stream, b"early");
            host.send(RST_STREAM, 0, frame.stream, &[0; 4]);
        }
    });
    let _sb = start(&lab, "");
    let mut client = FramePeer::connect(&lab, HTTP, 65_535);
    client.post(1);
    let mut body = Vec::new();
    while let Some(frame) = client.next(SOON) {
        assert_ne!(frame.kind, RST_STREAM, "{body:?}");
        if frame.kind == DATA {
            body.extend(frame.payload);
        }
        if frame.flags & END_STREAM != 0 && frame.kind == DATA {
            break;
        }
    }
    assert_eq!(body, b"early");
}

#[lab_test]
fn a_client_that_takes_nothing_holds_back_the_host() {
    let lab = Lab::new();
    // As much as the balancer lets the host send, of an answer without end.
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let _east = FrameHost::start(&lab, 65_535, move |host, frame, _| {
        if frame.kind != HEADERS {
            return;
        }
        host.send(HEADERS, END_HEADERS, frame.stream, OK);
        // The balancer has opened the connection's window to all streams at the beginning.
        let (mut window, mut connection) = (128 * 1024_usize, 100 * 128 * 1024_usize);
        loop {
            while window.min(connection) >= 1000 {
                host.send(DATA, 0, frame.stream, &chunk(1000));
                (window, connection) = (window - 1000, connection - 1000);
                counted.fetch_add(1000, Relaxed);
            }
            // WINDOW_UPDATE, of the stream or the connection.
            let Some(update) = host.read() else { return };
            if update.kind == 8 {
                let bytes = u32::from_be_bytes(update.payload.try_into().unwrap()) as usize;
                if update.stream == 0 {
                    connection += bytes;
                } else {
                    window += bytes;
                }
            }
        }
    });
    let sb = start(&lab, "timeouts: { body: 60s }");
    let mut client = FramePeer::connect(&lab, HTTP, 1000);
    client.get(1, "/");
    assert!(eventually(SOON, || sent.load(Relaxed) > 100_000));
    // Bytes that are under way have room in windows and buffers, and do not grow.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let before = sent.load(Relaxed);
    assert!(before < 512 * 1024, "{before}");
    // For the bytes that the client takes the host may send as many again.
    for _ in 0..100 {
        client.open(1, 10_000);
    }
    assert!(eventually(SOON, || sent.load(Relaxed) > before + 500_000));
    assert_eq!(
        sb.metric("signalbox_host_http2_streams_active{cluster=\"east-1\"}"),
        1.0
    );
}

#[lab_test]
fn a_clients_reset_reaches_the_host_despite_a_closed_window() {
    let lab = Lab::new();
    let (events, seen) = mpsc::channel();
    let events = std::sync::Mutex::new(events);
    let _east = FrameHost::start(&lab, 0, move |_, frame, _| {
        let _ = events.lock().unwrap().send((frame.kind, frame.payload));
    });
    let sb = start(&lab, "timeouts: { body: 600s, answer: 600s }");
    let mut client = FramePeer::connect(&lab, HTTP, 65_535);
    client.post(1);
    client.send(DATA, 0, 1, b"for nobody");
    assert_eq!(seen.recv_timeout(SOON).unwrap().0, HEADERS);
    client.send(RST_STREAM, 0, 1, &CANCEL);
    assert_eq!(seen.recv_timeout(SOON).unwrap(), (RST_STREAM, CANCEL.to_vec()));
    let gone = || sb.metric("signalbox_request_refused_total{listener=\"http\",reason=\"client_gone\"}");
    assert!(eventually(SOON, || gone() > 0.5));
}

#[lab_test]
fn requests_at_once_share_one_connection() {
    let lab = Lab::new();
    let east = FrameHost::start(&lab, 65_535, |host, frame, _| {
        if frame.kind == HEADERS {
            host.send(HEADERS, END_HEADERS | END_STREAM, frame.stream, OK);
        }
    });
    let _sb = start(&lab, "");
    // A client's connection belongs to one worker.
    let mut client = FramePeer::connect(&lab, HTTP, 65_535);
    for stream in 0..60 {
        client.get(2 * stream + 1, "/");
    }
    let mut ended = 0;
    while ended < 60 {
        let frame = client.next(SOON).unwrap();
        assert_eq!(frame.kind, HEADERS);
        ended += usize::from(frame.flags & END_STREAM != 0);
    }
    assert_eq!(east.accepted(), 1);
}
