//! Machines whose kernel makes no socket from a cookie: connections that are passed up get theirs in repair mode.

use crate::lab;

use std::io::{Read as _, Write as _};
use std::time::Duration;

use signalbox_lab::lab_test;
use socket2::{Domain, Protocol, Socket, Type};

use lab::cut::{self, CutLab, Door, Hosts, expect_cut, expect_none, finish};
use lab::impair::{Impaired, Odds};
use lab::tiers::ping;
use lab::transfers::{self, Load};
use lab::{Router, SOON, Signalbox, eventually, http};

use super::{PEEK, exits, expect_routes, start_with};

/// Packet sockets of the balancer's for both families, as keepalived and DHCP clients have them.
fn packet_sockets(lab: &CutLab) -> [Socket; 2] {
    [libc::ETH_P_IP, libc::ETH_P_IPV6].map(|protocol| {
        let protocol = Protocol::from(i32::from((protocol as u16).to_be()));
        lab.lb
            .run(|| Socket::new(Domain::PACKET, Type::DGRAM, Some(protocol)).unwrap())
    })
}

/// Connections that got their sockets in repair mode.
fn repaired(sb: &Signalbox) -> u64 {
    sb.metric("signalbox_repaired_sockets_total") as u64
}

/// Waits until workers make the sockets of clients of both families.
fn expect_repairs(lab: &CutLab, sb: &Signalbox) {
    for at in ["10.1.0.1:80", "[fd00:1::1]:80"] {
        let is_repaired = || {
            let before = repaired(sb);
            assert_eq!(http::ask(lab, at, "c.test").status, 404);
            repaired(sb) > before
        };
        assert!(eventually(SOON, is_repaired), "{at}: {}", sb.get("/metrics").1);
    }
}

/// Doors whose first data only workers route: a request in the absolute form.
fn doors() -> Vec<Door> {
    let mut doors = super::doors();
    doors.retain(|door| door.port == 80);
    for door in &mut doors {
        let name = if door.cluster == "east" { "a.test" } else { "b.test" };
        door.first = format!("GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\n\r\n").into_bytes();
    }
    doors
}

#[lab_test]
fn packet_sockets_take_no_client_off_the_kernel() {
    let lab = cut::lab();
    let _sockets = packet_sockets(&lab);
    let _router = Router::start(&lab, "east-1");
    let sb = start_with(&lab, &cut::body("# the default"), 2);
    sb.wait_healthy(&["east-1"]);
    expect_repairs(&lab, &sb);
    let routed = exits(&sb, "routed");
    assert_eq!(http::ask(&lab, "10.1.0.1:80", "a.test").status, 200);
    assert_eq!(exits(&sb, "routed"), routed + 1, "{}", sb.get("/metrics").1);
    // A client whose end comes with its data.
    let mut client = lab.client.connect("10.1.0.1:80");
    client.write_all(b"GET / HTTP/1.1\r\nHost: c.test\r\n\r\n").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(http::read_response(&mut client).unwrap().status, 404);
    // A client that ends without data.
    let mut client = lab.client.connect("10.1.0.1:80");
    client.shutdown(std::net::Shutdown::Write).unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(exits(&sb, "pass_up_failed"), 0);
}

/// The handshake was the program's: its numbers, options and clock go on in the socket, and then in the cut flow.
#[lab_test]
fn a_repaired_socket_goes_on_with_the_options_of_its_handshake() {
    let lab = cut::lab();
    let _sockets = packet_sockets(&lab);
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, PEEK);
    expect_routes(&sb, 4);
    expect_repairs(&lab, &sb);
    // Without timestamps, a cookie has room for few forms of SYN. The kernel answers others.
    let settings: [&[&str]; 5] = [
        &[],
        &["tcp_sack=0"],
        &["tcp_window_scaling=0"],
        &["tcp_sack=1"],
        &["tcp_timestamps=0"],
    ];
    for settings in settings {
        for setting in settings {
            lab.client.must(&["sysctl", "-qw", &format!("net.ipv4.{setting}")]);
        }
        for door in doors() {
            let before = repaired(&sb);
            let (client, host) = door.enter(&lab, &hosts);
            assert_eq!(
                repaired(&sb),
                before + 1,
                "{settings:?} {}: {}",
                door.at,
                sb.get("/metrics").1
            );
            expect_cut(&sb, &client);
            for _ in 0..20 {
                ping(&client, &host);
                ping(&host, &client);
            }
            finish(&client, &host);
        }
    }
    expect_none(&sb);
    assert_eq!(exits(&sb, "pass_up_failed"), 0);
}

