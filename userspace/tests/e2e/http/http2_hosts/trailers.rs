//! Trailers of hosts: they reach the clients whose version of HTTP has a place for them.

use std::io::Write as _;

use super::streams::{FrameHost, OK, chunk, start};
use crate::http::request::scene::{Client, HTTP};
use crate::lab::frames::{DATA, END_HEADERS, END_STREAM, FramePeer, HEADERS, RST_STREAM};
use crate::lab::{Lab, SOON, available, lab_test, privileged};

#[lab_test]
fn trailers_reach_clients_that_take_them() {
    let lab = Lab::new();
    let _east = FrameHost::start(&lab, 65_535, |host, frame, _| {
        if frame.kind == HEADERS {
            host.send(HEADERS, END_HEADERS, frame.stream, OK);
            host.send(DATA, 0, frame.stream, b"body");
            host.send(HEADERS, END_HEADERS | END_STREAM, frame.stream, b"\x00\x05x-sum\x011");
        }
    });
    let _sb = start(&lab, "");
    let mut client = Client::connect(&lab);
    assert_eq!(client.get("a.test", "/").trailers, "\r\n");
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\nTE: trailers\r\nConnection: TE\r\n\r\n");
    assert_eq!(client.answer("GET").trailers, "x-sum: 1\r\n\r\n");
    let mut old = lab.client.connect(HTTP);
    old.write_all(b"GET / HTTP/1.0\r\nHost: a.test\r\n\r\n").unwrap();
    assert_eq!(Client::on(old).answer("GET").text, "body");
    // Streams have a place for them in any case.
    let mut client = FramePeer::connect(&lab, HTTP, 65_535);
    client.get(1, "/");
    let frames: Vec<_> = std::iter::from_fn(|| client.next(SOON)).take(3).collect();
    assert_eq!(
        (frames[2].kind, frames[2].flags & END_STREAM),
        (HEADERS, END_STREAM),
        "{frames:?}"
    );
}

/// Host that sends so long a body with its length, then these trailers.
fn host_with_length(lab: &Lab, length: usize, trailers: &'static [u8]) -> FrameHost {
    FrameHost::start(lab, 65_535, move |host, frame, _| {
        if frame.kind == HEADERS {
            let digits = length.to_string();
            let head = [
                OK,
                b"\x0f\x0d",
                &[u8::try_from(digits.len()).unwrap()],
                digits.as_bytes(),
            ]
            .concat();
            host.send(HEADERS, END_HEADERS, frame.stream, &head);
            for part in chunk(length).chunks(16_384) {
                host.send(DATA, 0, frame.stream, part);
            }
            host.send(HEADERS, END_HEADERS | END_STREAM, frame.stream, trailers);
        }
    })
}

#[test]
fn trailers_behind_a_length_reach_clients_of_http2() {
    let test = "trailers_behind_a_length_reach_clients_of_http2";
    if !privileged(test) || !available(test, &[("nghttp", "nghttp2-client")]) {
        return;
    }
    let lab = Lab::new();
    // More than the client's window has room for.
    let length = 100_000;
    let _east = host_with_length(&lab, length, b"\x00\x05x-sum\x011");
    let _sb = start(&lab, "");
    let mut client = FramePeer::connect(&lab, HTTP, 65_535);
    client.get(1, "/");
    let mut received = 0;
    let last = loop {
        let frame = client.next(SOON).unwrap();
        if frame.kind == DATA && !frame.payload.is_empty() {
            assert_eq!(frame.flags & END_STREAM, 0, "trailers come behind it");
            received += frame.payload.len();
            client.open(1, u32::try_from(frame.payload.len()).unwrap());
        } else if frame.kind != HEADERS || frame.flags & END_STREAM != 0 {
            break frame;
        }
    };
    assert_eq!((received, last.kind), (length, HEADERS), "{last:?}");
    let words = ["nghttp", "-nv", "-H", ":authority: a.test", "http://10.1.0.1/"];
    let said = lab.client.must(&words);
    assert!(
        said.contains("content-length: 100000") && said.contains("x-sum: 1"),
        "{said}"
    );
    // In HTTP/1.1 a body with a length has no place for them; the connection stays open.
    let mut old = Client::connect(&lab);
    for _ in 0..2 {
        old.send("GET / HTTP/1.1\r\nHost: a.test\r\nTE: trailers\r\nConnection: TE\r\n\r\n");
        let answer = old.answer("GET");
        assert_eq!((answer.status, answer.body.length), (200, length as u64));
    }
}

#[lab_test]
fn trailers_behind_an_empty_body_reach_clients_of_http2() {
    let lab = Lab::new();
    let _east = host_with_length(&lab, 0, b"\x00\x05x-sum\x011");
    let _sb = start(&lab, "");
    let mut client = FramePeer::connect(&lab, HTTP, 65_535);
    client.get(1, "/");
    let of_stream =
        |frame: &crate::lab::frames::Frame| frame.stream == 1 && (frame.kind == HEADERS || frame.kind == DATA);
    let frames = std::iter::from_fn(|| client.next(SOON)).filter(of_stream);
    let kinds: Vec<_> = frames
        .take(2)
        .map(|frame| (frame.kind, frame.flags & END_STREAM))
        .collect();
    assert_eq!(kinds, [(HEADERS, 0), (HEADERS, END_STREAM)]);
    // HTTP/1.1 has no place for them.
    let mut old = Client::connect(&lab);
    for _ in 0..2 {
        old.send("GET / HTTP/1.1\r\nHost: a.test\r\nTE: trailers\r\nConnection: TE\r\n\r\n");
        let answer = old.answer("GET");
        assert_eq!((answer.status, answer.body.length), (200, 0));
    }
}

#[lab_test]
fn wrong_trailers_behind_a_length_reset_the_stream() {
    let lab = Lab::new();
    // `content-length: 5` again.
    let _east = host_with_length(&lab, 4, b"\x0f\x0d\x015");
    let _sb = start(&lab, "");
    let mut client = FramePeer::connect(&lab, HTTP, 65_535);
    client.get(1, "/");
    let reset = std::iter::from_fn(|| client.next(SOON)).find(|frame| frame.kind == RST_STREAM);
    assert_eq!(reset.map(|frame| frame.stream), Some(1));
    let mut old = Client::connect(&lab);
    assert_eq!(
        old.get("a.test", "/").text,
        "xxxx",
        "they mean nothing where they have no place"
    );
}
