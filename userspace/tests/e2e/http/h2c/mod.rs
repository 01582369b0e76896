//! HTTP/2 with prior knowledge: clients that wait for the server's SETTINGS, gRPC's among them, and refusals.

pub(crate) mod clients;
mod refusals;
mod waiting;

use std::io::Read;
use std::net::TcpStream;

use crate::lab::config;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Frame types.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;

/// Flags: `ACK` of SETTINGS and PING, `END_STREAM` of DATA and HEADERS.
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// An `http` listener for each tier that carries such connections, and the tier.
const TIERS: [(&str, &str); 4] = [
    ("10.1.0.1:80", "cut"),
    ("10.1.0.1:81", "copy"),
    ("10.1.0.1:82", "splice"),
    ("10.1.0.1:83", "sockmap"),
];

/// Listener that routes each request.
const BY_REQUEST: &str = "10.1.0.1:84";

/// Makes a cluster of these hosts for `a.test`, with a listener for each tier. `extra` are top-level lines, `keys` the
/// cluster's.
fn body(extra: &str, keys: &[&str], hosts: &[&str]) -> String {
    let listener = |(at, tier): &(&str, &str)| {
        let datapath = match *tier {
            "cut" => String::new(),
            tier => format!(", datapath: {{ tier: {tier} }}"),
        };
        format!("{{ name: {tier}, protocol: http, listen: [\"{at}\"]{datapath} }}")
    };
    let by_request = format!("{{ name: request, protocol: http, routing: request, listen: [\"{BY_REQUEST}\"] }}");
    let listeners: Vec<_> = TIERS.iter().map(listener).chain([by_request]).collect();
    format!(
        "{extra}\nlisteners:\n{}clusters:\n{}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
        config::yaml_list("  ", &listeners),
        config::cluster("east", keys, hosts)
    )
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    let mut bytes = vec![len[1], len[2], len[3], kind, flags, 0, 0, 0, stream];
    bytes.extend(payload);
    bytes
}

/// A request for this name, on stream 1.
fn request(name: &str, flags: u8) -> Vec<u8> {
    // `:method GET`, `:scheme http`, `:path /` and `:authority`.
    let mut block = b"\x82\x86\x84\x41".to_vec();
    block.push(name.len() as u8);
    block.extend(name.as_bytes());
    frame(HEADERS, flags | END_HEADERS, 1, &block)
}

/// Reads a frame: kind, flags, stream and payload. `None` at the end.
fn read_frame(mut stream: &TcpStream) -> Option<(u8, u8, u8, Vec<u8>)> {
    let mut header = [0; 9];
    stream.read_exact(&mut header).ok()?;
    let mut payload = vec![0; usize::from(u16::from_be_bytes([header[1], header[2]]))];
    stream.read_exact(&mut payload).ok()?;
    Some((header[3], header[4], header[8], payload))
}
