//! Testers get the new cluster before all others, and with the others the old one again.

use crate::lab;

use lab::topology::OTHER_CLIENTS;
use lab::{Lab, Router, SOON, Signalbox, cut, eventually, http, lab_test};
use serde_json::json;

use super::{APP, HTTP, body, cli, migration, newest, refusal, shares, wait_for};

/// Hosts that have answered a client with this address.
fn answers(lab: &Lab, client: &str) -> Vec<String> {
    let url = format!("http://{HTTP}/");
    let name = format!("Host: {APP}");
    let words = ["curl", "-sS", "-m", "10", "--interface", client, "-H", &name, &url];
    let mut hosts: Vec<_> = (0..6).map(|_| http::field(&lab.client.must(&words), "host")).collect();
    hosts.dedup();
    hosts
}

#[lab_test]
fn testers_get_the_new_cluster_first_over_a_kill_until_the_end() {
    let lab = cut::lab();
    let _routers = Router::start_all(&lab, &["east-1", "west-1"]);
    let mut sb = Signalbox::start(&lab, &body("connection", &[]));
    sb.wait_healthy(&["east-1", "west-1"]);
    let [tester, _] = OTHER_CLIENTS;
    let words = migration(APP, "50,100", "1h", "--testers 10.1.0.3 --min-samples 1 --no-wait");
    let why = refusal(&sb, &migration(APP, "50,100", "1h", "--testers here --no-wait"));
    assert!(why.contains("\"here\" is no prefix such as 10.9.0.0/16"), "{why}");
    let tried = cli(&sb, &[&words[..10], &["--testers", tester, "--dry-run"]].concat());
    assert!(tried.contains("in steps of testers, 50 %, 100 %"), "{tried}");
    assert_eq!(answers(&lab, tester), ["east-1"]);

    let id = cli(&sb, &words).trim().strip_prefix("migration ").unwrap().to_owned();
    let nobody_else = json!([["east", 100], ["west", 0]]);
    assert!(eventually(SOON, || shares(&sb) == nobody_else), "{}", shares(&sb));
    assert!(eventually(SOON, || answers(&lab, tester) == ["west-1"]));
    assert_eq!(answers(&lab, "10.1.0.2"), ["east-1"]);
    let explained = sb.json(&format!("/api/v1/explain?host={APP}&client={tester}"));
    assert!(
        explained.to_string().contains("\"preferred_cluster\":\"west\""),
        "{explained}"
    );
    // Guards have seen them, and the report names them.
    let are_seen = || {
        answers(&lab, tester);
        newest(&sb)["steps"][0]["new"]["connects"].as_u64() >= Some(6)
    };
    assert!(eventually(SOON, are_seen), "{}", newest(&sb));
    assert!(cli(&sb, &["migrate", "--show", &id]).contains("Testers: 10.1.0.3/32"));

    // Another process has the same testers.
    sb.kill9();
    sb = Signalbox::start(&lab, &body("connection", &[]));
    sb.wait_healthy(&["east-1", "west-1"]);
    assert!(eventually(SOON, || answers(&lab, tester) == ["west-1"]));
    assert_eq!(answers(&lab, "10.1.0.2"), ["east-1"]);

    cli(&sb, &["migrate", "--abort", &id]);
    wait_for(&sb, "aborted", |migration| migration["state"] == "aborted");
    assert!(eventually(SOON, || answers(&lab, tester) == ["east-1"]));

    // After a migration's end there are none: the next weights apply to them too.
    let words = migration(APP, "100", "1s", "--testers 10.1.0.3 --min-samples 0");
    cli(&sb, &words);
    assert_eq!(newest(&sb)["state"], "completed");
    cli(&sb, &["weight", APP, "east=1", "west=0"]);
    assert!(eventually(SOON, || answers(&lab, tester) == ["east-1"]));
}
