//! Figures of each route: connections, bytes and refusals, on every tier and across processes.

use crate::lab;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use lab::cut::{self, expect_none, expect_tier, finish};
use lab::{Lab, SOON, Signalbox, config, eventually, http, lab_test};
use serde_json::json;

const IN_EAST: &str = r#"{route="a.test",cluster="east""#;

/// A metric of route a.test in cluster east, with further labels.
fn of_a(sb: &Signalbox, name: &str, labels: &str) -> u64 {
    sb.metric(&format!("signalbox_route_{name}{IN_EAST}{labels}}}")) as u64
}

/// Connections ever and now, and bytes in and out.
fn figures(sb: &Signalbox) -> [u64; 4] {
    [
        of_a(sb, "connections_total", ""),
        of_a(sb, "connections_active", ""),
        of_a(sb, "bytes_total", ",direction=\"in\""),
        of_a(sb, "bytes_total", ",direction=\"out\""),
    ]
}

/// The flow GC accounts for cut flows, at its own pace.
fn reach(sb: &Signalbox, expected: [u64; 4], when: &str) {
    let reached = eventually(SOON, || figures(sb) == expected);
    assert!(reached, "{when}: {:?} and not {expected:?}", figures(sb));
}

fn send(mut from: &TcpStream, mut to: &TcpStream, bytes: usize) {
    let sent = vec![7; bytes];
    let mut received = vec![0; bytes];
    std::thread::scope(|scope| {
        scope.spawn(|| from.write_all(&sent).unwrap());
        to.read_exact(&mut received).unwrap();
    });
    assert_eq!(received, sent);
}

#[test]
fn a_route_s_figures_are_right_on_every_tier() {
    let Some((lab, hosts, door)) = cut::by_http("a_route_s_figures_are_right_on_every_tier") else {
        return;
    };
    let first = door.first.len() as u64;
    for (tier, extra) in [
        ("copy", "datapath: { tier: copy }"),
        ("splice", "datapath: { tier: splice }"),
        ("cut", ""),
    ] {
        let (_health, sb) = cut::start(&lab, extra);
        let (client, host) = door.enter(&lab, &hosts);
        expect_tier(&sb, &client, tier);
        reach(&sb, [1, 1, first + 5, 5], tier);
        send(&client, &host, 300_000);
        send(&host, &client, 500_000);
        // While it lives.
        reach(&sb, [1, 1, first + 300_005, 500_005], tier);
        let view = sb.json("/api/v1/routes/a.test");
        assert_eq!(view["figures"]["clusters"]["east"]["bytes_out"], 500_005, "{view}");
        assert_eq!(view["figures"]["active_connections"], 1, "{view}");
        finish(&client, &host);
        drop((client, host));
        reach(&sb, [1, 0, first + 300_005, 500_005], tier);
        expect_none(&sb);
        let bulk = sb.json("/api/v1/figures");
        assert_eq!(bulk["routes"]["a.test"], sb.json("/api/v1/routes/a.test")["figures"]);
        assert_eq!(bulk["total"], 1, "a route without a connection is not there: {bulk}");
        assert_eq!(sb.json("/api/v1/figures?cluster=west")["routes"], json!({}));
    }
}

#[test]
fn cut_flows_count_once_for_their_route_across_a_restart() {
    let Some((lab, hosts, door)) = cut::by_http("cut_flows_count_once_for_their_route_across_a_restart") else {
        return;
    };
    let first = door.first.len() as u64;
    let (_health, mut sb) = cut::start(&lab, "");
    let (client, host) = door.enter_cut(&lab, &sb, &hosts);
    reach(&sb, [1, 1, first + 5, 5], "before the kill");
    sb.kill9();
    send(&client, &host, 1000);
    send(&host, &client, 2000);
    let sb = Signalbox::start(&lab, &cut::body(""));
    // Bytes of the time without a process count, and no connection counts twice.
    reach(&sb, [0, 1, 1000, 2000], "after the kill");
    send(&client, &host, 50);
    reach(&sb, [0, 1, 1050, 2000], "after the kill");
    // A successor whose configuration has no such route.
    let body = cut::body("").replace("host: a.test", "host: c.test");
    let file = lab::signalbox::write_config(&lab, "successor.yaml", &body);
    let mut old = sb;
    let sb = Signalbox::spawn_file(&lab, "successor", &file, &["--takeover"]);
    assert_eq!(old.proc.exit_code(SOON * 3), 0, "{}", sb.proc.log());
    send(&host, &client, 3000);
    reach(&sb, [0, 1, 0, 3000], "after the takeover");
    // The route comes back with its flow.
    sb.reload(&cut::body(""));
    assert_eq!(sb.json("/api/v1/routes/a.test")["figures"]["active_connections"], 1);
    send(&client, &host, 70);
    finish(&client, &host);
    drop((client, host));
    reach(&sb, [0, 0, 70, 3000], "at the end");
    let (client, host) = door.enter_cut(&lab, &sb, &hosts);
    reach(&sb, [1, 1, 70 + first + 5, 3005], "with a new connection");
    drop((client, host));
    expect_none(&sb);
    reach(&sb, [1, 0, 70 + first + 5, 3005], "when all is over");
}

