//! WebSockets, which are cut late, move like other flows.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use super::pair::Pair;
use crate::lab::cut::expect_cut;
use crate::lab::tiers::ping;

/// Reads until the empty line after a head.
fn read_head(mut from: &TcpStream) -> String {
    let (mut head, mut byte) = (Vec::new(), [0; 1]);
    while !head.ends_with(b"\r\n\r\n") {
        from.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// Opens a WebSocket; returns its ends after the answer's head.
pub(super) fn open(pair: &Pair, at: &str, name: &str) -> (TcpStream, Arc<TcpStream>) {
    let client = pair.client.connect(at);
    client.set_nodelay(true).unwrap();
    let request = format!(
        "GET /chat HTTP/1.1\r\nHost: {name}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    );
    (&client).write_all(request.as_bytes()).unwrap();
    let host = pair.accept(80);
    read_head(&host);
    let answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                  Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
    (&*host).write_all(answer.as_bytes()).unwrap();
    assert!(read_head(&client).starts_with("HTTP/1.1 101 "));
    ping(&client, &host);
    ping(&host, &client);
    (client, host)
}

#[test]
fn websockets_outlive_their_balancer() {
    let Some(mut pair) = Pair::begin("websockets_outlive_their_balancer") else {
        return;
    };
    let sockets: Vec<_> = [("10.1.0.10:8080", "a.test"), ("[fd00:1::10]:8080", "b.test")]
        .iter()
        .flat_map(|(at, name)| [open(&pair, at, name), open(&pair, at, name)])
        .collect();
    for (client, _) in &sockets {
        expect_cut(pair.balancer(0), client);
    }
    pair.wait_shadows(1, sockets.len() as u64);
    pair.kill(0);
    pair.take(1);
    for (client, host) in &sockets {
        ping(host, client);
        ping(client, host);
    }
    pair.revive(0);
    pair.wait_synced();
    pair.give(0);
    for (client, host) in &sockets {
        ping(client, host);
        ping(host, client);
    }
}
