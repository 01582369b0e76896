//! Features that remain where the kernel refuses a program, or a part of one; and reports of those that are missing.
//! Kernels that really refuse are booted by `cargo xtask test --kernel`; here `SIGNALBOX_REFUSE` plays them.

use std::io::{ErrorKind, Read as _};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::lab::callers::{call, is_greeted, is_served};
use crate::lab::cut::{self, Hosts, doors, expect_tier};
use crate::lab::services::greeter;
use crate::lab::signalbox::{peeks_in_userspace, write_config};
use crate::lab::{Lab, SOON, Signalbox, StopOnDrop, eventually, lab_test};

const WEB: &str = "10.1.0.1:8080";
const DB: &str = "10.1.0.1:3306";
const GOOD: &str = "10.1.0.2";
const BAD: &str = "10.1.0.3";

/// A listener, and with `services` a service, in front of one host.
fn body(top: &str, has_service: bool) -> String {
    let service = "services:\n  - { name: db, protocol: tcp, listen: [\"10.1.0.1:3306\"], cluster: east }\n";
    format!(
        "{top}\nlisteners:\n  - {{ name: web, protocol: tcp, listen: [\"{WEB}\"], cluster: east }}\n{}\
         clusters:\n  - name: east\n    health: {{ tcp: {{ port: 3306 }}, interval: 1s, timeout: 500ms, rise: 1 }}\n    \
         hosts: [{{ name: east-1, address: 10.2.0.2, tcp: 3306 }}]\n",
        if has_service { service } else { "" }
    )
}

/// Starts it without waiting until it is ready, which it may never be; waits until it answers.
fn start(lab: &Lab, refused: &'static str, body: &str) -> Signalbox {
    lab.set_env("SIGNALBOX_REFUSE", refused);
    let config = write_config(lab, "signalbox.yaml", body);
    let sb = Signalbox::spawn_file(lab, "signalbox", &config, &[]);
    let answers = || sb.try_get("/readyz").is_ok() && sb.host("east-1")["health"] == "healthy";
    assert!(eventually(SOON, answers), "{}", sb.proc.log());
    sb
}

fn missing(sb: &Signalbox) -> Vec<(String, bool)> {
    let status = sb.json("/api/v1/status");
    let all = status["missing_features"].as_array().cloned().unwrap_or_default();
    let one = |one: Value| (one["feature"].as_str().unwrap().to_owned(), one["is_required"] == true);
    all.into_iter().map(one).collect()
}

#[lab_test]
fn a_refused_shield_means_unready_and_no_deny_claims_success() {
    let lab = Lab::new();
    lab.set_env("SIGNALBOX_LOG", "debug");
    let _server = greeter(lab.host("east-1"), "[::]:3306", "east-1");
    let sb = start(&lab, "l4_tc", &body("shield: { deny: [10.1.0.3] }", false));
    let (status, text) = sb.get("/readyz?verbose");
    assert_eq!(status, 503, "{text}");
    assert!(text.contains("not ready: shield: ") && text.contains("l4_tc"), "{text}");
    assert!(text.contains("\n[-] shield: "), "{text}");
    assert_eq!(missing(&sb), [("shield".to_owned(), true)]);
    assert_eq!(
        sb.metric("signalbox_feature{feature=\"shield\",state=\"missing\"}"),
        1.0
    );
    assert!(is_greeted(&lab, GOOD, WEB), "listeners serve all the same");

    let denied = sb.cli(&["shield", "deny", "192.0.2.7"]);
    let said = String::from_utf8_lossy(&denied.stderr).into_owned();
    assert!(
        !denied.status.success() && said.contains("not in force") && said.contains("l4_tc"),
        "{said}"
    );
    let listed = sb.cli(&["shield", "list"]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("nothing is denied"), "{listed}");

    // A refusal is permanent: a failed load is not repeated every five seconds.
    thread::sleep(Duration::from_secs(7));
    let attempts = sb.proc.log().matches("Loading the programs of layer 4.").count();
    assert_eq!(attempts, 1, "{}", sb.proc.log());
    let pinned: Vec<_> = cut::pins_of(&lab, "l4-net")
        .into_iter()
        .flat_map(|dir| std::fs::read_dir(dir).unwrap())
        .collect();
    assert!(pinned.is_empty(), "a refused load leaves nothing: {pinned:?}");
}

#[lab_test]
fn a_shield_that_is_not_required_is_only_told_of() {
    let lab = Lab::new();
    let _server = greeter(lab.host("east-1"), "[::]:3306", "east-1");
    let sb = start(
        &lab,
        "l4_tc",
        &body("shield: { required: false, deny: [10.1.0.3] }", false),
    );
    let (status, text) = sb.get("/readyz?verbose");
    assert_eq!(status, 200, "{text}");
    assert!(text.contains("\n[~] shield: "), "{text}");
    assert_eq!(missing(&sb), [("shield".to_owned(), false)]);
    let denied = sb.cli(&["shield", "deny", "192.0.2.7"]);
    assert!(!denied.status.success());
}

