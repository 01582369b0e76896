//! Flows of the kernel peek outlive its process; its answers to SYNs do not.

use crate::lab;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use lab::cut::{self, expect_none, finish, known};
use lab::tiers::ping;
use lab::{Router, SOON, Signalbox, eventually, http};

use super::{PEEK, doors, exits, expect_routes, start, start_with};

/// Connects from a port of the client's, in its namespace.
pub(super) fn from_port(port: u16, to: &str) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([10, 1, 0, 2], port)).into()).unwrap();
    let to: SocketAddr = to.parse().unwrap();
    socket.connect(&to.into()).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    socket.into()
}

fn web(name: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n")
}

#[test]
fn flows_outlive_the_process_and_a_successor_knows_them() {
    let Some(lab) = super::lab("flows_outlive_the_process_and_a_successor_knows_them") else {
        return;
    };
    let (_health, hosts, mut sb) = start(&lab);
    let flows: Vec<_> = doors().iter().map(|door| door.enter_cut(&lab, &sb, &hosts)).collect();
    assert_eq!(exits(&sb, "routed"), 4);
    let is_counted = |sb: &Signalbox| sb.metric("signalbox_connections_active{tier=\"cut\"}") == 4.0;
    assert!(eventually(SOON, || is_counted(&sb)));
    let before = known(&sb);
    for _ in 0..2 {
        sb.kill9();
        for (client, host) in &flows {
            ping(client, host);
            ping(host, client);
        }
        sb = Signalbox::start(&lab, &cut::body(PEEK));
        let bytes_of = |flow: &Vec<String>| flow[..9].to_vec();
        let facts = |flows: &[Vec<String>]| flows.iter().map(bytes_of).collect::<Vec<_>>();
        assert_eq!(facts(&known(&sb)), facts(&before));
        assert!(eventually(SOON, || is_counted(&sb)), "{}", sb.get("/metrics").1);
        assert_eq!(sb.host("east-1")["active_connections"], 2);
    }
    for (client, host) in &flows {
        ping(client, host);
        finish(client, host);
    }
    expect_none(&sb);
    assert!(eventually(SOON, || sb.host("east-1")["active_connections"] == 0));
    // And new ones are routed by the successor.
    expect_routes(&sb, 4);
    let (client, host) = doors()[0].enter_cut(&lab, &sb, &hosts);
    assert_eq!(exits(&sb, "routed"), 1);
    finish(&client, &host);
}

#[test]
fn a_successor_accepts_old_cookies_and_loses_no_request() {
    let Some(lab) = super::lab("a_successor_accepts_old_cookies_and_loses_no_request") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let mut sb = start_with(&lab, &cut::body(PEEK), 2);
    sb.wait_healthy(&["east-1"]);
    let mut waiting: Vec<_> = (0..20).map(|_| lab.client.connect("10.1.0.1:80")).collect();
    assert!(eventually(SOON, || exits(&sb, "syn_answered") >= 20));
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            lab.client.run(|| {
                let mut count = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    http::ask_here("10.1.0.1:80", "a.test").unwrap_or_else(|e| panic!("request {count}: {e}"));
                    count += 1;
                }
                count
            })
        });
        let replaced = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sb.be_replaced("successor")));
        std::thread::sleep(Duration::from_millis(500));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let count = asking.join().unwrap();
        replaced.unwrap();
        assert!(count > 20, "{count} requests");
    });
    expect_routes(&sb, 2);
    for client in &mut waiting {
        client.write_all(web("a.test").as_bytes()).unwrap();
        assert_eq!(http::read_response(client).unwrap().status, 200);
    }
    assert!(exits(&sb, "routed") >= 20, "{}", sb.get("/metrics").1);
}

/// The predecessor waits for a connection with a socket; until then its TC program runs before its successor's.
#[test]
fn a_draining_predecessor_leaves_its_successors_flows_alone() {
    let Some(lab) = super::lab("a_draining_predecessor_leaves_its_successors_flows_alone") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    // The client's head is not whole until after a successor has started.
    let extra = format!("{PEEK}\ntimeouts: {{ peek_http: 60s }}");
    let mut sb = start_with(&lab, &cut::body(&extra), 2);
    sb.wait_healthy(&["east-1"]);
    let mut slow = lab.client.connect("10.1.0.1:80");
    slow.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    assert!(eventually(SOON, || exits(&sb, "passed_up") == 1));
    let mut before = sb.be_followed_by(lab::signalbox::binary(), "successor");
    expect_routes(&sb, 2);
    let ask = || assert_eq!(http::ask(&lab, "10.1.0.1:80", "a.test").status, 200);
    // Until it stops, the predecessor's program may answer.
    let is_the_successor_s = || {
        let delivered = exits(&sb, "delivered");
        ask();
        exits(&sb, "delivered") > delivered
    };
    assert!(eventually(SOON, is_the_successor_s));
    let delivered = exits(&sb, "delivered");
    (0..20).for_each(|_| ask());
    assert_eq!(exits(&sb, "delivered"), delivered + 20, "{}", sb.get("/metrics").1);
    slow.write_all(b"Host: a.test\r\nConnection: close\r\n\r\n").unwrap();
    assert_eq!(http::read_response(&mut slow).unwrap().status, 200);
    assert_eq!(before.exit_code(4 * SOON), 0, "{}", before.log());
}

