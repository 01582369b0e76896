//! Settings of an operator are remembered across kills, or refused where they cannot be.

use crate::lab;

use lab::{Router, Signalbox, config, cut, http, lab_test};
use serde_json::{Value, json};

use super::{HTTP, cli, refusal, rotate};

#[lab_test]
fn a_bad_state_file_makes_changes_fail_but_traffic_continues() {
    let lab = cut::lab();
    let _router = Router::start(&lab, "east-1");
    let file = lab.dir().join("state.redb");
    std::fs::write(&file, "somebody's letter").unwrap();
    let east = config::cluster("east", &[], &["east-1"]);
    let body = format!(
        "{}clusters:\n{east}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
        config::WEB_LISTENERS
    );
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1"]);
    assert_eq!(http::ask(&lab, HTTP, "a.test").status, 200);
    let (status, answer) = rotate(&sb, &json!({ "action": "out", "names": ["east-1"], "force": true }));
    let detail = answer["detail"].as_str().unwrap();
    assert!(
        status == 503 && detail.contains("state.redb") && detail.contains("move it away"),
        "{answer}"
    );
    let weights = sb.unix("PUT", "/api/v1/routes/a.test", r#"{"clusters":{"east":7}}"#);
    assert!(
        weights.status == 422 && weights.body.contains("move it away"),
        "{}",
        weights.body
    );
    assert_eq!(sb.host("east-1")["out_of_rotation"], Value::Null);
    assert_eq!(std::fs::read(&file).unwrap(), b"somebody's letter");
    assert!(sb.get("/readyz?verbose").1.contains("[~] store:"));
    // Mended while it runs.
    std::fs::remove_file(&file).unwrap();
    assert_eq!(
        sb.unix("PUT", "/api/v1/routes/a.test", r#"{"clusters":{"east":7}}"#)
            .status,
        200
    );
}

#[lab_test]
fn operator_weights_survive_kills_and_file_edits_until_reset() {
    let lab = cut::lab();
    let routes = |weight: u32| {
        let a = format!("{{ host: a.test, clusters: {{ east: {weight}, west: 1 }} }}");
        config::web(&[&a, "{ host: b.test, clusters: { east: 1, west: 1 } }"])
    };
    let weights = |sb: &Signalbox, host: &str| {
        let routes = sb.json("/api/v1/routes");
        let all = routes["routes"].as_array().unwrap();
        let route = all.iter().find(|route| route["host"] == host).unwrap();
        let clusters = route["clusters"].as_array().unwrap();
        let one = |cluster: &Value| {
            (
                cluster["name"].as_str().unwrap().to_owned(),
                cluster["weight"].as_u64().unwrap(),
            )
        };
        clusters.iter().map(one).collect::<Vec<_>>()
    };
    let pair = |east, west| vec![("east".to_owned(), east), ("west".to_owned(), west)];
    let mut sb = Signalbox::start(&lab, &routes(1));
    let tried = cli(&sb, &["weight", "a.test", "east=9", "west=0", "--dry-run"]);
    assert!(tried.contains("a.test") && tried.contains("west:0"), "{tried}");
    assert_eq!(weights(&sb, "a.test"), pair(1, 1), "tried only");
    cli(&sb, &["weight", "a.test", "east=9", "west=0"]);
    for _ in 0..2 {
        sb.kill9();
        sb = Signalbox::start(&lab, &routes(1));
        assert_eq!(weights(&sb, "a.test"), pair(9, 0));
    }
    sb.reload(&routes(2));
    assert_eq!(weights(&sb, "a.test"), pair(9, 0), "the file was edited");
    sb.kill9();
    sb = Signalbox::start(&lab, &routes(3));
    assert_eq!(weights(&sb, "a.test"), pair(9, 0), "and edited while nobody was there");

    // Weights of a file change all or none.
    let file = lab.dir().join("weights");
    std::fs::write(&file, "a.test east=1 west=3\nb.test east=5 elsewhere=5\n").unwrap();
    let file = file.to_str().unwrap();
    let why = refusal(&sb, &["weight", "--file", file]);
    assert!(why.contains("there is no cluster elsewhere"), "{why}");
    assert_eq!(weights(&sb, "a.test"), pair(9, 0));
    std::fs::write(file, "a.test east=1 west=3\nb.test east=5 west=6 # and this one\n").unwrap();
    cli(&sb, &["weight", "--file", file]);
    assert_eq!(
        (weights(&sb, "a.test"), weights(&sb, "b.test")),
        (pair(1, 3), pair(5, 6))
    );
    for (words, why) in [
        (&["a.test", "east=0", "west=0"][..], "above 0"),
        (&["c.test", "east=1"], "there is no route c.test"),
    ] {
        let said = refusal(&sb, &[&["weight"], words].concat());
        assert!(said.contains(why), "{said}");
    }
    let explained = cli(&sb, &["explain", "a.test"]);
    assert!(explained.contains("weights set by API"), "{explained}");

    cli(&sb, &["weight", "a.test", "--clear"]);
    assert_eq!(
        (weights(&sb, "a.test"), weights(&sb, "b.test")),
        (pair(3, 1), pair(5, 6))
    );
    sb.kill9();
    sb = Signalbox::start(&lab, &routes(3));
    assert_eq!(
        (weights(&sb, "a.test"), weights(&sb, "b.test")),
        (pair(3, 1), pair(5, 6))
    );
}

#[lab_test]
fn a_config_put_by_api_survives_a_kill_until_the_file_changes() {
    let lab = cut::lab();
    let body = |weight: u32| config::web(&[&format!("{{ host: a.test, clusters: {{ east: {weight} }} }}")]);
    let weight = |sb: &Signalbox| sb.json("/api/v1/routes")["routes"][0]["clusters"][0]["weight"].clone();
    let put = |sb: &Signalbox, text: &str| sb.unix("PUT", "/api/v1/config", &sb.document(text)).status;
    let mut sb = Signalbox::start(&lab, &body(1));
    assert_eq!(put(&sb, &body(7)), 200);
    assert_eq!(
        sb.unix("PUT", "/api/v1/routes/a.test", r#"{"clusters":{"east":9}}"#)
            .status,
        200
    );
    for _ in 0..2 {
        sb.kill9();
        sb = Signalbox::start(&lab, &body(1));
        assert_eq!(weight(&sb), 9, "with the weights that were set since");
    }
    // A refused one leaves the last good one.
    assert_eq!(put(&sb, &body(700)), 422);
    let taken = body(8).replace("10.1.0.1:80", "10.1.0.1:22222");
    let holder = lab.lb.listen("10.1.0.1:22222");
    assert_eq!(put(&sb, &taken), 422);
    drop(holder);
    sb.kill9();
    sb = Signalbox::start(&lab, &body(1));
    assert_eq!(weight(&sb), 9);
    cli(&sb, &["weight", "a.test", "--clear"]);
    assert_eq!(weight(&sb), 7);
    // Read again on request, the file counts; it also does when it has changed.
    assert_eq!(sb.unix("POST", "/api/v1/reload", "").status, 200);
    assert_eq!(weight(&sb), 1);
    sb.kill9();
    sb = Signalbox::start(&lab, &body(1));
    assert_eq!(weight(&sb), 1);
    assert_eq!(put(&sb, &body(7)), 200);
    sb.kill9();
    sb = Signalbox::start(&lab, &body(2));
    assert_eq!(weight(&sb), 2);
}
