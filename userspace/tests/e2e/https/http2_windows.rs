//! HTTP/2 from clients with windows of their own: closed ones, slow ones; interim answers.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::http_request::scene::{HTTP, ROUTE, WebHost, config_of, one_host};
use crate::lab::{Lab, SOON, Signalbox, eventually, privileged};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A client that writes frames as it likes.
struct RawClient(TcpStream);

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl RawClient {
    /// Connects with this window for each stream.
    fn connect(lab: &Lab, window: u32) -> Self {
        let mut stream = lab.client.connect(HTTP);
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        let mut client = Self(stream);
        client.send(SETTINGS, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat());
        client
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [length[1], length[2], length[3], kind, flags];
        self.0
            .write_all(&[&head, &stream.to_be_bytes()[..], payload].concat())
            .unwrap();
    }

    /// Asks for a path of a.test.
    fn get(&mut self, stream: u32, path: &str) {
        let mut block = b"\x82\x86\x41\x06a.test\x04".to_vec();
        block.push(u8::try_from(path.len()).unwrap());
        block.extend(path.as_bytes());
        self.send(HEADERS, END_HEADERS | END_STREAM, stream, &block);
    }

    /// Opens the window of a stream, and the connection's.
    fn open(&mut self, stream: u32, bytes: u32) {
        self.send(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes());
        self.send(WINDOW_UPDATE, 0, 0, &bytes.to_be_bytes());
    }

    /// Reads the next frame that is not answered here; `None` at the end or where nothing comes for so long.
    fn next(&mut self, patience: Duration) -> Option<Frame> {
        let until = Instant::now() + patience;
        loop {
            let left = until.checked_duration_since(Instant::now())?;
            self.0
                .set_read_timeout(Some(left.max(Duration::from_millis(1))))
                .unwrap();
            let mut head = [0; 9];
            self.0.read_exact(&mut head).ok()?;
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            self.0.set_read_timeout(Some(SOON)).unwrap();
            self.0.read_exact(&mut payload).ok()?;
            let (kind, flags) = (head[3], head[4]);
            match kind {
                SETTINGS if flags & ACK == 0 => self.send(SETTINGS, ACK, 0, &[]),
                PING if flags & ACK == 0 => self.send(PING, ACK, 0, &payload),
                SETTINGS | PING | WINDOW_UPDATE => {}
                _ => {
                    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
                    return Some(Frame {
                        kind,
                        flags,
                        stream,
                        payload,
                    });
                }
            }
        }
    }
}

fn streams(sb: &Signalbox) -> f64 {
    sb.metric("signalbox_http2_streams_active{listener=\"http\"}")
}

#[test]
fn streams_of_a_client_that_takes_nothing_are_reset_in_time() {
    if !privileged("streams_of_a_client_that_takes_nothing_are_reset_in_time") {
        return;
    }
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let sb = Signalbox::start(
        &lab,
        &config_of("timeouts: { body: 2s, keep_alive: 2s }", &["east-1"], &[ROUTE]),
    );
    sb.wait_healthy(&["east-1"]);
    let mut client = RawClient::connect(&lab, 0);
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

#[test]
fn an_answer_is_taken_as_slowly_as_the_client_likes_though_the_listener_goes() {
    if !privileged("an_answer_is_taken_as_slowly_as_the_client_likes_though_the_listener_goes") {
        return;
    }
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let config = config_of("timeouts: { body: 3s, keep_alive: 1s }", &["east-1"], &[ROUTE]);
    let sb = Signalbox::start(&lab, &config);
    sb.wait_healthy(&["east-1"]);
    let mut client = RawClient::connect(&lab, 0);
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

#[test]
fn interim_answers_pass() {
    if !privileged("interim_answers_pass") {
        return;
    }
    let lab = Lab::new();
    let (_east, _sb) = one_host(&lab);
    let mut client = RawClient::connect(&lab, 65_535);
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
    // ":status" with a name of the static table and a value of its own, in Huffman's code or as it stands.
    assert!(heads[0][0] & 0x8f != 0x88, "{:?}", heads[0]);
    // 200 is in the static table.
    assert_eq!(heads[1][0], 0x88, "{:?}", heads[1]);
}

#[test]
fn a_client_that_waits_for_100_continue_gets_it() {
    if !privileged("a_client_that_waits_for_100_continue_gets_it") {
        return;
    }
    let lab = Lab::new();
    let (_east, _sb) = one_host(&lab);
    let mut client = RawClient::connect(&lab, 65_535);
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

#[test]
fn a_request_whose_end_comes_behind_its_last_byte_is_not_reset() {
    if !privileged("a_request_whose_end_comes_behind_its_last_byte_is_not_reset") {
        return;
    }
    let lab = Lab::new();
    let (_east, _sb) = one_host(&lab);
    let mut client = RawClient::connect(&lab, 65_535);
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
