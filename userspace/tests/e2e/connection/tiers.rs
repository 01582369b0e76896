//! Bytes of a flow arrive on every tier: all of them, in order, and with both ends' FINs and resets.
//!
//! Every test runs on every tier: one `tcp` listener for each, all in front of the same host.

use crate::lab;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use signalbox::sys::sequence_numbers;

use lab::exchange::{self, Noise};
use lab::raw::{ACK, Segment};
use lab::tiers::{BACKEND, flow, ping, reaches, start, tiers};
use lab::{Lab, SOON, Server, eventually, lab_test, servers};

const MIB: u64 = 1 << 20;

#[lab_test]
fn every_byte_arrives_both_ways_at_once_in_every_size() {
    let lab = Lab::new();
    let _server = exchange::server(lab.host("east-1"), BACKEND);
    let (_health, sb) = start(&lab, "");
    for (tier, at) in tiers() {
        for (size, connections) in [(0, 40), (1, 40), (1 << 10, 40), (64 << 10, 40), (5 * MIB, 24)] {
            // Eight at once, now and then with different sizes in the two directions.
            std::thread::scope(|scope| {
                for worker in 0..8 {
                    let lab = &lab;
                    scope.spawn(move || {
                        for round in 0..connections / 8 {
                            let seed = size * 1000 + worker * 100 + round;
                            let down = if round == 1 { size / 2 } else { size };
                            let outcome = exchange::client(&lab.client.connect(at), seed, size, down);
                            outcome.unwrap_or_else(|e| panic!("{tier}, {size} bytes, seed {seed}: {e}"));
                        }
                    });
                }
            });
        }
        let one = lab.client.connect(at);
        std::thread::scope(|scope| {
            let transfer = scope.spawn(|| exchange::client(&one, 77, 256 * MIB, 256 * MIB));
            reaches(&sb, &one, tier);
            transfer
                .join()
                .unwrap()
                .unwrap_or_else(|e| panic!("{tier}, 256 MiB: {e}"));
        });
        drop(one);
        let opened = sb.metric(&format!(
            "signalbox_connections_opened_total{{cluster=\"east\",tier=\"{tier}\"}}"
        ));
        assert!(opened >= 1.0, "{tier} is counted");
    }
    assert!(
        eventually(SOON, || sb.flow_count() == 0),
        "no flow is left: {:?}",
        sb.flows("limit=10")
    );
    let host = sb.host("east-1");
    let least = tiers().count() as u64 * 256 * MIB;
    assert!(host["bytes_in"].as_u64().unwrap() > least, "{host}");
    assert!(host["bytes_out"].as_u64().unwrap() > least, "{host}");
}

/// A sender that has not heard that bytes have arrived may send them again together with new ones (RFC 9293, 3.10.7.4:
/// the receiver takes what is new).
#[lab_test]
fn bytes_that_are_sent_again_together_with_new_ones_arrive_once() {
    let lab = Lab::new();
    let (_server, backends) = servers::hand_over(lab.host("east-1"), BACKEND);
    let (_health, sb) = start(&lab, "");
    for (tier, at) in tiers() {
        let (client, host) = flow(&lab, &sb, &backends, tier, at);
        let (seq, ack) = lab.client.run(|| sequence_numbers(client.as_raw_fd()).unwrap());
        let stream: Vec<u8> = (0..9000u32).flat_map(u32::to_be_bytes).collect();
        let segment = |from: u32, until: u32| Segment {
            from: client.local_addr().unwrap(),
            to: client.peer_addr().unwrap(),
            seq: seq.wrapping_add(from),
            ack,
            flags: ACK,
            payload: &stream[from as usize..until as usize],
        };
        let stretches = [
            (0, 1000),
            (500, 1500),
            (1499, 1501),
            (1, 1600),
            (2000, 2500),
            (1600, 2200),
            (2300, 3000),
        ];
        let mut received = Vec::new();
        for (from, until) in stretches {
            segment(from, until).send(&lab.client);
        }
        let mut buffer = [0; 4096];
        while received.len() < 3000 {
            let n = (&*host).read(&mut buffer).unwrap();
            assert!(n > 0, "{tier}: the stream has ended after {} bytes", received.len());
            received.extend_from_slice(&buffer[..n]);
        }
        assert!(received == stream[..3000], "{tier}: other bytes than were sent");
        host.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let more = (&*host).read(&mut buffer);
        assert!(more.is_err(), "{tier}: more than was sent: {more:?}");
    }
}

