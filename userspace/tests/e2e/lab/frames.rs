//! A peer of HTTP/2, client or host, that writes any frames.

use std::io::{Read as _, Result, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::{Lab, SOON};

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;

/// Flags: `ACK` of SETTINGS and PING, `END_STREAM` of DATA and HEADERS.
pub(crate) const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A peer that writes frames as it likes.
pub(crate) struct FramePeer(TcpStream);

/// Windows that a peer grants: of a connection, of one of its streams, and of each new stream.
pub(crate) struct Windows {
    pub(crate) connection: i64,
    pub(crate) stream: i64,
    pub(crate) first: i64,
}

#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl FramePeer {
    /// Connects a client with this window for each stream.
    pub(crate) fn connect(lab: &Lab, to: &str, window: u32) -> Self {
        let mut stream = lab.client.connect(to);
        stream.write_all(PREFACE).unwrap();
        let mut client = Self(stream);
        client.send(SETTINGS, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat());
        client
    }

    /// Sends SETTINGS to a client that has connected, as a host with this window for each stream. Fails if it speaks no
    /// HTTP/2.
    pub(crate) fn accept(stream: &TcpStream, window: u32) -> Result<Self> {
        let mut stream = stream.try_clone()?;
        let mut preface = [0; PREFACE.len()];
        stream.read_exact(&mut preface)?;
        let mut host = Self(stream);
        host.try_send(SETTINGS, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat())?;
        Ok(host)
    }

    pub(crate) fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.try_send(kind, flags, stream, payload).unwrap();
    }

    pub(crate) fn try_send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<()> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [length[1], length[2], length[3], kind, flags];
        self.0.write_all(&[&head, &stream.to_be_bytes()[..], payload].concat())
    }

    /// Asks for a path of a.test.
    pub(crate) fn get(&mut self, stream: u32, path: &str) {
        let mut block = b"\x82\x86\x41\x06a.test\x04".to_vec();
        block.push(u8::try_from(path.len()).unwrap());
        block.extend(path.as_bytes());
        self.send(HEADERS, END_HEADERS | END_STREAM, stream, &block);
    }

    /// Begins a POST to a.test, whose body follows.
    pub(crate) fn post(&mut self, stream: u32) {
        self.send(HEADERS, END_HEADERS, stream, b"\x83\x86\x84\x41\x06a.test");
    }

    /// Opens the window of a stream, and the connection's.
    pub(crate) fn open(&mut self, stream: u32, bytes: u32) {
        self.send(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes());
        self.send(WINDOW_UPDATE, 0, 0, &bytes.to_be_bytes());
    }

    /// Reads the next frame that is not answered here; `None` at the end or if nothing comes within `patience`.
    pub(crate) fn next(&mut self, patience: Duration) -> Option<Frame> {
        let until = Instant::now() + patience;
        loop {
            let left = until.checked_duration_since(Instant::now())?;
            self.0
                .set_read_timeout(Some(left.max(Duration::from_millis(1))))
                .unwrap();
            let frame = self.read()?;
            match frame.kind {
                SETTINGS if frame.flags & ACK == 0 => self.try_send(SETTINGS, ACK, 0, &[]).ok()?,
                PING if frame.flags & ACK == 0 => self.try_send(PING, ACK, 0, &frame.payload).ok()?,
                SETTINGS | PING | WINDOW_UPDATE => {}
                _ => return Some(frame),
            }
        }
    }

    /// Adds the peer's window updates to the windows of the connection and of a stream, until nothing has come within
    /// `patience`.
    pub(crate) fn credit(&mut self, stream: u32, windows: &mut Windows, patience: Duration) {
        self.0.set_read_timeout(Some(patience)).unwrap();
        while let Some(frame) = self.read() {
            self.0.set_read_timeout(Some(patience)).unwrap();
            match frame.kind {
                WINDOW_UPDATE => {
                    let more = i64::from(u32::from_be_bytes(frame.payload[..4].try_into().unwrap()));
                    if frame.stream == 0 {
                        windows.connection += more;
                    } else if frame.stream == stream {
                        windows.stream += more;
                    }
                }
                SETTINGS if frame.flags & ACK == 0 => {
                    for setting in frame.payload.chunks_exact(6).filter(|setting| setting[..2] == [0, 4]) {
                        let first = i64::from(u32::from_be_bytes(setting[2..].try_into().unwrap()));
                        windows.stream += first - windows.first;
                        windows.first = first;
                    }
                    self.send(SETTINGS, ACK, 0, &[]);
                }
                _ => {}
            }
        }
    }

    /// Reads a frame of any kind; `None` at the end.
    pub(crate) fn read(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).ok()?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        self.0.set_read_timeout(Some(SOON)).unwrap();
        self.0.read_exact(&mut payload).ok()?;
        Some(Frame {
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]),
            payload,
        })
    }
}
