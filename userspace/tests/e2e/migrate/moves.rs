//! A good cluster gets everything.

use crate::lab;

use lab::{Router, Signalbox, cut, http, lab_test};
use serde_json::{Value, json};

use super::{APP, HTTP, body, cli, migration, newest, shares, under_load};

#[lab_test]
fn a_good_cluster_gets_all_of_a_name_and_no_request_fails() {
    let lab = cut::lab();
    let _routers = Router::start_all(&lab, &["east-1", "west-1"]);
    let sb = Signalbox::start(&lab, &body("connection", &[]));
    sb.wait_healthy(&["east-1", "west-1"]);
    let words = migration(APP, "25,50,100", "1s", "--max-latency 0");
    let tried = cli(&sb, &[&words[..], &["--dry-run"]].concat());
    assert_eq!(
        tried,
        format!("from east to west in steps of 25 %, 50 %, 100 %, each held 1 s:\n  {APP}\n")
    );
    assert_eq!(
        (newest(&sb), shares(&sb)),
        (Value::Null, json!([["east", 1], ["west", 0]]))
    );

    let (report, answers, failures) = under_load(&lab, || cli(&sb, &words));
    assert!(failures.is_empty() && answers >= 60, "{answers} answers, {failures:?}");
    assert_eq!(shares(&sb), json!([["east", 0], ["west", 100]]));
    assert!(
        report.contains("Outcome: **completed**") && report.contains("| 50 % |"),
        "{report}"
    );
    for _ in 0..10 {
        assert_eq!(http::ask(&lab, HTTP, APP).field("host"), "west-1");
    }
    let steps = newest(&sb)["steps"].as_array().cloned().unwrap();
    let samples = steps.iter().map(|step| step["new"]["connects"].as_u64().unwrap());
    assert!(
        steps.len() == 3 && samples.min() >= Some(20),
        "each step had its samples: {steps:?}"
    );
}

#[lab_test]
fn a_migration_of_routed_requests_reports_their_latency() {
    let lab = cut::lab();
    let _routers = Router::start_all(&lab, &["east-1", "west-1"]);
    let sb = Signalbox::start(&lab, &body("request", &[]));
    sb.wait_healthy(&["east-1", "west-1"]);
    let words = migration("--all", "50,100", "1s", "--max-latency 0 --report json");
    let (report, _, failures) = under_load(&lab, || cli(&sb, &words));
    assert!(failures.is_empty(), "{failures:?}");
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["state"], "completed");
    let first = &report["steps"][0];
    for cluster in ["old", "new"] {
        let of = |key: &str| first[cluster][key].as_u64().unwrap();
        assert!(
            of("answers") > 0 && of("first_bytes") > 0 && of("first_byte_micros") > 0,
            "{first}"
        );
        assert_eq!(of("server_errors"), 0);
    }
}
