//! The shield.

use signalbox_core::model::shield::{RateLimit, ShieldPolicy};

use super::{documented, only_mistake, right};

/// Example of the documentation, with a listener that has its own rules and services without a shield or without rules.
fn example() -> String {
    format!(
        r#"{}version: 1
listeners:
  - name: web
    protocol: tcp
    listen: ["10.1.0.1:80"]
    cluster: east
    shield: {{ allow: [192.0.2.0/24], syn_cookies: "off", limits: {{ packets: "off", concurrent: 5 }} }}
services:
  - {{ name: dns, protocol: udp, listen: ["10.1.0.1:53"], cluster: east }}
  - {{ name: open, protocol: udp, listen: ["10.1.0.1:54"], cluster: east, shield: "off" }}
clusters:
  - {{ name: east, hosts: [{{ name: a, address: 10.2.0.2, tcp: 80 }}] }}
"#,
        documented("shield:")
    )
}

#[track_caller]
fn wrong(from: &str, to: &str, path: &str, part: &str) {
    let text = example();
    assert!(text.contains(from), "the example has no {from:?}");
    only_mistake(&text.replacen(from, to, 1), path, part);
}

#[test]
fn the_reference_example_parses_as_documented() {
    let model = right(&example()).model;
    let lists = &model.shield.lists;
    assert_eq!(
        (lists.deny[0].to_string(), lists.allow[0].to_string()),
        ("203.0.113.0/24".into(), "203.0.113.7/32".into())
    );
    assert_eq!(lists.deny_files, [std::path::PathBuf::from("/etc/signalbox/deny.txt")]);
    let dns = model.services[0].shield.as_ref().unwrap();
    assert!(dns.lists.is_empty(), "what holds for all is no service's own");
    assert_eq!(dns.limits.connections, Some(RateLimit { rate: 50, burst: 200 }));
    assert_eq!(
        dns.limits.packets,
        Some(RateLimit {
            rate: 20_000,
            burst: 20_000
        })
    );
    assert_eq!((dns.limits.bytes, dns.limits.concurrent), (None, 1000));
    assert!(dns.malformed && dns.syn_cookies);
    assert_eq!(model.services[1].shield, None);
}

#[test]
fn a_listener_has_the_rules_of_all_but_for_its_own() {
    let model = right(&example()).model;
    let web = model.listeners[0].shield.as_ref().unwrap();
    assert_eq!((web.lists.deny.len(), web.lists.allow.len()), (0, 1));
    assert_eq!(
        web.limits.connections,
        Some(RateLimit { rate: 50, burst: 200 }),
        "not its own"
    );
    assert_eq!(
        (web.limits.packets, web.limits.concurrent, web.syn_cookies),
        (None, 5, false)
    );
}

#[test]
fn without_a_shield_nothing_is_guarded_but_what_says_so() {
    let text = example();
    let (_, rest) = text.split_once("version: 1").unwrap();
    let model = right(&format!("version: 1{rest}")).model;
    assert_eq!(model.services[0].shield, None);
    let web = model.listeners[0].shield.as_ref().unwrap();
    assert_eq!((web.limits.connections, web.limits.concurrent), (None, 5));
    assert_eq!(web.malformed, ShieldPolicy::default().malformed);
}

#[test]
fn every_mistake_shows_what_is_right() {
    wrong(
        "203.0.113.0/24",
        "203.0.113.1/24",
        "shield.deny[0]",
        "has bits set beyond its length",
    );
    wrong(
        "[203.0.113.7]",
        "[nobody]",
        "shield.allow[0]",
        "is not a prefix, such as",
    );
    wrong(
        "/etc/signalbox/deny.txt",
        "deny.txt",
        "shield.deny_files[0]",
        "the absolute path",
    );
    wrong("rate: 50", "rate: 0", "shield.limits.connections.rate", "1 to");
    wrong(
        "rate: 50, burst",
        "burst",
        "shield.limits.connections",
        "the key `rate` is missing",
    );
    wrong(
        "concurrent: 1000",
        "concurent: 1000",
        "shield.limits.concurent",
        "did you mean `concurrent`",
    );
    wrong(
        "\"off\", limits",
        "never, limits",
        "listeners[0].shield.syn_cookies",
        "auto",
    );
    wrong(
        "limits: { packets",
        "sources: 9, limits: { packets",
        "listeners[0].shield.sources",
        "unknown key",
    );
}