#[lab_test]
fn a_connection_without_a_byte_ends_as_it_began() {
    let lab = Lab::new();
    let (_server, backends) = servers::hand_over(lab.host("east-1"), BACKEND);
    let (_health, sb) = start(&lab, "");
    for (tier, at) in tiers() {
        for round in 0..20 {
            let mut client = lab.client.connect(at);
            let host = backends.recv_timeout(SOON).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let at_host = (&*host).read(&mut [0; 8]);
            assert!(
                matches!(at_host, Ok(0)),
                "{tier}, round {round}, at the host: {at_host:?}"
            );
            drop(host);
            let at_client = client.read(&mut [0; 8]);
            assert!(
                matches!(at_client, Ok(0)),
                "{tier}, round {round}, at the client: {at_client:?}; {:?}\n{}",
                sb.flows("limit=10"),
                sb.get("/metrics").1
            );
        }
    }
}

#[lab_test]
fn a_half_closed_flow_still_carries_the_other_direction() {
    let lab = Lab::new();
    let (_server, backends) = servers::hand_over(lab.host("east-1"), BACKEND);
    let (_health, sb) = start(&lab, "");
    for (tier, at) in tiers() {
        for client_first in [true, false] {
            let (client, host) = flow(&lab, &sb, &backends, tier, at);
            let (mut first, mut second) = if client_first {
                (&client, &*host)
            } else {
                (&*host, &client)
            };
            first.write_all(b"that is all").unwrap();
            first.shutdown(Shutdown::Write).unwrap();
            let case = format!("{tier}, the client ends first: {client_first}");
            let mut text = String::new();
            second
                .read_to_string(&mut text)
                .unwrap_or_else(|e| panic!("{case}: {e}"));
            assert_eq!(text, "that is all", "{case}");
            // Long enough for a balancer that takes the first end for the end of all.
            std::thread::sleep(Duration::from_millis(300));
            let mut sent = vec![0; 3 * MIB as usize];
            Noise::new(3).fill(&mut sent);
            let mut received = Vec::new();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    second.write_all(&sent).unwrap_or_else(|e| panic!("{case}: {e}"));
                    second.shutdown(Shutdown::Write).unwrap();
                });
                first
                    .read_to_end(&mut received)
                    .unwrap_or_else(|e| panic!("{case}: {e}"));
            });
            assert!(received == sent, "{case}: {} of {} bytes", received.len(), sent.len());
        }
    }
    assert!(eventually(SOON, || sb.flow_count() == 0));
}

#[lab_test]
fn a_reset_from_one_side_reaches_the_other_as_a_reset() {
    let lab = Lab::new();
    let (_server, backends) = servers::hand_over(lab.host("east-1"), BACKEND);
    let (_health, sb) = start(&lab, "");
    for (tier, at) in tiers() {
        for by_client in [true, false] {
            let (client, host) = flow(&lab, &sb, &backends, tier, at);
            let resets = |stream: &TcpStream| {
                socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
            };
            let error = if by_client {
                resets(&client);
                drop(client);
                (&*host).read(&mut [0; 8]).unwrap_err()
            } else {
                resets(&host);
                drop(host);
                (&client).read(&mut [0; 8]).unwrap_err()
            };
            assert_eq!(
                error.kind(),
                ErrorKind::ConnectionReset,
                "{tier}, reset by client: {by_client}: {error}"
            );
        }
    }
    assert!(eventually(SOON, || sb.flow_count() == 0));
}

