//! A client of HTTP/2 by hand, for one request after the other.

use std::io::{Read, Write};

use anyhow::{Result, ensure};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A client on a connection.
pub(super) struct Http2Client {
    /// Stream of the next request.
    next: u32,
}

impl Http2Client {
    /// Begins a connection.
    pub(super) fn begin(mut connection: impl Write) -> Result<Self> {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        connection.write_all(&[preface, &frame(SETTINGS, 0, 0, b"")[..]].concat())?;
        Ok(Self { next: 1 })
    }

    /// Sends a GET of `/` and reads the answer, which must be 200.
    pub(super) fn ask(&mut self, connection: &mut (impl Read + Write), name: &str) -> Result<()> {
        let stream = self.next;
        self.next += 2;
        // GET, https and `/` of the static table; the authority as a literal, which no table remembers.
        let mut block = vec![0x82, 0x87, 0x84, 0x01, u8::try_from(name.len())?];
        block.extend(name.as_bytes());
        connection.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &block))?;
        loop {
            let mut head = [0; 9];
            connection.read_exact(&mut head)?;
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            connection.read_exact(&mut payload)?;
            let (kind, flags) = (head[3], head[4]);
            let about = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            match kind {
                SETTINGS | PING if flags & ACK == 0 => {
                    let echoed = if kind == PING { &payload[..] } else { b"" };
                    connection.write_all(&frame(kind, ACK, 0, echoed))?;
                }
                HEADERS if about == stream => ensure!(payload.contains(&0x88), "not 200"),
                DATA | SETTINGS | PING => {}
                // RST_STREAM and GOAWAY.
                3 | 7 => anyhow::bail!("frame {kind}"),
                _ => {}
            }
            if matches!(kind, DATA | HEADERS) && about == stream && flags & END_STREAM != 0 {
                return Ok(());
            }
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let head = [length[1], length[2], length[3], kind, flags];
    [&head, &stream.to_be_bytes()[..], payload].concat()
}
