//! Name servers (dnsmasq) of services on port 53, asked by `dig`.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU16, Ordering};

use super::east::{self, ALL, rotate, wait_shares};
use crate::lab::{Lab, Ns, Proc, SOON, Signalbox, available, eventually, lab_test, privileged};

const PROGRAMS: [(&str, &str); 2] = [("dnsmasq", "dnsmasq-base"), ("dig", "bind9-dnsutils")];
const VIPS: [&str; 2] = ["10.1.0.1", "fd00:1::1"];
/// Strings of the large answer: three packets of Ethernet.
const STRINGS: usize = 12;

fn server(lab: &Lab, host: &str) -> Proc {
    server_on(lab, host, 53)
}

/// Says who it is (`who.test`), and much (`large.test`).
fn server_on(lab: &Lab, host: &str, port: u16) -> Proc {
    let mut command = lab.host(host).command("dnsmasq");
    command.args([
        "--keep-in-foreground",
        "--log-facility=-",
        "--conf-file=/dev/null",
        "--user=root",
    ]);
    command.args(["--pid-file=", "--no-resolv", "--no-hosts", "--edns-packet-max=4096"]);
    command.arg(format!("--txt-record=who.test,{host}"));
    command.arg(format!("--port={port}"));
    for number in 0..STRINGS {
        command.arg(format!("--txt-record=large.test,{}", string(number)));
    }
    Proc::spawn(&format!("{host}-dnsmasq"), command, lab.dir())
}

/// Makes a string of the greatest length in DNS.
fn string(number: usize) -> String {
    format!("{number:03}").repeat(85)
}

fn start() -> (Lab, Vec<Proc>, Signalbox) {
    let lab = Lab::new();
    let servers = ALL.map(|host| server(&lab, host)).into();
    let services = east::service("udp", "udp", 53, "") + &east::service("tcp", "tcp", 53, "");
    let sb = east::start(&lab, &east::body(&services, 53, &ALL));
    (lab, servers, sb)
}

/// Asks once: a second try would hide a loss.
fn dig(ns: &Ns, to: &str, words: &[&str]) -> String {
    let to = format!("@{to}");
    ns.must(&[&["dig", "-r", &to, "+tries=1", "+time=5"], words].concat())
}

/// Returns the hosts that have answered `questions` questions in a row. Each question is from a new port, and so a
/// separate flow: one from a port that comes again too soon would go to the host of the earlier, drained, dead or not.
fn askers(lab: &Lab, to: &str, how: &str, questions: u16) -> BTreeSet<String> {
    static PORT: AtomicU16 = AtomicU16::new(20_000);
    let first = PORT.fetch_add(questions, Ordering::Relaxed);
    let from = if to.contains(':') { "fd00:1::2" } else { "10.1.0.2" };
    let question = |port: u16| format!("-b {from}#{port} who.test TXT\n");
    let list = lab.dir().join("questions");
    std::fs::write(&list, (first..first + questions).map(question).collect::<String>()).unwrap();
    let answers = dig(&lab.client, to, &["+short", how, "-f", list.to_str().unwrap()]);
    assert_eq!(answers.lines().count(), usize::from(questions), "{to} {how}: {answers}");
    answers.lines().map(|line| line.trim_matches('"').to_owned()).collect()
}

/// Whether every string of the large answer is there.
fn is_whole(answer: &str) -> bool {
    (0..STRINGS).all(|number| answer.contains(&string(number)))
}

/// Packets that the client has put together from fragments, of both families.
fn reassembled(ns: &Ns) -> u64 {
    let (v4, v6) = (
        ns.must(&["cat", "/proc/net/snmp"]),
        ns.must(&["cat", "/proc/net/snmp6"]),
    );
    let rows: Vec<Vec<&str>> = v4
        .lines()
        .filter_map(|line| Some(line.strip_prefix("Ip: ")?.split_whitespace().collect()))
        .collect();
    let at = rows[0].iter().position(|name| *name == "ReasmOKs").unwrap();
    let six = v6.lines().find_map(|line| line.strip_prefix("Ip6ReasmOKs")).unwrap();
    rows[1][at].parse::<u64>().unwrap() + six.trim().parse::<u64>().unwrap()
}

#[test]
fn all_name_servers_answer_over_udp_and_tcp() {
    const NAME: &str = "all_name_servers_answer_over_udp_and_tcp";
    if !privileged(NAME) || !available(NAME, &PROGRAMS) {
        return;
    }
    let (lab, _servers, sb) = start();
    for to in VIPS {
        for how in ["+notcp", "+tcp"] {
            let seen = askers(&lab, to, how, 60);
            assert_eq!(seen.len(), 3, "{to} {how}: {seen:?}");
        }
    }
    for service in ["udp", "tcp"] {
        let opened = sb.metric(&format!(
            "signalbox_service_flows_opened_total{{service=\"{service}\"}}"
        ));
        assert_eq!(opened as u64, 120, "{service}");
    }
}

