//! Ends of cut flows: in halves, by reset, by idleness; and later connections on the same port.

use crate::lab;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use aya::maps::{HashMap, Map, MapData};
use signalbox_common::cut::Handshake;
use signalbox_common::cut::flow::CLIENT_FIN_SEEN;
use signalbox_common::net::Tuple;
use socket2::{Domain, SockRef, Socket, Type};

use lab::cut::{self, Hosts, doors, expect_cut, expect_none, finish};
use lab::exchange::Noise;
use lab::impair::{Impaired, Odds};
use lab::signalbox::PEEK_IN_USERSPACE;
use lab::tiers::ping;
use lab::{Lab, SOON, Signalbox, eventually, lab_test, servers};

fn closed(sb: &Signalbox, reason: &str) -> u64 {
    sb.metric(&format!("signalbox_connections_closed_total{{reason=\"{reason}\"}}")) as u64
}

#[lab_test]
fn each_half_closes_for_itself() {
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    for door in doors() {
        for client_first in [true, false] {
            let case = format!(
                "{} at {}, the client ends first: {client_first}",
                door.listener, door.at
            );
            let (client, host) = door.enter_cut(&lab, &sb, &hosts);
            let (mut first, mut second) = if client_first {
                (&client, &*host)
            } else {
                (&*host, &client)
            };
            first.write_all(b"that is all").unwrap();
            first.shutdown(Shutdown::Write).unwrap();
            let mut text = String::new();
            second
                .read_to_string(&mut text)
                .unwrap_or_else(|e| panic!("{case}: {e}"));
            assert_eq!(text, "that is all", "{case}");
            let half = || cut::shown(&sb, client.local_addr().unwrap())["state"] == "half-closed";
            assert!(cut::lenient() || eventually(SOON, half), "{case}");
            // Longer than any allowed grace period after a FIN.
            std::thread::sleep(Duration::from_secs(3));
            let mut sent = vec![0; 3 << 20];
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
    expect_none(&sb);
    assert!(eventually(SOON, || closed(&sb, "finished") == 12));
}

/// A FIN and the host's answer to our SYN on two CPUs at the same time: the one finds no flow yet, the other no FIN.
/// Here the program is made to forget a FIN that it has seen.
#[lab_test]
fn a_fin_that_passes_while_its_flow_is_cut_ends_it() {
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    // The record of a handshake, which is changed here, exists for connections with a socket.
    let (_health, sb) = cut::start(&lab, PEEK_IN_USERSPACE);
    let pinned = cut::pins(&lab).pop().unwrap().join("CUT_HANDSHAKES");
    let shakes = Map::LruHashMap(MapData::from_pin(pinned).unwrap());
    let mut shakes: HashMap<_, Tuple, Handshake> = shakes.try_into().unwrap();
    let mut sent = vec![0; 20_000];
    Noise::new(9).fill(&mut sent);
    for door in doors() {
        let case = format!("{} at {}", door.listener, door.at);
        let silent = Odds {
            drop: 1.0,
            ..Odds::GOOD
        };
        let link = Impaired::host_link(&lab, door.host, silent);
        let mut client = lab.client.connect(door.at);
        client.write_all(&door.first).unwrap();
        client.write_all(&sent).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let port = u32::from(client.local_addr().unwrap().port());
        let forgotten = eventually(SOON, || {
            let of_client = |(tuple, shake): &(Tuple, Handshake)| {
                tuple.ports >> 16 == port && shake.progress & CLIENT_FIN_SEEN != 0
            };
            let Some((tuple, mut shake)) = shakes.iter().flatten().find(of_client) else {
                return false;
            };
            shake.progress &= !CLIENT_FIN_SEEN;
            shakes.insert(tuple, shake, 0).is_ok()
        });
        assert!(forgotten, "{case}: no FIN");
        drop(link);
        let host = hosts.accept(door.host, door.port);
        let mut received = Vec::new();
        (&*host).read_to_end(&mut received).unwrap();
        assert!(
            received == [&door.first[..], &sent].concat(),
            "{case}: {} bytes",
            received.len()
        );
        (&*host).write_all(b"all ").unwrap();
        let mut answer = vec![0; 4];
        client.read_exact(&mut answer).unwrap();
        // An ended flow is soon shown no more.
        let was_cut = cut::shown(&sb, client.local_addr().unwrap());
        assert!(cut::lenient() || was_cut["tier"] == "cut", "{case}: {was_cut}");
        (&*host).write_all(b"of it").unwrap();
        host.shutdown(Shutdown::Write).unwrap();
        client.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"all of it", "{case}");
        drop((client, host));
        expect_none(&sb);
    }
}

#[lab_test]
fn a_reset_is_a_reset_for_the_other_side() {
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    let reset = |stream: &TcpStream| SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
    for door in doors() {
        for by_client in [true, false] {
            for unread in [false, true] {
                let case = format!(
                    "{} at {}, by the client: {by_client}, bytes unread: {unread}",
                    door.listener, door.at
                );
                let (mut client, host) = door.enter_cut(&lab, &sb, &hosts);
                if unread {
                    // Closing with bytes unread is the more usual cause of a reset.
                    client.write_all(b"not read").unwrap();
                    (&*host).write_all(b"not read").unwrap();
                    // With bytes in flight a reset is accepted only after a while (`RESET_TTL`).
                    let acknowledged = || [&client, &*host].map(unacknowledged) == [0, 0];
                    assert!(eventually(SOON, acknowledged), "{case}");
                }
                let error = if by_client {
                    reset(&client);
                    drop(client);
                    end_of(&host)
                } else {
                    reset(&host);
                    drop(host);
                    end_of(&client)
                };
                assert_eq!(error, Some(ErrorKind::ConnectionReset), "{case}");
            }
        }
    }
    expect_none(&sb);
    assert!(eventually(SOON, || closed(&sb, "client_reset") == 12
        && closed(&sb, "host_reset") == 12));
    for host in ["east-1", "west-1"] {
        assert_eq!(sb.host(host)["active_connections"], 0);
    }
}

fn unacknowledged(stream: &TcpStream) -> u64 {
    signalbox::sys::unacknowledged(stream.as_raw_fd()).unwrap()
}

/// Reads until the end; returns the kind of error, or `None` at a FIN.
fn end_of(mut stream: &TcpStream) -> Option<ErrorKind> {
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut buffer = [0; 64];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(e) => return Some(e.kind()),
        }
    }
}

