//! Names that the new cluster does not serve as the old one does: probes find them before any client does.

use crate::http::https::scene::{certificate, certificates};
use crate::lab;

use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use lab::{Lab, Router, SOON, Server, Signalbox, config, eventually, lab_test, servers};
use serde_json::{Value, json};

use super::{newest, refusal, wait_for};

const NAMES: [&str; 2] = ["a.test", "b.test"];

/// Two names of east, which west serves too, by HTTP and by TLS.
fn start(lab: &Lab) -> Signalbox {
    let sb = Signalbox::start(lab, &body(&["west-1"]));
    sb.wait_healthy(&["east-1", "west-1"]);
    sb
}

fn body(west: &[&str]) -> String {
    let clusters = config::cluster("east", &[], &["east-1"]) + &config::cluster("west", &[], west);
    let routes = NAMES.map(|name| format!("  - {{ host: {name}, clusters: {{ east: 1, west: 0 }} }}\n"));
    format!(
        "{}clusters:\n{clusters}routes:\n{}",
        config::WEB_LISTENERS,
        routes.concat()
    )
}

/// Hosts that answer health checks, and each request by a function of the host's name and the request.
fn hosts(lab: &Lab, answer: fn(&str, &str) -> (&'static str, Duration)) -> Vec<Server> {
    let serve = |host: &'static str| {
        let web = Server::start(lab.host(host), "[::]:80", move |stream| {
            let mut request = [0; 4096];
            let length = (&*stream).read(&mut request).unwrap_or(0);
            let (status, delay) = answer(host, &String::from_utf8_lossy(&request[..length]));
            thread::sleep(delay);
            let (body, length) = (format!("host={host}"), "host=".len() + host.len());
            let _ = write!(
                &*stream,
                "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
        });
        [servers::healthy(lab.host(host)), web]
    };
    ["east-1", "west-1"].map(serve).into_iter().flatten().collect()
}

/// Whether probes of west are answered; clients do not wait. Each test has a process of its own.
static IS_ANSWERED: AtomicBool = AtomicBool::new(false);

fn late_probes_of_west(host: &str, request: &str) -> (&'static str, Duration) {
    while host == "west-1" && request.contains("signalbox-probe") && !IS_ANSWERED.load(Relaxed) {
        thread::sleep(Duration::from_millis(10));
    }
    ("200 OK", Duration::ZERO)
}

fn asks(migration: &Value) -> bool {
    let reason = migration["reason"].as_str();
    reason.is_some_and(|why| why.starts_with("asks for names"))
}

fn words<'a>(names: &[&'a str], further: &'a str) -> Vec<&'a str> {
    let plan = ["--from", "east", "--to", "west", "--steps", "50,100", "--hold", "1s"];
    let further = further.split(' ').filter(|word| !word.is_empty());
    ["migrate"]
        .into_iter()
        .chain(names.iter().copied())
        .chain(plan)
        .chain(further)
        .collect()
}

/// Weights of each name that are set.
fn weights(sb: &Signalbox) -> Vec<Value> {
    let routes = sb.json("/api/v1/routes")["routes"].as_array().cloned().unwrap();
    routes
        .iter()
        .map(|route| {
            json!([
                route["host"],
                route["clusters"][0]["weight"],
                route["clusters"][1]["weight"]
            ])
        })
        .collect()
}

fn as_before() -> Vec<Value> {
    NAMES.map(|name| json!([name, 1, 0])).to_vec()
}

#[lab_test]
fn a_name_without_a_backend_in_the_new_cluster_does_not_move() {
    let lab = lab::cut::lab();
    let _east = Router::with_rules(&lab, "east-1", "", &NAMES);
    let rule = "  http-request return status 503 if { req.hdr(host) -m beg b.test }";
    let _west = Router::with_rules(&lab, "west-1", rule, &NAMES);
    let sb = start(&lab);
    let tried = refusal(&sb, &words(&NAMES, "--dry-run"));
    assert!(
        tried.contains("b.test through west-1 (HTTP): HTTP 503, and the old cluster HTTP 200"),
        "{tried}"
    );
    assert_eq!(sb.json("/api/v1/migrations")["migrations"], json!([]));

    let output = sb.cli(&words(&NAMES, "--min-samples 0"));
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let migration = newest(&sb);
    assert_eq!(
        (&migration["state"], &migration["failed_guard"]),
        (&json!("rolled_back"), &json!("probes"))
    );
    assert!(
        migration["reason"]
            .as_str()
            .unwrap()
            .starts_with("before the first step: b.test"),
        "{migration}"
    );
    assert_eq!((migration["steps"].clone(), weights(&sb)), (json!([]), as_before()));
    assert_eq!(
        sb.metric("signalbox_migration_guard_failures_total{guard=\"probes\"}"),
        1.0
    );

    // The name is left out where all are to move that can.
    let output = sb.cli(&words(&[], "--all --min-samples 0"));
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    assert!(
        report.contains("- Left out (1): b.test (west-1 (HTTP): HTTP 503"),
        "{report}"
    );
    assert!(
        report.contains("in the last one 1 names, 0 with a worse answer"),
        "{report}"
    );
    assert_eq!(weights(&sb), [json!(["a.test", 0, 100]), json!(["b.test", 1, 0])]);
}