#[lab_test]
fn a_stuck_reader_stops_its_sender_and_then_gets_every_byte() {
    let lab = Lab::new();
    let (_server, backends) = servers::hand_over(lab.host("east-1"), BACKEND);
    let (_health, sb) = start(&lab, "");
    for (tier, at) in tiers() {
        for client_sends in [true, false] {
            let (client, host) = flow(&lab, &sb, &backends, tier, at);
            let (sender, reader) = if client_sends {
                (&client, &*host)
            } else {
                (&*host, &client)
            };
            let (accepted, digest) = push_until_stuck(sender, tier);
            // Bytes that neither end's kernel holds are in the balancer or in its sockets.
            let held = accepted - queue(sender, libc::TIOCOUTQ) - queue(reader, libc::FIONREAD);
            let taken = buffers(&lab.lb) + sb.proc.resident();
            println!(
                "{tier}, client sends {client_sends}: {accepted} bytes accepted, {held} held between the ends, \
                 {taken} bytes of buffers and memory"
            );
            assert!(held < 16 * MIB, "{tier}: {held} bytes absorbed");
            // Buffers take several times their payload where segments are small; a leak grows without end.
            assert!(taken < 256 * MIB, "{tier}: {taken} bytes of memory taken");

            sender.set_nonblocking(false).unwrap();
            sender.shutdown(Shutdown::Write).unwrap();
            let (count, received) = read_all(reader);
            assert_eq!(count, accepted, "{tier}");
            assert_eq!(received, digest, "{tier}: other bytes than were sent");
        }
    }
}

/// Memory that the buffers of a machine's TCP sockets take, as the kernel counts it.
fn buffers(machine: &lab::Ns) -> u64 {
    let sockets = machine.must(&["ss", "-tnmOH"]);
    let memory = sockets.split("skmem:(").skip(1);
    let of_one = |fields: &str| -> u64 {
        let fields = fields.split([',', ')']);
        let queue = |field: &str| field.strip_prefix(['r', 't'])?.parse::<u64>().ok();
        fields.take(4).filter_map(queue).sum()
    };
    memory.map(of_one).sum()
}

/// Sends for five seconds and until nothing has gone for one; returns how many bytes went, and their digest.
fn push_until_stuck(mut sender: &TcpStream, tier: &str) -> (u64, [u8; 32]) {
    sender.set_nonblocking(true).unwrap();
    let (mut noise, mut hash, mut accepted) = (Noise::new(11), Sha256::new(), 0);
    let mut chunk = vec![0; 64 << 10];
    let start = Instant::now();
    let mut progress = start;
    'next: loop {
        noise.fill(&mut chunk);
        let mut left = &chunk[..];
        while !left.is_empty() {
            match sender.write(left) {
                Ok(n) => {
                    hash.update(&left[..n]);
                    accepted += n as u64;
                    left = &left[n..];
                    progress = Instant::now();
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if start.elapsed() > Duration::from_secs(5) && progress.elapsed() > Duration::from_secs(1) {
                        break 'next;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(e) => panic!("{tier}: {e}"),
            }
            assert!(
                accepted < 1024 * MIB && start.elapsed() < SOON * 2,
                "{tier}: the sender is never stuck: {accepted}"
            );
        }
    }
    (accepted, hash.finalize().into())
}

fn read_all(mut reader: &TcpStream) -> (u64, [u8; 32]) {
    let (mut hash, mut count, mut buffer) = (Sha256::new(), 0, vec![0; 256 << 10]);
    loop {
        let n = reader.read(&mut buffer).unwrap();
        if n == 0 {
            return (count, hash.finalize().into());
        }
        hash.update(&buffer[..n]);
        count += n as u64;
    }
}

/// The bytes in a socket's send (TIOCOUTQ) or receive (FIONREAD) queue.
pub(crate) fn queue(stream: &TcpStream, which: libc::Ioctl) -> u64 {
    use std::os::fd::AsRawFd;
    let mut bytes: libc::c_int = 0;
    // SAFETY: both requests write one int, to which the pointer points; the descriptor is open.
    let result = unsafe { libc::ioctl(stream.as_raw_fd(), which, &raw mut bytes) };
    assert_eq!(result, 0);
    u64::from(bytes.cast_unsigned())
}

#[lab_test]
fn a_server_may_speak_first() {
    let lab = Lab::new();
    let _server = Server::start(lab.host("east-1"), BACKEND, |stream| {
        let mut answer = [0; 6];
        // MySQL's way: the server speaks first, then a question and an answer.
        let _ = (&*stream).write_all(b"\x4a\0\0\0\x0a8.0.36 greeting");
        if (&*stream).read_exact(&mut answer).is_ok() {
            let _ = (&*stream).write_all(b"OK");
        }
    });
    let (_health, _sb) = start(&lab, "");
    for (tier, at) in tiers() {
        for round in 0..50 {
            let mut client = lab.client.connect(at);
            client.set_read_timeout(Some(SOON)).unwrap();
            let mut greeting = [0; 20];
            client
                .read_exact(&mut greeting)
                .unwrap_or_else(|e| panic!("{tier}, round {round}: no greeting: {e}"));
            assert_eq!(&greeting[4..], b"\x0a8.0.36 greeting");
            client.write_all(b"log in").unwrap();
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).unwrap();
            assert_eq!(rest, b"OK", "{tier}");
        }
    }
}

