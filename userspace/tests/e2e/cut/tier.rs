//! Tier `cut` as its users see it: every kind of flow gets there, is shown there, is counted there, and costs the
//! process nothing there.

use crate::lab;

use std::net::TcpStream;

use serde_json::Value;

use lab::cut::{self, Hosts, doors, expect_cut, expect_none, finish};
use lab::tiers::ping;
use lab::{Router, SOON, Signalbox, config, eventually, http, lab_test, servers};

#[lab_test]
fn every_kind_of_flow_is_cut_in_both_address_families_and_shown() {
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    for door in doors() {
        let (client, host) = door.enter_cut(&lab, &sb, &hosts);
        // Cut or not, the bytes arrive: some of these were sent before, some after.
        for _ in 0..20 {
            ping(&client, &host);
            ping(&host, &client);
        }
        if !cut::lenient() {
            assert_shown(&sb, &door, &client, &host);
        }
        let of = format!("cluster=\"{}\"", door.cluster);
        let metric = |name: &str, more: &str| sb.metric(&format!("signalbox_connections_{name}{{{of}{more}}}"));
        let finished = metric("closed_total", ",reason=\"finished\"");
        assert!(cut::lenient() || metric("active", ",tier=\"cut\"") == 1.0);
        assert!(cut::lenient() || metric("opened_total", ",tier=\"cut\"") >= 1.0);
        assert_eq!(sb.host(door.host)["active_connections"], 1);
        finish(&client, &host);
        expect_none(&sb);
        assert!(
            eventually(SOON, || metric("closed_total", ",reason=\"finished\"")
                == finished + 1.0),
            "the end of a flow of {} is counted: {}",
            door.listener,
            sb.get("/metrics").1
        );
        assert!(eventually(SOON, || metric("active", "") == 0.0));
        assert!(eventually(SOON, || sb.host(door.host)["active_connections"] == 0));
    }
}

fn assert_shown(sb: &Signalbox, door: &cut::Door, client: &TcpStream, host: &TcpStream) {
    let shown = cut::shown(sb, client.local_addr().unwrap());
    let canonical = |address: std::net::SocketAddr| {
        std::net::SocketAddr::new(address.ip().to_canonical(), address.port()).to_string()
    };
    for (key, expected) in [
        ("tier", "cut".to_owned()),
        ("state", "established".to_owned()),
        ("client", client.local_addr().unwrap().to_string()),
        ("local", door.at.to_owned()),
        ("backend", canonical(host.local_addr().unwrap())),
        ("leg_b_local", canonical(host.peer_addr().unwrap())),
        ("listener", door.listener.to_owned()),
        ("cluster", door.cluster.to_owned()),
        ("host", door.host.to_owned()),
    ] {
        assert_eq!(shown[key], expected, "{key} of {shown}");
    }
    if door.port != 3306 {
        let name = if door.cluster == "east" { "a.test" } else { "b.test" };
        assert!(shown["route"].to_string().contains(name), "{shown}");
    }
    assert!(shown["age_seconds"].as_f64().unwrap() < 60.0, "{shown}");
    assert!(shown["idle_seconds"].as_f64().unwrap() < 60.0, "{shown}");
    // 21 pings of 5 bytes each way; a retransmission may count twice.
    let (sent, received) = (door.first.len() as u64 + 105, 105);
    for (key, least) in [("bytes_in", sent), ("bytes_out", received)] {
        let bytes = shown[key].as_u64().unwrap();
        assert!(
            (least..least + 1000).contains(&bytes),
            "{key} is not about {least}: {shown}"
        );
    }
    for key in ["packets_in", "packets_out"] {
        let packets = shown[key].as_u64().unwrap();
        assert!((20..200).contains(&packets), "{key}: {shown}");
    }
    let query = |query: &str| sb.flows(query).len();
    for found in [
        "tier=cut",
        &format!("host={}", door.host),
        &format!("cluster={}", door.cluster),
    ] {
        assert_eq!(query(found), 1, "{found}");
    }
    assert_eq!(query(&format!("listener={}", door.listener)), 1);
    assert_eq!(
        query(&format!("tier=cut&host={}&cluster={}", door.host, door.cluster)),
        1
    );
    for missed in ["tier=copy", "tier=splice"] {
        assert_eq!(query(missed), 0, "{missed}");
    }
    // An unknown name is a mistake, not an empty list.
    for unknown in [
        "tier=cutt",
        "host=east-3",
        "listener=none",
        "cluster=none",
        "route=none.test",
    ] {
        let answer = sb.try_get(&format!("/api/v1/flows?{unknown}")).unwrap();
        assert!(
            answer.status == 404 && answer.body.contains("there is no"),
            "{unknown}: {}",
            answer.body
        );
    }
    let of_client = |client: &str| query(&format!("client={client}"));
    let own = client.local_addr().unwrap().ip().to_string();
    assert_eq!((of_client(&own), of_client("192.0.2.0/24")), (1, 0));
    let text = sb.cli(&["flows", "--tier", "cut"]).stdout;
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains(&client.local_addr().unwrap().to_string()), "{text}");
}

