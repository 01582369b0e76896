//! Hosts of HTTP/2 that break the rules, or that would break the balancer if it let them.

use std::time::Duration;

use super::streams::{FrameHost, OK, REFUSED_STREAM, chunk, start};
use crate::http::request::scene::{Client, HTTP, WebHost};
use crate::lab::frames::{DATA, END_HEADERS, END_STREAM, FramePeer, HEADERS, RST_STREAM};
use crate::lab::{Lab, SOON, eventually, lab_test};

/// Trailers `content-length: 5`, which mean nothing after a body.
const BAD_TRAILERS: &[u8] = b"\x0f\x0d\x015";

/// Reason of RST_STREAM.
const CANCEL: [u8; 4] = [0, 0, 0, 8];

#[lab_test]
fn a_broken_off_answer_is_a_reset_for_http1_and_http2_clients() {
    let lab = Lab::new();
    let _east = FrameHost::start(&lab, 65_535, |host, frame, _| {
        if frame.kind == HEADERS {
            host.send(HEADERS, END_HEADERS, frame.stream, OK);
            host.send(DATA, 0, frame.stream, b"half");
            host.send(RST_STREAM, 0, frame.stream, &CANCEL);
        }
    });
    let sb = start(&lab, "");
    let mut client = FramePeer::connect(&lab, HTTP, 65_535);
    for stream in [1, 3] {
        client.get(stream, "/");
        let reset = std::iter::from_fn(|| client.next(SOON)).find(|frame| frame.kind != HEADERS && frame.kind != DATA);
        let reset = reset.unwrap();
        assert_eq!(
            (reset.kind, reset.stream, &reset.payload[..]),
            (RST_STREAM, stream, &CANCEL[..])
        );
    }
    let mut old = Client::connect(&lab);
    old.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert!(old.try_answer("GET").is_err(), "no last chunk came");
    let cut_off = sb.metric("signalbox_request_refused_total{listener=\"http\",reason=\"answer_cut_off\"}");
    assert_eq!(cut_off, 3.0);
}

#[lab_test]
fn trailers_that_frame_a_message_are_not_passed_on() {
    let lab = Lab::new();
    let _east = FrameHost::start(&lab, 65_535, |host, frame, _| {
        if frame.kind == HEADERS {
            host.send(HEADERS, END_HEADERS, frame.stream, OK);
            host.send(DATA, 0, frame.stream, b"whole");
            host.send(HEADERS, END_HEADERS | END_STREAM, frame.stream, BAD_TRAILERS);
        }
    });
    let _sb = start(&lab, "");
    let mut client = FramePeer::connect(&lab, HTTP, 65_535);
    client.get(1, "/");
    let last = std::iter::from_fn(|| client.next(SOON))
        .find(|frame| frame.kind == RST_STREAM || frame.flags & END_STREAM != 0);
    assert_eq!(last.unwrap().kind, RST_STREAM);
}

#[lab_test]
fn a_host_that_takes_nothing_is_given_up_in_time() {
    let lab = Lab::new();
    let _east = FrameHost::start(&lab, 0, |_, _, _| {});
    let sb = start(&lab, "timeouts: { body: 2s }");
    let mut client = Client::connect(&lab);
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(client.answer("POST").status, 504);
    assert_eq!(
        sb.metric("signalbox_host_http2_streams_active{cluster=\"east-1\"}"),
        0.0
    );
}

#[lab_test]
fn floods_of_a_host_cost_its_connection() {
    let lab = Lab::new();
    // The first connection resets unopened streams, without end.
    let _east = FrameHost::start(&lab, 65_535, |host, frame, connection| {
        if frame.kind != HEADERS {
            return;
        }
        if connection == 0 {
            for stream in (1001..200_001).step_by(2) {
                if host.try_send(RST_STREAM, 0, stream, &REFUSED_STREAM).is_err() {
                    return;
                }
            }
        } else {
            host.send(HEADERS, END_HEADERS | END_STREAM, frame.stream, OK);
        }
    });
    let sb = start(&lab, "");
    // A GET may be sent again over a new connection.
    assert_eq!(Client::connect(&lab).get("a.test", "/").status, 200);
    assert_eq!(sb.metric("signalbox_retries_total{cluster=\"east-1\"}"), 1.0);
}

#[lab_test]
fn heads_without_end_are_bounded() {
    let lab = Lab::new();
    let _east = FrameHost::start(&lab, 65_535, |host, frame, connection| {
        if frame.kind != HEADERS {
            return;
        }
        if connection == 0 {
            // `a: aaa...`, which is 4 KiB, in CONTINUATION frames that do not end.
            let line = [&b"\x00\x01a\x7f\x81\x1f"[..], &[b'a'; 4096]].concat();
            host.send(HEADERS, 0, frame.stream, OK);
            while host.try_send(9, 0, frame.stream, &line).is_ok() {}
        } else {
            host.send(HEADERS, END_HEADERS | END_STREAM, frame.stream, OK);
        }
    });
    let _sb = start(&lab, "");
    let mut client = Client::connect(&lab);
    let status = client.get("a.test", "/").status;
    assert!(matches!(status, 200 | 502), "{status}");
    assert_eq!(client.get("a.test", "/").status, 200);
}

#[lab_test]
fn a_host_that_does_not_speak_http2_is_none() {
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let sb = start(&lab, "timeouts: { connect: 2s }");
    let mut client = Client::connect(&lab);
    assert_eq!(client.get("a.test", "/").status, 503);
    let failed = || {
        let of = |why| {
            sb.metric(&format!(
                "signalbox_connect_failures_total{{cluster=\"east-1\",reason=\"{why}\"}}"
            ))
        };
        of("http2") + of("timeout")
    };
    assert!(eventually(SOON, || failed() > 0.5));
    // WebSockets are asked for in HTTP/1.1.
    let mut client = Client::connect(&lab);
    client.send("GET /ws HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_eq!(client.answer("GET").status, 101);
}

#[lab_test]
fn a_dead_connection_is_noticed_by_ping() {
    let lab = Lab::new();
    let _east = FrameHost::start(&lab, 65_535, |host, frame, connection| {
        if frame.kind != HEADERS {
            return;
        }
        if connection == 0 {
            // Nothing is read any more, and no PING answered.
            std::thread::sleep(Duration::from_secs(60));
        } else {
            host.send(HEADERS, END_HEADERS, frame.stream, OK);
            host.send(DATA, END_STREAM, frame.stream, &chunk(5));
        }
    });
    let sb = start(&lab, "timeouts: { answer: 120s }");
    let mut client = Client::connect(&lab);
    client
        .stream()
        .set_read_timeout(Some(Duration::from_secs(100)))
        .unwrap();
    assert_eq!(client.get("a.test", "/").status, 200);
    assert_eq!(sb.metric("signalbox_retries_total{cluster=\"east-1\"}"), 1.0);
}
