//! Out and in: under load, of hosts, clusters and applications, of many hosts in parallel.

use crate::lab;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lab::{Lab, SOON, Signalbox, config, cut, eventually, http, lab_test, servers};
use serde_json::{Value, json};

use super::{HTTP, TCP, cli, done, job, out, refusal, start, web};

const EAST: [&str; 3] = ["east-1", "east-2", "east-3"];

/// Returns the hosts that answer a few requests.
fn homes(lab: &Lab, name: &str) -> std::collections::BTreeSet<String> {
    (0..12).map(|_| http::ask(lab, HTTP, name).field("host")).collect()
}

#[lab_test]
fn out_and_in_under_load_and_no_request_fails() {
    let (lab, _routers, sb) = start(&web());
    let (stop, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
    let failures: Vec<String> = std::thread::scope(|scope| {
        let callers = [(), ()].map(|()| {
            scope.spawn(|| {
                lab.client.run(|| {
                    let mut failures = Vec::new();
                    while !stop.load(Ordering::SeqCst) {
                        failures.extend(http::ask_here(HTTP, "a.test").err());
                        calls.fetch_add(1, Ordering::SeqCst);
                    }
                    failures
                })
            })
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for host in EAST.iter().cycle().take(9) {
                let said = cli(&sb, &["rotate", "out", host]);
                assert_eq!(said.trim(), format!("out of rotation: host:east/{host}"));
                assert_eq!(
                    sb.host(host)["active_connections"],
                    0,
                    "it returns when nothing is left"
                );
                let total = sb.host(host)["total_connections"].clone();
                let before = calls.load(Ordering::SeqCst);
                assert!(eventually(SOON, || calls.load(Ordering::SeqCst) > before + 50));
                assert_eq!(sb.host(host)["total_connections"], total, "nothing new reaches {host}");
                cli(&sb, &["rotate", "in", host]);
                assert!(
                    eventually(SOON, || sb.host(host)["total_connections"] != total),
                    "{host} is in again"
                );
            }
        }));
        stop.store(true, Ordering::SeqCst);
        let failures = callers.into_iter().flat_map(|c| c.join().unwrap()).collect();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        failures
    });
    let calls = calls.load(Ordering::SeqCst);
    assert!(
        failures.is_empty(),
        "{} of {calls} failed, the first: {}",
        failures.len(),
        failures[0]
    );
    assert_eq!(sb.json("/api/v1/rotations")["rotations"], json!([]));
}

