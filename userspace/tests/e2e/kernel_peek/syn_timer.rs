//! Hosts that do not answer SYNs: connections leave them long before their clients would repeat their data, and count where
//! they go.

use crate::lab;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use lab::cut::{self, CutLab};
use lab::impair::{Impaired, Odds};
use lab::{Router, SOON, Server, Signalbox, config, eventually, http, servers};

use super::{PEEK, exits, filter, start_with};

const HOSTS: [&str; 3] = ["east-1", "east-2", "east-3"];
const REDISPATCHES: &str = "signalbox_redispatches_total{cluster=\"east\"}";
const RETRIES: &str = "signalbox_connect_retries_total{cluster=\"east\"}";

/// A cluster that failed checks and connects do not take hosts out of.
fn body(keys: &[&str], hosts: &[&str]) -> String {
    let keys: Vec<_> = cut::PATIENT.iter().chain(keys).copied().collect();
    format!(
        "{PEEK}\n{}clusters:\n{}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
        config::WEB_LISTENERS,
        config::cluster("east", &keys, hosts)
    )
}

fn active(sb: &Signalbox) -> Vec<u64> {
    let active = |host: &&str| sb.host(host)["active_connections"].as_u64().unwrap();
    HOSTS.iter().map(active).collect()
}

fn echoes(lab: &CutLab) -> Vec<Server> {
    let echo = |host: &&str| servers::echo(lab.host(host), "[::]:80");
    let healthy = |host: &&str| servers::healthy(lab.host(host));
    HOSTS.iter().map(echo).chain(HOSTS.iter().map(healthy)).collect()
}

/// Opens a connection that has got its answer.
fn open(lab: &CutLab, at: &str) -> TcpStream {
    let request = b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let mut client = lab.client.connect(at);
    client.write_all(request).unwrap();
    let mut answer = [0; 33];
    client.read_exact(&mut answer[..request.len()]).unwrap();
    assert_eq!(&answer[..request.len()], request);
    client
}

#[test]
fn connections_leave_a_silent_host_and_count_where_they_go() {
    let test = "connections_leave_a_silent_host_and_count_where_they_go";
    let Some(lab) = super::lab(test) else { return };
    let _routers = Router::start_all(&lab, &HOSTS);
    for balance in ["round-robin", "least-connections", "random-two", "maglev"] {
        let sb = start_with(&lab, &body(&[&format!("balance: {balance}")], &HOSTS), 2);
        sb.wait_healthy(&HOSTS);
        let ask = || http::ask(&lab, "10.1.0.1:80", "a.test").field("host");
        let ask_tls = || http::field(&http::curl(&lab, "10.1.0.1", &["-k", "https://a.test/"]).body, "host");
        // With a table, the client's host.
        let silent = ask();
        let link = Impaired::host_link(&lab, &silent, Odds::SILENT);
        let is_left = eventually(SOON, || {
            let answers = [ask(), ask_tls()];
            assert!(answers.iter().all(|host| *host != silent), "{balance}: {answers:?}");
            sb.metric(REDISPATCHES) >= 2.0
        });
        assert!(is_left, "{balance}: {}", sb.get("/metrics").1);
        assert!(sb.metric(RETRIES) >= 1.0);
        // By workers nobody was served: those would wait for the host for seconds.
        assert_eq!(exits(&sb, "passed_up"), 0, "{balance}");
        drop(link);
        let is_back = eventually(SOON, || HOSTS.iter().any(|_| ask() == silent));
        assert!(is_back, "{balance}: the host gets connections again");
        assert!(
            eventually(SOON, || active(&sb) == [0; 3]),
            "{balance}: {:?}",
            active(&sb)
        );
    }
}

/// A host's limit holds for connections that come from another host, too, and each is given back.
#[test]
fn connections_from_a_silent_host_respect_the_limit_of_hosts() {
    let test = "connections_from_a_silent_host_respect_the_limit_of_hosts";
    let Some(lab) = super::lab(test) else { return };
    let _servers = echoes(&lab);
    let sb = start_with(
        &lab,
        &body(&["max_host_connections: 4", "balance: round-robin"], &HOSTS),
        2,
    );
    sb.wait_healthy(&HOSTS);
    let link = Impaired::host_link(&lab, "east-2", Odds::SILENT);
    let open_ones: Vec<_> = (0..8).map(|_| open(&lab, "10.1.0.1:80")).collect();
    assert_eq!(active(&sb), [4, 0, 4]);
    assert!(sb.metric(REDISPATCHES) >= 1.0, "{}", sb.get("/metrics").1);
    drop(link);
    let more: Vec<_> = (0..4).map(|_| open(&lab, "10.1.0.1:80")).collect();
    assert_eq!(active(&sb), [4, 4, 4]);
    drop((open_ones, more));
    assert!(eventually(SOON, || active(&sb) == [0; 3]), "{:?}", active(&sb));
}