#[lab_test]
fn a_certificate_wrong_only_in_the_new_cluster_is_found() {
    let lab = lab::cut::lab();
    let _east = Router::with_rules(&lab, "east-1", "", &NAMES);
    let _west = Router::with_rules(&lab, "west-1", "", &["a.test"]);
    let sb = start(&lab);
    let tried = refusal(&sb, &words(&["b.test"], "--dry-run"));
    let why = "b.test through west-1 (TLS): the certificate is for a.test, and not for b.test";
    assert!(tried.contains(why), "{tried}");
    assert!(sb.cli(&words(&["a.test"], "--dry-run")).status.success());
    assert_eq!(weights(&sb), as_before());
    // `--no-probe` moves the name all the same.
    assert!(
        sb.cli(&words(&["b.test"], "--no-probe --min-samples 0"))
            .status
            .success()
    );
}

/// Every host is asked before the first step, because one of several may lack a name.
#[lab_test]
fn every_host_of_the_new_cluster_is_asked() {
    let lab = lab::cut::lab();
    let _routers = Router::start_all(&lab, &["east-1", "west-1"]);
    let rule = "  http-request return status 404 if { req.hdr(host) -m beg b.test }";
    let _west = Router::with_rules(&lab, "west-2", rule, &NAMES);
    let sb = Signalbox::start(&lab, &body(&["west-1", "west-2"]));
    sb.wait_healthy(&["east-1", "west-1", "west-2"]);
    let tried = refusal(&sb, &words(&NAMES, "--dry-run"));
    let why = "b.test through west-2 (HTTP): HTTP 404, and the old cluster HTTP 200";
    assert!(tried.contains(why), "{tried}");
}

/// Where the balancer ends TLS, clients do not see the certificates of hosts; the hosts are asked as it asks them.
#[lab_test]
fn names_whose_tls_ends_here_are_asked_for_as_hosts_see_them() {
    let lab = lab::cut::lab();
    let _east = Router::with_rules(&lab, "east-1", "", &NAMES);
    let rule = "  http-request return status 503 if { req.hdr(host) -m beg a.test } !{ ssl_fc }";
    let _west = Router::with_rules(&lab, "west-1", rule, &["other.test"]);
    let pem = certificate(&lab, "balancer", &NAMES);
    let keys = format!("backend_tls: {{ ca: {} }}", lab.dir().join("ca.pem").display());
    let clusters = config::cluster("east", &[&keys], &["east-1"]) + &config::cluster("west", &[&keys], &["west-1"]);
    let body = format!(
        "{}\nlisteners:\n  - {{ name: https, protocol: https, listen: [\"10.1.0.1:443\"], termination: edge }}\n\
         clusters:\n{clusters}routes:\n  - {{ host: a.test, clusters: {{ east: 1, west: 0 }} }}\n  \
         - {{ host: b.test, clusters: {{ east: 1, west: 0 }}, tls: {{ termination: reencrypt }} }}\n",
        certificates(&pem)
    );
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1", "west-1"]);
    let tried = refusal(&sb, &words(&["a.test"], "--dry-run"));
    let why = "a.test through west-1 (HTTP): HTTP 503, and the old cluster HTTP 200";
    assert!(tried.contains(why), "{tried}");
    // The balancer itself would refuse this host.
    let tried = refusal(&sb, &words(&["b.test"], "--dry-run"));
    assert!(tried.contains("b.test through west-1 (TLS): "), "{tried}");
    assert!(tried.contains("its certificate is for other names"), "{tried}");
}

/// A name that breaks during a step goes back, although no client has asked for it.
#[lab_test]
fn a_name_that_breaks_during_a_step_is_found_without_traffic() {
    static IS_BROKEN: AtomicBool = AtomicBool::new(false);
    let lab = lab::cut::lab();
    let _hosts = hosts(&lab, |host, _| {
        let is_broken = host == "west-1" && IS_BROKEN.load(Relaxed);
        (if is_broken { "404 Not Found" } else { "302 Found" }, Duration::ZERO)
    });
    let sb = start(&lab);
    let output = sb.cli(&words(&NAMES, "--no-wait --min-samples 1"));
    assert!(output.status.success(), "{output:?}");
    wait_for(&sb, "the step waits for traffic", |migration| {
        migration["reason"]
            .as_str()
            .is_some_and(|why| why.starts_with("waits for traffic"))
    });
    assert_eq!(weights(&sb), NAMES.map(|name| json!([name, 50, 50])));
    IS_BROKEN.store(true, Relaxed);
    wait_for(&sb, "probes find it", |migration| migration["state"] == "rolled_back");
    let reason = newest(&sb)["reason"].as_str().unwrap().to_owned();
    let why = ".test through west-1 (HTTP): HTTP 404, and the old cluster HTTP 302";
    assert!(
        reason.starts_with("at 50 %: probe of ") && reason.contains(why),
        "{reason}"
    );
    assert!(eventually(SOON, || weights(&sb) == as_before()), "{:?}", weights(&sb));
}