#[lab_test]
fn hosts_clusters_applications_and_who_may_not_go() {
    let (lab, _routers, sb) = start(&web());
    // Several at once are one job.
    cli(&sb, &["rotate", "out", "east-1", "east/east-2"]);
    assert_eq!(homes(&lab, "a.test"), ["east-3".to_owned()].into());
    assert_eq!(sb.host("east-1")["out_of_rotation"], "host:east/east-1");
    assert!(cli(&sb, &["hosts"]).contains("healthy, out of rotation"));
    let listed = cli(&sb, &["rotate", "list"]);
    assert!(
        listed.contains("host:east/east-1") && listed.contains("host:east/east-2"),
        "{listed}"
    );

    // The last of an application.
    for last in ["east-3", "east", "cluster:west"] {
        let why = refusal(&sb, &["rotate", "out", last]);
        assert!(
            why.contains(".test would be left without a host") && why.contains("--force"),
            "{why}"
        );
    }
    assert_eq!(
        homes(&lab, "a.test"),
        ["east-3".to_owned()].into(),
        "a refusal changes nothing"
    );
    cli(&sb, &["rotate", "out", "east", "--force"]);
    assert_eq!(http::ask(&lab, HTTP, "a.test").status, 503);
    let why = refusal(&sb, &["rotate", "in", "east-3"]);
    assert!(why.contains("is out because cluster:east is"), "{why}");
    cli(&sb, &["rotate", "in", "east"]);
    assert_eq!(
        homes(&lab, "a.test"),
        ["east-3".to_owned()].into(),
        "each is in when it is taken in itself"
    );
    cli(&sb, &["rotate", "in", "host:east/east-2", "east-1"]);
    assert!(eventually(SOON, || homes(&lab, "a.test").len() == 3));

    // An application, while another stays in.
    cli(&sb, &["rotate", "out", "B.test"]);
    assert_eq!(http::ask(&lab, HTTP, "b.test").status, 503);
    assert_eq!(http::ask(&lab, HTTP, "a.test").status, 200);
    cli(&sb, &["rotate", "in", "application:b.test"]);
    assert_eq!(http::ask(&lab, HTTP, "b.test").status, 200);

    for (words, part) in [
        (
            &["rotate", "out", "nobody"][..],
            "there is no host, cluster, application or gear \"nobody\"",
        ),
        (&["rotate", "in", "east-1"], "is not out of rotation"),
        (&["rotate", "cancel", "7"], "there is no job 7"),
    ] {
        let why = refusal(&sb, words);
        assert!(why.contains(part), "{why}");
    }
    for (body, part) in [
        ("{", "expected for example"),
        (r#"{"action":"out","names":["x"],"timeout":-1}"#, "0 to 86400"),
    ] {
        let response = sb.unix("POST", "/api/v1/rotations", body);
        assert!(
            response.status == 400 && response.body.contains(part),
            "{}",
            response.body
        );
    }
    let over_tcp = sb.admin("POST", "/api/v1/rotations", r#"{"action":"out","names":["east-1"]}"#);
    assert_eq!(over_tcp.status, 403);
}

#[lab_test]
fn twenty_hosts_in_parallel_each_with_flows_of_its_own() {
    let lab = cut::lab();
    let names: Vec<String> = (0..21).map(|n| format!("h{n}")).collect();
    let entries: Vec<_> = (0..21)
        .map(|n| format!("{{ name: h{n}, address: 10.2.0.2, tcp: {} }}", 4000 + n))
        .collect();
    let servers: Vec<_> = (0..21)
        .map(|n| servers::hand_over(lab.host("east-1"), &format!("[::]:{}", 4000 + n)))
        .collect();
    let listener = "{ name: tcp, protocol: tcp, listen: [\"10.1.0.1:3306\"], cluster: east }";
    let keys = [
        "balance: round-robin",
        "health: { tcp: {}, interval: 2s, timeout: 1s, rise: 1, fall: 1 }",
    ];
    let east = config::cluster_of("east", &keys, &entries);
    let sb = Signalbox::start(&lab, &format!("listeners:\n  - {listener}\nclusters:\n{east}"));
    let all: Vec<_> = names.iter().map(String::as_str).collect();
    sb.wait_healthy(&all);
    let hang_up = || {
        servers
            .iter()
            .for_each(|(_, receiver)| while receiver.try_recv().is_ok() {});
    };
    let clients: Vec<_> = (0..42).map(|_| lab.client.connect(TCP)).collect();
    assert!(eventually(SOON, || sb.flow_count() == 42));
    let mut words = vec!["rotate", "out", "--no-wait", "--timeout", "60"];
    words.extend(&all[..20]);
    let said = cli(&sb, &words);
    let id: u64 = said.trim().strip_prefix("job ").unwrap().parse().unwrap();
    assert_eq!(job(&sb, id)["remaining_connections"], 40);
    let why = refusal(&sb, &["rotate", "out", "h20"]);
    assert!(why.contains("listener tcp would be left without"), "{why}");
    let new = lab.client.connect(TCP);
    assert!(eventually(SOON, || sb.host("h20")["active_connections"] == 3));
    drop((clients, new));
    hang_up();
    let view = done(&sb, id);
    assert_eq!(
        (&view["progress"], &view["closed_connections"]),
        (&json!("done"), &json!(0)),
        "{view}"
    );

    // Called off: the hosts that it had taken out are in again, and no connection is closed.
    cli(&sb, &["rotate", "in", "h0"]);
    let stays: Vec<_> = (0..4).map(|_| lab.client.connect(TCP)).collect();
    assert!(eventually(SOON, || sb.host("h0")["active_connections"] == 2));
    let id = out(&sb, "h0", 2.0);
    let said = cli(&sb, &["rotate", "cancel", &id.to_string()]);
    assert_eq!(said.trim(), "called off: host:east/h0");
    assert_eq!(sb.host("h0")["out_of_rotation"], Value::Null);
    assert!(!eventually(
        Duration::from_secs(3),
        || sb.host("h0")["active_connections"] != 2
    ));
    assert_eq!(job(&sb, id)["progress"], "cancelled");
    drop(stays);
}
