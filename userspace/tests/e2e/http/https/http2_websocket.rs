//! WebSockets of clients that speak HTTP/2 (RFC 8441), with hosts that know HTTP/1.1 alone.

use crate::http::request::scene::{HTTP, ROUTE, WebHost, config_of, field, one_host};
use crate::lab::frames::{DATA, END_HEADERS, END_STREAM, Frame, FramePeer, HEADERS, RST_STREAM, SETTINGS};
use crate::lab::{Lab, SOON, Signalbox, eventually, lab_test};

/// Field block of `:status: 200`.
const OK: u8 = 0x88;

/// Reason of RST_STREAM.
const CANCEL: [u8; 4] = [0, 0, 0, 8];

/// Asks for another protocol by an extended CONNECT.
fn connect(client: &mut FramePeer, stream: u32, protocol: &str, path: &str) {
    let mut block = b"\x02\x07CONNECT\x86\x41\x06a.test\x00\x09:protocol".to_vec();
    for text in [protocol.as_bytes(), b"\x04", path.as_bytes()] {
        if text != b"\x04" {
            block.push(u8::try_from(text.len()).unwrap());
        }
        block.extend(text);
    }
    block.extend(b"\x00\x15sec-websocket-version\x0213");
    client.send(HEADERS, END_HEADERS, stream, &block);
}

/// Reads data until `length` bytes of it have come.
fn read(client: &mut FramePeer, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < length {
        let frame = client.next(SOON).unwrap();
        assert_eq!(frame.kind, DATA, "{frame:?}");
        client.open(frame.stream, 1 << 16);
        bytes.extend(frame.payload);
    }
    bytes
}

/// Opens a WebSocket with an echo.
fn open(client: &mut FramePeer, stream: u32) {
    connect(client, stream, "websocket", "/ws");
    let head = client.next(SOON).unwrap();
    assert_eq!(
        (head.kind, head.flags & END_STREAM, head.payload[0]),
        (HEADERS, 0, OK),
        "{head:?}"
    );
    assert_eq!(read(client, 5), b"hello");
}

/// Status code of an answer, whose value is not in the static table.
fn status(frame: &Frame) -> String {
    assert_eq!(frame.kind, HEADERS, "{frame:?}");
    match frame.payload[0] {
        0x88 => "200".to_owned(),
        // A literal with the name of the static table: its value may be in Huffman's code, in which digits have five
        // or six bits.
        _ => {
            let length = usize::from(frame.payload[1] & 0x7f);
            let bits: String = frame.payload[2..2 + length]
                .iter()
                .map(|b| format!("{b:08b}"))
                .collect();
            let is_coded = frame.payload[1] & 0x80 != 0;
            if is_coded {
                digits(&bits)
            } else {
                String::from_utf8_lossy(&frame.payload[2..2 + length]).into_owned()
            }
        }
    }
}

/// Three digits in Huffman's code (RFC 7541, appendix B).
fn digits(mut bits: &str) -> String {
    let codes = [
        "00000", "00001", "00010", "011001", "011010", "011011", "011100", "011101", "011110", "011111",
    ];
    let next = |_| {
        let digit = codes.iter().position(|code| bits.starts_with(code)).unwrap();
        bits = &bits[codes[digit].len()..];
        digit.to_string()
    };
    (0..3).map(next).collect()
}

fn tunnels(sb: &Signalbox) -> f64 {
    sb.metric("signalbox_http2_streams_active{listener=\"http\"}")
}

#[lab_test]
fn a_websocket_is_opened_and_carries_bytes_both_ways() {
    let lab = Lab::new();
    let (east, sb) = one_host(&lab);
    let mut client = FramePeer::connect(&lab, HTTP, 65_535);
    let settings = std::iter::from_fn(|| client.read())
        .find(|frame| frame.kind == SETTINGS)
        .unwrap();
    let offers = settings.payload.chunks(6).any(|setting| setting == [0, 8, 0, 0, 0, 1]);
    assert!(offers, "SETTINGS_ENABLE_CONNECT_PROTOCOL: {settings:?}");
    open(&mut client, 1);
    let head = east.take().remove(0);
    assert!(head.starts_with("GET /ws HTTP/1.1\r\n"), "{head}");
    for (name, value) in [
        ("upgrade", "websocket"),
        ("host", "a.test"),
        ("sec-websocket-version", "13"),
    ] {
        assert_eq!(field(&head, name), Some(value), "{head}");
    }
    assert_eq!(field(&head, "sec-websocket-key").unwrap().len(), 24, "{head}");
    let sent: Vec<u8> = (0..=255).cycle().take(200_000).collect();
    for part in sent.chunks(10_000) {
        client.send(DATA, 0, 1, part);
        assert_eq!(read(&mut client, part.len()), part);
    }
    // Another stream is served beside the tunnel.
    client.get(3, "/");
    assert_eq!(status(&client.next(SOON).unwrap()), "200");
    while client.next(SOON).unwrap().flags & END_STREAM == 0 {}
    client.send(DATA, END_STREAM, 1, b"bye");
    assert_eq!(read(&mut client, 3), b"bye");
    let end = client.next(SOON).unwrap();
    assert_eq!((end.kind, end.flags & END_STREAM), (DATA, END_STREAM), "{end:?}");
    assert!(eventually(SOON, || tunnels(&sb) < 0.5 && sb.flow_count() == 0));
    let upgraded = sb.metric("signalbox_requests_total{listener=\"http\",cluster=\"east-1\",code=\"1xx\"}");
    assert_eq!(upgraded, 1.0);
}

#[lab_test]
fn answers_that_are_no_websocket_are_told_from_one() {
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let without = "{ host: a.test, path: /without, clusters: { east-1: 1 }, upgrades: [SPDY/3.1] }";
    let sb = Signalbox::start(&lab, &config_of("", &["east-1"], &[ROUTE, without]));
    sb.wait_healthy(&["east-1"]);
    let asked = [
        ("websocket", "/without/ws", "501"),
        ("websocket", "/ws-wrong", "502"),
        ("websocket", "/status/200", "502"),
        ("websocket", "/early", "413"),
        ("webtransport", "/ws", "501"),
    ];
    for (protocol, path, expected) in asked {
        let mut client = FramePeer::connect(&lab, HTTP, 65_535);
        connect(&mut client, 1, protocol, path);
        assert_eq!(status(&client.next(SOON).unwrap()), expected, "{protocol} {path}");
        // The connection stays open.
        while client.next(SOON).unwrap().kind != RST_STREAM {}
        open(&mut client, 3);
    }
}

#[lab_test]
fn a_tunnel_that_is_reset_or_silent_ends_on_both_sides() {
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let sb = Signalbox::start(&lab, &config_of("timeouts: { tunnel: 3s }", &["east-1"], &[ROUTE]));
    sb.wait_healthy(&["east-1"]);
    let mut client = FramePeer::connect(&lab, HTTP, 65_535);
    open(&mut client, 1);
    client.send(RST_STREAM, 0, 1, &CANCEL);
    assert!(eventually(SOON, || sb.flow_count() == 0));
    open(&mut client, 3);
    let end = client.next(SOON).unwrap();
    assert_eq!((end.kind, end.stream, &end.payload[..]), (RST_STREAM, 3, &CANCEL[..]));
    assert!(eventually(SOON, || tunnels(&sb) < 0.5));
}