/// The host that was left answers after all: its half of the connection is reset, and nothing reaches its server.
#[test]
fn a_late_answer_of_a_host_that_was_left_does_no_harm() {
    let test = "a_late_answer_of_a_host_that_was_left_does_no_harm";
    let Some(lab) = super::lab(test) else { return };
    let _servers = [
        servers::healthy(lab.host("east-1")),
        servers::healthy(lab.host("east-2")),
        servers::echo(lab.host("east-2"), "[::]:80"),
    ];
    let (_late, accepted) = servers::hand_over(lab.host("east-1"), "[::]:80");
    let sb = start_with(&lab, &body(&["balance: round-robin"], &["east-1", "east-2"]), 2);
    sb.wait_healthy(&["east-1", "east-2"]);
    // The host gets the SYN. Its answer is lost, and repeated after a second.
    let late = lab.host("east-1");
    filter(late, "inet", "hook output", "tcp sport 80 tcp flags & syn == syn drop");
    let clients: Vec<_> = (0..2).map(|_| open(&lab, "10.1.0.1:80")).collect();
    assert!(sb.metric(REDISPATCHES) >= 1.0, "{}", sb.get("/metrics").1);
    late.must(&["nft", "delete table inet lost"]);
    let waiting = || late.must(&["ss", "-Htn", "state", "syn-recv", "( sport = :80 )"]);
    assert!(eventually(SOON, || waiting().is_empty()), "{}", waiting());
    assert!(
        accepted.try_recv().is_err(),
        "the server of the late host got a connection"
    );
    for mut client in clients {
        client.write_all(b"ping").unwrap();
        let mut answer = [0; 4];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"ping");
    }
    assert!(eventually(SOON, || sb.host("east-1")["active_connections"] == 0));
    assert!(eventually(SOON, || sb.host("east-2")["active_connections"] == 0));
}

/// Where nearly all hosts are silent, the cause is not one of them: connections stay, and are made when hosts answer.
#[test]
fn connections_stay_where_most_hosts_are_silent() {
    let test = "connections_stay_where_most_hosts_are_silent";
    let Some(lab) = super::lab(test) else { return };
    let _servers = echoes(&lab);
    let sb = start_with(&lab, &body(&["balance: round-robin"], &HOSTS), 2);
    sb.wait_healthy(&HOSTS);
    drop(open(&lab, "10.1.0.1:80"));
    let links = HOSTS.map(|host| Impaired::host_link(&lab, host, Odds::SILENT));
    let clients: Vec<_> = (0..12)
        .map(|_| {
            let mut client = lab.client.connect("10.1.0.1:80");
            client.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").unwrap();
            client
        })
        .collect();
    assert!(
        eventually(SOON, || sb.metric(RETRIES) >= 24.0),
        "{}",
        sb.get("/metrics").1
    );
    // Connections leave at most one host, each for a second one: then most hosts are known to be silent.
    assert!(sb.metric(REDISPATCHES) <= 12.0, "{}", sb.get("/metrics").1);
    drop(links);
    for mut client in clients {
        let mut answer = [0; 3];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"GET");
    }
    assert!(eventually(SOON, || active(&sb) == [0; 3]), "{:?}", active(&sb));
}

/// Its clients' data goes to another host: they need not repeat it. Each refusal is counted.
#[test]
fn connections_leave_a_refusing_host_before_data_is_repeated() {
    let test = "connections_leave_a_refusing_host_before_data_is_repeated";
    let Some(lab) = super::lab(test) else { return };
    let _servers = [
        servers::healthy(lab.host("east-1")),
        servers::healthy(lab.host("east-2")),
        servers::healthy(lab.host("east-3")),
        servers::echo(lab.host("east-2"), "[::]:80"),
    ];
    let sb = start_with(&lab, &body(&["balance: round-robin"], &HOSTS), 2);
    sb.wait_healthy(&HOSTS);
    let refused = "signalbox_connect_failures_total{cluster=\"east\",reason=\"refused\"}";
    let repeated = || {
        let counts = lab.client.must(&["nstat", "-asz", "TcpRetransSegs"]);
        let line = counts.lines().find(|line| line.starts_with("TcpRetransSegs")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u32>().unwrap()
    };
    // A busy machine may be so slow that a client repeats its data first: not each time.
    let is_quick = eventually(SOON, || {
        let (before, refusals) = (repeated(), exits(&sb, "refused"));
        drop(open(&lab, "10.1.0.1:80"));
        exits(&sb, "refused") > refusals && repeated() == before
    });
    assert!(is_quick, "{}", sb.get("/metrics").1);
    assert!(sb.metric(REDISPATCHES) >= 1.0);
    assert!(eventually(SOON, || sb.metric(refused) == exits(&sb, "refused") as f64));
    assert!(eventually(SOON, || active(&sb) == [0; 3]), "{:?}", active(&sb));
}