/// Clients between handshake and first data have a cookie, and no socket.
#[test]
fn silent_clients_survive_a_reload_that_ends_the_kernel_peek() {
    let Some(lab) = super::lab("silent_clients_survive_a_reload_that_ends_the_kernel_peek") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let sb = start_with(&lab, &cut::body(PEEK), 2);
    sb.wait_healthy(&["east-1"]);
    let mut waiting: Vec<_> = (0..10).map(|_| lab.client.connect("10.1.0.1:80")).collect();
    let answered = || exits(&sb, "syn_answered");
    assert!(eventually(SOON, || answered() >= 10));
    sb.reload(&cut::body("datapath: { peek: userspace }"));
    expect_routes(&sb, 0);
    let before = answered();
    for client in &mut waiting {
        client.write_all(web("a.test").as_bytes()).unwrap();
        assert_eq!(http::read_response(client).unwrap().status, 200);
    }
    assert_eq!(http::ask(&lab, "10.1.0.1:80", "a.test").status, 200);
    assert_eq!((answered(), exits(&sb, "passed_up")), (before, 10));
    // And on again.
    sb.reload(&cut::body(PEEK));
    expect_routes(&sb, 2);
    assert_eq!(http::ask(&lab, "10.1.0.1:80", "a.test").status, 200);
    assert!(answered() > before);
}

#[test]
fn a_flow_goes_on_when_its_balancer_is_stopped() {
    let Some(lab) = super::lab("a_flow_goes_on_when_its_balancer_is_stopped") else {
        return;
    };
    let (_health, hosts, mut sb) = start(&lab);
    let (client, host) = doors()[0].enter_cut(&lab, &sb, &hosts);
    sb.term();
    assert_eq!(sb.proc.exit_code(SOON), 0);
    ping(&client, &host);
    ping(&host, &client);
    finish(&client, &host);
}

#[test]
fn a_process_that_stands_still_answers_no_syn() {
    let Some(lab) = super::lab("a_process_that_stands_still_answers_no_syn") else {
        return;
    };
    let (_health, hosts, sb) = start(&lab);
    let (client, host) = doors()[0].enter_cut(&lab, &sb, &hosts);
    let answered = exits(&sb, "syn_answered");
    sb.stand_still(true);
    // The kernel completes the handshake, but the process does not answer: a failover's check would see that, too.
    std::thread::sleep(Duration::from_secs(4));
    let mut late = lab.client.connect("10.1.0.1:80");
    late.write_all(web("a.test").as_bytes()).unwrap();
    late.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    assert!(late.read(&mut [0; 8]).is_err(), "somebody has answered");
    ping(&client, &host);
    sb.stand_still(false);
    assert_eq!(exits(&sb, "syn_answered"), answered);
    let of_late = hosts.accept("east-1", 80);
    ping(&of_late, &late);
    // The balancer is alive again.
    let is_back = || {
        drop(lab.client.connect("10.1.0.1:80"));
        exits(&sb, "syn_answered") > answered
    };
    assert!(eventually(SOON, is_back));
}

#[test]
fn a_clients_port_can_be_reused_after_a_flow_not_yet_freed() {
    let Some(lab) = super::lab("a_clients_port_can_be_reused_after_a_flow_not_yet_freed") else {
        return;
    };
    let (_health, hosts, mut sb) = start(&lab);
    let door = &doors()[0];
    let enter = |port: u16| {
        let mut client = lab.client.run(|| from_port(port, door.at));
        client.write_all(&door.first).unwrap();
        let host = hosts.accept(door.host, door.port);
        let mut received = vec![0; door.first.len()];
        (&*host).read_exact(&mut received).unwrap();
        ping(&client, &host);
        ping(&host, &client);
        (client, host)
    };
    for round in 0..3 {
        // The host closes first: the client keeps nothing of the port.
        for port in 20_000..20_020 {
            let (client, host) = enter(port);
            finish(&host, &client);
        }
        if round == 1 {
            sb.kill9();
            sb = Signalbox::start(&lab, &cut::body(PEEK));
            expect_routes(&sb, 4);
        }
    }
    expect_none(&sb);
}
