//! Hosts that refuse, that are silent, or that use other options than the client.

use crate::lab;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use lab::cut::{self, CutLab};
use lab::flood::stay_on_last_cpu;
use lab::impair::{Impaired, Odds};
use lab::{Router, SOON, Signalbox, config, eventually, http, servers};

use super::{PEEK, exits, filter, start_with};

/// Two hosts in turns, which failed checks and connects do not take out.
fn body() -> String {
    body_with(cut::PATIENT[1])
}

fn body_with(ejection: &str) -> String {
    let [health, _] = cut::PATIENT;
    body_of(&["balance: round-robin", health, ejection])
}

/// Configuration of two hosts with these keys of the cluster.
fn body_of(keys: &[&str]) -> String {
    let east = config::cluster("east", keys, &["east-1", "east-2"]);
    format!(
        "{PEEK}\ntimeouts: {{ connect: 2s }}\n{}clusters:\n{east}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
        config::WEB_LISTENERS
    )
}

fn ask_all(lab: &CutLab, count: usize) -> Vec<String> {
    let one = |_| http::ask(lab, "10.1.0.1:80", "a.test").field("host");
    (0..count).map(one).collect()
}

fn begin(lab: &CutLab) -> TcpStream {
    let mut client = lab.client.connect("10.1.0.1:80");
    client.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").unwrap();
    client
}

fn expect_answer(mut client: TcpStream) {
    let mut answer = [0; 12];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
}

/// A host that refuses is counted and ejected by the kernel's observations alone: by load, the program skips an ejected
/// host, and userspace connects to no host.
#[test]
fn a_refusing_host_is_ejected_and_its_clients_get_another() {
    let test = "a_refusing_host_is_ejected_and_its_clients_get_another";
    let Some(lab) = super::lab(test) else { return };
    // The first host's check is answered, and nothing else.
    let _health = servers::healthy(lab.host("east-1"));
    let _router = Router::start(&lab, "east-2");
    let [health, _] = cut::PATIENT;
    let keys = [
        "balance: least-connections",
        health,
        "ejection: { failures: 3, time: 60s }",
    ];
    let sb = start_with(&lab, &body_of(&keys), 2);
    sb.wait_healthy(&["east-1", "east-2"]);
    for host in ask_all(&lab, 40) {
        assert_eq!(host, "east-2");
    }
    let connects = "signalbox_connect_duration_seconds_count{cluster=\"east\"}";
    assert!(
        eventually(SOON, || sb.metric(connects) >= 40.0),
        "{}",
        sb.get("/metrics").1
    );
    let seconds = sb.metric("signalbox_connect_duration_seconds_sum{cluster=\"east\"}");
    assert!(
        seconds > 0.0 && seconds < 4.0,
        "{seconds} s for {} connects",
        sb.metric(connects)
    );
    let is_ejected = eventually(2 * SOON, || {
        ask_all(&lab, 2);
        sb.host("east-1")["ejected"] == true
    });
    assert!(is_ejected, "{}", sb.host("east-1"));
    assert_eq!(sb.host("east-2")["ejected"], false);
    let refused = "signalbox_connect_failures_total{cluster=\"east\",reason=\"refused\"}";
    assert!(exits(&sb, "refused") >= 3, "{}", sb.get("/metrics").1);
    assert!(eventually(SOON, || sb.metric(refused) == exits(&sb, "refused") as f64));
    assert_eq!(exits(&sb, "passed_up"), 0, "{}", sb.get("/metrics").1);
    assert!(eventually(SOON, || sb.host("east-1")["active_connections"] == 0));
}

/// Without ejection, too, a host that has refused is skipped for a second: not each client waits for it first.
#[test]
fn a_host_that_refuses_is_asked_again_after_a_second() {
    let Some(lab) = super::lab("a_host_that_refuses_is_asked_again_after_a_second") else {
        return;
    };
    let _health = servers::healthy(lab.host("east-1"));
    let _router = Router::start(&lab, "east-2");
    let [health, _] = cut::PATIENT;
    let keys = ["balance: least-connections", health, "ejection: { failures: 0 }"];
    let sb = start_with(&lab, &body_of(&keys), 2);
    sb.wait_healthy(&["east-1", "east-2"]);
    let began = Instant::now();
    for host in ask_all(&lab, 100) {
        assert_eq!(host, "east-2");
    }
    let (refused, most) = (exits(&sb, "refused"), began.elapsed().as_secs() + 3);
    assert!((1..=most).contains(&refused), "{refused} refusals, not 1 to {most}");
}

