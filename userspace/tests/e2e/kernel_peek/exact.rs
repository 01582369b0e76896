//! Windows in the host's units, and source ports held by sockets.

use crate::lab;

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use socket2::{Domain, Socket, Type};

use lab::flood::all_packets;
use lab::{Router, SOON, config, http};

use super::{PEEK, exits, start_with};

const ETHERNET: usize = 14;
const TCP: usize = ETHERNET + 20;
const SYN: u8 = 2;
/// Source ports of the program, by docs/kernel-peek.md.
const PROGRAM_PORTS: std::ops::Range<u16> = 16_384..28_672;

/// A window is announced to the host in the units of the balancer's SYN, which are not the client's.
#[test]
fn the_host_is_told_the_window_that_the_client_has() {
    let Some(lab) = super::lab("the_host_is_told_the_window_that_the_client_has") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let sb = start_with(&lab, &body(), 2);
    sb.wait_healthy(&["east-1"]);
    // A buffer so small that its units are not those of others.
    for (bytes, least, most) in [(8 << 10, 4 << 10, 20 << 10), (4 << 20, 1 << 20, 9 << 20)] {
        let seen = lab.host("east-1").run(|| all_packets("eth0"));
        seen.set_read_timeout(Some(SOON)).unwrap();
        let mut stream: TcpStream = lab
            .client
            .run(|| {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                socket.set_recv_buffer_size(bytes).unwrap();
                let to: SocketAddr = "10.1.0.1:80".parse().unwrap();
                socket.connect(&to.into()).unwrap();
                socket
            })
            .into();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        let window = first_window(&seen);
        assert!(
            (least..most).contains(&window),
            "a buffer of {bytes} is told as {window}"
        );
    }
    assert_eq!(exits(&sb, "routed"), 2, "{}", sb.get("/metrics").1);
}

/// The window of the first segment with data, by the scale of the SYN before it.
fn first_window(seen: &Socket) -> u32 {
    let mut scales = HashMap::new();
    let until = Instant::now() + SOON;
    while Instant::now() < until {
        let mut frame = [0; 2048];
        let length = (&*seen).read(&mut frame).unwrap();
        let is_tcp_to_host = length > TCP + 20
            && frame[12..14] == [8, 0]
            && frame[ETHERNET + 9] == 6
            && frame[ETHERNET + 16..TCP] == [10, 2, 0, 2]
            && frame[TCP + 2..TCP + 4] == 80u16.to_be_bytes();
        if !is_tcp_to_host {
            continue;
        }
        let port = [frame[TCP], frame[TCP + 1]];
        let header = usize::from(frame[TCP + 12] >> 4) * 4;
        if frame[TCP + 13] & SYN != 0 {
            scales.insert(port, scale(&frame[TCP + 20..TCP + header]));
        } else if frame[TCP + header..length].starts_with(b"GET") {
            let window = u16::from_be_bytes([frame[TCP + 14], frame[TCP + 15]]);
            return u32::from(window) << scales[&port];
        }
    }
    panic!("no data came");
}

/// The scale that a SYN's options offer.
fn scale(mut options: &[u8]) -> u8 {
    while let [kind, rest @ ..] = options {
        match (kind, rest) {
            (3, [3, scale, ..]) => return *scale,
            (1, _) => options = rest,
            (_, [length, ..]) => options = &options[usize::from(*length)..],
            _ => break,
        }
    }
    0
}

fn body() -> String {
    let east = config::cluster("east", &[], &["east-1"]);
    format!(
        "{PEEK}\n{}clusters:\n{east}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
        config::WEB_LISTENERS
    )
}

/// Sockets of the machine keep the ports that they are bound to, in the range of the program too.
#[test]
fn source_ports_of_sockets_are_left_to_them() {
    let Some(lab) = super::lab("source_ports_of_sockets_are_left_to_them") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let host: SocketAddr = "10.2.0.2:80".parse().unwrap();
    let bound = |port: u16| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([10, 2, 0, 1], port)).into()).unwrap();
        socket.connect(&host.into()).unwrap();
        TcpStream::from(socket)
    };
    // With the laboratory's own range the program's ports would be others.
    lab.lb
        .must(&["sysctl", "-qw", "net.ipv4.ip_local_port_range=32768 60999"]);
    let sb = start_with(&lab, &body(), 2);
    sb.wait_healthy(&["east-1"]);
    let ports = PROGRAM_PORTS.step_by(32);
    let held: Vec<TcpStream> = lab.lb.run(|| ports.map(bound).collect());
    for n in 0..200 {
        assert_eq!(http::ask(&lab, "10.1.0.1:80", "a.test").field("host"), "east-1", "{n}");
    }
    assert_eq!(
        (exits(&sb, "routed"), exits(&sb, "delivered")),
        (200, 200),
        "{}",
        sb.get("/metrics").1
    );
    // Nobody's old connection was in the way.
    assert_eq!(exits(&sb, "challenged"), 0, "{}", sb.get("/metrics").1);
    for mut stream in held {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
    }
}