#[lab_test]
fn one_service_answers_over_udp_and_tcp() {
    if !available("one_service_answers_over_udp_and_tcp", &PROGRAMS) {
        return;
    }
    let lab = Lab::new();
    let _server = server_on(&lab, "east-1", 5300);
    let body = |protocol: &str| {
        format!(
            "{}clusters:\n  - name: east\n    health: {{ tcp: {{ port: 5300 }}, interval: 1s, timeout: 1s }}\n    \
             hosts: [{{ name: east-1, address: 10.2.0.2, ports: {{ dns: 5300 }} }}]\n",
            format_args!("services:\n{}", east::service("dns", protocol, 53, ""))
        )
    };
    let sb = Signalbox::start(&lab, &body("udp"));
    sb.wait_healthy(&["east-1"]);
    let services = || sb.json("/api/v1/services")["services"].clone();
    let is_served = |at: usize| {
        services()[at]["hosts"][0]["share"]
            .as_f64()
            .is_some_and(|share| share > 99.0)
    };
    let opened = |protocol: &str| {
        let labels = format!("service=\"dns\",protocol=\"{protocol}\"");
        sb.metric(&format!("signalbox_service_flows_opened_total{{{labels}}}")) as u64
    };
    let ask = |how: &str| assert_eq!(askers(&lab, VIPS[0], how, 20), ["east-1".to_owned()].into());
    assert!(eventually(SOON, || is_served(0)), "{}", services());
    ask("+notcp");
    // The service of the first protocol goes on, although tcp comes first now.
    sb.reload(&body("[udp, tcp]"));
    assert!(eventually(SOON, || is_served(0) && is_served(1)), "{}", services());
    for how in ["+notcp", "+tcp"] {
        ask(how);
    }
    assert_eq!((opened("udp"), opened("tcp")), (40, 20));
    let run = |words: &[&str]| String::from_utf8(sb.cli(words).stdout).unwrap();
    let table = run(&["services"]);
    for protocol in ["udp", "tcp"] {
        let has = |line: &str| line.split_whitespace().take(2).eq(["dns", protocol]);
        assert!(table.lines().any(has), "{protocol}: {table}");
    }
    let explained = run(&["explain", "10.1.0.1:53"]);
    assert!(
        explained.contains("10.1.0.1:53: service dns, tcp and udp"),
        "{explained}"
    );
}

#[test]
fn a_large_dns_answer_is_fragmented_or_truncated_to_use_tcp() {
    const NAME: &str = "a_large_dns_answer_is_fragmented_or_truncated_to_use_tcp";
    if !privileged(NAME) || !available(NAME, &PROGRAMS) {
        return;
    }
    let (lab, _servers, sb) = start();
    let metric = |service: &str| {
        sb.metric(&format!(
            "signalbox_service_flows_opened_total{{service=\"{service}\"}}"
        ))
    };
    for to in VIPS {
        let (fragments, by_tcp) = (reassembled(&lab.client), metric("tcp"));
        for _ in 0..10 {
            let answer = dig(
                &lab.client,
                to,
                &["large.test", "TXT", "+bufsize=4096", "+notcp", "+ignore"],
            );
            assert!(is_whole(&answer) && !answer.contains(" tc"), "{to}: {answer}");
        }
        assert_eq!(
            reassembled(&lab.client) - fragments,
            10,
            "{to}: they did not come in fragments"
        );
        assert_eq!(metric("tcp"), by_tcp);
        for _ in 0..10 {
            let answer = dig(&lab.client, to, &["large.test", "TXT", "+bufsize=1232"]);
            assert!(answer.contains("Truncated, retrying in TCP"), "{to}: {answer}");
            assert!(is_whole(&answer), "{to}: {answer}");
        }
        assert_eq!((metric("tcp") - by_tcp) as u64, 10);
    }
}

#[test]
fn a_drained_or_killed_name_server_gets_no_new_queries() {
    const NAME: &str = "a_drained_or_killed_name_server_gets_no_new_queries";
    if !privileged(NAME) || !available(NAME, &PROGRAMS) {
        return;
    }
    let (lab, mut servers, sb) = start();
    let answered_by = |who: &[&str]| {
        for to in VIPS {
            for how in ["+notcp", "+tcp"] {
                let seen = askers(&lab, to, how, 40);
                assert!(seen.iter().eq(who), "{to} {how}: {seen:?}");
            }
        }
    };
    rotate(&sb, "out", "east-1");
    wait_shares(&sb, &["east-2", "east-3"]);
    answered_by(&["east-2", "east-3"]);
    servers[1].kill();
    wait_shares(&sb, &["east-3"]);
    answered_by(&["east-3"]);
    rotate(&sb, "in", "east-1");
    wait_shares(&sb, &["east-1", "east-3"]);
    answered_by(&["east-1", "east-3"]);
}