#[lab_test]
fn repaired_sockets_carry_every_byte_on_good_and_bad_links() {
    let lab = cut::lab();
    let _sockets = packet_sockets(&lab);
    let _servers = transfers::servers_of(&lab, doors());
    let (_health, sb) = cut::start(&lab, PEEK);
    expect_routes(&sb, 4);
    expect_repairs(&lab, &sb);
    let before = repaired(&sb);
    let load = Load {
        at_once: 16,
        count: 200,
        most: 1_000_000,
        patience: Duration::from_secs(60),
    };
    for (seed, door) in (1..).zip(doors()) {
        load.must(&lab, &door, seed);
    }
    assert_eq!(repaired(&sb), before + 400, "{}", sb.get("/metrics").1);
    let _client = Impaired::client_link(&lab, Odds::ALL);
    let _hosts = ["east-1", "west-1"].map(|host| Impaired::host_link(&lab, host, Odds::ALL));
    for (seed, door) in (11..).zip(doors()) {
        load.must(&lab, &door, seed);
    }
    expect_none(&sb);
}

/// Linux before 6.9 lacks the kernel's function.
#[lab_test]
fn without_the_kernels_function_every_client_keeps_the_kernel() {
    let lab = cut::lab();
    lab.set_env("SIGNALBOX_REFUSE", "bpf_sk_assign_tcp_reqsk");
    let _router = Router::start(&lab, "east-1");
    let sb = start_with(&lab, &cut::body(PEEK), 2);
    sb.wait_healthy(&["east-1"]);
    expect_repairs(&lab, &sb);
    assert_eq!(http::ask(&lab, "10.1.0.1:80", "a.test").status, 200);
    assert!(exits(&sb, "routed") > 0, "{}", sb.get("/metrics").1);
    assert_eq!(exits(&sb, "pass_up_failed"), 0);
}

/// The first packet of the socket would be invalid, or that of a connection from this machine, whose addresses may be
/// translated.
#[lab_test]
fn repaired_sockets_pass_conntrack_and_nat_rules() {
    let lab = cut::lab();
    for words in [
        "add table inet t",
        "add chain inet t post { type nat hook postrouting priority srcnat ; }",
        "add chain inet t pre { type nat hook prerouting priority dstnat ; }",
        "add chain inet t out { type nat hook output priority -100 ; }",
        "add rule inet t post oifname client meta l4proto tcp masquerade to :1000-1100",
        "add rule inet t out oifname client tcp dport 1024-65535 redirect to :9",
        "add chain inet t in { type filter hook input priority 0 ; policy drop ; }",
        "add rule inet t in ct state vmap { established : accept, related : accept, invalid : drop }",
        "add rule inet t in iifname { lo, back } accept",
        "add rule inet t in icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept",
        "add rule inet t in tcp dport { 80, 443 } accept",
    ] {
        lab.lb.must(&["nft", words]);
    }
    let _servers = transfers::servers_of(&lab, doors());
    let (_health, sb) = cut::start(&lab, PEEK);
    expect_routes(&sb, 4);
    expect_repairs(&lab, &sb);
    let load = Load {
        at_once: 8,
        count: 50,
        most: 100_000,
        patience: Duration::from_secs(60),
    };
    for (seed, pick_up) in [(1, "1"), (3, "0")] {
        let setting = format!("net.netfilter.nf_conntrack_tcp_loose={pick_up}");
        lab.lb.must(&["sysctl", "-qw", &setting]);
        for (seed, door) in (seed..).zip(doors()) {
            let before = repaired(&sb);
            load.must(&lab, &door, seed);
            assert_eq!(repaired(&sb), before + 50, "{}", sb.get("/metrics").1);
        }
    }
    assert_eq!(sb.metric("signalbox_not_tracked_total"), 0.0);
    expect_none(&sb);
}
