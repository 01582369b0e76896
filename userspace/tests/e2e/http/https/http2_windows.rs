//! HTTP/2 from clients that set their windows: closed ones, slow ones; interim answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::http::request::scene::{HTTP, ROUTE, WebHost, config_of, one_host};
use crate::lab::frames::{DATA, END_HEADERS, END_STREAM, FramePeer, GOAWAY, HEADERS, RST_STREAM, Windows};
use crate::lab::{Lab, SOON, Server, Signalbox, eventually, lab_test, servers};

fn streams(sb: &Signalbox) -> f64 {
    sb.metric("signalbox_http2_streams_active{listener=\"http\"}")
}

#[lab_test]
fn streams_of_a_client_that_takes_nothing_are_reset_in_time() {
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let sb = Signalbox::start(
        &lab,
        &config_of("timeouts: { body: 2s, keep_alive: 2s }", &["east-1"], &[ROUTE]),
    );
    sb.wait_healthy(&["east-1"]);
    let mut client = FramePeer::connect(&lab, HTTP, 0);
    for stream in 0..100 {
        client.get(2 * stream + 1, "/bytes/150000");
    }
    assert!(eventually(SOON, || streams(&sb) > 99.5));
    let (mut reset, mut is_ended) = (0, false);
    while let Some(frame) = client.next(SOON) {
        match frame.kind {
            RST_STREAM => reset += 1,
            GOAWAY => is_ended = true,
            kind => assert_eq!(kind, HEADERS),
        }
    }
    assert_eq!((reset, is_ended), (100, true));
    assert!(eventually(SOON, || streams(&sb) < 0.5));
}

#[lab_test]
fn a_slow_client_gets_its_whole_answer_though_the_listener_goes() {
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let config = config_of("timeouts: { body: 3s, keep_alive: 1s }", &["east-1"], &[ROUTE]);
    let sb = Signalbox::start(&lab, &config);
    sb.wait_healthy(&["east-1"]);
    let mut client = FramePeer::connect(&lab, HTTP, 0);
    client.get(1, "/bytes/60000");
    let (mut taken, mut is_whole) = (0, false);
    for step in 0..30 {
        if step == 5 {
            sb.reload(&config.replace("10.1.0.1:80", "10.1.0.1:81"));
        }
        client.open(1, 2000);
        while let Some(frame) = client.next(Duration::from_millis(300)) {
            assert!(matches!(frame.kind, HEADERS | DATA | GOAWAY), "frame {}", frame.kind);
            if frame.kind == DATA {
                taken += frame.payload.len();
                is_whole |= frame.flags & END_STREAM != 0;
            }
        }
    }
    assert_eq!((taken, is_whole), (60_000, true));
}

/// Uploads that their host does not read: another request of the connection, to another host, is served at once.
#[lab_test]
fn uploads_that_a_host_does_not_take_stop_no_other() {
    let lab = Lab::new();
    let _health = servers::healthy(lab.host("east-1"));
    let may_end = Arc::<AtomicBool>::default();
    let waits = Arc::clone(&may_end);
    let _stalled = Server::start(lab.host("east-1"), "[::]:80", move |_stream| {
        while !waits.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let _well = WebHost::start(&lab, "east-2");
    let routes = [ROUTE, "{ host: b.test, clusters: { east-2: 1 } }"];
    // Longer than the test takes, so that nothing is served only because a stalled upload was ended.
    let sb = Signalbox::start(
        &lab,
        &config_of("timeouts: { body: 10m }", &["east-1", "east-2"], &routes),
    );
    sb.wait_healthy(&["east-1", "east-2"]);
    let mut client = FramePeer::connect(&lab, HTTP, 65_535);
    let mut windows = Windows {
        connection: 65_535,
        stream: 0,
        first: 65_535,
    };
    for stream in (1..=13).step_by(2) {
        client.post(stream);
        let chunk = [0; 16_384];
        windows.stream = windows.first;
        client.credit(stream, &mut windows, Duration::from_millis(300));
        while windows.stream.min(windows.connection) > 0 {
            let room = windows.stream.min(windows.connection).min(chunk.len() as i64);
            client.send(DATA, 0, stream, &chunk[..room as usize]);
            windows.stream -= room;
            windows.connection -= room;
            if windows.stream.min(windows.connection) == 0 {
                client.credit(stream, &mut windows, Duration::from_millis(300));
            }
        }
    }
    client.send(HEADERS, END_HEADERS, 15, b"\x83\x86\x84\x41\x06b.test");
    assert!(
        windows.connection >= 5,
        "the connection has no room for another request's body"
    );
    client.send(DATA, END_STREAM, 15, b"hello");
    let answered = std::iter::from_fn(|| client.next(SOON)).find(|frame| frame.kind == HEADERS);
    assert_eq!(answered.map(|frame| frame.stream), Some(15));
    may_end.store(true, Ordering::Relaxed);
}

#[lab_test]
fn interim_answers_pass() {
    let lab = Lab::new();
    let (_east, _sb) = one_host(&lab);
    let mut client = FramePeer::connect(&lab, HTTP, 65_535);
    client.get(1, "/interim");
    let mut heads = Vec::new();
    while let Some(frame) = client.next(SOON) {
        assert_eq!(frame.stream, 1);
        if frame.kind == HEADERS {
            heads.push(frame.payload);
        }
        if frame.flags & END_STREAM != 0 {
            break;
        }
    }
    assert_eq!(heads.len(), 2);
    // ":status" with a name of the static table and a literal value, in Huffman's code or as plain text.
    assert!(heads[0][0] & 0x8f != 0x88, "{:?}", heads[0]);
    // 200 is in the static table.
    assert_eq!(heads[1][0], 0x88, "{:?}", heads[1]);
}

#[lab_test]
fn a_client_that_waits_for_100_continue_gets_it() {
    let lab = Lab::new();
    let (_east, _sb) = one_host(&lab);
    let mut client = FramePeer::connect(&lab, HTTP, 65_535);
    let block = b"\x83\x86\x41\x06a.test\x04\x07/digest\x00\x06expect\x0c100-continue";
    client.send(HEADERS, END_HEADERS, 1, block);
    let interim = client.next(SOON).unwrap();
    assert_eq!((interim.kind, interim.flags & END_STREAM), (HEADERS, 0));
    assert_ne!(interim.payload[0], 0x88, "{:?}", interim.payload);
    client.send(DATA, END_STREAM, 1, b"hello");
    let answer = client.next(SOON).unwrap();
    assert_eq!(
        (answer.kind, answer.payload[0]),
        (HEADERS, 0x88),
        "{:?}",
        answer.payload
    );
}

#[lab_test]
fn a_request_whose_end_comes_behind_its_last_byte_is_not_reset() {
    let lab = Lab::new();
    let (_east, _sb) = one_host(&lab);
    let mut client = FramePeer::connect(&lab, HTTP, 65_535);
    let block = b"\x83\x86\x41\x06a.test\x04\x07/digest\x0f\x0d\x015";
    client.send(HEADERS, END_HEADERS, 1, block);
    client.send(DATA, 0, 1, b"hello");
    let mut is_whole = false;
    while let Some(frame) = client.next(Duration::from_millis(500)) {
        assert_ne!(frame.kind, RST_STREAM);
        is_whole |= frame.flags & END_STREAM != 0;
    }
    assert!(is_whole);
    client.send(DATA, END_STREAM, 1, &[]);
    client.get(3, "/");
    assert_eq!(client.next(SOON).map(|frame| frame.stream), Some(3));
}