/// Health checks show the options that a host lacks: no client waits for a handshake that does not agree.
#[test]
fn a_host_that_lacks_tcp_options_in_checks_is_left_to_userspace() {
    let Some(lab) = super::lab("a_host_that_lacks_tcp_options_in_checks_is_left_to_userspace") else {
        return;
    };
    lab.host("east-1").must(&["sysctl", "-qw", "net.ipv4.tcp_timestamps=0"]);
    let _routers = Router::start_all(&lab, &["east-1", "east-2"]);
    // Default check: by the router's page, and at first by a connection beside.
    let sb = Signalbox::start(&lab, &body_of(&["balance: round-robin", "health: { interval: 1s }"]));
    sb.wait_healthy(&["east-1", "east-2"]);
    let left_out = "signalbox_kernel_peek_left_to_userspace{kind=\"cluster\",reason=\"host_options\"}";
    // By HTTP and by TLS.
    assert!(
        eventually(SOON, || sb.metric(left_out) == 2.0),
        "{}",
        sb.get("/metrics").1
    );
    let answers = ask_all(&lab, 4);
    assert!(answers.iter().any(|host| host == "east-1"), "{answers:?}");
    assert_eq!(exits(&sb, "refused"), 0, "{}", sb.get("/metrics").1);
    // The host learns.
    lab.host("east-1").must(&["sysctl", "-qw", "net.ipv4.tcp_timestamps=1"]);
    assert!(eventually(2 * SOON, || sb.metric(left_out) == 0.0));
    let before = exits(&sb, "routed");
    ask_all(&lab, 4);
    assert_eq!(exits(&sb, "routed"), before + 4);
}

#[test]
fn a_silent_hosts_clients_get_another_or_wait_until_it_answers() {
    let Some(lab) = super::lab("a_silent_hosts_clients_get_another_or_wait_until_it_answers") else {
        return;
    };
    let _routers = Router::start_all(&lab, &["east-1", "east-2"]);
    let sb = start_with(&lab, &body(), 2);
    sb.wait_healthy(&["east-1", "east-2"]);
    let link = Impaired::host_link(&lab, "east-1", Odds::SILENT);
    // A request of the two waits for the silent host, until it goes to the other one.
    let clients = [begin(&lab), begin(&lab)];
    clients.into_iter().for_each(expect_answer);
    let clients = [begin(&lab), begin(&lab), begin(&lab), begin(&lab)];
    drop(link);
    clients.into_iter().for_each(expect_answer);
    assert!(eventually(SOON, || {
        ["east-1", "east-2"].map(|host| sb.host(host)["active_connections"].clone()) == [0, 0]
    }));
}

#[test]
fn a_host_that_lacks_what_the_client_has_is_left_to_userspace() {
    let Some(lab) = super::lab("a_host_that_lacks_what_the_client_has_is_left_to_userspace") else {
        return;
    };
    let _routers = Router::start_all(&lab, &["east-1", "east-2"]);
    // Checks have seen it otherwise.
    let sb = start_with(&lab, &body().replace("interval: 2s", "interval: 1h"), 2);
    sb.wait_healthy(&["east-1", "east-2"]);
    lab.host("east-1").must(&["sysctl", "-qw", "net.ipv4.tcp_timestamps=0"]);
    let answers = ask_all(&lab, 20);
    // Userspace asks this host, with a leg that has the host's options.
    assert!(answers.iter().any(|host| host == "east-1"), "{answers:?}");
    assert!(answers.iter().any(|host| host == "east-2"), "{answers:?}");
    assert!(exits(&sb, "refused") >= 1, "{}", sb.get("/metrics").1);
    let left_out = "signalbox_kernel_peek_left_to_userspace{kind=\"cluster\",reason=\"host_options\"}";
    assert!(
        eventually(SOON, || sb.metric(left_out) == 2.0),
        "{}",
        sb.get("/metrics").1
    );
}

