//! Bodies arrive whole, in both directions, however long they are and however slow an end is.

use std::io::Write;
use std::time::Duration;

use super::scene::{Client, field, noise_digest, one_host, send_noise};
use crate::lab::{Lab, lab_test};

/// Lengths around the size of one read.
const LENGTHS: [u64; 8] = [0, 1, 4095, 65_535, 65_536, 65_537, 1_000_003, 16 << 20];

#[lab_test]
fn bodies_of_any_length_arrive_whole_in_both_directions() {
    let lab = Lab::new();
    let (_east, sb) = one_host(&lab);
    let mut client = Client::connect(&lab);
    for length in LENGTHS {
        let digest = noise_digest(length);
        for is_chunked in [false, true] {
            let framing = if is_chunked {
                "Transfer-Encoding: chunked".to_owned()
            } else {
                format!("Content-Length: {length}")
            };
            client.send(&format!("POST /digest HTTP/1.1\r\nHost: a.test\r\n{framing}\r\n\r\n"));
            send_noise(client.stream(), length, is_chunked).unwrap();
            assert_eq!(client.answer("POST").text, format!("{length} {digest}"), "{framing}");
            let path = format!("/{}/{length}", if is_chunked { "chunked" } else { "bytes" });
            client.send(&format!(
                "GET {path} HTTP/1.1\r\nHost: a.test\r\nConnection: TE\r\nTE: trailers\r\n\r\n"
            ));
            let answer = client.answer("GET");
            assert_eq!(
                (answer.body.length, answer.body.hex()),
                (length, digest.clone()),
                "{path}"
            );
            assert_eq!(answer.trailers.contains("X-Sum: 1"), is_chunked, "{path}");
            let answer = client.get("a.test", &path);
            assert!(
                !answer.trailers.contains("X-Sum"),
                "nobody asked for trailers: {:?}",
                answer.trailers
            );
        }
    }
    assert_eq!(sb.metric("signalbox_listener_connections_total"), 1.0);
    assert_eq!(sb.metric("signalbox_backend_connections_total"), 1.0);
}

/// Resident memory of a process in KiB.
fn resident_kib(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[lab_test]
fn slow_readers_and_writers_cost_little_memory() {
    const READERS: usize = 32;
    const LENGTH: u64 = 16 << 20;
    let lab = Lab::new();
    let (_east, sb) = one_host(&lab);
    assert_eq!(
        Client::connect(&lab).get("a.test", "/bytes/100000").body.length,
        100_000
    );
    let before = resident_kib(sb.proc.pid());
    let clients: Vec<_> = (0..READERS)
        .map(|_| {
            let mut client = Client::connect(&lab);
            client.send(&format!("GET /bytes/{LENGTH} HTTP/1.1\r\nHost: a.test\r\n\r\n"));
            client
        })
        .collect();
    // Until all queues on the way are full, only the answer's head is sure to have come.
    std::thread::sleep(Duration::from_secs(2));
    let grown = resident_kib(sb.proc.pid()).saturating_sub(before);
    assert!(grown < 16 * 1024, "{READERS} readers that do not read cost {grown} KiB");
    let digest = noise_digest(LENGTH);
    for mut client in clients {
        assert_eq!(client.answer("GET").body.hex(), digest);
    }
    // A writer that writes byte by byte, in its head and in its body.
    let mut client = Client::connect(&lab);
    let text = "POST /digest HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1;x=y\r\nd\r\n0\r\n\r\n";
    client.stream().set_nodelay(true).unwrap();
    for byte in text.as_bytes() {
        client.stream().write_all(&[*byte]).unwrap();
    }
    assert!(client.answer("POST").text.starts_with("4 "));
}

#[lab_test]
fn a_waiting_client_gets_100_and_an_early_answer_passes_at_once() {
    let lab = Lab::new();
    let (_east, _sb) = one_host(&lab);
    let mut client = Client::connect(&lab);
    client.send("PUT /digest HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.answer("PUT").status, 100);
    client.send("hello");
    assert!(client.answer("PUT").text.starts_with("5 "));
    assert_eq!(client.host_of("a.test"), "east-1", "the connection is kept");
    // The body never ends: the answer still comes, and the connection is closed.
    client.send("POST /early HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1000000\r\n\r\nbegun");
    let answer = client.answer("POST");
    assert_eq!((answer.status, &*answer.text), (413, "early"));
    assert_eq!(field(&answer.head, "connection"), Some("close"));
    assert!(client.is_at_end());
}