#[lab_test]
fn real_tls_and_real_http_pass_through() {
    let lab = cut::lab();
    let _routers = (Router::start(&lab, "east-1"), Router::nginx(&lab, "west-1"));
    let sb = Signalbox::start(&lab, &cut::body(""));
    sb.wait_healthy(&["east-1", "west-1"]);
    for version in ["--tlsv1.3", "--tls-max=1.2"] {
        let words = version.split('=').collect::<Vec<_>>();
        for _ in 0..20 {
            let curl = http::curl(&lab, "10.1.0.1", &[&words[..], &["https://a.test/"]].concat());
            assert_eq!(curl.code, 0, "{}", curl.trace);
            assert!(
                curl.body.contains("host=east-1 name=a.test sni=a.test"),
                "{}",
                curl.body
            );
        }
    }
    for (at, name) in cut::HTTP {
        let stream = lab.client.connect(at);
        for _ in 0..2000 {
            assert_eq!(http::get(&stream, name, "/").unwrap().status, 200);
        }
        expect_cut(&sb, &stream);
    }
    expect_none(&sb);
}

#[lab_test]
fn a_cut_flow_holds_no_descriptor_of_the_process() {
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    let doors = doors();
    // Files that the first flow opens once are not counted against the others.
    drop(doors[0].enter_cut(&lab, &sb, &hosts));
    expect_none(&sb);
    let before = cut::settled(|| cut::descriptors(&sb));
    let flows: Vec<_> = (0..200).map(|i| doors[i % doors.len()].enter(&lab, &hosts)).collect();
    assert!(
        eventually(SOON, || cut::lenient() || sb.flows("tier=cut&limit=1000").len() == 200),
        "{} of 200 are cut: {:?}",
        sb.flows("tier=cut&limit=1000").len(),
        sb.flows("limit=1000").iter().find(|f| f["tier"] != "cut")
    );
    let during = cut::settled(|| cut::descriptors(&sb));
    println!("{before} descriptors before, {during} with 200 flows");
    assert!(
        cut::lenient() || during <= before + 3,
        "{before} before, {during} during"
    );
    for (client, host) in &flows {
        ping(client, host);
        ping(host, client);
    }
    drop(flows);
    expect_none(&sb);
}