#[lab_test]
fn the_drivers_program_takes_nothing_along() {
    for (hook, is_there) in [("auto", true), ("tc", true), ("native", false)] {
        let lab = Lab::new();
        let _server = greeter(lab.host("east-1"), "[::]:3306", "east-1");
        let top = format!("layer4: {{ hook: {hook} }}\nshield: {{ deny: [10.1.0.3] }}");
        let sb = start(&lab, "l4_xdp", &body(&top, true));
        if !is_there {
            let (status, text) = sb.get("/readyz");
            assert!(
                status == 503 && text.contains("services: ") && text.contains("l4_xdp"),
                "{hook}: {text}"
            );
            continue;
        }
        assert!(
            eventually(SOON, || sb.get("/readyz").0 == 200),
            "{hook}: {:?}",
            sb.get("/readyz?verbose")
        );
        assert!(
            eventually(SOON, || is_greeted(&lab, GOOD, DB)),
            "{hook}: {}",
            sb.proc.log()
        );
        assert!(
            is_greeted(&lab, GOOD, WEB) && !is_greeted(&lab, BAD, WEB) && !is_greeted(&lab, BAD, DB),
            "{hook}"
        );
    }
}

#[lab_test]
fn the_shield_works_without_services_and_services_without_it() {
    for refused in ["services", "shield"] {
        let lab = Lab::new();
        let _server = greeter(lab.host("east-1"), "[::]:3306", "east-1");
        let sb = start(&lab, refused, &body("shield: { deny: [10.1.0.3] }", true));
        let only = [(refused.to_owned(), true)];
        assert!(
            eventually(SOON, || missing(&sb) == only),
            "{refused}: {:?}",
            missing(&sb)
        );
        if refused == "services" {
            assert!(is_greeted(&lab, GOOD, WEB) && !is_greeted(&lab, BAD, WEB));
            assert!(!is_served(&lab, GOOD, DB));
        } else {
            assert!(eventually(SOON, || is_served(&lab, GOOD, DB)), "{}", sb.proc.log());
            // No program denies it: userspace does.
            let refused = call(&lab, BAD, WEB).and_then(|mut stream| stream.read(&mut [0; 8]));
            assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
            let reset = "signalbox_refused_total{listener=\"web\",reason=\"shield_denied\"}";
            assert!(sb.metric(reset) >= 1.0, "{}", sb.get("/metrics").1);
        }
    }
}

#[lab_test]
fn a_reload_loads_the_program_parts_that_the_new_config_needs() {
    let lab = Lab::new();
    let _server = greeter(lab.host("east-1"), "[::]:3306", "east-1");
    let shielded = body("shield: { deny: [10.1.0.3] }", false);
    let sb = start(&lab, "whole", &shielded);
    let ready = || eventually(SOON, || sb.get("/readyz").0 == 200);
    assert!(ready(), "{:?}", sb.get("/readyz?verbose"));
    assert!(is_greeted(&lab, GOOD, WEB) && !is_greeted(&lab, BAD, WEB));
    for _ in 0..2 {
        sb.reload(&body("", true));
        assert!(
            eventually(SOON, || is_served(&lab, GOOD, DB)) && ready(),
            "{}",
            sb.proc.log()
        );
        sb.reload(&shielded);
        assert!(
            eventually(SOON, || !is_served(&lab, BAD, WEB)) && ready(),
            "{}",
            sb.proc.log()
        );
        assert!(is_greeted(&lab, GOOD, WEB));
    }
}

#[lab_test]
fn cut_through_is_there_for_ipv4_where_only_that_is_taken() {
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    lab.set_env("SIGNALBOX_REFUSE", "cut_ipv6");
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    for door in doors() {
        let (client, _host) = door.enter(&lab, &hosts);
        if door.at.starts_with('[') {
            let shown = cut::shown(&sb, client.local_addr().unwrap());
            assert_ne!(shown["tier"], "cut", "{shown}");
        } else {
            expect_tier(&sb, &client, "cut");
        }
    }
    let (_, text) = sb.get("/readyz?verbose");
    assert!(text.contains("[~] cut_ipv6: "), "{text}");
}

#[lab_test]
fn a_refused_kernel_peek_is_warned_about_though_not_required() {
    if cut::lenient() || peeks_in_userspace() {
        return;
    }
    let lab = cut::lab();
    lab.set_env("SIGNALBOX_REFUSE", "peek_in");
    let (_health, sb) = cut::start(&lab, "");
    let log = sb.proc.log();
    let line = log
        .lines()
        .find(|line| line.contains("Connections are not routed in the kernel"));
    let is_warned = |line: &str| line.contains("\"level\":\"WARN\"") && line.contains("refuses program peek_in");
    assert!(line.is_some_and(is_warned), "{log}");
    assert_eq!(missing(&sb), []);
}

#[lab_test]
fn a_denied_client_is_never_served_from_the_start_on() {
    let lab = Lab::new();
    let _server = greeter(lab.host("east-1"), "[::]:3306", "east-1");
    let config = write_config(&lab, "signalbox.yaml", &body("shield: { deny: [10.1.0.3] }", false));
    for start in 0..3 {
        let (ended, served) = (AtomicBool::new(false), AtomicUsize::new(0));
        let mut sb = thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !ended.load(Relaxed) {
                        if call(&lab, BAD, WEB).is_ok() {
                            served.fetch_add(1, Relaxed);
                        }
                    }
                });
            }
            let _stop = StopOnDrop(&ended);
            let sb = Signalbox::start_file(&lab, "signalbox", &config, &[]);
            assert!(is_served(&lab, GOOD, WEB), "{}", sb.proc.log());
            thread::sleep(Duration::from_millis(300));
            sb
        });
        assert_eq!(served.load(Relaxed), 0, "start {start}: {}", sb.proc.log());
        sb.kill9();
    }
}
