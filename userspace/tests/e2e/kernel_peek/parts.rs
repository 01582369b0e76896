//! First data of several segments: kept until it is whole, then routed, or returned to be passed up.

use crate::lab;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use socket2::SockRef;

use lab::cut::{self, Door, expect_cut, expect_none, finish};
use lab::impair::{Impaired, Odds};
use lab::tiers::ping;
use lab::transfers::{self, Load};
use lab::{Router, SOON, eventually, http};

use super::life::from_port;
use super::{PEEK, exits, expect_routes, filter, sockets, start, start_with, stay_on_this_cpu};

/// Doors whose clients' first data does not fit a segment: hellos as browsers send them, heads with a large cookie.
fn doors() -> Vec<Door> {
    let mut doors = cut::doors();
    doors.retain(|door| !door.first.is_empty());
    for door in &mut doors {
        if door.port == 80 {
            let name = if door.cluster == "east" { "a.test" } else { "b.test" };
            door.first = long_head(name, "").into_bytes();
        }
        assert!((1500..2800).contains(&door.first.len()));
    }
    doors
}

fn long_head(name: &str, field: &str) -> String {
    let cookie = "c".repeat(1900);
    format!("GET / HTTP/1.1\r\nCookie: {cookie}\r\nHost: {name}\r\n{field}\r\n")
}

#[test]
fn a_head_or_hello_of_two_segments_leads_to_its_host() {
    let Some(lab) = super::lab("a_head_or_hello_of_two_segments_leads_to_its_host") else {
        return;
    };
    let (_health, hosts, sb) = start(&lab);
    stay_on_this_cpu();
    let without = ["net.ipv4.tcp_timestamps=0", "net.ipv4.tcp_window_scaling=0"];
    for (n, door) in (1..).zip(doors().into_iter().chain(doors())) {
        if n == 5 {
            for setting in without {
                lab.client.must(&["sysctl", "-qw", setting]);
            }
        }
        let (client, host) = door.enter(&lab, &hosts);
        assert_eq!(sockets(&lab), "", "{} at {}", door.listener, door.at);
        expect_cut(&sb, &client);
        for _ in 0..20 {
            ping(&client, &host);
            ping(&host, &client);
        }
        let counts = ["kept", "routed", "delivered"].map(|reason| exits(&sb, reason));
        assert_eq!(counts, [n, n, n], "{}", sb.get("/metrics").1);
        finish(&client, &host);
    }
    assert_eq!((exits(&sb, "passed_up"), exits(&sb, "returned")), (0, 0));
    expect_none(&sb);
}

#[test]
fn long_first_data_arrives_whole_on_good_links_and_on_bad_ones() {
    let Some(lab) = super::lab("long_first_data_arrives_whole_on_good_links_and_on_bad_ones") else {
        return;
    };
    let _servers = transfers::servers_of(&lab, doors());
    let (_health, sb) = cut::start(&lab, PEEK);
    expect_routes(&sb, 4);
    let load = Load {
        at_once: 16,
        count: 100,
        most: 100_000,
        patience: Duration::from_secs(60),
    };
    for (seed, door) in (1..).zip(doors()) {
        load.must(&lab, &door, seed);
    }
    assert_eq!(exits(&sb, "routed"), 400, "{}", sb.get("/metrics").1);
    let _client = Impaired::client_link(&lab, Odds::ALL);
    let _hosts = ["east-1", "west-1"].map(|host| Impaired::host_link(&lab, host, Odds::ALL));
    for (seed, door) in (11..).zip(doors()) {
        load.must(&lab, &door, seed);
    }
    assert!(exits(&sb, "routed") >= 700, "{}", sb.get("/metrics").1);
    expect_none(&sb);
}

/// The client has sent all of it, and need not send it again.
#[test]
fn long_first_data_that_userspace_routes_is_returned_to_it() {
    let Some(lab) = super::lab("long_first_data_that_userspace_routes_is_returned_to_it") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let sb = start_with(&lab, &cut::body(PEEK), 2);
    sb.wait_healthy(&["east-1"]);
    stay_on_this_cpu();
    // No name of a route, and a byte that the program does not know.
    for (n, (name, field, expected)) in (1..).zip([("c.test", "", 404), ("a.test", "Accept: a\tb\r\n", 200)]) {
        let mut client = lab.client.connect("10.1.0.1:80");
        client.write_all(long_head(name, field).as_bytes()).unwrap();
        assert_eq!(http::read_response(&mut client).unwrap().status, expected);
        let returned = if cut::repairs_sockets() { 0 } else { n };
        assert_eq!(
            (exits(&sb, "returned"), exits(&sb, "passed_up")),
            (returned, n),
            "{}",
            sb.get("/metrics").1
        );
    }
    assert_eq!((exits(&sb, "routed"), exits(&sb, "pass_up_failed")), (0, 0));
}

