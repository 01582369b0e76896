//! How flows begin: first bytes in pieces or in plenty, hosts that are slow or hasty. Bytes in the balancer's sockets
//! when a flow is cut must come before those that the kernel forwards.

use crate::lab;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::SockRef;

use lab::cut::{self, Door, Hosts, doors, expect_cut, expect_none, finish};
use lab::exchange::Noise;
use lab::signalbox::PEEK_IN_USERSPACE;
use lab::tiers::ping;
use lab::{Lab, SOON, Server, Signalbox, eventually, hello, lab_test, privileged, servers};

/// A connection whose every write is a segment.
fn connect(lab: &Lab, at: &str) -> TcpStream {
    let client = lab.client.connect(at);
    client.set_nodelay(true).unwrap();
    client
}

/// Bytes that no other place of a transfer has.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Noise::new(seed).fill(&mut bytes);
    bytes
}

/// Receives these bytes and no others.
pub(crate) fn receive(mut from: &TcpStream, expected: &[u8], case: &str) {
    let mut bytes = vec![0; expected.len()];
    from.read_exact(&mut bytes).unwrap_or_else(|e| panic!("{case}: {e}"));
    let first = bytes.iter().zip(expected).position(|(a, b)| a != b);
    assert!(first.is_none(), "{case}: other bytes from {first:?} on");
}

/// The doors whose clients speak first.
fn speaking() -> impl Iterator<Item = Door> {
    doors().into_iter().filter(|door| !door.first.is_empty())
}

#[lab_test]
fn first_bytes_one_by_one_and_then_everything_one_by_one() {
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    for door in doors() {
        let case = format!("{} at {}", door.listener, door.at);
        let mut client = connect(&lab, door.at);
        let more = noise(1, 3000);
        let text = [&door.first[..], &more].concat();
        for byte in text.chunks(1) {
            client.write_all(byte).unwrap();
        }
        let mut host = &*hosts.accept(door.host, door.port);
        receive(host, &text, &case);
        // The other way, while it is long cut.
        expect_cut(&sb, &client);
        for byte in more.chunks(1) {
            host.write_all(byte).unwrap();
        }
        receive(&client, &more, &case);
        // Client and host send at once.
        std::thread::scope(|scope| {
            for mut end in [&client, host] {
                let more = &more;
                scope.spawn(move || more.chunks(1).for_each(|byte| end.write_all(byte).unwrap()));
            }
            receive(&client, &more, &case);
            receive(host, &more, &case);
        });
        finish(&client, host);
    }
    expect_none(&sb);
}

#[lab_test]
fn a_hello_in_many_segments_and_records() {
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    for (door, name) in doors().into_iter().filter(|d| d.port == 443).zip(["a.test", "b.test"]) {
        let message = hello::client_hello(Some(name));
        assert!(message.len() > 1460, "longer than a segment");
        for records in [1, 2, 7] {
            for pieces in [1, 2, 3, 17] {
                let case = format!("{records} records in {pieces} pieces at {}", door.at);
                let mut client = connect(&lab, door.at);
                let first = hello::records(&message, records);
                for piece in first.chunks(first.len().div_ceil(pieces)) {
                    client.write_all(piece).unwrap();
                    std::thread::sleep(Duration::from_millis(2));
                }
                let host = hosts.accept(door.host, door.port);
                receive(&host, &first, &case);
                ping(&host, &client);
                expect_cut(&sb, &client);
                ping(&client, &host);
                finish(&client, &host);
            }
        }
    }
    expect_none(&sb);
}