/// Testers get no name before it was asked for; weights that somebody sets meanwhile stay.
#[lab_test]
fn nothing_moves_while_names_are_asked_for() {
    let lab = lab::cut::lab();
    let _hosts = hosts(&lab, late_probes_of_west);
    let sb = start(&lab);
    let begun = sb.cli(&words(&NAMES, "--no-wait --testers 10.1.0.0/16 --probe-timeout 20s"));
    assert!(begun.status.success(), "{begun:?}");
    wait_for(&sb, "names are asked for", asks);
    assert_eq!(lab::http::ask(&lab, "10.1.0.1:80", "a.test").field("host"), "east-1");
    assert!(sb.cli(&["weight", "b.test", "east=3", "west=1"]).status.success());
    assert!(asks(&newest(&sb)), "{}", newest(&sb));
    IS_ANSWERED.store(true, Relaxed);
    wait_for(&sb, "it has not moved anything", |migration| {
        migration["state"] == "rolled_back"
    });
    let reason = newest(&sb)["reason"].as_str().unwrap().to_owned();
    assert_eq!(
        reason,
        "before the first step: the weights of b.test were changed in the meantime"
    );
    let operators = [json!(["a.test", 1, 0]), json!(["b.test", 3, 1])];
    assert_eq!(weights(&sb), operators);

    // An abort leaves them, too.
    IS_ANSWERED.store(false, Relaxed);
    let begun = sb.cli(&words(&NAMES, "--no-wait --probe-timeout 20s"));
    assert!(begun.status.success(), "{begun:?}");
    wait_for(&sb, "names are asked for", asks);
    assert!(sb.cli(&["weight", "b.test", "east=5", "west=1"]).status.success());
    let id = newest(&sb)["id"].to_string();
    assert!(sb.cli(&["migrate", "--abort", &id]).status.success());
    assert_eq!(newest(&sb)["state"], "aborted");
    assert_eq!(weights(&sb), [json!(["a.test", 1, 0]), json!(["b.test", 5, 1])]);
}

/// A router in trouble answers 503 for all names, before health checks take it out.
#[lab_test]
fn a_host_in_trouble_is_not_the_fault_of_its_names() {
    let lab = lab::cut::lab();
    let _routers = Router::start_all(&lab, &["east-1", "west-1", "west-2"]);
    let sb = Signalbox::start(&lab, &body(&["west-1", "west-2"]));
    sb.wait_healthy(&["east-1", "west-1", "west-2"]);
    let output = sb.cli(&words(&NAMES, "--no-wait --min-samples 1"));
    assert!(output.status.success(), "{output:?}");
    wait_for(&sb, "the step waits for traffic", |migration| {
        migration["reason"]
            .as_str()
            .is_some_and(|why| why.starts_with("waits for traffic"))
    });
    // Its health checks are still answered.
    let _sick = Server::start(lab.host("west-2"), "[::]:8081", |stream| {
        let _ = (&*stream).read(&mut [0; 4096]);
        let head = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        let _ = (&*stream).write_all(head);
    });
    let redirect =
        "table ip sick { chain in { type nat hook prerouting priority dstnat; tcp dport 80 redirect to :8081; }; }";
    lab.host("west-2").must(&["nft", redirect]);
    let rounds = newest(&sb)["probes"]["rounds"].as_u64().unwrap();
    wait_for(&sb, "two rounds have seen it", |migration| {
        let is_seen = migration["probes"]["unknown"].as_u64() >= Some(1);
        is_seen && migration["probes"]["rounds"].as_u64() >= Some(rounds + 2)
    });
    assert_eq!(newest(&sb)["state"], "running", "{}", newest(&sb));
}

/// The balancer is killed before the first answers have come: it asks again, and only then moves the names.
#[lab_test]
fn names_are_asked_for_again_after_the_balancer_was_killed() {
    let lab = lab::cut::lab();
    let _hosts = hosts(&lab, late_probes_of_west);
    let mut sb = start(&lab);
    let begun = sb.cli(&words(&NAMES, "--no-wait --min-samples 0 --probe-timeout 20s"));
    assert!(begun.status.success(), "{begun:?}");
    wait_for(&sb, "names are asked for", asks);
    sb.kill9();
    sb = Signalbox::start(&lab, &body(&["west-1"]));
    wait_for(&sb, "names are asked for again", asks);
    assert_eq!(weights(&sb), as_before());
    IS_ANSWERED.store(true, Relaxed);
    wait_for(&sb, "all have moved", |migration| migration["state"] == "completed");
    assert!(newest(&sb)["probes"]["rounds"].as_u64() >= Some(1), "{}", newest(&sb));
}