#[lab_test]
fn a_connection_without_a_byte_ends_as_it_began() {
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    for (at, host) in cut::TCP {
        for round in 0..40 {
            let client = lab.client.connect(at);
            let host = hosts.accept(host, 3306);
            if round % 2 == 0 {
                finish(&client, &host);
            } else {
                finish(&host, &client);
            }
        }
    }
    expect_none(&sb);
}

#[lab_test]
fn a_client_gone_before_its_host_answers_is_gone_for_the_host() {
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    for door in doors() {
        for (reset, round) in [true, false]
            .into_iter()
            .flat_map(|reset| (0..15_u64).map(move |r| (reset, r)))
        {
            if round == 0 {
                // A reset may come so early that no host is asked, or so late that one is.
                while hosts.next(door.host, door.port).is_some() {}
            }
            let mut client = lab.client.connect(door.at);
            client.write_all(&door.first).unwrap();
            // From "before the host is connected" to "while it is being cut" to "just after".
            std::thread::sleep(Duration::from_micros(round * 200));
            if reset {
                SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
            }
            drop(client);
            if !reset {
                let mut host = &*hosts.accept(door.host, door.port);
                let mut bytes = Vec::new();
                let end = host.read_to_end(&mut bytes);
                assert!(
                    end.is_ok() && bytes == door.first,
                    "{}, round {round}: {end:?}",
                    door.listener
                );
                let _ = host.write_all(b"too late");
            }
        }
    }
    expect_none(&sb);
}