#[lab_test]
fn an_idle_flow_is_ended_and_one_with_an_occasional_byte_is_not() {
    let lab = Lab::new();
    let (_server, backends) = servers::hand_over(lab.host("east-1"), BACKEND);
    let (_health, sb) = start(&lab, "timeouts: { idle: 3s }");
    for (tier, at) in tiers() {
        let (mut idle, idle_host) = flow(&lab, &sb, &backends, tier, at);
        let (busy, busy_host) = flow(&lab, &sb, &backends, tier, at);
        for i in 0..14 {
            // A byte one way is enough, whichever.
            let (from, to) = if i % 2 == 0 {
                (&busy, &*busy_host)
            } else {
                (&*busy_host, &busy)
            };
            ping(from, to);
            std::thread::sleep(Duration::from_millis(500));
        }
        for (side, mut stream) in [("client", &idle), ("host", &*idle_host)] {
            stream.set_read_timeout(Some(SOON)).unwrap();
            let end = stream.read(&mut [0; 8]);
            let ended = matches!(&end, Ok(0)) || end.as_ref().is_err_and(|e| e.kind() == ErrorKind::ConnectionReset);
            assert!(ended, "{tier}: the idle flow's {side} got {end:?}");
        }
        let _ = idle.write(b"x");
        ping(&busy, &busy_host);
        assert_eq!(sb.flow_count(), 1, "{tier}");
        drop((busy, busy_host));
        assert!(eventually(SOON, || sb.flow_count() == 0), "{tier}");
    }
}

#[lab_test]
fn ten_thousand_small_messages_go_back_and_forth() {
    let lab = Lab::new();
    let _server = servers::echo(lab.host("east-1"), BACKEND);
    let (_health, sb) = start(&lab, "");
    for (tier, at) in tiers() {
        let mut client = lab.client.connect(at);
        client.set_nodelay(true).unwrap();
        let (mut noise, mut sizes) = (Noise::new(5), Noise::new(6));
        for round in 0..10_000 {
            let mut message = vec![0; sizes.up_to(300) as usize];
            noise.fill(&mut message);
            client.write_all(&message).unwrap();
            let mut answer = vec![0; message.len()];
            client
                .read_exact(&mut answer)
                .unwrap_or_else(|e| panic!("{tier}, round {round}: {e}"));
            assert!(answer == message, "{tier}, round {round}: other bytes");
        }
        reaches(&sb, &client, tier);
    }
}
