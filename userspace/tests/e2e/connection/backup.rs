//! Backup hosts: of services, of `tcp` listeners and of routes. They serve while no other host of their cluster can,
//! and keep their connections afterwards.

use crate::lab;

use std::net::TcpStream;

use lab::cut::{self, CutLab};
use lab::services::{Answerer, ask, echo, greeter, greeting, udp};
use lab::{Lab, Router, SOON, Server, Signalbox, config, eventually, http, lab_test};

const BACKUP: &str = "backup: true";

/// A cluster of `east-1`, and of `east-3` as its backup.
fn east() -> String {
    let hosts = [config::host("east-1"), config::host_with("east-3", BACKUP)];
    config::cluster_of(
        "east",
        &["health: { tcp: { port: 3306 }, interval: 1s, fast_interval: 300ms, timeout: 1s, rise: 1, fall: 2 }"],
        &hosts,
    )
}

pub(crate) fn wait_health(sb: &Signalbox, host: &str, health: &str) {
    assert!(
        eventually(SOON, || sb.host(host)["health"] == health),
        "{}\n{}",
        sb.host(host),
        sb.proc.log()
    );
}

pub(crate) fn connect(lab: &Lab) -> (TcpStream, String) {
    let stream = lab.client.connect("10.1.0.1:3306");
    let name = greeting(&stream);
    (stream, name)
}

pub(crate) fn start_greeter(lab: &Lab, name: &str) -> Server {
    greeter(lab.host(name), "[::]:3306", name)
}

#[lab_test]
fn a_services_backup_serves_while_no_other_host_stands() {
    let lab = Lab::new();
    let first = start_greeter(&lab, "east-1");
    let _backup = start_greeter(&lab, "east-3");
    let _datagrams = ["east-1", "east-3"].map(|name| Answerer::start(lab.host(name), "[::]:53", name));
    let services = "services:\n  \
        - { name: db, protocol: tcp, listen: [\"10.1.0.1:3306\"], cluster: east }\n  \
        - { name: dns, protocol: udp, listen: [\"10.1.0.1:53\"], cluster: east }\nclusters:\n";
    let sb = Signalbox::start(&lab, &format!("{services}{}", east()));
    sb.wait_healthy(&["east-1", "east-3"]);
    let shares = || {
        let answer = sb.json("/api/v1/services");
        let hosts = &answer["services"][0]["hosts"];
        ["east-1", "east-3"].map(|host| lab::signalbox::find(hosts, "name", host)["share"].as_f64())
    };
    let expect_shares = |wanted: [f64; 2]| {
        let seen = eventually(SOON, || {
            let shares = shares();
            (0..2).all(|at| shares[at].is_some_and(|share| (share - wanted[at]).abs() < 0.1))
        });
        assert!(seen, "{}\n{}", sb.json("/api/v1/services"), sb.proc.log());
    };
    let who = || ask(&udp(&lab, "10.1.0.1:53"), b"who?");
    expect_shares([100.0, 0.0]);
    for _ in 0..20 {
        assert_eq!(connect(&lab).1, "east-1");
        assert_eq!(who().as_deref(), Some("east-1"));
    }
    drop(first);
    expect_shares([0.0, 100.0]);
    let (kept, name) = connect(&lab);
    assert_eq!(name, "east-3");
    let session = udp(&lab, "10.1.0.1:53");
    assert_eq!(ask(&session, b"who?").as_deref(), Some("east-3"));
    let _first = start_greeter(&lab, "east-1");
    expect_shares([100.0, 0.0]);
    for _ in 0..20 {
        assert_eq!(connect(&lab).1, "east-1");
        assert_eq!(who().as_deref(), Some("east-1"));
    }
    echo(&kept, b"goes on").unwrap();
    assert_eq!(ask(&session, b"again").as_deref(), Some("east-3"));
    // For new connections, out of rotation is as good as dead.
    let out = sb.cli(&["rotate", "out", "east-1", "--no-wait"]);
    assert!(out.status.success(), "{out:?}");
    expect_shares([0.0, 100.0]);
}

#[lab_test]
fn a_tcp_listeners_backup_keeps_what_it_has() {
    let lab = Lab::new();
    let first = start_greeter(&lab, "east-1");
    let _backup = start_greeter(&lab, "east-3");
    let listener =
        "listeners:\n  - { name: db, protocol: tcp, listen: [\"10.1.0.1:3306\"], cluster: east }\nclusters:\n";
    let sb = Signalbox::start(&lab, &format!("{listener}{}", east()));
    sb.wait_healthy(&["east-1", "east-3"]);
    for _ in 0..10 {
        assert_eq!(connect(&lab).1, "east-1");
    }
    assert_eq!(sb.host("east-3")["backup"], true);
    let table = String::from_utf8(sb.cli(&["hosts"]).stdout).unwrap();
    assert!(table.contains("healthy, backup"), "{table}");
    drop(first);
    wait_health(&sb, "east-1", "unhealthy");
    let (kept, name) = connect(&lab);
    assert_eq!(name, "east-3");
    let _first = start_greeter(&lab, "east-1");
    wait_health(&sb, "east-1", "healthy");
    assert!(eventually(SOON, || connect(&lab).1 == "east-1"));
    for _ in 0..10 {
        assert_eq!(connect(&lab).1, "east-1");
    }
    echo(&kept, b"goes on").unwrap();
}

/// Whether a host answers for the name, by HTTP and by TLS.
fn answers(lab: &CutLab, name: &str) -> bool {
    let urls = ["http://a.test/", "https://a.test/"];
    urls.iter().all(|url| {
        let answer = http::curl(lab, "10.1.0.1", &["-k", url]);
        answer.code == 0 && http::field(&answer.body, "host") == name
    })
}

#[lab_test]
fn a_routes_backup_serves_on_the_default_path() {
    let lab = cut::lab();
    let mut first = Router::start(&lab, "east-1");
    let _backup = Router::start(&lab, "east-3");
    let hosts = [config::host("east-1"), config::host_with("east-3", BACKUP)];
    let sb = Signalbox::start(
        &lab,
        &format!(
            "{}clusters:\n{}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
            config::WEB_LISTENERS,
            config::cluster_of("east", &[], &hosts)
        ),
    );
    sb.wait_healthy(&["east-1", "east-3"]);
    let expect = |name: &str| {
        assert!(eventually(SOON, || answers(&lab, name)), "{}", sb.proc.log());
        for _ in 0..10 {
            assert!(answers(&lab, name), "{}", sb.proc.log());
        }
    };
    expect("east-1");
    let text = String::from_utf8(sb.cli(&["explain", "http://a.test/"]).stdout).unwrap();
    assert!(text.contains("east-3: backup, "), "{text}");
    assert!(
        text.contains("it is a backup: other hosts of the cluster take connections"),
        "{text}"
    );
    first.kill();
    wait_health(&sb, "east-1", "unhealthy");
    expect("east-3");
    first.restart();
    wait_health(&sb, "east-1", "healthy");
    expect("east-1");
    // Where the kernel peeks, it has chosen all of them but the first few.
    if sb.metric("signalbox_kernel_peek_routes") > 0.0 {
        let routed = sb.metric("signalbox_bpf_exits_total{program=\"peek_in\",reason=\"routed\"}");
        assert!(routed >= 40.0, "{routed}\n{}", sb.get("/metrics").1);
    }
}