/// The end comes with the last segment, as where all came in one.
#[test]
fn long_first_data_with_the_clients_fin_returns_to_userspace() {
    let Some(lab) = super::lab("long_first_data_with_the_clients_fin_returns_to_userspace") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let sb = start_with(&lab, &cut::body(PEEK), 2);
    sb.wait_healthy(&["east-1"]);
    stay_on_this_cpu();
    let mut client = lab.client.connect("10.1.0.1:80");
    SockRef::from(&client).set_tcp_cork(true).unwrap();
    client
        .write_all(long_head("a.test", "Connection: close\r\n").as_bytes())
        .unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(http::read_response(&mut client).unwrap().status, 200);
    let returned = u64::from(!cut::repairs_sockets());
    assert_eq!(
        (exits(&sb, "kept"), exits(&sb, "returned"), exits(&sb, "passed_up")),
        (1, returned, 1)
    );
}

/// With the same cookie no connection takes another element of the ring.
#[test]
fn a_client_that_resets_its_first_part_gets_userspace_next_time() {
    let Some(lab) = super::lab("a_client_that_resets_its_first_part_gets_userspace_next_time") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let sb = start_with(&lab, &cut::body(PEEK), 2);
    sb.wait_healthy(&["east-1"]);
    stay_on_this_cpu();
    let mut client = lab.client.run(|| from_port(20_001, "10.1.0.1:80"));
    filter(
        &lab.client,
        "inet",
        "hook output",
        "tcp dport 80 tcp flags & psh == psh drop",
    );
    client.write_all(long_head("a.test", "").as_bytes()).unwrap();
    SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    lab.client.must(&["nft", "delete table inet lost"]);
    assert!(
        eventually(SOON, || (exits(&sb, "kept"), exits(&sb, "given_up")) == (1, 1)),
        "{}",
        sb.get("/metrics").1
    );
    // Another connection from the port has another cookie.
    let mut client = lab.client.run(|| from_port(20_001, "10.1.0.1:80"));
    client.write_all(long_head("a.test", "").as_bytes()).unwrap();
    assert_eq!(http::read_response(&mut client).unwrap().status, 200);
    assert_eq!((exits(&sb, "kept"), exits(&sb, "routed")), (2, 1));
}

#[test]
fn first_data_with_a_lost_rest_is_passed_up_when_repeated() {
    let Some(lab) = super::lab("first_data_with_a_lost_rest_is_passed_up_when_repeated") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let sb = start_with(&lab, &cut::body(PEEK), 2);
    sb.wait_healthy(&["east-1"]);
    stay_on_this_cpu();
    let mut client = lab.client.connect("10.1.0.1:80");
    client.set_read_timeout(Some(4 * SOON)).unwrap();
    filter(
        &lab.client,
        "inet",
        "hook output",
        "tcp dport 80 tcp flags & psh == psh drop",
    );
    client.write_all(long_head("a.test", "").as_bytes()).unwrap();
    assert!(
        eventually(SOON, || exits(&sb, "passed_up") == 1),
        "{}",
        sb.get("/metrics").1
    );
    lab.client.must(&["nft", "delete table inet lost"]);
    assert_eq!(http::read_response(&mut client).unwrap().status, 200);
    assert_eq!((exits(&sb, "kept"), exits(&sb, "routed")), (1, 0));
}

/// The client repeats the first segment alone, and the program still has the second one.
#[test]
fn long_first_data_outlives_a_lost_syn_to_its_host() {
    let Some(lab) = super::lab("long_first_data_outlives_a_lost_syn_to_its_host") else {
        return;
    };
    let (_health, hosts, sb) = start(&lab);
    stay_on_this_cpu();
    for (n, door) in (1..).zip(doors()) {
        let link = Impaired::host_link(&lab, door.host, Odds::SILENT);
        let mut client = lab.client.connect(door.at);
        client.write_all(&door.first).unwrap();
        assert!(eventually(SOON, || exits(&sb, "routed") == n));
        drop(link);
        let host = hosts.accept(door.host, door.port);
        let mut received = vec![0; door.first.len()];
        (&*host).read_exact(&mut received).unwrap();
        assert_eq!(received, door.first);
        ping(&client, &host);
        finish(&client, &host);
        let retries = format!("signalbox_connect_retries_total{{cluster=\"{}\"}}", door.cluster);
        let is_repeated = exits(&sb, "syn_repeated") > 0 || sb.metric(&retries) > 0.0;
        assert!(is_repeated, "{}", sb.get("/metrics").1);
    }
    assert_eq!((exits(&sb, "routed"), exits(&sb, "passed_up")), (4, 0));
    expect_none(&sb);
}
