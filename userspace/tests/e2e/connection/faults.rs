//! Network faults under established flows: links that go down and come back, routers with temporary ICMP errors.

use crate::lab;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use lab::cut::{self, Hosts, TCP};
use lab::tiers::ping;
use lab::{Lab, SOON, Signalbox, config, eventually, exchange, lab_test, servers};

const MIB: u64 = 1 << 20;

const WORD: &[u8] = b"still there";
const AT: &str = TCP[0].0;

/// A switch that restarts, a cable that is put in another socket.
#[lab_test]
fn cut_flows_outlive_a_link_that_is_down_for_two_seconds() {
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    for link in ["client", "back"] {
        let flows: Vec<_> = (0..8)
            .map(|_| {
                let client = lab.client.connect(AT);
                let host = hosts.accept("east-1", 3306);
                ping(&client, &host);
                cut::expect_cut(&sb, &client);
                (client, host)
            })
            .collect();
        lab.set_link(link, false);
        // Client and host send while the link is down: their retransmissions must meet the programs.
        for (client, host) in &flows {
            (&*client).write_all(b"from the client").unwrap();
            (&**host).write_all(b"from the host").unwrap();
        }
        std::thread::sleep(Duration::from_secs(2));
        lab.set_link(link, true);
        for (client, host) in &flows {
            for (stream, text) in [(&**host, "from the client"), (client, "from the host")] {
                stream.set_read_timeout(Some(SOON)).unwrap();
                let mut received = vec![0; text.len()];
                let read = (&*stream).read_exact(&mut received);
                read.unwrap_or_else(|e| panic!("{link}: {text}: {e}\n{}", sb.proc.log()));
                assert_eq!(received, text.as_bytes());
            }
            ping(client, host);
        }
        for (client, host) in &flows {
            cut::finish(client, host);
        }
        cut::expect_none(&sb);
    }
}

/// The kernel informs senders of packets that it routes. It does not see those of cut flows.
#[lab_test]
fn cut_flows_outlive_a_link_whose_mtu_is_lowered() {
    if cut::lenient() {
        return;
    }
    for link in ["back", "client"] {
        let lab = cut::lab();
        let east = lab.host("east-1");
        let _servers = [exchange::server(east, cut::BACKEND), servers::healthy(east)];
        let mut listeners = String::new();
        let mut clusters = String::new();
        for (family, address, vip) in [(4, "10.2.0.2", "10.1.0.1"), (6, "fd00:2::2", "[fd00:1::1]")] {
            let host = format!("{{ name: h{family}, address: \"{address}\", tcp: 3306 }}");
            clusters += &config::cluster_of(&format!("c{family}"), &cut::PATIENT, &[host]);
            listeners +=
                &format!("  - {{ name: l{family}, protocol: tcp, listen: [\"{vip}:3306\"], cluster: c{family} }}\n");
        }
        let sb = Signalbox::start(&lab, &format!("listeners:\n{listeners}clusters:\n{clusters}"));
        sb.wait_healthy(&["h4", "h6"]);
        let flows: Vec<_> = ["10.1.0.1:3306", "[fd00:1::1]:3306"]
            .into_iter()
            .map(|at| (at, lab.client.connect(at)))
            .collect();
        for (_, stream) in &flows {
            cut::expect_cut(&sb, stream);
        }
        let far = if link == "back" { east } else { &lab.client };
        for (ns, device) in [(&lab.lb, link), (far, "eth0")] {
            ns.must(&["ip", "link", "set", device, "mtu", "1300"]);
        }
        for (at, stream) in &flows {
            exchange::client(stream, 7, 2 * MIB, 2 * MIB).unwrap_or_else(|e| panic!("{link}, {at}: {e}"));
        }
        cut::expect_none(&sb);
    }
}

/// Eight flows that are stalled both ways, while a router reports their host as unreachable.
fn stalled_flows_live_on(lab: &Lab, sb: &Signalbox, backends: &Receiver<Arc<TcpStream>>) {
    // Readers so slow that each flow is stalled when the news comes.
    let flows: Vec<_> = (0..8)
        .map(|_| {
            let client = lab.client.connect(AT);
            let host = backends.recv_timeout(SOON).unwrap();
            (client, host)
        })
        .collect();
    for (client, host) in &flows {
        host.set_nonblocking(true).unwrap();
        let filled = eventually(SOON, || (&**host).write(&[5; 64 << 10]).is_err());
        assert!(filled);
        client.set_nonblocking(true).unwrap();
        while (&*client).write(&[6; 64 << 10]).is_ok() {}
    }
    // A router says for a while that the host cannot be reached.
    let machine = lab.host("east-1");
    for words in [
        "add table inet bad",
        "add chain inet bad in { type filter hook input priority 0 ; }",
        "add rule inet bad in tcp dport 3306 reject with icmp type host-unreachable",
    ] {
        machine.must(&["nft", words]);
    }
    let mut chunk = vec![0; 64 << 10];
    for (_, host) in &flows {
        while matches!((&**host).read(&mut chunk), Ok(n) if n > 0) {}
    }
    std::thread::sleep(Duration::from_secs(3));
    machine.must(&["nft", "delete table inet bad"]);
    for (client, host) in &flows {
        for (from, to) in [(client, &**host), (&**host, client)] {
            // Behind what had been sent before.
            let (mut told, mut last) = (false, Vec::new());
            // Retransmissions double their interval as long as the ICMP errors last.
            let arrives = eventually(Duration::from_secs(90), || {
                while let Ok(n @ 1..) = (&*to).read(&mut chunk) {
                    last.extend_from_slice(&chunk[..n]);
                    last.drain(..last.len().saturating_sub(WORD.len()));
                }
                told = told || (&*from).write(WORD).is_ok();
                last == WORD
            });
            assert!(arrives, "{} flows are left\n{}", sb.flow_count(), sb.proc.log());
        }
    }
}

/// RFC 1122, section 4.2.3.9.
#[lab_test]
fn a_routers_passing_complaint_ends_no_copied_flow() {
    for tier in ["copy", "splice"] {
        let lab = Lab::new();
        let (_server, backends) = servers::hand_over(lab.host("east-1"), "[::]:3306");
        let _health = servers::healthy(lab.host("east-1"));
        let body = config::tcp(&format!("datapath: {{ tier: {tier} }}"), &["east-1"]);
        let sb = Signalbox::start(&lab, &body);
        sb.wait_healthy(&["east-1"]);
        println!("{tier}");
        stalled_flows_live_on(&lab, &sb, &backends);
    }
}