#[lab_test]
fn early_data_of_256_kib_arrives_before_the_host_has_answered() {
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    for round in 0..10 {
        for door in doors() {
            let case = format!("{} at {}, round {round}", door.listener, door.at);
            let early = noise(round, 256 << 10);
            let client = connect(&lab, door.at);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    (&client).write_all(&[&door.first[..], &early].concat()).unwrap();
                    if round % 2 == 0 {
                        client.shutdown(Shutdown::Write).unwrap();
                    }
                });
                let mut host = &*hosts.accept(door.host, door.port);
                if round % 3 == 0 {
                    // The bytes are in some buffer by now, and must not be lost.
                    std::thread::sleep(Duration::from_millis(100));
                }
                receive(host, &[&door.first[..], &early].concat(), &case);
                host.write_all(&early).unwrap();
                receive(&client, &early, &case);
            });
        }
    }
    expect_none(&sb);
}

#[lab_test]
fn a_server_may_speak_first() {
    let lab = cut::lab();
    let greeting = noise(8, 5000);
    let _servers = ["east-1", "west-1"].map(|host| {
        let greeting = greeting.clone();
        Server::start(lab.host(host), cut::BACKEND, move |stream| {
            let mut answer = [0; 6];
            let _ = (&*stream).write_all(&greeting);
            if (&*stream).read_exact(&mut answer).is_ok() {
                let _ = (&*stream).write_all(b"OK");
            }
        })
    });
    let (_health, sb) = cut::start(&lab, "");
    for (at, _) in cut::TCP {
        for round in 0..100 {
            let mut client = connect(&lab, at);
            client.set_read_timeout(Some(SOON)).unwrap();
            if round % 2 == 0 {
                // A client that waits with its own until it is cut.
                std::thread::sleep(Duration::from_millis(30));
            }
            receive(&client, &greeting, at);
            if round % 25 == 0 {
                expect_cut(&sb, &client);
            }
            client.write_all(b"log in").unwrap();
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).unwrap();
            assert_eq!(rest, b"OK");
        }
    }
    expect_none(&sb);
}

/// The balancer's sockets have nothing to deliver, and are closed by the time that the host repeats its SYN-ACK.
#[lab_test]
fn a_greeting_arrives_though_the_handshakes_last_ack_was_lost() {
    let lab = cut::lab();
    let greeting = noise(9, 5000);
    let _servers = ["east-1", "west-1"].map(|host| {
        let greeting = greeting.clone();
        Server::start(lab.host(host), cut::BACKEND, move |stream| {
            let _ = (&*stream).write_all(&greeting);
        })
    });
    let (_health, sb) = cut::start(&lab, "");
    for ((at, _), host) in cut::TCP.into_iter().zip(["east-1", "west-1"]) {
        let machine = lab.host(host);
        for words in [
            "add table inet bad",
            "add chain inet bad in { type filter hook input priority 0 ; }",
            "add rule inet bad in tcp dport 3306 tcp flags & ( syn | ack ) == ack drop",
        ] {
            machine.must(&["nft", words]);
        }
        let client = connect(&lab, at);
        client.set_read_timeout(Some(SOON)).unwrap();
        expect_cut(&sb, &client);
        std::thread::sleep(Duration::from_millis(300));
        machine.must(&["nft", "delete table inet bad"]);
        receive(&client, &greeting, at);
    }
    expect_none(&sb);
}

#[lab_test]
fn a_host_that_answers_before_it_has_read_anything() {
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    for round in 0..20 {
        for door in doors() {
            let case = format!("{} at {}, round {round}", door.listener, door.at);
            let (upload, answer) = (noise(1, 2 << 20), noise(2, 300_000));
            let client = connect(&lab, door.at);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    (&client).write_all(&door.first).unwrap();
                    (&client).write_all(&upload).unwrap();
                });
                let mut host = &*hosts.accept(door.host, door.port);
                host.write_all(&answer).unwrap();
                host.shutdown(Shutdown::Write).unwrap();
                let mut received = Vec::new();
                (&client)
                    .read_to_end(&mut received)
                    .unwrap_or_else(|e| panic!("{case}: {e}"));
                assert!(received == answer, "{case}: {} bytes", received.len());
                receive(host, &door.first, &case);
                receive(host, &upload, &case);
            });
            client.shutdown(Shutdown::Write).unwrap();
        }
    }
    expect_none(&sb);
}

