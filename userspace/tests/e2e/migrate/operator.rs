//! Orders to a migration (pause, resume, abort), and those that are refused.

use crate::lab;

use lab::{Router, SOON, Signalbox, cut, eventually, lab_test};
use serde_json::json;

use super::{APP, body, cli, migration, newest, refusal, shares, wait_for};

#[lab_test]
fn an_operator_pauses_resumes_and_aborts() {
    let lab = cut::lab();
    let _routers = Router::start_all(&lab, &["east-1", "west-1"]);
    let sb = Signalbox::start(&lab, &body("connection", &[]));
    sb.wait_healthy(&["east-1", "west-1"]);
    // Weights that an operator had set are those that an abort restores.
    cli(&sb, &["weight", APP, "east=3"]);
    // No sample is required: there is no traffic here.
    let words = migration(APP, "25,100", "1h", "--min-samples 0 --no-wait");
    let id = cli(&sb, &words).trim().strip_prefix("migration ").unwrap().to_owned();
    let at_25 = json!([["east", 75], ["west", 25]]);
    assert!(eventually(SOON, || shares(&sb) == at_25), "{}", shares(&sb));
    let busy = refusal(&sb, &words);
    assert!(busy.contains(&format!("is being moved by migration {id}")), "{busy}");

    let paused = cli(&sb, &["migrate", "--pause", &id]);
    assert!(
        paused.contains("paused, 25 %") && paused.contains("paused by root"),
        "{paused}"
    );
    assert!(refusal(&sb, &["migrate", "--pause", &id]).contains("is paused: it cannot be paused"));
    let listed = cli(&sb, &["migrate", "--list", "--no-headers"]);
    let words: Vec<_> = listed.split_whitespace().take(6).collect();
    assert_eq!(words, [id.as_str(), "1", "east", "west", "paused", "25"], "{listed}");
    let listed: serde_json::Value = serde_json::from_str(&cli(&sb, &["migrate", "--list", "-o", "json"])).unwrap();
    assert_eq!(listed["migrations"][0]["state"], "paused", "{listed}");
    // Weights set by someone else are not overwritten, until an operator asks for it: also those that come as soon as
    // the step's are set.
    cli(&sb, &["weight", APP, "east=2"]);
    cli(&sb, &["migrate", "--resume", &id]);
    assert!(eventually(SOON, || shares(&sb) == at_25), "{}", shares(&sb));
    cli(&sb, &["weight", APP, "east=1", "west=1"]);
    wait_for(&sb, "paused", |migration| migration["state"] == "paused");
    assert_eq!(shares(&sb), json!([["east", 1], ["west", 1]]));
    assert!(
        newest(&sb)["reason"]
            .as_str()
            .unwrap()
            .contains("were changed meanwhile")
    );
    cli(&sb, &["migrate", "--resume", &id]);
    assert!(eventually(SOON, || shares(&sb) == at_25), "{}", shares(&sb));

    cli(&sb, &["migrate", "--abort", &id]);
    wait_for(&sb, "aborted", |migration| migration["state"] == "aborted");
    assert_eq!(shares(&sb), json!([["east", 3]]));
    assert!(cli(&sb, &["migrate", "--show", &id]).contains("Outcome: **aborted**"));
    assert!(refusal(&sb, &["migrate", "--abort", &id]).contains("is aborted: it cannot be aborted"));
}

#[lab_test]
fn an_invalid_migration_is_refused_with_the_reason() {
    let lab = cut::lab();
    let _router = Router::start(&lab, "east-1");
    let sb = Signalbox::start(&lab, &body("connection", &[]));
    sb.wait_healthy(&["east-1"]);
    assert!(eventually(SOON, || sb.host("west-1")["health"] == "unhealthy"));
    let to = |name: &str, from: &str, to: &str| refusal(&sb, &["migrate", name, "--from", from, "--to", to]);
    for (complaint, why) in [
        (to(APP, "east", "north"), "there is no cluster north"),
        (to(APP, "east", "east"), "name two clusters"),
        (to(APP, "east", "west"), "west has no host that takes connections"),
        (to(APP, "west", "east"), "west has no traffic of it"),
        (to("b.test", "west", "east"), "there is no route b.test"),
        (refusal(&sb, &["migrate", "--pause", "7"]), "there is no migration 7"),
        (
            refusal(
                &sb,
                &["migrate", APP, "--from", "east", "--to", "west", "--steps", "50,5"],
            ),
            "that rise",
        ),
    ] {
        assert!(complaint.contains(why), "{complaint}");
    }
    let answer = sb.unix("POST", "/api/v1/migrations", r#"{"from":"east"}"#);
    assert!(
        answer.status == 400 && answer.body.contains("expected for example"),
        "{}",
        answer.body
    );
    // Over TCP, changes need the token.
    let over_tcp = sb.admin("POST", "/api/v1/migrations", "{}");
    assert!(matches!(over_tcp.status, 401 | 403), "{}", over_tcp.status);
    assert_eq!(sb.json("/api/v1/migrations")["migrations"], json!([]));
    assert_eq!(shares(&sb), json!([["east", 1], ["west", 0]]));
}
