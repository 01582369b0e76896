//! Connections that are left to userspace, why, and how that is shown.

use crate::lab;

use lab::cut;
use lab::{Router, SOON, Signalbox, config, eventually, http, lab_test};
use serde_json::json;

use super::{PEEK, exits, start_with};

const PLAIN: &str = "{ host: a.test, clusters: { east: 1 } }";

/// A route that is left to userspace, and its kind and reason.
const LEFT_OUT: (&str, (&str, &str)) = (
    "{ host: a.test, clusters: { east: 1 }, path: /x }",
    ("route", "per_request"),
);

fn body(route: &str) -> String {
    let east = config::cluster("east", &[], &["east-1"]);
    let listeners = config::WEB_LISTENERS;
    let more = if route.contains("path") {
        format!("  - {PLAIN}\n")
    } else {
        String::new()
    };
    format!("{PEEK}\n{listeners}clusters:\n{east}routes:\n  - {route}\n{more}")
}

pub(super) fn explain(sb: &Signalbox, words: &[&str]) -> String {
    let output = sb.cli(&[&["explain"], words].concat());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(super) fn left_out(sb: &Signalbox, (kind, reason): (&str, &str)) -> f64 {
    sb.metric(&format!(
        "signalbox_kernel_peek_left_to_userspace{{kind=\"{kind}\",reason=\"{reason}\"}}"
    ))
}

#[test]
fn undecidable_connections_go_to_userspace_and_show_the_reason() {
    let Some(lab) = super::lab("undecidable_connections_go_to_userspace_and_show_the_reason") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let sb = start_with(&lab, &body(PLAIN), 2);
    sb.wait_healthy(&["east-1"]);
    let ask = || {
        // The host's check continues under another configuration.
        let is_served = || http::ask(&lab, "10.1.0.1:80", "a.test").status == 200;
        assert!(eventually(SOON, is_served));
        http::ask(&lab, "10.1.0.1:80", "a.test")
    };
    let explained = || explain(&sb, &["a.test"]);
    ask();
    let routed = exits(&sb, "routed");
    assert!(routed >= 1);
    assert!(
        explained().contains("routed in the kernel, without a socket"),
        "{}",
        explained()
    );
    let (route, why) = LEFT_OUT;
    sb.reload(&body(route));
    let is_left_out = eventually(SOON, || left_out(&sb, why) >= 1.0);
    assert!(is_left_out, "{}", sb.get("/metrics").1);
    let routed = exits(&sb, "routed");
    assert_eq!(ask().status, 200);
    assert_eq!(exits(&sb, "routed"), routed);
    assert!(explained().contains(&format!("({})", why.1)), "{}", explained());
    sb.reload(&body(PLAIN));
    let is_routed_again = || {
        let before = exits(&sb, "routed");
        ask();
        exits(&sb, "routed") > before
    };
    assert!(eventually(SOON, is_routed_again));
}

/// The configuration's snapshot does not have these reasons; the kernel peek's tables do.
#[test]
fn explain_says_what_the_tables_lack_and_what_this_client_lacks() {
    let Some(lab) = super::lab("explain_says_what_the_tables_lack_and_what_this_client_lacks") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let here = "{ name: here-1, address: 10.1.0.1, http: 8080, https: 8443 }".to_owned();
    let clusters = config::cluster("east", &[], &["east-1"])
        + &config::cluster_of(
            "here",
            &["health: { tcp: { port: 80 }, interval: 100ms, rise: 1 }"],
            &[here],
        );
    let body = format!(
        "{PEEK}\n{}clusters:\n{clusters}routes:\n  - {PLAIN}\n  - {{ host: b.test, clusters: {{ here: 1 }} }}\n",
        config::WEB_LISTENERS
    );
    let sb = start_with(&lab, &body, 2);
    sb.wait_healthy(&["east-1", "here-1"]);
    let is_said = |words: &[&str], what: &str| {
        let is = eventually(SOON, || explain(&sb, words).contains(what));
        assert!(is, "{what}: {}", explain(&sb, words));
    };
    is_said(
        &["a.test", "--client", "10.1.0.2"],
        "routed in the kernel, without a socket",
    );
    is_said(&["a.test", "--client", "fd00:1::2"], "(client_family)");
    is_said(&["b.test"], "(host_not_reached)");
    lab.lb
        .must(&["sysctl", "-qw", "net.ipv4.ip_local_port_range=20000 60000"]);
    is_said(&["a.test"], "(no_ports)");
    assert_eq!(http::ask(&lab, "10.1.0.1:80", "a.test").status, 200);
}

/// Connections of a listener that took a path.
fn by_path(sb: &Signalbox, path: &str) -> f64 {
    sb.metric(&format!(
        "signalbox_connections_path_total{{listener=\"http\",path={path}}}"
    ))
}

#[lab_test]
fn connections_are_counted_by_path_and_every_reason_is_shown() {
    let lab = cut::lab();
    let _router = Router::start(&lab, "east-1");
    let body = |datapath: &str, keys: &[&str], route: &str| {
        let east = config::cluster("east", keys, &["east-1"]);
        let listeners = config::WEB_LISTENERS;
        format!(
            "{datapath}\n{listeners}clusters:\n{east}routes:\n  - {route}\n  - {{ host: b.test, clusters: {{ east: 1 }} }}\n"
        )
    };
    let sb = start_with(&lab, &body(PEEK, &[], PLAIN), 4);
    sb.wait_healthy(&["east-1"]);
    let grows = |path: &str, by: f64, act: &dyn Fn()| {
        let before = by_path(&sb, path);
        act();
        let has_grown = eventually(SOON, || by_path(&sb, path) - before == by);
        assert!(has_grown, "{path} by {by}: {}", sb.get("/metrics").1);
    };
    let ask = |name: &str, status: u16| {
        (0..3).for_each(|_| assert_eq!(http::ask(&lab, "10.1.0.1:80", name).status, status));
    };
    let fast_path = || sb.json("/api/v1/status")["fast_path"].clone();
    assert!(eventually(SOON, || exits(&sb, "routed") > 0 || {
        http::ask(&lab, "10.1.0.1:80", "a.test");
        false
    }));
    grows("\"kernel\"", 3.0, &|| ask("a.test", 200));
    grows("\"worker\",reason=\"no_route\"", 3.0, &|| ask("unknown.test", 404));
    grows("\"worker\",reason=\"passed_up\"", 1.0, &|| {
        let odd = "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n";
        let answer = http::request(lab.client.connect("10.1.0.1:80"), odd);
        assert_eq!(answer.unwrap().status, 200);
    });
    assert_eq!(
        (&fast_path()["names"], &fast_path()["names_in_kernel"]),
        (&json!(2), &json!(2))
    );
    assert!(eventually(SOON, || fast_path()["connections_in_kernel"].as_u64() >= Some(3)));

    // A route with a path, to a cluster whose hosts get HTTP/2: both reasons, and the listener's comes first.
    let by_path_too = "{ host: a.test, clusters: { east: 1 }, path: /x }";
    sb.reload(&body(PEEK, &["h2c: true"], by_path_too));
    grows("\"worker\",reason=\"per_request\"", 3.0, &|| ask("a.test", 404));
    grows("\"worker\",reason=\"h2c\"", 3.0, &|| ask("b.test", 200));
    let text = explain(&sb, &["http://a.test/x"]);
    for reason in ["route a.test (per_request)", "cluster east (h2c)"] {
        assert!(text.contains(reason), "{reason}: {text}");
    }
    let left = fast_path()["left_to_workers"].clone();
    let of = |label: &str| lab::signalbox::find(&left, "label", label)["count"].clone();
    assert_eq!(of("per_request"), 1, "{left}");

    sb.reload(&body(
        "datapath: { peek: kernel, cut: off }",
        &["h2c: true"],
        by_path_too,
    ));
    grows("\"worker\",reason=\"cut_off\"", 3.0, &|| ask("b.test", 200));
    let text = explain(&sb, &["http://a.test/x"]);
    for reason in ["listener http (cut_off)", "route a.test (per_request)", "(h2c)"] {
        assert!(text.contains(reason), "{reason}: {text}");
    }
    let status = String::from_utf8(sb.cli(&["status"]).stdout).unwrap();
    assert!(
        status.contains("the kernel routes 0 of 2 names; workers route 2 listeners (cut_off"),
        "{status}"
    );

    // An application that is out of rotation has a route all the same.
    sb.reload(&body(PEEK, &[], PLAIN));
    let out = sb.cli(&["rotate", "out", "application:b.test", "--force", "--no-wait"]);
    assert!(out.status.success(), "{out:?}");
    grows("\"worker\",reason=\"out_of_rotation\"", 3.0, &|| ask("b.test", 503));
    assert_eq!(fast_path()["names_in_kernel"], 1);
}
