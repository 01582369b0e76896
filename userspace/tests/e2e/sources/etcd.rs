//! Two balancers that share a table in a real etcd: both know what one of them learns. Without etcd both continue
//! unchanged.

use crate::lab;

use std::time::Duration;

use lab::{Lab, Proc, SOON, Signalbox, config, cut, eventually, privileged, signalbox};
use serde_json::{Value, json};

pub(crate) const CLIENT: &str = "http://10.2.0.3:2379";

/// Whether there is an etcd here; where there must be one, its absence is a failure.
pub(crate) fn available(test: &str) -> bool {
    if std::process::Command::new("etcd").arg("--version").output().is_ok() {
        return true;
    }
    let required = std::env::var("REQUIRE_PRIVILEGED_TESTS").is_ok_and(|v| v == "1");
    assert!(
        !required,
        "{test} cannot run: no etcd here: apt-get install etcd-server"
    );
    println!("SKIP {test}: no etcd here: apt-get install etcd-server");
    false
}

/// A server on east-2, with its data in the lab's directory.
pub(crate) fn spawn(lab: &Lab) -> Proc {
    let mut command = lab.host("east-2").command("etcd");
    command
        .args(["--name", "one", "--data-dir"])
        .arg(lab.dir().join("etcd"));
    command.args(["--listen-client-urls", CLIENT, "--advertise-client-urls", CLIENT]);
    command.args(["--listen-peer-urls", "http://127.0.0.1:2380"]);
    // On architectures that etcd does not call supported it must be allowed explicitly.
    command.env(
        "ETCD_UNSUPPORTED_ARCH",
        std::env::consts::ARCH.replace("aarch64", "arm64"),
    );
    Proc::spawn("etcd", command, lab.dir())
}

/// Waits until it answers.
pub(crate) fn wait_up(lab: &Lab, server: &Proc) {
    let health = format!("{CLIENT}/health");
    let up = || lab.lb.output(&["curl", "-sf", &health]).status.success();
    assert!(eventually(Duration::from_secs(60), up), "{}", server.log());
}

#[test]
fn balancers_share_settings_by_etcd_and_go_on_without_it() {
    const NAME: &str = "balancers_share_settings_by_etcd_and_go_on_without_it";
    if !privileged(NAME) || !available(NAME) {
        return;
    }
    let lab = cut::lab();
    let dir = lab.dir();
    let etcd = || spawn(&lab);
    let mut server = etcd();
    wait_up(&lab, &server);

    let _health = ["east-1", "east-2"].map(|host| lab::servers::healthy(lab.host(host)));
    let clusters = format!(
        "clusters:\n{}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
        config::cluster("east", &["learn: true"], &["east-1", "east-2"])
    );
    let store = |path: &str| {
        format!(
            "store: {{ path: {}/{path}, etcd: {{ endpoints: [\"http://10.2.0.99:2379\", \"{CLIENT}\"] }} }}\n",
            dir.display()
        )
    };
    // The second acts as another machine.
    let second = dir.join("second.yaml");
    let text = format!(
        "version: 1\nadmin: {{ listen: \"10.2.0.4:8089\", read: open, socket: {0}/second.sock }}\n{1}listeners:\n  \
         - {{ name: http, protocol: http, listen: [\"10.2.0.4:8080\"] }}\n{clusters}",
        dir.display(),
        store("second.redb")
    );
    std::fs::write(&second, text).unwrap();
    let spawn = || {
        let mut command = lab.host("east-3").command(crate::lab::signalbox::binary());
        command.arg("run").arg("-f").arg(&second);
        Proc::spawn("second", command, dir)
    };
    let ask = |path: &str| -> Value {
        let url = format!("http://10.2.0.4:8089{path}");
        serde_json::from_slice(&lab.lb.output(&["curl", "-s", &url]).stdout).unwrap_or_default()
    };
    let there = |host: &str| signalbox::find(&ask("/api/v1/hosts")["hosts"], "name", host);
    let mut other = spawn();
    let sb = Signalbox::start(
        &lab,
        &format!("{}{}{clusters}", store("first.redb"), config::WEB_LISTENERS),
    );
    sb.wait_healthy(&["east-1", "east-2"]);
    assert!(
        eventually(SOON, || there("east-1")["health"] == "healthy"),
        "{}",
        other.log()
    );

    // Knowledge reported to one balancer is known to the other.
    let told = json!({
        "hosts": [{ "name": "new-1", "address": "10.2.0.2", "http": 80, "weight": 1 }],
        "routes": [{ "host": "learnt.test", "weight": 7, "origin": "Route x/y" }],
    });
    let tell = |body: &Value| sb.unix("PUT", "/api/v1/clusters/new/learned", &body.to_string());
    assert_eq!(tell(&told).status, 200);
    let routes = || ask("/api/v1/routes")["routes"].as_array().map_or(0, Vec::len);
    assert!(eventually(SOON, || routes() == 2), "{}", ask("/api/v1/routes"));
    let out = |name: &str, timeout: u32| {
        let body = json!({ "action": "out", "names": [name], "timeout": timeout });
        let response = sb.unix("POST", "/api/v1/rotations", &body.to_string());
        (response.status, response.body)
    };
    assert!(matches!(out("east-1", 60).0, 200 | 202));
    assert!(eventually(SOON, || there("east-1")["out_of_rotation"] == "host:east/east-1"));
    // No flow is there to be drained, so the job may be over already.
    let drains = || {
        let is_under_way = ask("/api/v1/rotations")["jobs"][0]["id"].is_u64();
        is_under_way || other.log().contains("Draining has finished")
    };
    assert!(eventually(SOON, drains), "it drains there, too: {}", other.log());
    let weights = sb.unix(
        "PUT",
        "/api/v1/routes/learnt.test",
        r#"{"clusters":{"east":3,"new":4}}"#,
    );
    assert_eq!(weights.status, 200, "{}", weights.body);

    // A balancer that starts later knows the whole table, even if etcd is away: from its own copy.
    other.kill();
    other = spawn();
    assert!(
        eventually(SOON, || there("east-1")["out_of_rotation"] == "host:east/east-1"),
        "{}",
        other.log()
    );
    assert_eq!(routes(), 2);
    server.kill();
    other.kill();
    other = spawn();
    assert!(
        eventually(SOON, || there("east-1")["out_of_rotation"] == "host:east/east-1"),
        "{}",
        other.log()
    );
    assert_eq!(routes(), 2);

    // Without etcd nothing is acknowledged, and nothing changes.
    let (status, why) = out("new-1", 60);
    assert!(status == 503 && why.contains("etcd"), "{why}");
    let empty = tell(&json!({}));
    assert!(empty.status == 503 && empty.body.contains("etcd"), "{}", empty.body);
    assert_eq!(sb.json("/api/v1/routes")["routes"].as_array().unwrap().len(), 2);

    // Etcd is back: changes count again, and reach the others.
    server = etcd();
    wait_up(&lab, &server);
    let cli = |words: &[&str]| sb.cli(words).status.success();
    assert!(eventually(SOON, || cli(&["rotate", "in", "east-1"])));
    assert!(
        eventually(Duration::from_secs(60), || there("east-1")["out_of_rotation"].is_null()
            && there("east-1").is_object()),
        "{}",
        other.log()
    );
    assert!(eventually(SOON, || tell(&json!({})).status == 200));
    assert!(eventually(Duration::from_secs(60), || routes() == 1));
}
