//! The access log: one line for each connection that has ended, with the reason; and the handling of lines that cannot
//! be written.

use crate::lab;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lab::cut::{self, expect_none, expect_tier, finish};
use lab::tiers::ping;
use lab::{Lab, SOON, Server, Signalbox, config, eventually, http, lab_test, servers};
use serde_json::{Value, json};

pub(crate) fn log_at(path: &Path, keys: &str) -> String {
    format!("log: {{ connections: {{ to: {}{keys} }} }}\n", path.display())
}

/// The lines of a file; each must be whole.
pub(crate) fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect()
}

/// The one line about this client.
fn line_of(path: &Path, client: &str) -> Value {
    let mut found = Vec::new();
    let is_there = eventually(SOON, || {
        found = lines(path);
        found.retain(|line| line["client"] == client);
        !found.is_empty()
    });
    assert!(is_there, "no line about {client} in {:#?}", lines(path));
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

pub(crate) fn reset(stream: &TcpStream) {
    socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
}

/// Ways in which a flow ends, with the reason in the log.
const ENDS: [&str; 6] = [
    "client",
    "host",
    "client_reset",
    "host_reset",
    "idle_timeout",
    "drained",
];

fn end(sb: &Signalbox, how: &str, client: TcpStream, host: Arc<TcpStream>) {
    match how {
        "client" => finish(&client, &host),
        "host" => finish(&host, &client),
        "client_reset" => reset(&client),
        "host_reset" => reset(&host),
        "drained" => {
            let out = json!({ "action": "out", "names": ["application:a.test"], "force": true, "timeout": 1 });
            let answer = sb.unix("POST", "/api/v1/rotations", &out.to_string());
            assert_eq!(answer.status / 100, 2, "{}", answer.body);
        }
        _ => {}
    }
    if how == "idle_timeout" || how == "drained" {
        // The balancer ends both connections.
        client.set_read_timeout(Some(3 * SOON)).unwrap();
        let _ = (&client).read(&mut [0; 8]);
        if how == "drained" {
            let back = json!({ "action": "in", "names": ["application:a.test"] });
            assert_eq!(sb.unix("POST", "/api/v1/rotations", &back.to_string()).status / 100, 2);
        }
    }
}

#[test]
fn each_end_on_each_tier_has_its_line() {
    let Some((lab, hosts, door)) = cut::by_http("each_end_on_each_tier_has_its_line") else {
        return;
    };
    let file = lab.dir().join("connections.log");
    for (tier, extra) in [
        ("copy", "datapath: { tier: copy }\n"),
        ("splice", "datapath: { tier: splice }\n"),
        ("cut", ""),
    ] {
        let log = log_at(&file, "");
        let (_health, sb) = cut::start(&lab, &format!("{extra}{log}timeouts: {{ idle: 4s }}"));
        for how in ENDS {
            let (client, host) = door.enter(&lab, &hosts);
            expect_tier(&sb, &client, tier);
            let name = client.local_addr().unwrap().to_string();
            ping(&host, &client);
            end(&sb, how, client, host);
            let line = line_of(&file, &name);
            let case = format!("{tier}, {how}: {line}");
            let (ended, by) = match how {
                "client" | "host" => ("finished", json!(how)),
                other => (other, Value::Null),
            };
            assert_eq!(line["end"], ended, "{case}");
            // The flow table does not say which end finished a cut flow first.
            let by = if tier == "cut" { Value::Null } else { by };
            assert_eq!(line["closed_by"], by, "{case}");
            for (field, value) in [
                ("version", json!(1)),
                ("listener", json!("http")),
                ("local", json!("10.1.0.1:80")),
                ("protocol", json!("http")),
                ("name", json!("a.test")),
                ("route", json!("a.test")),
                ("cluster", json!("east")),
                ("host", json!("east-1")),
                ("backend", json!("10.2.0.2:80")),
                ("tier", json!(tier)),
                ("bytes_in", json!(door.first.len() + 5)),
                ("bytes_out", json!(10)),
                ("reason", Value::Null),
            ] {
                assert_eq!(line[field], value, "{field} of {case}");
            }
            assert!(line["connect_ms"].as_f64().unwrap() < 20_000.0, "{case}");
            let idle = if how == "idle_timeout" { 4000.0 } else { 0.0 };
            assert!(line["duration_ms"].as_f64().unwrap() > idle, "{case}");
            let time = line["time"].as_str().unwrap();
            assert!(time.len() == 24 && time.ends_with('Z'), "{case}");
        }
        expect_none(&sb);
        assert_eq!(sb.metric("signalbox_access_log_dropped_total"), 0.0);
        std::fs::remove_file(&file).unwrap();
    }
}

#[lab_test]
fn refused_connections_are_in_the_access_log_with_the_reason() {
    let lab = Lab::new();
    let file = lab.dir().join("connections.log");
    let limits = "limits: { per_source: { concurrent: 2 } }\ntimeouts: { peek_http: 1s }\n";
    let (_health, _sb) = Signalbox::refusing(&lab, &format!("{limits}{}", log_at(&file, "")));
    let ask = |first: &str| {
        let mut client = lab.client.connect("10.1.0.1:80");
        let name = client.local_addr().unwrap().to_string();
        client.write_all(first.as_bytes()).unwrap();
        let _ = client.read_to_end(&mut Vec::new());
        line_of(&file, &name)
    };
    let request = |name: &str| format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n");
    for (first, reason, name, route) in [
        (request("a.test"), "connect_failed", json!("a.test"), json!("a.test")),
        (request("b.test"), "no_host", json!("b.test"), json!("b.test")),
        (request("nobody.test"), "no_route", json!("nobody.test"), Value::Null),
        ("GET / HTTP/1.0\r\n\r\n".to_owned(), "no_name", Value::Null, Value::Null),
        (request("a\"b\\\u{1}"), "malformed", Value::Null, Value::Null),
        ("GET / HT".to_owned(), "timeout", Value::Null, Value::Null),
    ] {
        let line = ask(&first);
        assert_eq!(
            (&line["end"], &line["reason"]),
            (&json!("refused"), &json!(reason)),
            "{line}"
        );
        assert_eq!((&line["name"], &line["route"]), (&name, &route), "{line}");
        for field in ["cluster", "host", "backend", "tier", "connect_ms", "closed_by"] {
            assert_eq!(line[field], Value::Null, "{field} of {line}");
        }
    }
    let said = || std::fs::read_to_string(&file).unwrap();
    // A worker may accept the third connection before another has accepted the first two.
    let is_said = eventually(SOON, || {
        let _held = [0, 1].map(|_| lab.client.connect("10.1.0.1:80"));
        // The reset may be there before the connect has returned.
        drop(lab.client.try_connect("10.1.0.1:80"));
        said().contains("\"reason\":\"source_concurrent\"")
    });
    assert!(is_said, "{}", said());
}

#[test]
fn the_process_that_sees_a_cut_flow_end_writes_its_access_log() {
    let Some((lab, hosts, door)) = cut::by_http("the_process_that_sees_a_cut_flow_end_writes_its_access_log") else {
        return;
    };
    let file = lab.dir().join("connections.log");
    let log = log_at(&file, "");
    let (_health, mut sb) = cut::start(&lab, &log);
    let flows = [0, 1].map(|_| door.enter_cut(&lab, &sb, &hosts));
    let (client, host) = door.enter_cut(&lab, &sb, &hosts);
    sb.kill9();
    let name = client.local_addr().unwrap().to_string();
    finish(&client, &host);
    let mut sb = Signalbox::start(&lab, &cut::body(&log));
    let line = line_of(&file, &name);
    assert_eq!(line["end"], "finished", "ended while nobody was there: {line}");
    for (round, (client, host)) in flows.into_iter().enumerate() {
        if round == 1 {
            let new = lab.dir().join("signalbox.yaml");
            let new = Signalbox::spawn_file(&lab, "successor", &new, &["--takeover"]);
            assert_eq!(sb.proc.exit_code(3 * SOON), 0, "{}", new.proc.log());
            sb = new;
        }
        let name = client.local_addr().unwrap().to_string();
        ping(&client, &host);
        finish(&client, &host);
        let line = line_of(&file, &name);
        assert_eq!(
            (&line["end"], &line["tier"]),
            (&json!("finished"), &json!("cut")),
            "{line}"
        );
        assert_eq!(
            (&line["route"], &line["host"]),
            (&json!("a.test"), &json!("east-1")),
            "{line}"
        );
        assert_eq!(
            (&line["listener"], &line["protocol"]),
            (&json!("http"), &json!("http")),
            "{line}"
        );
        assert_eq!(
            (&line["bytes_in"], &line["bytes_out"]),
            (&json!(door.first.len() + 10), &json!(5)),
            "{line}"
        );
        // Knowledge of the killed process alone is gone.
        assert_eq!(
            (&line["name"], &line["connect_ms"]),
            (&Value::Null, &Value::Null),
            "{line}"
        );
    }
    expect_none(&sb);
}

/// Connections that are refused at once: quick lines.
fn refused(lab: &Lab, count: usize) {
    for _ in 0..count {
        let answer = http::get(lab.client.connect("10.1.0.1:80"), "nobody.test", "/");
        assert_eq!(answer.unwrap().status, 404);
    }
}

fn start(lab: &Lab, log: &str) -> (Server, Signalbox) {
    let health = servers::healthy(lab.host("east-1"));
    let sb = Signalbox::start(lab, &body(log));
    (health, sb)
}

fn body(log: &str) -> String {
    let east = config::cluster("east", &[], &["east-1"]);
    let route = "routes:\n  - { host: a.test, clusters: { east: 1 } }\n";
    format!("{log}{}clusters:\n{east}{route}", config::WEB_LISTENERS)
}

#[lab_test]
fn access_log_lines_are_sampled_filtered_limited_and_counted() {
    let lab = Lab::new();
    let file = |name: &str| -> PathBuf { lab.dir().join(name) };
    let (_health, sb) = start(&lab, &log_at(&file("limited"), ", max_per_second: 1"));
    let dropped = || sb.metric("signalbox_access_log_dropped_total{reason=\"rate\"}") as usize;
    let count = |name: &str| lines(&file(name)).len();
    refused(&lab, 200);
    assert!(
        eventually(SOON, || count("limited") + dropped() == 200),
        "{} and {}",
        count("limited"),
        dropped()
    );
    assert!(dropped() > 0 && count("limited") > 0, "{} lines", count("limited"));
    // A reload changes where, how many and which.
    sb.reload(&body(&log_at(&file("drawn"), ", sample: 0.5")));
    refused(&lab, 200);
    sb.reload(&body(&log_at(&file("chosen"), ", only: [finished, host_reset]")));
    refused(&lab, 10);
    sb.reload(&body(&log_at(&file("all"), ", only: [refused]")));
    refused(&lab, 10);
    assert!(eventually(SOON, || count("all") == 10), "{}", count("all"));
    let drawn = count("drawn");
    assert!((50..150).contains(&drawn), "{drawn} of 200");
    assert_eq!(count("chosen"), 0);
    sb.reload(&body(""));
    refused(&lab, 10);
    assert_eq!(sb.json("/api/v1/status")["access_log"], Value::Null);
    sb.reload(&body(&log_at(&file("again"), "")));
    refused(&lab, 1);
    assert!(eventually(SOON, || count("again") == 1));
    assert_eq!(count("all"), 10, "nothing was logged while it was off");
}

#[lab_test]
fn a_renamed_file_is_made_anew_by_sighup_and_by_the_api() {
    let lab = Lab::new();
    let (file, old) = (lab.dir().join("connections.log"), lab.dir().join("connections.log.1"));
    let (_health, mut sb) = start(&lab, &log_at(&file, ""));
    refused(&lab, 3);
    assert!(eventually(SOON, || lines(&file).len() == 3));
    std::fs::rename(&file, &old).unwrap();
    refused(&lab, 2);
    assert!(eventually(SOON, || lines(&old).len() == 5), "{}", lines(&old).len());
    let answer = sb.unix("POST", "/api/v1/log/reopen", "");
    assert_eq!(answer.status, 200, "{}", answer.body);
    refused(&lab, 4);
    assert!(eventually(SOON, || lines(&file).len() == 4));
    assert_eq!(lines(&old).len(), 5);
    std::fs::rename(&file, &old).unwrap();
    sb.hup();
    assert!(eventually(SOON, || file.exists()), "SIGHUP opens it");
    refused(&lab, 1);
    // Records are written before the process ends.
    sb.term();
    assert_eq!(sb.proc.exit_code(SOON), 0);
    assert_eq!(lines(&file).len(), 1);
}

#[lab_test]
fn a_full_disk_costs_lines_and_no_traffic() {
    let lab = Lab::new();
    let _echo = servers::echo(lab.host("east-1"), "[::]:80");
    let (_health, sb) = start(&lab, &log_at(Path::new("/dev/full"), ""));
    sb.wait_healthy(&["east-1"]);
    let dropped = || sb.metric("signalbox_access_log_dropped_total{reason=\"write\"}");
    refused(&lab, 50);
    assert!(eventually(SOON, || dropped() == 50.0), "{}", dropped());
    let error = sb.json("/api/v1/status")["access_log"]["error"].to_string();
    assert!(error.contains("No space left on device"), "{error}");
    assert_eq!(
        sb.unix("POST", "/api/v1/log/reopen", "").status,
        200,
        "it can be opened"
    );
    refused(&lab, 5);
    assert!(eventually(SOON, || dropped() == 55.0), "{}", dropped());
    let said = |sb: &Signalbox| sb.proc.log().matches("Connections are not logged").count();
    assert!((1..=2).contains(&said(&sb)), "{}", sb.proc.log());
    // A directory that is not there, and then is.
    let dir = lab.dir().join("logs");
    sb.reload(&body(&log_at(&dir.join("c.log"), "")));
    let answer = sb.unix("POST", "/api/v1/log/reopen", "");
    assert_eq!(answer.status, 503, "{}", answer.body);
    refused(&lab, 1);
    std::fs::create_dir(&dir).unwrap();
    let written = eventually(SOON, || {
        refused(&lab, 1);
        !lines(&dir.join("c.log")).is_empty()
    });
    assert!(written, "{}", sb.proc.log());
    assert!(sb.proc.log().contains("Connections are logged again"));
    let mut client = lab.client.connect("10.1.0.1:80");
    client.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").unwrap();
    client.read_exact(&mut [0; 16]).unwrap();
}

#[lab_test]
fn a_reader_that_stops_costs_lines_and_no_traffic() {
    let lab = Lab::new();
    let pipe = lab.dir().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut options = std::fs::OpenOptions::new();
    let reader = std::os::unix::fs::OpenOptionsExt::custom_flags(options.read(true), nix::libc::O_NONBLOCK);
    let reader = reader.open(&pipe).unwrap();
    let (_health, sb) = start(&lab, &log_at(&pipe, ", max_per_second: 100000"));
    let dropped = || sb.metric("signalbox_access_log_dropped_total{reason=\"write\"}");
    // 64 KiB are some 200 lines.
    let full = eventually(3 * SOON, || {
        refused(&lab, 100);
        dropped() > 0.0
    });
    assert!(full, "the pipe never fills");
    drop(reader);
    refused(&lab, 1);
}