/// Four names at two hosts that echo.
fn four_names(extra: &str, names: &[&str]) -> String {
    let route = |name: &&str| format!("{{ host: {name}.test, clusters: {{ east: 1 }} }}");
    let routes: Vec<_> = names.iter().map(route).collect();
    let routes: Vec<_> = routes.iter().map(String::as_str).collect();
    format!("{extra}\n{}", config::web(&routes))
}

fn ask(lab: &Lab, name: &str) -> u16 {
    http::get(lab.client.connect("10.1.0.1:80"), name, "/").map_or(0, |answer| answer.status)
}

#[lab_test]
fn labels_are_bounded_and_no_client_makes_one() {
    let lab = Lab::new();
    let _routers = ["east-1", "east-2", "east-3"].map(|host| lab::Router::start(&lab, host));
    let all = ["a", "b", "c", "d"];
    let mut sb = Signalbox::start(&lab, &four_names("metrics: { routes: 2 }", &all));
    sb.wait_healthy(&["east-1", "east-2", "east-3"]);
    let total = |sb: &Signalbox, route: &str| {
        sb.metric(&format!("signalbox_route_connections_total{{route=\"{route}\"}}")) as u64
    };
    let ask_all = |n: usize| {
        for name in all {
            (0..n).for_each(|_| assert_eq!(ask(&lab, &format!("{name}.test")), 200));
        }
    };
    ask_all(3);
    assert_eq!(ask(&lab, "made-up.test"), 404);
    assert_eq!(["a.test", "b.test", "other"].map(|route| total(&sb, route)), [3, 3, 6]);
    assert!(!sb.get("/metrics").1.contains("made-up"));
    // A route that goes and comes back keeps its counts; sums never go down.
    sb.reload(&four_names("metrics: { routes: 2 }", &["a", "d"]));
    assert_eq!(["a.test", "b.test", "other"].map(|route| total(&sb, route)), [3, 3, 6]);
    sb.reload(&four_names("metrics: { routes: 2 }", &all));
    ask_all(1);
    assert_eq!(["a.test", "b.test", "other"].map(|route| total(&sb, route)), [4, 4, 8]);
    assert_eq!(sb.json("/api/v1/figures")["total"], 4, "the API has no such bound");
    sb.reload(&four_names("metrics: { routes: 0 }", &all));
    assert!(!sb.get("/metrics").1.contains("signalbox_route_"));
    sb.term();
    assert_eq!(sb.proc.exit_code(SOON), 0);
}

#[lab_test]
fn refusals_count_for_the_route_that_they_are_of() {
    let lab = Lab::new();
    let (_health, sb) = Signalbox::refusing(&lab, "");
    let refused = |route: &str, reason: &str| {
        sb.metric(&format!(
            "signalbox_route_refused_total{{route=\"{route}\",reason=\"{reason}\"}}"
        ))
    };
    assert_eq!(ask(&lab, "a.test"), 503);
    assert_eq!(ask(&lab, "b.test"), 503);
    assert_eq!(refused("a.test", "connect_failed"), 1.0);
    assert_eq!(refused("b.test", "no_host"), 1.0);
    let out = json!({ "action": "out", "names": ["application:a.test"], "force": true }).to_string();
    assert_eq!(sb.unix("POST", "/api/v1/rotations", &out).status / 100, 2);
    assert_eq!(ask(&lab, "a.test"), 503);
    assert_eq!(refused("a.test", "out_of_rotation"), 1.0);
    let view = sb.json("/api/v1/routes/a.test");
    assert_eq!(view["figures"]["refused_connections"], 2, "{view}");
    assert_eq!(view["figures"]["connections"], 0, "{view}");
    assert_eq!(sb.get("/api/v1/routes/nobody.test").0, 404);
}
