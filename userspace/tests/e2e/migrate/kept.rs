//! A killed balancer continues where it was.

use crate::lab;

use std::time::Duration;

use lab::{Router, Signalbox, cut, http, lab_test, servers};
use serde_json::json;

use super::{APP, HTTP, body, cli, migration, newest, shares, under_load, wait_for};

#[lab_test]
fn a_migration_goes_on_after_the_balancer_was_killed() {
    let lab = cut::lab();
    let _routers = Router::start_all(&lab, &["east-1", "west-1"]);
    let mut sb = Signalbox::start(&lab, &body("connection", &[]));
    sb.wait_healthy(&["east-1", "west-1"]);
    let words = migration(APP, "25,50,100", "2s", "--max-latency 0 --no-wait");
    cli(&sb, &words);
    // Answers are missing while nothing listens: only the migration is looked at here.
    under_load(&lab, || {
        wait_for(&sb, "the second step", |migration| migration["step"] == 1);
        let id = newest(&sb)["id"].clone();
        // A step is shown a moment before it is on the disk; if it is not, the migration continues from the one before.
        std::thread::sleep(Duration::from_millis(300));
        sb.kill9();
        sb = Signalbox::start(&lab, &body("connection", &[]));
        assert_eq!(newest(&sb)["id"], id);
        assert!(newest(&sb)["step"].as_u64() >= Some(1), "{}", newest(&sb));
        wait_for(&sb, "the end", |migration| migration["state"] == "completed");
    });
    assert_eq!(shares(&sb), json!([["east", 0], ["west", 100]]));
    assert_eq!(
        newest(&sb)["steps"].as_array().map(Vec::len),
        Some(3),
        "{}",
        newest(&sb)
    );
    sb.kill9();
    sb = Signalbox::start(&lab, &body("connection", &[]));
    assert_eq!(newest(&sb)["state"], "completed", "the report is kept");
    sb.wait_healthy(&["west-1"]);
    assert_eq!(http::ask(&lab, HTTP, APP).field("host"), "west-1");
}

#[lab_test]
fn a_migration_continues_after_a_takeover_and_no_request_fails() {
    let lab = cut::lab();
    let _routers = Router::start_all(&lab, &["east-1", "west-1"]);
    let mut sb = Signalbox::start(&lab, &body("connection", &[]));
    sb.wait_healthy(&["east-1", "west-1"]);
    cli(&sb, &migration(APP, "25,50,100", "2s", "--max-latency 0 --no-wait"));
    let ((), answers, failures) = under_load(&lab, || {
        wait_for(&sb, "the second step", |migration| migration["step"] == 1);
        let id = newest(&sb)["id"].clone();
        sb.be_replaced("successor");
        assert_eq!(newest(&sb)["id"], id);
        assert!(newest(&sb)["step"].as_u64() >= Some(1), "{}", newest(&sb));
        wait_for(&sb, "the end", |migration| migration["state"] == "completed");
    });
    assert!(failures.is_empty() && answers >= 60, "{answers} answers, {failures:?}");
    assert_eq!(shares(&sb), json!([["east", 0], ["west", 100]]));
    assert_eq!(
        newest(&sb)["steps"].as_array().map(Vec::len),
        Some(3),
        "{}",
        newest(&sb)
    );
}

#[lab_test]
fn guards_watch_on_after_the_balancer_was_killed() {
    let lab = cut::lab();
    let mut routers = Router::start_all(&lab, &["east-1", "west-1"]);
    let mut sb = Signalbox::start(&lab, &body("connection", &[]));
    sb.wait_healthy(&["east-1", "west-1"]);
    cli(
        &sb,
        &[
            "migrate",
            APP,
            "--from",
            "east",
            "--to",
            "west",
            "--steps",
            "50,100",
            "--hold",
            "1h",
            "--no-wait",
        ],
    );
    assert!(lab::eventually(lab::SOON, || shares(&sb) == json!([["east", 50], ["west", 50]])));
    sb.kill9();
    routers[1].kill();
    let _health = servers::healthy(lab.host("west-1"));
    sb = Signalbox::start(&lab, &body("connection", &[]));
    sb.wait_healthy(&["east-1", "west-1"]);
    under_load(&lab, || {
        wait_for(&sb, "rolled back", |migration| migration["state"] == "rolled_back");
    });
    assert_eq!(shares(&sb), json!([["east", 1], ["west", 0]]));
}