/// Bytes that the balancer's socket has yet to hand off are retransmitted with an acknowledgement as old as the cut. A
/// receiver drops bytes whose acknowledgement is older than the largest window it has seen (RFC 5961, 5.2).
#[lab_test]
fn a_host_that_answers_at_length_before_it_takes_what_is_owed() {
    let lab = cut::lab();
    for host in ["east-1", "west-1"] {
        lab.host(host)
            .must(&["sysctl", "-qw", "net.ipv4.tcp_rmem=4096 16384 16384"]);
    }
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    for door in doors() {
        for round in 0..4 {
            let case = format!("{} at {}, round {round}", door.listener, door.at);
            let (upload, answer) = (noise(1, 200_000), noise(2, 3 << 20));
            let client = connect(&lab, door.at);
            client.set_read_timeout(Some(SOON)).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    // Sent without a pause, so that the balancer has as many bytes as possible when the flow is cut.
                    (&client).write_all(&[&door.first[..], &upload].concat()).unwrap();
                });
                let mut host = &*hosts.accept(door.host, door.port);
                host.set_read_timeout(Some(SOON)).unwrap();
                std::thread::sleep(Duration::from_millis(50));
                scope.spawn(|| receive(&client, &answer, &case));
                host.write_all(&answer).unwrap();
                receive(host, &door.first, &case);
                receive(host, &upload, &case);
            });
        }
    }
    expect_none(&sb);
}

#[lab_test]
fn a_host_that_is_slow_to_accept_and_slow_to_read() {
    let lab = cut::lab();
    // No process accepts: the kernel finishes the handshake and takes bytes until its window is full.
    let listeners = speaking().map(|door| (lab.host(door.host).listen(&format!("[::]:{}", door.port)), door));
    let listeners: Vec<_> = listeners.collect();
    let (_health, sb) = cut::start(&lab, "");
    let sent = noise(4, 4 << 20);
    for (listener, door) in &listeners {
        let client = connect(&lab, door.at);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (&client).write_all(&door.first).unwrap();
                (&client).write_all(&sent).unwrap();
            });
            // Drained is not waited for: leg A's socket may have received more by then than the host's kernel accepts.
            let is_cut = || cut::lenient() || cut::shown(&sb, client.local_addr().unwrap())["tier"] == "cut";
            assert!(eventually(SOON, is_cut), "{}", door.at);
            std::thread::sleep(Duration::from_secs(2));
            let (host, _) = listener.accept().unwrap();
            host.set_read_timeout(Some(SOON)).unwrap();
            std::thread::sleep(Duration::from_secs(1));
            receive(&host, &door.first, door.at);
            receive(&host, &sent, door.at);
            finish(&client, &host);
        });
    }
    expect_none(&sb);
}

#[test]
fn tiny_buffers_at_either_end() {
    with_tiny_buffers("tiny_buffers_at_either_end", PEEK_IN_USERSPACE, Door::enter_cut);
}

/// The kernel peek announces a window scale to a client before it knows the host's: such a flow is served, and not cut.
#[test]
fn tiny_buffers_at_either_end_behind_the_kernel_peek() {
    with_tiny_buffers(
        "tiny_buffers_at_either_end_behind_the_kernel_peek",
        "",
        |door, lab, _, hosts| door.enter(lab, hosts),
    );
}

