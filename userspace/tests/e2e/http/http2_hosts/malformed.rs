//! Messages with malformed fields: each ends its own stream, with clients and hosts (RFC 9113, section 8.1.1).

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::streams::{FrameHost, OK, start};
use crate::http::request::scene::HTTP;
use crate::lab::frames::{DATA, END_HEADERS, END_STREAM, Frame, FramePeer, HEADERS, RST_STREAM};
use crate::lab::{Lab, SOON, Signalbox, lab_test};

/// `GET /` of a.test, whose name is the newest entry of the table of fields then.
const GET: &[u8] = b"\x82\x86\x84\x41\x06a.test";
const PROTOCOL_ERROR: [u8; 4] = [0, 0, 0, 1];

/// Fields that no message may have, as literals that go into the table.
const MALFORMED: [&[u8]; 7] = [
    b"\x40\x03x-a\x03a\x01b",
    b"\x40\x03x-a\x03a\x7fb",
    b"\x40\x03x-a\x03a\0b",
    b"\x40\x03x-a\x04a\r\nb",
    b"\x40\x07X-Upper\x01v",
    b"\x40\x03x a\x01v",
    b"\x40\x04:foo\x01v",
];

fn expect_reset(client: &mut FramePeer, stream: u32) {
    let frame = client.next(SOON).unwrap();
    let is_reset = frame.kind == RST_STREAM && frame.stream == stream && frame.payload == PROTOCOL_ERROR;
    assert!(is_reset, "{stream}: {frame:?}");
}

/// Starts a host that answers each whole request.
fn answering(lab: &Lab) -> FrameHost {
    FrameHost::start(lab, 65_535, |host, frame, _| {
        if frame.flags & END_STREAM != 0 {
            host.send(HEADERS, END_HEADERS | END_STREAM, frame.stream, OK);
        }
    })
}

fn malformed(sb: &Signalbox, metric: &str) -> u64 {
    sb.metric(metric) as u64
}

#[lab_test]
fn a_malformed_field_of_a_client_ends_its_stream_alone() {
    let lab = Lab::new();
    let _east = answering(&lab);
    let sb = start(&lab, "");
    let mut client = FramePeer::connect(&lab, HTTP, 65_535);
    client.post(1);
    let mut stream = 1;
    for field in MALFORMED {
        stream += 2;
        client.send(HEADERS, END_HEADERS | END_STREAM, stream, &[GET, field].concat());
        expect_reset(&mut client, stream);
        // The same field by its index: the field is the newest entry of the table, the name of the host the one before.
        stream += 2;
        client.send(HEADERS, END_HEADERS | END_STREAM, stream, b"\x82\x86\x84\xbf\xbe");
        expect_reset(&mut client, stream);
        // Other entries of the table keep their meaning.
        stream += 2;
        client.send(HEADERS, END_HEADERS | END_STREAM, stream, b"\x82\x86\x84\xbf");
        let answer = client.next(SOON).unwrap();
        assert_eq!((answer.kind, answer.stream), (HEADERS, stream), "{answer:?}");
    }
    // Trailers.
    stream += 2;
    client.post(stream);
    client.send(DATA, 0, stream, b"body");
    client.send(HEADERS, END_HEADERS | END_STREAM, stream, MALFORMED[0]);
    expect_reset(&mut client, stream);
    client.send(DATA, END_STREAM, 1, b"body");
    let answer = client.next(SOON).unwrap();
    assert_eq!((answer.kind, answer.stream), (HEADERS, 1), "{answer:?}");
    // Fields by an index are refused by h2, and not counted.
    let counted = malformed(&sb, "signalbox_http2_malformed_total{listener=\"http\"}");
    assert_eq!(counted, MALFORMED.len() as u64 + 1);
}