#[lab_test]
fn an_idle_flow_is_ended_for_both_and_a_busy_one_is_not() {
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "timeouts: { idle: 3s }");
    for door in doors() {
        let (idle, idle_host) = door.enter_cut(&lab, &sb, &hosts);
        let (busy, busy_host) = door.enter_cut(&lab, &sb, &hosts);
        let before = closed(&sb, "idle_timeout");
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
        for (side, stream) in [("client", &idle), ("host", &*idle_host)] {
            let start = Instant::now();
            let end = end_of(stream);
            assert!(
                matches!(end, None | Some(ErrorKind::ConnectionReset)) && start.elapsed() < Duration::from_secs(3),
                "{}: the idle flow's {side} got {end:?}",
                door.listener
            );
        }
        ping(&busy, &busy_host);
        assert!(eventually(SOON, || closed(&sb, "idle_timeout") == before + 1));
        // The flow that was reset keeps its entry for two seconds more: late packets are dropped.
        assert!(eventually(SOON, || sb.flow_count() == 1), "{} flows", sb.flow_count());
        finish(&busy, &busy_host);
        expect_none(&sb);
    }
}

#[lab_test]
fn a_client_port_may_be_used_again_at_once() {
    let lab = cut::lab();
    let _servers = ["east-1", "west-1"].map(|host| servers::echo(lab.host(host), cut::BACKEND));
    let (_health, sb) = cut::start(&lab, "");
    for (at, _) in cut::TCP {
        // A reset leaves no TIME_WAIT at the client, so only the balancer could refuse the port.
        for round in 0..400 {
            let mut stream = connect_from_port(&lab, at, 7777).unwrap_or_else(|e| panic!("{at}, round {round}: {e}"));
            let message = format!("round {round} of {at}");
            stream.write_all(message.as_bytes()).unwrap();
            let mut answer = vec![0; message.len()];
            stream
                .read_exact(&mut answer)
                .unwrap_or_else(|e| panic!("{at}, round {round}: {e}"));
            assert_eq!(answer, message.as_bytes(), "{at}, round {round}");
            if round == 0 {
                expect_cut(&sb, &stream);
            }
            SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
            drop(stream);
            // The balancer's socket needs this time to be closed: a SYN that comes sooner is sometimes answered by a
            // reset.
            std::thread::sleep(Duration::from_millis(5));
        }
        // In good order, the client's side lingers; this option makes its kernel reuse the port.
        lab.client.must(&["sysctl", "-qw", "net.ipv4.tcp_tw_reuse=1"]);
        for round in 0..20 {
            let stream = connect_from_port(&lab, at, 7778).unwrap_or_else(|e| panic!("{at}, round {round}: {e}"));
            ping(&stream, &stream);
            if round % 5 == 0 {
                expect_cut(&sb, &stream);
            }
            // The host ends first, on request: its side has the TIME_WAIT and not the client.
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!((&stream).read(&mut [0; 8]).unwrap(), 0);
            SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        }
    }
    expect_none(&sb);
}

fn connect_from_port(lab: &Lab, to: &str, port: u16) -> std::io::Result<TcpStream> {
    let to: SocketAddr = to.parse().unwrap();
    let from: SocketAddr = if to.is_ipv4() {
        format!("10.1.0.2:{port}").parse().unwrap()
    } else {
        format!("[fd00:1::2]:{port}").parse().unwrap()
    };
    lab.client.run(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&from.into())?;
        socket.connect_timeout(&to.into(), Duration::from_secs(10))?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(SOON))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    })
}

#[lab_test]
fn a_paused_reader_stops_its_sender_and_then_gets_every_byte() {
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    // The cases run at once, because each takes ten seconds.
    std::thread::scope(|scope| {
        for door in doors() {
            for client_sends in [true, false] {
                let (client, host) = door.enter_cut(&lab, &sb, &hosts);
                scope.spawn(move || {
                    let (mut sender, mut reader) = if client_sends {
                        (&client, &*host)
                    } else {
                        (&*host, &client)
                    };
                    let mut sent = vec![0; 32 << 20];
                    Noise::new(9).fill(&mut sent);
                    let mut received = Vec::new();
                    std::thread::scope(|scope| {
                        let writer = scope.spawn(|| {
                            sender.write_all(&sent).unwrap();
                            sender.shutdown(Shutdown::Write).unwrap();
                        });
                        std::thread::sleep(Duration::from_secs(10));
                        assert!(!writer.is_finished(), "somebody took 32 MiB that nobody read");
                        reader.read_to_end(&mut received).unwrap();
                    });
                    assert!(received == sent, "{}: {} bytes", door.listener, received.len());
                });
            }
        }
    });
    expect_none(&sb);
}
