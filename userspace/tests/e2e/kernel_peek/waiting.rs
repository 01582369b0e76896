//! Connections whose host has not answered yet: with a question about an old connection, with more data, and given up
//! by the client.

use crate::lab;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};

use lab::cut::{CutLab, expect_none, finish};
use lab::impair::{Impaired, Odds};
use lab::tiers::ping;
use lab::{Ns, SOON, eventually};

use super::life::from_port;
use super::{doors, exits, filter, start, stay_on_this_cpu};

/// First source port of the program, and their number for all CPUs: the kernel's own range is nearly everything in the lab.
const FIRST_PORT: u16 = 32_768;
const PORTS: usize = 16_384;
/// Old connections.
const OLD: u16 = 3;

/// Number of CPUs that the ports are divided among.
fn cpus() -> usize {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let last = online.trim().rsplit([',', '-']).next().unwrap();
    last.parse::<usize>().unwrap() + 1
}

/// Leaves connections to the host at the ports that the program takes after this one: the host has them, and signalbox
/// does not.
fn leave_old_connections(lab: &CutLab, last: u16) {
    let connect = |port: u16| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([0, 0, 0, 0], port)).into()).unwrap();
        let host: SocketAddr = "10.2.0.2:80".parse().unwrap();
        socket.connect(&host.into()).unwrap();
        socket
    };
    let share = (PORTS / cpus()) as u16;
    let at = last - FIRST_PORT;
    let first = FIRST_PORT + at / share * share;
    let ports = (1..=OLD).map(|n| first + (at % share + n) % share);
    let old: Vec<Socket> = lab.lb.run(|| ports.map(connect).collect());
    abandon(&lab.lb, "tcp dport 80", old);
}

/// Closes connections without informing their other ends: such packets are dropped.
fn abandon<S>(ns: &Ns, packets: &str, sockets: Vec<S>)
where
    for<'a> SockRef<'a>: From<&'a S>,
{
    filter(ns, "inet", "hook output", &format!("{packets} drop"));
    sockets.into_iter().for_each(reset);
    ns.must(&["nft", "delete table inet lost"]);
}

fn reset<S>(socket: S)
where
    for<'a> SockRef<'a>: From<&'a S>,
{
    SockRef::from(&socket).set_linger(Some(Duration::ZERO)).unwrap();
}

/// The host answers the SYN by a bare acknowledgement (RFC 5961); our kernel would reset that, and the client would
/// wait until its retransmission.
#[test]
fn a_hosts_challenge_ack_is_answered_by_reset_and_a_new_syn() {
    let Some(lab) = super::lab("a_hosts_challenge_ack_is_answered_by_reset_and_a_new_syn") else {
        return;
    };
    let (_health, hosts, sb) = start(&lab);
    stay_on_this_cpu();
    let (client, host) = doors()[0].enter(&lab, &hosts);
    leave_old_connections(&lab, host.peer_addr().unwrap().port());
    finish(&client, &host);
    let _old: Vec<_> = std::iter::from_fn(|| hosts.next("east-1", 80)).collect();
    for _ in 0..OLD {
        let (client, host) = doors()[0].enter(&lab, &hosts);
        ping(&host, &client);
        finish(&client, &host);
    }
    assert_eq!(exits(&sb, "challenged"), u64::from(OLD), "{}", sb.get("/metrics").1);
    assert_eq!((exits(&sb, "refused"), exits(&sb, "passed_up")), (0, 0));
    expect_none(&sb);
}

#[test]
fn later_client_data_waits_in_order_with_the_first_data() {
    let Some(lab) = super::lab("later_client_data_waits_in_order_with_the_first_data") else {
        return;
    };
    let (_health, hosts, sb) = start(&lab);
    let door = &doors()[0];
    let link = Impaired::host_link(&lab, door.host, Odds::SILENT);
    stay_on_this_cpu();
    let mut client = lab.client.connect(door.at);
    client.set_nodelay(true).unwrap();
    let parts: [&[u8]; 3] = [&door.first, b"a body that comes by itself", &[7; 1000]];
    client.write_all(parts[0]).unwrap();
    assert!(eventually(SOON, || exits(&sb, "routed") == 1));
    client.write_all(parts[1]).unwrap();
    assert!(
        eventually(SOON, || exits(&sb, "appended") >= 1),
        "{}",
        sb.get("/metrics").1
    );
    client.write_all(parts[2]).unwrap();
    drop(link);
    let host = hosts.accept(door.host, door.port);
    let mut received = vec![0; parts.concat().len()];
    (&*host).read_exact(&mut received).unwrap();
    assert_eq!(received, parts.concat());
    ping(&client, &host);
    ping(&host, &client);
    finish(&client, &host);
    expect_none(&sb);
}

/// By a reset, and silently: the next connection from its port is another one.
#[test]
fn a_client_that_gives_up_may_come_again_from_its_port() {
    let Some(lab) = super::lab("a_client_that_gives_up_may_come_again_from_its_port") else {
        return;
    };
    let (_health, hosts, sb) = start(&lab);
    let door = &doors()[0];
    let begin = |port: u16| {
        let before = exits(&sb, "routed");
        let mut client: TcpStream = lab.client.run(|| from_port(port, door.at));
        client.write_all(&door.first).unwrap();
        assert!(eventually(SOON, || exits(&sb, "routed") > before));
        client
    };
    let come_again = |port: u16, link: Impaired| {
        let client = begin(port);
        drop(link);
        // Of the connection that was given up, the host may have got a SYN.
        let host = loop {
            let host = hosts.accept(door.host, door.port);
            let mut received = vec![0; door.first.len()];
            if (&*host).read_exact(&mut received).is_ok() {
                break host;
            }
        };
        ping(&client, &host);
        ping(&host, &client);
        finish(&client, &host);
    };

    let link = Impaired::host_link(&lab, door.host, Odds::SILENT);
    reset(begin(20_001));
    assert!(
        eventually(SOON, || exits(&sb, "given_up") == 1),
        "{}",
        sb.get("/metrics").1
    );
    come_again(20_001, link);

    let link = Impaired::host_link(&lab, door.host, Odds::SILENT);
    abandon(&lab.client, "tcp sport 20002", vec![begin(20_002)]);
    come_again(20_002, link);
    assert_eq!(exits(&sb, "given_up"), 1);
    expect_none(&sb);
    assert!(eventually(SOON, || sb.host(door.host)["active_connections"] == 0));
}

/// A host that answers late is no reason to lose the data that a client sends until then, or its FIN.
#[test]
fn a_client_that_ends_behind_its_first_data_is_heard_out() {
    let Some(lab) = super::lab("a_client_that_ends_behind_its_first_data_is_heard_out") else {
        return;
    };
    let (_health, hosts, sb) = start(&lab);
    let door = &doors()[0];
    let link = Impaired::host_link(&lab, door.host, Odds::SILENT);
    let mut client = lab.client.connect(door.at);
    client.set_nodelay(true).unwrap();
    client.write_all(&door.first).unwrap();
    assert!(eventually(SOON, || exits(&sb, "routed") == 1));
    client.write_all(b"the end").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    drop(link);
    let host = hosts.accept(door.host, door.port);
    let mut received = Vec::new();
    (&*host).read_to_end(&mut received).unwrap();
    assert_eq!(received, [&door.first[..], b"the end"].concat());
    (&*host).write_all(b"answer").unwrap();
    host.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer");
    expect_none(&sb);
}