#[lab_test]
fn listeners_configured_otherwise_use_another_tier_and_show_why() {
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    let _health = servers::healthy(lab.host("east-1"));
    let _server = servers::echo(lab.host("east-1"), cut::BACKEND);
    let east = config::cluster("east", &[], &["east-1"]);
    let listeners: Vec<_> = ["cut: auto", "cut: off", "tier: splice", "tier: copy", "tier: sockmap"]
        .into_iter()
        .enumerate()
        .map(|(i, datapath)| {
            let port = 3300 + i;
            format!(
                "{{ name: l{i}, protocol: tcp, listen: [\"10.1.0.1:{port}\"], cluster: east, datapath: {{ {datapath} }} }}"
            )
        })
        .collect();
    for global in ["", "datapath: { cut: off }", "datapath: { cut: auto }"] {
        let body = format!(
            "{global}\nlisteners:\n{}  - {{ name: plain, protocol: tcp, listen: [\"10.1.0.1:3306\"], cluster: east }}\n\
             clusters:\n{east}",
            config::yaml_list("  ", &listeners)
        );
        let sb = Signalbox::start(&lab, &body);
        sb.wait_healthy(&["east-1"]);
        let tier_of = |port: u16| {
            let client = lab.client.connect(&format!("10.1.0.1:{port}"));
            ping(&client, &client);
            // Long enough for a flow that changes its tier gradually.
            std::thread::sleep(std::time::Duration::from_millis(300));
            let shown = cut::shown(&sb, client.local_addr().unwrap());
            ping(&client, &client);
            shown
        };
        let is_cut = |flow: &Value| flow["tier"] == "cut";
        assert!(is_cut(&tier_of(3300)), "{global}");
        let off = tier_of(3301);
        println!("{}", cut::reason(&off));
        for (port, tier) in [(3302, "splice"), (3303, "copy"), (3304, "sockmap")] {
            let flow = tier_of(port);
            assert_eq!(flow["tier"], tier, "{global}: {flow}");
        }
        let plain = tier_of(3306);
        assert_eq!(is_cut(&plain), !global.contains("off"), "{global}: {plain}");
    }
}

#[lab_test]
fn pins_stay_after_the_process_and_go_with_detach() {
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, mut sb) = cut::start(&lab, "");
    let pins = || cut::pins(&lab);
    assert_eq!(pins().len(), 1, "one directory for this namespace: {:?}", pins());
    let door = &doors()[2];
    let (client, host) = door.enter_cut(&lab, &sb, &hosts);
    sb.kill9();
    assert_eq!(pins().len(), 1);
    for _ in 0..10 {
        ping(&client, &host);
        ping(&host, &client);
    }
    cut::detach(&lab);
    assert!(pins().is_empty(), "{:?}", pins());
    // Without hooks no one carries the flow, and a new process starts from scratch.
    let sb = Signalbox::start(&lab, &cut::body(""));
    sb.wait_healthy(&["east-1", "west-1"]);
    assert_eq!(sb.flow_count(), 0);
    let (client, host) = door.enter_cut(&lab, &sb, &hosts);
    finish(&client, &host);
    expect_none(&sb);
    drop(sb);
    cut::detach(&lab);
    assert!(pins().is_empty(), "{:?}", pins());
}

#[lab_test]
fn flows_that_cannot_be_cut_use_another_tier_and_show_why() {
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    // A client on the balancer itself never passes the hooks.
    let mut local = lab.lb.connect(cut::TCP[0].0);
    let host = hosts.accept("east-1", 3306);
    ping(&local, &host);
    assert_other_tier(&sb, &local);
    ping(&host, &local);
    std::io::Write::write_all(&mut local, b"end").unwrap();
    drop((local, host));
    // A family for each leg.
    for (at, name, host) in [
        (cut::HTTP[0].0, "b.test", "west-1"),
        (cut::HTTP[1].0, "a.test", "east-1"),
    ] {
        let client = lab.client.connect(at);
        let text = format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n");
        std::io::Write::write_all(&mut &client, text.as_bytes()).unwrap();
        let host = hosts.accept(host, 80);
        let mut received = vec![0; text.len()];
        std::io::Read::read_exact(&mut &*host, &mut received).unwrap();
        ping(&client, &host);
        assert_other_tier(&sb, &client);
        ping(&host, &client);
        ping(&client, &host);
    }
    expect_none(&sb);
}

fn assert_other_tier(sb: &Signalbox, client: &TcpStream) {
    std::thread::sleep(std::time::Duration::from_millis(300));
    let shown = cut::shown(sb, client.local_addr().unwrap());
    assert!(shown["tier"].is_string() && shown["tier"] != "cut", "{shown}");
    println!("{}", cut::reason(&shown));
}