#[lab_test]
fn every_path_is_answered() {
    let lab = Lab::new();
    let _east = answering(&lab);
    let sb = start(&lab, "");
    let mut client = FramePeer::connect(&lab, HTTP, 65_535);
    let mut stream = 1;
    let mut refused = Vec::new();
    for byte in (b' '..=0x7f).chain([0, b'\n', 0xff]) {
        for start in ["/a", "/a?b="] {
            let path = [start.as_bytes(), &[byte], b"c"].concat();
            let named = [b"\x82\x86\x44", &[path.len() as u8][..], &path, b"\x41\x06a.test"].concat();
            // The second time, the path is an entry of the table.
            for block in [&named[..], b"\x82\x86\xbf\xbe"] {
                client.send(HEADERS, END_HEADERS | END_STREAM, stream, block);
                let answer = client.next(SOON).unwrap();
                assert_eq!((answer.kind, answer.stream), (HEADERS, stream), "{path:?}: {answer:?}");
                // Statuses 200 and 400 of the static table.
                if answer.payload[0] != 0x88 {
                    assert_eq!(answer.payload[0], 0x8c, "{path:?}");
                    refused.push(path.clone());
                    assert_eq!(client.next(SOON).unwrap().kind, DATA);
                }
                stream += 2;
            }
        }
    }
    let in_path = [b' ', b'<', b'>', b'`', 0x7f, 0, b'\n', 0xff].map(|byte| [b"/a", &[byte][..], b"c"].concat());
    let in_query = [b' ', b'"', b'<', b'>', 0x7f, 0, b'\n', 0xff].map(|byte| [b"/a?b=", &[byte][..], b"c"].concat());
    let mut expected: Vec<_> = [in_path, in_query].concat();
    expected.extend_from_within(..);
    expected.sort_unstable();
    refused.sort_unstable();
    assert_eq!(refused, expected);
    let counted = malformed(
        &sb,
        "signalbox_request_refused_total{listener=\"http\",reason=\"target_form\"}",
    );
    assert_eq!(counted, expected.len() as u64);
    // Paths by an index are not counted here.
    let counted = malformed(&sb, "signalbox_http2_malformed_total{listener=\"http\"}");
    assert_eq!(counted, expected.len() as u64 / 2);
}

#[lab_test]
fn a_malformed_answer_is_a_502_and_ends_no_other_stream() {
    let lab = Lab::new();
    let asked = AtomicUsize::new(0);
    let east = FrameHost::start(&lab, 65_535, move |host: &mut FramePeer, frame: Frame, _| {
        if frame.kind != HEADERS {
            return;
        }
        // The first request waits until the others are answered.
        let number = asked.fetch_add(1, Relaxed);
        if number > 0 {
            let block = [OK, MALFORMED[number - 1]].concat();
            host.send(HEADERS, END_HEADERS | END_STREAM, frame.stream, &block);
        }
        if number == MALFORMED.len() {
            host.send(HEADERS, END_HEADERS | END_STREAM, 1, OK);
        }
    });
    let sb = start(&lab, "");
    let mut client = FramePeer::connect(&lab, HTTP, 65_535);
    client.get(1, "/");
    let mut stream = 1;
    for _ in MALFORMED {
        stream += 2;
        client.post(stream);
        client.send(DATA, END_STREAM, stream, b"");
    }
    let mut statuses = std::collections::BTreeMap::new();
    while statuses.len() <= MALFORMED.len() {
        let frame = client.next(SOON).unwrap();
        if frame.kind == HEADERS {
            statuses.insert(frame.stream, frame.payload[0]);
        }
    }
    assert_eq!(statuses[&1], OK[0], "{statuses:?}");
    assert!(
        statuses.iter().filter(|&(_, first)| *first == OK[0]).count() == 1,
        "{statuses:?}"
    );
    assert_eq!(east.accepted(), 1, "one connection");
    let counted = malformed(&sb, "signalbox_host_http2_malformed_total{cluster=\"east-1\"}");
    assert_eq!(counted, MALFORMED.len() as u64);
}