fn with_tiny_buffers(
    test: &str,
    extra: &str,
    enter: impl Fn(&Door, &Lab, &Signalbox, &Hosts) -> (TcpStream, Arc<TcpStream>),
) {
    if !privileged(test) {
        return;
    }
    let lab = cut::lab();
    for ns in [&lab.client, lab.host("east-1"), lab.host("west-1")] {
        ns.must(&[
            "sysctl",
            "-qw",
            "net.ipv4.tcp_rmem=2304 2304 2304",
            "net.ipv4.tcp_wmem=4608 4608 4608",
        ]);
    }
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, extra);
    for door in doors() {
        let (client, host) = enter(&door, &lab, &sb, &hosts);
        // With a window smaller than a segment, two ends without a balancer need a fifth of a second for each, too.
        let sent = noise(6, 8000);
        std::thread::scope(|scope| {
            for mut end in [&client, &*host] {
                let sent = &sent;
                scope.spawn(move || end.write_all(sent).unwrap());
            }
            scope.spawn(|| receive(&client, &sent, door.at));
            receive(&host, &sent, door.at);
        });
        finish(&client, &host);
    }
    expect_none(&sb);
}

#[lab_test]
fn hosts_get_the_proxy_header_and_then_every_byte_at_its_place() {
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let _health = ["east-1", "west-1"].map(|host| servers::healthy(lab.host(host)));
    let sb = lab::Signalbox::start(&lab, &cut::body_with("", "proxy_protocol: v2"));
    sb.wait_healthy(&["east-1", "west-1"]);
    for door in doors() {
        let more = noise(5, 100_000);
        let mut client = connect(&lab, door.at);
        client.write_all(&door.first).unwrap();
        client.write_all(&more).unwrap();
        let mut host = &*hosts.accept(door.host, door.port);
        let mut header = [0; 16];
        host.read_exact(&mut header).unwrap();
        assert_eq!(&header[..12], b"\r\n\r\n\0\r\nQUIT\n", "{}", door.listener);
        let mut rest = vec![0; usize::from(u16::from_be_bytes([header[14], header[15]]))];
        host.read_exact(&mut rest).unwrap();
        let at = if door.at.starts_with('[') { 32 } else { 8 };
        let port = client.local_addr().unwrap().port().to_be_bytes();
        assert_eq!(&rest[at..at + 2], port, "the client's port");
        receive(host, &door.first, door.at);
        receive(host, &more, door.at);
        expect_cut(&sb, &client);
        host.write_all(&more).unwrap();
        receive(&client, &more, door.at);
        ping(&client, host);
        finish(&client, host);
    }
    expect_none(&sb);
}

#[lab_test]
fn urgent_data_neither_stops_nor_ends_a_flow() {
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    for door in doors() {
        let (client, host) = door.enter_cut(&lab, &sb, &hosts);
        SockRef::from(&*host).set_out_of_band_inline(true).unwrap();
        SockRef::from(&client).send_out_of_band(b"!").unwrap();
        if !cut::lenient() {
            receive(&host, b"!", door.at);
        }
        ping(&client, &host);
        ping(&host, &client);
        finish(&client, &host);
    }
    expect_none(&sb);
}

#[lab_test]
fn connections_that_come_all_at_once_are_cut_all_the_same() {
    let lab = cut::lab();
    let _echoes = ["east-1", "west-1"].map(|host| servers::echo(lab.host(host), cut::BACKEND));
    let (_health, sb) = cut::start(&lab, "");
    let start = Instant::now();
    let flows: Vec<_> = std::thread::scope(|scope| {
        let work = |n: usize| {
            lab.client.run(|| {
                let streams = (0..250).map(|_| lab::namespace::connect_here(cut::TCP[n % 2].0).unwrap());
                let streams: Vec<_> = streams.collect();
                streams.iter().for_each(|stream| ping(stream, stream));
                streams
            })
        };
        let threads: Vec<_> = (0..8).map(|n| scope.spawn(move || work(n))).collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    println!("{} flows in {:?}", flows.len(), start.elapsed());
    let all = || cut::lenient() || sb.flows("tier=cut&limit=10000").len() == 2000;
    assert!(
        eventually(SOON, all),
        "{} are cut; another is {}",
        sb.flows("tier=cut&limit=10000").len(),
        cut::not_cut(&sb)
    );
    flows.iter().for_each(|stream| ping(stream, stream));
    drop(flows);
    expect_none(&sb);
}
