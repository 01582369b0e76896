//! Limits: places in the flow table, connections of a source; and hosts that go while flows stay.

use crate::lab;

use std::io::Read;
use std::net::TcpStream;

use lab::cut::{self, Hosts, doors, expect_cut, expect_none, finish};
use lab::signalbox::PEEK_IN_USERSPACE;
use lab::tiers::ping;
use lab::{SOON, eventually, lab_test, servers};

#[lab_test]
fn flows_beyond_the_table_size_use_another_tier_and_say_so() {
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    let _echoes = ["east-1", "west-1"].map(|host| servers::echo(lab.host(host), cut::BACKEND));
    // The kernel peek would get half of a table this small, and TCP listeners have no use for that.
    let limits = format!("{PEEK_IN_USERSPACE}\nlimits: {{ cut_flows: 64 }}");
    let _health = ["east-1", "west-1"].map(|host| servers::healthy(lab.host(host)));
    // The workers get unequal numbers of connections; whichever gets one finds a place while there is one.
    let start = || {
        let sb = lab::Signalbox::start_with(&lab, &cut::body(&limits), &["--workers", "8"]);
        sb.wait_healthy(&["east-1", "west-1"]);
        sb
    };
    let mut sb = start();
    let connect = |count: usize| -> Vec<TcpStream> {
        let streams = (0..count).map(|n| lab.client.connect(cut::TCP[n % 2].0));
        let streams: Vec<_> = streams.collect();
        streams.iter().for_each(|stream| ping(stream, stream));
        streams
    };
    let cut_count = |sb: &lab::Signalbox| sb.flows("tier=cut&limit=1000").len();
    for round in 0..3 {
        let streams = connect(150);
        assert!(
            eventually(SOON, || cut_count(&sb) == 64),
            "round {round}: {} are cut\n{}",
            cut_count(&sb),
            cut::reasons(&sb)
        );
        let flows = sb.flows("limit=1000");
        assert_eq!(flows.len(), 150);
        let room = |metric: &str, what: &str| sb.metric(&format!("signalbox_{metric}{{what=\"{what}\"}}"));
        assert_eq!(room("capacity", "cut_flows"), 64.0);
        assert_eq!(room("capacity_used", "cut_flows"), 64.0);
        assert_eq!(room("capacity_used", "connections"), 86.0);
        for flow in flows.iter().filter(|flow| flow["tier"] != "cut") {
            assert_eq!(cut::reason(flow), "table_full");
        }
        let places: Vec<_> = sb
            .flows("tier=cut&limit=1000")
            .iter()
            .map(|f| f["client"].to_string())
            .collect();
        // More connections that come and go end none of these.
        drop(connect(100));
        assert!(eventually(SOON, || sb.flow_count() == 150));
        let still: Vec<_> = sb
            .flows("tier=cut&limit=1000")
            .iter()
            .map(|f| f["client"].to_string())
            .collect();
        assert!(places.iter().all(|place| still.contains(place)), "round {round}");
        streams.iter().for_each(|stream| ping(stream, stream));
        drop(streams);
        expect_none(&sb);
        if round == 1 {
            sb.kill9();
            sb = start();
        }
    }
}

#[lab_test]
fn cut_flows_count_among_the_connections_of_a_source_and_in_all() {
    let lab = cut::lab();
    let _echo = servers::echo(lab.host("east-1"), cut::BACKEND);
    let (_health, sb) = cut::start(&lab, "limits: { per_source: { concurrent: 20 } }");
    let connect = || {
        let stream = lab.client.connect_from("10.1.0.2", cut::TCP[0].0);
        ping(&stream, &stream);
        expect_cut(&sb, &stream);
        stream
    };
    let mut held: Vec<_> = (0..20).map(|_| connect()).collect();
    assert_eq!(sb.json("/api/v1/status")["connections"]["active"], 20);
    assert_eq!(sb.metric("signalbox_connections_current"), 20.0);
    assert_eq!(
        sb.metric("signalbox_listener_connections_active{listener=\"tcp4\"}"),
        20.0
    );
    let refused = |from: &str| {
        let mut stream = lab.client.connect_from(from, cut::TCP[0].0);
        stream.set_read_timeout(Some(SOON)).unwrap();
        let _ = std::io::Write::write_all(&mut stream, b"x");
        !matches!(stream.read(&mut [0; 1]), Ok(1))
    };
    assert!(refused("10.1.0.2"), "the 21st of this source");
    assert!(!refused("10.1.0.3"), "the first of another");
    held.truncate(10);
    assert!(eventually(SOON, || sb.json("/api/v1/status")["connections"]["active"] == 10));
    held.extend((0..10).map(|_| connect()));
    drop(held);
    expect_none(&sb);
    assert_eq!(sb.metric("signalbox_connections_current"), 0.0);
}

#[lab_test]
fn a_host_removed_from_the_configuration_keeps_its_flows() {
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    let flows: Vec<_> = doors().iter().map(|door| door.enter_cut(&lab, &sb, &hosts)).collect();
    let body = cut::body("");
    // The configuration has another host in place of this one.
    let without = body.replace(
        "name: east-1, address: \"10.2.0.2\"",
        "name: east-2, address: \"10.2.0.3\"",
    );
    assert_ne!(body, without);
    sb.reload(&without);
    let gone = || sb.host("east-1");
    assert_eq!(
        (&gone()["draining"], &gone()["active_connections"]),
        (&true.into(), &3.into()),
        "{}",
        gone()
    );
    for (client, host) in &flows {
        ping(client, host);
        ping(host, client);
    }
    for (n, (client, host)) in flows.iter().enumerate() {
        finish(client, host);
        assert!(eventually(SOON, || sb.flow_count() == 5 - n as u64));
    }
    assert!(
        eventually(SOON, || gone().is_null()),
        "a host without flows is gone: {}",
        gone()
    );
    expect_none(&sb);
}

#[lab_test]
fn the_listener_of_a_flow_may_go_while_the_flow_stays() {
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    let flows: Vec<_> = doors().iter().map(|door| door.enter_cut(&lab, &sb, &hosts)).collect();
    let body = cut::body("");
    let without: Vec<_> = body.lines().filter(|line| !line.contains("name: tcp")).collect();
    sb.reload(&without.join("\n"));
    let refused = || lab.client.try_connect(cut::TCP[0].0).is_err();
    assert!(eventually(SOON, refused));
    for (client, host) in &flows {
        ping(client, host);
        ping(host, client);
    }
    assert_eq!(sb.flow_count(), 6);
    sb.reload(&body);
    let (client, host) = doors()[2].enter_cut(&lab, &sb, &hosts);
    finish(&client, &host);
    for (client, host) in &flows {
        finish(client, host);
    }
    expect_none(&sb);
}