#[test]
fn a_host_that_is_down_gets_nothing() {
    let Some(lab) = super::lab("a_host_that_is_down_gets_nothing") else {
        return;
    };
    let mut routers = Router::start_all(&lab, &["east-1", "east-2"]);
    let east = config::cluster("east", &["balance: round-robin"], &["east-1", "east-2"]);
    let routes = "routes:\n  - { host: a.test, clusters: { east: 1 } }\n";
    let body = format!("{PEEK}\n{}clusters:\n{east}{routes}", config::WEB_LISTENERS);
    let sb: Signalbox = start_with(&lab, &body, 2);
    sb.wait_healthy(&["east-1", "east-2"]);
    routers[0].kill();
    assert!(eventually(SOON, || sb.host("east-1")["health"] == "unhealthy"));
    std::thread::sleep(Duration::from_millis(200));
    let before = (exits(&sb, "routed"), exits(&sb, "refused"));
    assert!(ask_all(&lab, 20).iter().all(|host| host == "east-2"));
    assert_eq!((exits(&sb, "routed"), exits(&sb, "refused")), (before.0 + 20, before.1));
}

/// More clients wait for a host than a CPU's ring has elements. The first one's data is gone when the host answers: it is
/// read again when the client repeats it.
#[test]
fn a_client_whose_first_data_was_overwritten_is_served() {
    let Some(lab) = super::lab("a_client_whose_first_data_was_overwritten_is_served") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let sb = start_with(&lab, &cut::body(PEEK), 2);
    sb.wait_healthy(&["east-1"]);
    // Packets of the client's are handled by its CPU.
    stay_on_last_cpu();
    // Delayed, so that the host repeats them.
    let late = "tcp sport 80 tcp flags & (syn|ack) == syn|ack drop";
    filter(&lab.lb, "netdev", "hook ingress device east-1", late);
    let first = begin(&lab);
    let silent = format!("tcp sport {} drop", first.local_addr().unwrap().port());
    filter(&lab.client, "inet", "hook output", &silent);
    let others: Vec<_> = (0..600).map(|_| begin(&lab)).collect();
    lab.lb.must(&["nft", "delete table netdev lost"]);
    others.into_iter().for_each(expect_answer);
    let overwritten = || exits(&sb, "overwritten") >= 1;
    assert!(eventually(SOON, overwritten), "{}", sb.get("/metrics").1);
    lab.client.must(&["nft", "delete table inet lost"]);
    expect_answer(first);
    assert!(eventually(SOON, || sb.host("east-1")["active_connections"] == 0));
    cut::expect_none(&sb);
}

/// Repeated data whose first copy is overwritten is read again: it asks for the same, though its name has no separate
/// route, and no second flow begins.
#[test]
fn repeated_first_data_for_a_wildcard_starts_no_second_flow() {
    let Some(lab) = super::lab("repeated_first_data_for_a_wildcard_starts_no_second_flow") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let body = format!(
        "{PEEK}\n{}clusters:\n{}routes:\n  - {{ host: \"*.test\", clusters: {{ east: 1 }} }}\n",
        config::WEB_LISTENERS,
        config::cluster("east", &[], &["east-1"])
    );
    let sb = start_with(&lab, &body, 2);
    sb.wait_healthy(&["east-1"]);
    stay_on_last_cpu();
    let late = "tcp sport 80 tcp flags & (syn|ack) == syn|ack drop";
    filter(&lab.lb, "netdev", "hook ingress device east-1", late);
    let clients: Vec<_> = (0..600).map(|_| begin(&lab)).collect();
    let is_repeated = || exits(&sb, "syn_repeated") >= 600;
    assert!(eventually(SOON, is_repeated), "{}", sb.get("/metrics").1);
    assert_eq!(exits(&sb, "routed"), 600);
    lab.lb.must(&["nft", "delete table netdev lost"]);
    clients.into_iter().for_each(expect_answer);
    cut::expect_none(&sb);
}
