//! Windows of cut flows between ends and a balancer that are tuned differently: each end learns what the other accepts,
//! and no more.

use crate::lab;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use lab::cut::{self, Hosts, TCP};
use lab::{Lab, SOON, Signalbox, lab_test};

/// Buffers of a machine that was tuned for long fast paths: its window scale is 10, that of the others 7.
const TUNED: &str = "4096 131072 33554432";
/// A machine with little memory: its scale is 1.
const SMALL: &str = "4096 16384 131072";
const UPLOAD_BYTES: usize = 100_000;

fn set_buffers(lab: &Lab, who: &str, sizes: &str) {
    let setting = format!("net.ipv4.tcp_rmem={sizes}");
    let machines = match who {
        "client" => vec![&lab.client],
        "balancer" => vec![&lab.lb],
        _ => vec![lab.host("east-1"), lab.host("west-1")],
    };
    for machine in machines {
        machine.must(&["sysctl", "-qw", &setting]);
    }
}

/// Sends until the other end, which does not read, accepts no more for a while. Returns how many bytes went.
fn fill(mut stream: &TcpStream) -> usize {
    stream.set_nonblocking(true).unwrap();
    let (chunk, mut sent, mut progress) = (vec![7; 64 << 10], 0, Instant::now());
    while progress.elapsed() < Duration::from_millis(700) {
        match stream.write(&chunk) {
            Ok(n) => {
                sent += n;
                progress = Instant::now();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => panic!("after {sent} bytes: {error}"),
        }
    }
    stream.set_nonblocking(false).unwrap();
    sent
}

fn read_all_of(mut stream: &TcpStream, bytes: usize, case: &str) {
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut left = bytes;
    let mut chunk = vec![0; 64 << 10];
    while left > 0 {
        let n = left.min(chunk.len());
        match stream.read(&mut chunk[..n]) {
            Ok(0) => panic!("{case}: ended with {left} bytes to come"),
            Ok(n) => left -= n,
            Err(error) => panic!("{case}: {error} with {left} of {bytes} bytes to come"),
        }
    }
}

/// The sender does not read: its bytes must still arrive, and then those that were sent to it.
fn uploads_while_it_does_not_read(from: &TcpStream, to: &TcpStream, case: &str) {
    let sent = fill(to);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = from;
            writer.write_all(&[1; UPLOAD_BYTES]).unwrap();
        });
        read_all_of(to, UPLOAD_BYTES, &format!("{case}, sent by who does not read"));
    });
    read_all_of(from, sent, &format!("{case}, at last read"));
}

#[lab_test]
fn a_peer_that_does_not_read_can_still_send_with_any_buffers() {
    if cut::lenient() {
        return;
    }
    for (who, sizes) in [
        ("balancer", TUNED),
        ("client", TUNED),
        ("hosts", TUNED),
        ("client", SMALL),
        ("hosts", SMALL),
        ("balancer", SMALL),
    ] {
        let lab = cut::lab();
        set_buffers(&lab, who, sizes);
        let hosts = Hosts::start(&lab);
        let (_health, sb) = cut::start(&lab, "");
        for (at, host) in TCP {
            for client_is_stuck in [true, false] {
                let client = lab.client.connect(at);
                let host = hosts.accept(host, 3306);
                lab::tiers::ping(&client, &host);
                cut::expect_cut(&sb, &client);
                let case = format!("{who} with {sizes}, {at}, the client does not read: {client_is_stuck}");
                if client_is_stuck {
                    uploads_while_it_does_not_read(&client, &host, &case);
                } else {
                    uploads_while_it_does_not_read(&host, &client, &case);
                }
            }
        }
    }
}

/// A socket whose buffer is smaller than a unit of the balancer's own scale.
#[lab_test]
fn a_client_with_a_tiny_buffer_is_served_as_fast_as_directly() {
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    set_buffers(&lab, "balancer", TUNED);
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    let download = |sb: &Signalbox, at: &str| {
        let client = lab.client.run(|| {
            let to: std::net::SocketAddr = at.parse().unwrap();
            let socket = socket2::Socket::new(socket2::Domain::for_address(to), socket2::Type::STREAM, None).unwrap();
            socket.set_recv_buffer_size(2300).unwrap();
            socket.connect(&to.into()).unwrap();
            TcpStream::from(socket)
        });
        let host = hosts.accept("east-1", 3306);
        let began = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| (&*host).write_all(&[3; 400_000]).unwrap());
            read_all_of(&client, 400_000, at);
        });
        println!(
            "{at}: {:?}, {}",
            began.elapsed(),
            cut::shown(sb, client.local_addr().unwrap())["tier"]
        );
        began.elapsed()
    };
    let took = download(&sb, TCP[0].0);
    // The defect made it hundreds of times slower: a timeout of the sender for every few kilobytes.
    assert!(took < SOON / 2, "{took:?}");
}
