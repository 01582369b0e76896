//! Clients that stay: closed at the deadline on every tier, and by a balancer that was killed in between.

use crate::lab;

use std::io::Read;
use std::net::TcpStream;

use lab::cut::{self, Hosts};
use lab::{Lab, SOON, Signalbox, config, eventually, lab_test, servers};
use serde_json::{Value, json};

use super::{TCP, done, job, out, rotate};

/// A connection that stays, and the host's end of it.
fn stubborn(lab: &Lab, hosts: &Hosts) -> (TcpStream, std::sync::Arc<TcpStream>) {
    let client = lab.client.connect(TCP);
    let host = hosts.accept("east-1", 3306);
    lab::tiers::ping(&client, &host);
    lab::tiers::ping(&host, &client);
    (client, host)
}

fn is_reset(stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(SOON)).unwrap();
    (&*stream)
        .read(&mut [0; 8])
        .is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset)
}

#[lab_test]
fn connections_are_reset_at_the_drain_deadline_on_every_tier() {
    for datapath in ["{ cut: auto }", "{ cut: off }", "{ tier: sockmap }"] {
        let lab = cut::lab();
        let hosts = Hosts::start(&lab);
        let _health = ["east-1", "east-2"].map(|host| servers::healthy(lab.host(host)));
        let sb = Signalbox::start(&lab, &config::tcp(&format!("datapath: {datapath}"), &["east-1"]));
        sb.wait_healthy(&["east-1"]);
        let flows = [(); 3].map(|()| stubborn(&lab, &hosts));
        let id = out_forced(&sb, "east-1", 1.5);
        let view = job(&sb, id);
        assert_eq!(view["waits_for"], json!({ "east/east-1": 3 }), "{datapath}: {view}");
        assert_eq!(view["progress"], "draining");
        for (client, host) in &flows {
            lab::tiers::ping(client, host);
        }
        // The first flow ends on its own, the others are closed.
        cut::finish(&flows[0].0, &flows[0].1);
        let view = done(&sb, id);
        assert_eq!(view["closed_connections"], 2, "{datapath}: {view}");
        for (client, host) in &flows[1..] {
            assert!(is_reset(client) && is_reset(host), "{datapath}: both ends are told");
        }
        assert_eq!(sb.host("east-1")["active_connections"], 0);
        let closed = "signalbox_connections_closed_total{cluster=\"east\",reason=\"drained\"}";
        assert_eq!(sb.metric(closed), 2.0, "{datapath}");
    }
}

fn out_forced(sb: &Signalbox, name: &str, timeout: f64) -> u64 {
    let body = json!({ "action": "out", "names": [name], "timeout": timeout, "force": true });
    let (status, answer) = rotate(sb, &body);
    assert_eq!(status, 202, "{answer}");
    answer["job"]["id"].as_u64().unwrap()
}

#[lab_test]
fn a_killed_balancer_restarts_with_its_rotation_and_drain() {
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_server, others) = servers::hand_over(lab.host("east-2"), cut::BACKEND);
    let _health = ["east-1", "east-2"].map(|host| servers::healthy(lab.host(host)));
    let body = config::tcp("", &["east-1", "east-2"]);
    let mut sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1", "east-2"]);
    // Turn by turn.
    let clients = [(); 2].map(|()| lab.client.connect(TCP));
    let host = hosts.accept("east-1", 3306);
    let _other = others.recv_timeout(SOON).unwrap();
    let client = clients
        .iter()
        .find(|client| client.local_addr().unwrap() == host_of(&sb, "east-1"))
        .unwrap();
    lab::tiers::ping(client, &host);
    cut::expect_cut(&sb, client);

    // Long enough for a start on a busy machine.
    let id = out(&sb, "east-1", 15.0);
    assert_eq!(job(&sb, id)["remaining_connections"], 1);
    sb.kill9();
    sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1", "east-2"]);
    assert_eq!(sb.host("east-1")["out_of_rotation"], "host:east/east-1");
    let view = job(&sb, id);
    assert_eq!(
        (&view["progress"], &view["remaining_connections"]),
        (&json!("draining"), &json!(1)),
        "{view}"
    );
    lab::tiers::ping(client, &host);
    let new: Vec<_> = (0..4).map(|_| lab.client.connect(TCP)).collect();
    for _ in &new {
        others.recv_timeout(SOON).unwrap();
    }
    assert!(hosts.next("east-1", 3306).is_none());
    assert_eq!(done(&sb, id)["closed_connections"], 1);
    assert!(is_reset(client) && is_reset(&host));

    // A successor knows it from the beginning, and so does one that is started later; then it is in again.
    let next = Signalbox::start_with(&lab, &body, &["--takeover"]);
    next.wait_healthy(&["east-2"]);
    assert_eq!(next.host("east-1")["out_of_rotation"], "host:east/east-1");
    // The predecessor answers until the successor does, and has let go of the file already.
    assert!(eventually(SOON, || next
        .cli(&["rotate", "in", "east-1"])
        .status
        .success()));
    drop(sb);
    drop(next);
    let last = Signalbox::start(&lab, &body);
    last.wait_healthy(&["east-1", "east-2"]);
    assert_eq!(last.host("east-1")["out_of_rotation"], Value::Null);
}

/// The client of the flow to a host.
fn host_of(sb: &Signalbox, host: &str) -> std::net::SocketAddr {
    let flows = sb.flows(&format!("host={host}"));
    flows[0]["client"].as_str().unwrap().parse().unwrap()
}
