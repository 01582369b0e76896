//! Rotation: out and in under load, in parallel, against clients that stay, across a killed process.

mod balancers;
mod drain;
mod hosts;
mod kept;
mod machine;

use crate::lab;

use lab::{Router, SOON, Signalbox, config, cut, eventually};
use serde_json::{Value, json};

const HTTP: &str = "10.1.0.1:80";
const TCP: &str = "10.1.0.1:3306";

fn web() -> String {
    config::web(&[
        "{ host: a.test, clusters: { east: 1 } }",
        "{ host: b.test, clusters: { west: 1 } }",
    ])
}

fn start(body: &str) -> (cut::CutLab, Vec<Router>, Signalbox) {
    let lab = cut::lab();
    let routers = Router::start_all(&lab, &["east-1", "east-2", "east-3", "west-1", "west-2"]);
    let sb = Signalbox::start(&lab, body);
    sb.wait_healthy(&["east-1", "east-2", "east-3", "west-1", "west-2"]);
    (lab, routers, sb)
}

/// Asks the API for a rotation: status and answer.
fn rotate(sb: &Signalbox, body: &Value) -> (u16, Value) {
    let response = sb.unix("POST", "/api/v1/rotations", &body.to_string());
    (response.status, serde_json::from_str(&response.body).unwrap())
}

fn out(sb: &Signalbox, name: &str, timeout: f64) -> u64 {
    let (status, answer) = rotate(sb, &json!({ "action": "out", "names": [name], "timeout": timeout }));
    assert!(matches!(status, 200 | 202), "{answer}");
    answer["job"]["id"].as_u64().unwrap()
}

fn job(sb: &Signalbox, id: u64) -> Value {
    sb.json(&format!("/api/v1/jobs/{id}"))["job"].clone()
}

fn done(sb: &Signalbox, id: u64) -> Value {
    assert!(eventually(SOON, || !job(sb, id)["ended"].is_null()), "{}", job(sb, id));
    job(sb, id)
}

/// The signalbox command, which must succeed.
fn cli(sb: &Signalbox, words: &[&str]) -> String {
    let output = sb.cli(words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn refusal(sb: &Signalbox, words: &[&str]) -> String {
    let output = sb.cli(words);
    assert!(!output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}
