//! Slips of users who come from other balancers, and of files that were written for other programs.

use super::{bent, mistakes_of, only_mistake};

/// Replaces the address of a host of the example.
fn host(address: &str) -> String {
    bent("address: 10.2.0.2", &format!("address: {address}"))
}

fn listen(text: &str) -> String {
    bent("10.1.0.1:3306", text)
}

#[test]
fn names_and_ports_are_no_addresses() {
    let at = "clusters[0].hosts[0].address";
    only_mistake(
        &host("\"10.2.0.2:80\""),
        at,
        "has a port: write 10.2.0.2, and the port as `http: 80`",
    );
    only_mistake(&host("255.255.255.255"), at, "is not the address of one machine");
    let at = "listeners[2].listen[0]";
    only_mistake(
        &listen("db.example.com:3306"),
        at,
        "names are not looked up, write the address",
    );
    only_mistake(&listen("fd00::1:80"), at, "has no brackets: write [fd00::1]:80");
    only_mistake(&listen("224.0.0.1:80"), at, "is a multicast or broadcast address");
    only_mistake(&listen("255.255.255.255:80"), at, "is a multicast or broadcast address");
}

#[test]
fn variables_and_templates_stay_as_they_are() {
    let expanded = "environment variables are not expanded: write the value";
    only_mistake(&listen("${VIP}:80"), "listeners[2].listen[0]", expanded);
    only_mistake(&host("$EAST"), "clusters[0].hosts[0].address", expanded);
    only_mistake(&host("{{ east }}"), "", "templates (`{{ }}`) are not filled in here");
}

#[test]
fn words_of_other_balancers_lead_to_ours() {
    only_mistake(
        &bent("protocol: tcp", "protocol: udp"),
        "listeners[2].protocol",
        "under `services`",
    );
    only_mistake(
        &bent("- name: west\n", "- name: west\n    balance: leastconn\n"),
        "clusters[1].balance",
        "did you mean `least-connections`?",
    );
    only_mistake(
        &bent("admin: { ", "admin: { token: secret-secret-secret, "),
        "admin.token",
        "did you mean `token_file`?",
    );
    only_mistake(
        &bent("protocol: tcp", "protocol: [tcp]"),
        "listeners[2].protocol",
        "expected a protocol, found a list: write one (",
    );
}

#[test]
fn slips_of_yaml_are_named() {
    only_mistake(
        &bent("protocol: tcp", "protocol:tcp"),
        "listeners[2][\"protocol:tcp\"]",
        "there is no space after the colon: write `protocol: tcp`",
    );
    let text = "version: 1\nlisteners: []\nclusters:\n  - name: east\n    hosts: []\n\tbalance: round-robin\n";
    let mistakes = mistakes_of(text);
    assert_eq!(
        mistakes,
        ["6:1: a tab in the indentation: YAML allows only spaces there, write spaces"]
    );
}

#[test]
fn a_number_that_others_take_for_octal_is_refused() {
    let at = "clusters[0].hosts[1].weight";
    only_mistake(
        &bent("weight: 2", "weight: 02"),
        at,
        "begins with 0, which other YAML readers take for octal: write 2",
    );
    only_mistake(
        &bent("weight: 2", "weight: 0"),
        at,
        "is not a whole number from 1 to 100",
    );
}
