//! Rotation of machines: every host at an address, in every cluster, on every layer, also one that is learnt later.

use crate::lab;

use lab::{Lab, Router, SOON, Signalbox, config, eventually, http, lab_test, signalbox};
use serde_json::{Value, json};

const HTTP: &str = "10.1.0.1:80";
const EAST_1: &str = "10.2.0.2";

/// `twin` of another cluster, which has a service, is on the machine of `east-1`, and `spare` on that of `east-2`.
fn body() -> String {
    let twins = ["twin", "spare"].iter().zip([EAST_1, "10.2.0.3"]);
    let twins: Vec<_> = twins
        .map(|(name, address)| format!("{{ name: {name}, address: {address}, tcp: 3306 }}"))
        .collect();
    format!(
        "{}services:\n  - {{ name: db, protocol: tcp, listen: [\"10.1.0.1:3306\"], cluster: other }}\n\
         clusters:\n{}{}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
        config::WEB_LISTENERS,
        config::cluster("east", &[], &["east-1", "east-2"]),
        config::cluster_of("other", &["learn: true"], &twins),
    )
}

fn said(sb: &Signalbox, words: &[&str]) -> String {
    let output = sb.cli(words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn refusal(sb: &Signalbox, words: &[&str]) -> String {
    let output = sb.cli(words);
    assert!(!output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Returns the share of the service's connections that the twin gets, in percent.
fn share_of_twin(sb: &Signalbox) -> f64 {
    let services = sb.json("/api/v1/services");
    let twin = signalbox::find(&services["services"][0]["hosts"], "name", "twin");
    twin["share"].as_f64().unwrap()
}

#[lab_test]
fn a_rotated_machine_is_out_everywhere_and_for_later_hosts_too() {
    let lab = Lab::new();
    let _routers = Router::start_all(&lab, &["east-1", "east-2"]);
    let mut sb = Signalbox::start(&lab, &body());
    sb.wait_healthy(&["east-1", "east-2", "twin", "spare"]);
    assert!(eventually(SOON, || share_of_twin(&sb) > 0.0), "{}", sb.proc.log());

    let out = ["rotate", "out", "--machine", EAST_1, "--reason", "a new disk"];
    assert_eq!(said(&sb, &out).trim(), "out of rotation: machine:10.2.0.2");
    for host in ["east-1", "twin"] {
        assert_eq!(sb.host(host)["out_of_rotation"], "machine:10.2.0.2", "{host}");
    }
    for _ in 0..8 {
        assert_eq!(http::ask(&lab, HTTP, "a.test").field("host"), "east-2");
    }
    assert!(
        eventually(SOON, || share_of_twin(&sb) == 0.0),
        "{}",
        sb.json("/api/v1/services")
    );
    let why = refusal(&sb, &["rotate", "in", "east-1"]);
    assert!(why.contains("is out because machine:10.2.0.2 is"), "{why}");

    // The machine is remembered by its address: a host that is learnt there later is out from the beginning.
    sb.kill9();
    sb = Signalbox::start(&lab, &body());
    let late = json!({
        "routes": {},
        "routerHosts": { "late": { "name": "late", "hostIP": EAST_1, "httpPort": 80, "httpsPort": 443 } },
    });
    let told = sb.unix("POST", "/api/cluster/other", &late.to_string());
    assert_eq!(told.status, 201, "{}", told.body);
    assert!(eventually(SOON, || {
        let hosts = sb.json("/api/v1/hosts");
        let mut hosts = hosts["hosts"].as_array().unwrap().iter();
        hosts.any(|host| host["name"] == "late" && host["out_of_rotation"] == "machine:10.2.0.2")
    }));
    let table = said(&sb, &["rotate", "list"]);
    for part in ["machine:10.2.0.2", "a new disk", "(uid 0)", " ago)", "REASON", "BY"] {
        assert!(table.contains(part), "no {part:?} in\n{table}");
    }

    said(&sb, &["rotate", "in", "--machine", EAST_1]);
    for host in ["east-1", "twin", "late"] {
        assert_eq!(sb.host(host)["out_of_rotation"], Value::Null, "{host}");
    }
    assert!(eventually(SOON, || share_of_twin(&sb) > 0.0));
    assert_eq!(sb.json("/api/v1/rotations")["rotations"], json!([]));
}

#[lab_test]
fn rotating_an_unknown_machine_or_with_a_bad_reason_is_refused() {
    let lab = Lab::new();
    let _routers = Router::start_all(&lab, &["east-1", "east-2"]);
    let sb = Signalbox::start(&lab, &body());
    sb.wait_healthy(&["east-1", "east-2"]);
    let long = "x".repeat(201);
    for (words, part) in [
        (
            &["rotate", "out", "--machine", "10.2.9.9"][..],
            "no host is at 10.2.9.9; --force",
        ),
        (&["rotate", "out", "--machine", "east-1"], "invalid IP address"),
        (&["rotate", "out", "machine:east-1"], "write it such as 10.2.0.2"),
        (
            &["rotate", "out", "east-1", "--reason", &long],
            "at most 200 characters",
        ),
        (
            &["rotate", "in", "--machine", EAST_1],
            "machine:10.2.0.2 is not out of rotation",
        ),
    ] {
        let why = refusal(&sb, words);
        assert!(why.contains(part), "{words:?}: {why}");
    }
    said(&sb, &["rotate", "out", "--machine", "10.2.9.9", "--force"]);
    let rotations = sb.json("/api/v1/rotations");
    assert_eq!(rotations["rotations"][0]["subject"], "machine:10.2.9.9", "{rotations}");
}
