//! Hostile packets, and changes of the network under a flow.

use crate::lab;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use lab::cut::{self, Hosts, doors, expect_cut, expect_none, finish};
use lab::exchange::Noise;
use lab::namespace::ip;
use lab::raw::{ACK, FIN, RST, SYN, Segment};
use lab::tiers::ping;
use lab::{Lab, Ns, Signalbox, eventually, lab_test};

/// Whether both ends still talk, now and after a pause in which a cleanup might run.
fn lives(sb: &Signalbox, client: &TcpStream, host: &TcpStream) -> Result<(), String> {
    for pause in [0, 12] {
        std::thread::sleep(Duration::from_secs(pause));
        for (way, mut from, mut to) in [("up", client, host), ("down", host, client)] {
            to.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let mut bytes = [0; 5];
            let arrived = from.write_all(b"hello").and_then(|()| to.read_exact(&mut bytes));
            arrived.map_err(|e| format!("{way}, after {pause} s: {e}"))?;
            if &bytes != b"hello" {
                return Err(format!("{way}, after {pause} s: other bytes arrive: {bytes:?}"));
            }
        }
        let shown = cut::shown(sb, client.local_addr().unwrap());
        if shown["tier"] != "cut" && !cut::lenient() {
            return Err(format!("after {pause} s it is shown as {shown}"));
        }
    }
    let bytes = cut::shown(sb, client.local_addr().unwrap())["bytes_in"].as_u64();
    cut::finish(client, host);
    match bytes {
        Some(bytes) if bytes > 1000 => Err(format!("{bytes} bytes are counted of the client's 15")),
        _ => Ok(()),
    }
}

/// Segments of an attacker who knows a flow's addresses and ports, but not its numbers.
#[lab_test]
fn a_blind_attacker_ends_no_flow() {
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    let wrong: Vec<_> = std::thread::scope(|scope| {
        let mut cases = Vec::new();
        for (flags, what) in [
            (RST, "RST"),
            (RST | ACK, "RST, ACK"),
            (FIN | ACK, "FIN, ACK"),
            (SYN, "SYN"),
            (SYN | ACK, "SYN, ACK"),
            (ACK, "ACK"),
            (0, "no flags at all"),
            (SYN | FIN | RST | ACK, "all flags"),
        ] {
            for door in doors().into_iter().filter(|door| door.port == 3306) {
                let (client, host) = door.enter_cut(&lab, &sb, &hosts);
                let (lab, sb) = (&lab, &sb);
                cases.push(scope.spawn(move || {
                    let (a, vip) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
                    let canonical = |at: SocketAddr| SocketAddr::new(at.ip().to_canonical(), at.port());
                    let (b, leg) = (
                        canonical(host.local_addr().unwrap()),
                        canonical(host.peer_addr().unwrap()),
                    );
                    let mut dice = Noise::new(flags.into());
                    for _ in 0..20 {
                        for (ns, from, to) in [(&lab.client, a, vip), (lab.host(door.host), b, leg)] {
                            // A reset must hit one number exactly, and any other packet two windows: not by chance.
                            let (seq, ack) = (dice.next() as u32, dice.next() as u32);
                            Segment {
                                from,
                                to,
                                seq,
                                ack,
                                flags,
                                payload: b"",
                            }
                            .send(ns);
                            Segment {
                                from,
                                to,
                                seq,
                                ack,
                                flags,
                                payload: b"evil",
                            }
                            .send(ns);
                        }
                    }
                    let outcome = lives(sb, &client, &host);
                    outcome.err().map(|why| format!("{what} at {}: {why}", door.at))
                }));
            }
        }
        cases.into_iter().filter_map(|case| case.join().unwrap()).collect()
    });
    assert!(
        wrong.is_empty(),
        "{} flows were disturbed:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    expect_none(&sb);
}

#[lab_test]
fn neighbours_that_are_forgotten_or_have_moved_are_found_again() {
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    for door in doors() {
        let (client, host) = door.enter_cut(&lab, &sb, &hosts);
        let flush = |ns: &Ns| {
            ns.must(&["ip", "neigh", "flush", "all"]);
        };
        let both = |what: &str| {
            for (from, to) in [(&client, &*host), (&*host, &client)] {
                ping(from, to);
            }
            println!("{} at {}: {what}", door.listener, door.at);
        };
        for _ in 0..3 {
            flush(&lab.lb);
            both("forgotten by the balancer");
        }
        for (n, ns) in [&lab.client, lab.host(door.host)].into_iter().enumerate() {
            // The new card has the old one's addresses, but another MAC.
            let mac = format!("02:00:00:{:02x}:{:02x}:{n:02x}", door.port >> 8, door.port & 0xff);
            ip(&["-n", ns.name(), "link", "set", "eth0", "address", &mac]);
            flush(&lab.lb);
            flush(ns);
            both("moved");
        }
        finish(&client, &host);
    }
    expect_none(&sb);
}

#[lab_test]
fn a_client_on_an_interface_that_came_later() {
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    let late = Late::new(&lab);
    for round in 0..2 {
        let client = late.0.connect(cut::TCP[0].0);
        client.set_nodelay(true).unwrap();
        let host = hosts.accept("east-1", 3306);
        for _ in 0..50 {
            ping(&client, &host);
            ping(&host, &client);
        }
        let shown = cut::shown(&sb, client.local_addr().unwrap());
        let said = shown["tier"] == "cut" || shown["not_cut"].as_str().is_some_and(|r| !r.is_empty());
        assert!(said || cut::lenient(), "{shown}");
        println!("round {round}: {shown}");
        finish(&client, &host);
        std::thread::sleep(Duration::from_secs(3));
    }
    expect_none(&sb);
}

/// Second client, joined to the balancer when it is made.
struct Late(Ns);

impl Late {
    fn new(lab: &Lab) -> Self {
        let ns = Ns::create(&format!("{}late", lab.client.name()));
        lab.lb.cable("late", &["10.6.0.1/24"], &ns, &["10.6.0.2/24"]).unwrap();
        ns.ip("route add default via 10.6.0.1").unwrap();
        Self(ns)
    }
}

#[lab_test]
fn an_end_that_vanishes_leaves_a_flow_that_its_peer_can_end() {
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    let (client, host) = doors()[2].enter_cut(&lab, &sb, &hosts);
    lab.set_link("east-1", false);
    socket2::SockRef::from(&client)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(client);
    expect_none(&sb);
    lab.set_link("east-1", true);
    // The host does not know of it; its bytes are answered with a reset and not with silence.
    let gone = || (&*host).write_all(b"anybody?").is_err();
    assert!(eventually(Duration::from_secs(30), || {
        std::thread::sleep(Duration::from_millis(200));
        gone()
    }));
    let (client, host) = doors()[2].enter(&lab, &hosts);
    expect_cut(&sb, &client);
    finish(&client, &host);
    expect_none(&sb);
}
