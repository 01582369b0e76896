//! Backup clusters: of a `tcp` listener, of names without a route, and of services. A backup serves while no host of the
//! other cluster can, and keeps its connections afterwards.

use crate::connection::backup::{connect, start_greeter, wait_health};
use crate::lab;

use lab::services::{Answerer, ask, echo, greeting, udp};
use lab::{Lab, Router, SOON, Signalbox, config, eventually, http, lab_test};

/// Clusters `east` of `east-1` and `spare` of `east-3`, whose hosts are checked by a connection, and further keys of
/// the backup's host.
fn clusters(keys: &str) -> String {
    let health = "health: { tcp: { port: 3306 }, interval: 1s, fast_interval: 300ms, timeout: 1s, rise: 1, fall: 2 }";
    let east = config::cluster("east", &[health], &["east-1"]);
    let spare = config::cluster_of("spare", &[health], &[config::host_with("east-3", keys)]);
    format!("clusters:\n{east}{spare}")
}

fn explained(sb: &Signalbox, question: &[&str]) -> String {
    let words = [&["explain"], question].concat();
    String::from_utf8(sb.cli(&words).stdout).unwrap()
}

#[lab_test]
fn a_tcp_listeners_backup_cluster_keeps_what_it_has() {
    let lab = Lab::new();
    let first = start_greeter(&lab, "east-1");
    let _backup = start_greeter(&lab, "east-3");
    let listener = "listeners:\n  \
        - { name: db, protocol: tcp, listen: [\"10.1.0.1:3306\"], cluster: east, backup: spare }\n";
    let sb = Signalbox::start(&lab, &format!("{listener}{}", clusters("")));
    sb.wait_healthy(&["east-1", "east-3"]);
    let explained = || explained(&sb, &["db.test", "--listener", "db"]);
    for _ in 0..10 {
        assert_eq!(connect(&lab).1, "east-1");
    }
    let text = explained();
    let idle = "east-3: 0 active, its cluster is a backup: hosts of the other cluster take connections";
    for part in ["cluster spare: backup, weight 0, 0.0 % now", idle, "next: east/east-1"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    drop(first);
    assert_eq!(connect(&lab).1, "east-3", "every host of the other cluster refuses");
    wait_health(&sb, "east-1", "unhealthy");
    let (kept, name) = connect(&lab);
    assert_eq!(name, "east-3");
    let text = explained();
    let verdict = "the backup of the listener's cluster, of which no host can take a connection";
    for part in [
        verdict,
        "cluster spare: backup, weight 1, 100.0 % now",
        "next: spare/east-3",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let _first = start_greeter(&lab, "east-1");
    wait_health(&sb, "east-1", "healthy");
    assert!(eventually(SOON, || connect(&lab).1 == "east-1"));
    for _ in 0..10 {
        assert_eq!(connect(&lab).1, "east-1");
    }
    echo(&kept, b"goes on").unwrap();
    // The listener keeps a host, so that nothing speaks against this.
    let out = sb.cli(&["rotate", "out", "east-1", "--no-wait"]);
    assert!(out.status.success(), "{out:?}");
    assert!(eventually(SOON, || connect(&lab).1 == "east-3"));
}

#[lab_test]
fn a_full_host_is_waited_for_though_there_is_a_backup() {
    let lab = Lab::new();
    let _servers = ["east-1", "east-3"].map(|name| start_greeter(&lab, name));
    let listener = "timeouts: { queue: 1h }\nlisteners:\n  \
        - { name: db, protocol: tcp, listen: [\"10.1.0.1:3306\"], cluster: east, backup: spare }\n";
    let limited = clusters("").replacen("name: east\n", "name: east\n    max_host_connections: 1\n", 1);
    let sb = Signalbox::start(&lab, &format!("{listener}{limited}"));
    sb.wait_healthy(&["east-1", "east-3"]);
    let (first, name) = connect(&lab);
    assert_eq!(name, "east-1");
    let second = lab.client.connect("10.1.0.1:3306");
    let waiting = || sb.metric("signalbox_host_queue_waiting{cluster=\"east\"}");
    assert!(eventually(SOON, || waiting() > 0.0), "{}", sb.proc.log());
    drop(first);
    assert_eq!(greeting(&second), "east-1");
}

/// Host that answers for a name without a route, at all listeners.
fn answering(lab: &Lab) -> Option<String> {
    let [v4, v6] = ["10.1.0.1", "[fd00:1::1]"];
    let answers = [(v4, "http"), (v6, "http"), (v4, "https")]
        .map(|(address, scheme)| http::curl(lab, address, &["-k", &format!("{scheme}://other.test/")]));
    let names = answers.map(|answer| (answer.code == 0).then(|| http::field(&answer.body, "host").to_owned()));
    let [first, second, third] = names;
    first.filter(|first| second.as_ref() == Some(first) && third.as_ref() == Some(first))
}

#[lab_test]
fn names_without_a_route_go_to_the_listeners_backup() {
    let lab = Lab::new();
    let mut first = Router::start(&lab, "east-1");
    let _backup = Router::start(&lab, "east-3");
    let listeners = "listeners:\n  \
        - { name: v4, protocol: http, listen: [\"10.1.0.1:80\"], cluster: east, backup: spare }\n  \
        - { name: v6, protocol: http, routing: request, listen: [\"[fd00:1::1]:80\"], cluster: east, backup: spare }\n  \
        - { name: tls, protocol: tls, listen: [\"10.1.0.1:443\"], cluster: east, backup: spare }\n";
    let clusters = [
        config::cluster("east", &[], &["east-1"]),
        config::cluster("spare", &[], &["east-3"]),
    ];
    let sb = Signalbox::start(&lab, &format!("{listeners}clusters:\n{}", clusters.concat()));
    sb.wait_healthy(&["east-1", "east-3"]);
    let expect = |name: &str| {
        let seen = eventually(SOON, || answering(&lab).as_deref() == Some(name));
        assert!(seen, "{name}: {:?}\n{}", answering(&lab), sb.proc.log());
        for _ in 0..5 {
            assert_eq!(answering(&lab).as_deref(), Some(name));
        }
    };
    expect("east-1");
    first.kill();
    wait_health(&sb, "east-1", "unhealthy");
    expect("east-3");
    first.restart();
    wait_health(&sb, "east-1", "healthy");
    expect("east-1");
    let listeners = sb.json("/api/v1/listeners");
    assert_eq!(listeners["listeners"][0]["backup"], "spare", "{listeners}");
}

#[lab_test]
fn a_services_backup_cluster_takes_its_new_flows() {
    let lab = Lab::new();
    let first = start_greeter(&lab, "east-1");
    let _backup = start_greeter(&lab, "east-3");
    let _datagrams =
        [("east-1", "[::]:53"), ("east-3", "[::]:5353")].map(|(name, at)| Answerer::start(lab.host(name), at, name));
    let services = "services:\n  \
        - { name: db, protocol: tcp, listen: [\"10.1.0.1:3306\"], cluster: east, backup: spare }\n  \
        - { name: dns, protocol: udp, listen: [\"10.1.0.1:53\"], cluster: east, backup: spare }\n";
    let sb = Signalbox::start(&lab, &format!("{services}{}", clusters("ports: { dns: 5353 }")));
    sb.wait_healthy(&["east-1", "east-3"]);
    let expect_shares = |wanted: [f64; 2]| {
        let seen = eventually(SOON, || {
            let answer = sb.json("/api/v1/services");
            (0..2).all(|service| {
                let hosts = &answer["services"][service]["hosts"];
                let shares =
                    ["east-1", "east-3"].map(|host| lab::signalbox::find(hosts, "name", host)["share"].as_f64());
                (0..2).all(|at| shares[at].is_some_and(|share| (share - wanted[at]).abs() < 0.1))
            })
        });
        assert!(seen, "{}\n{}", sb.json("/api/v1/services"), sb.proc.log());
    };
    let who = || ask(&udp(&lab, "10.1.0.1:53"), b"who?");
    let expect_host = |name: &str| {
        for _ in 0..20 {
            assert_eq!(connect(&lab).1, name);
            assert_eq!(who().as_deref(), Some(name));
        }
    };
    expect_shares([100.0, 0.0]);
    expect_host("east-1");
    let table = String::from_utf8(sb.cli(&["services"]).stdout).unwrap();
    assert!(table.contains("east, backup spare"), "{table}");
    drop(first);
    expect_shares([0.0, 100.0]);
    let (kept, name) = connect(&lab);
    assert_eq!(name, "east-3");
    let session = udp(&lab, "10.1.0.1:53");
    assert_eq!(ask(&session, b"who?").as_deref(), Some("east-3"));
    expect_host("east-3");
    let text = explained(&sb, &["10.1.0.1:3306"]);
    for part in [
        "east-3 (10.2.0.4) takes connections",
        "east-1 (10.2.0.2) takes none: its checks fail",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let _first = start_greeter(&lab, "east-1");
    expect_shares([100.0, 0.0]);
    expect_host("east-1");
    let text = explained(&sb, &["10.1.0.1:3306"]);
    assert!(text.contains("takes none: its cluster is a backup"), "{text}");
    echo(&kept, b"goes on").unwrap();
    assert_eq!(ask(&session, b"again").as_deref(), Some("east-3"));
    // For new flows, out of rotation is as good as dead.
    let out = sb.cli(&["rotate", "out", "east-1", "--no-wait"]);
    assert!(out.status.success(), "{out:?}");
    expect_shares([0.0, 100.0]);
    expect_host("east-3");
}

#[lab_test]
fn an_ipv6_services_backup_cluster_takes_its_new_flows() {
    let lab = Lab::new();
    let first = start_greeter(&lab, "east-1");
    let _backup = start_greeter(&lab, "east-3");
    let health = "health: { tcp: { port: 3306 }, interval: 1s, fast_interval: 300ms, timeout: 1s, rise: 1, fall: 2 }";
    let cluster = |name: &str, host: &str, address: &str| {
        let host = format!("{{ name: {host}, address: \"{address}\", tcp: 3306 }}");
        config::cluster_of(name, &[health], &[host])
    };
    let (east, spare) = (
        cluster("east", "east-1", "fd00:2::2"),
        cluster("spare", "east-3", "fd00:2::6"),
    );
    let service = "services:\n  \
        - { name: db, protocol: tcp, listen: [\"[fd00:1::1]:3306\"], cluster: east, backup: spare }\n";
    let sb = Signalbox::start(&lab, &format!("{service}clusters:\n{east}{spare}"));
    sb.wait_healthy(&["east-1", "east-3"]);
    let who = || {
        let stream = lab.client.try_connect("[fd00:1::1]:3306").ok()?;
        let name = greeting(&stream);
        Some((stream, name))
    };
    let is_served_by = |name: &str| who().is_some_and(|(_, by)| by == name);
    assert!(eventually(SOON, || is_served_by("east-1")), "{}", sb.proc.log());
    drop(first);
    assert!(eventually(SOON, || is_served_by("east-3")), "{}", sb.proc.log());
    let (kept, _) = who().unwrap();
    let _first = start_greeter(&lab, "east-1");
    assert!(eventually(SOON, || is_served_by("east-1")), "{}", sb.proc.log());
    echo(&kept, b"goes on").unwrap();
}
