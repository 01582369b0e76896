//! The cluster of all tests here: three hosts of both families, with any servers on them.

use serde_json::json;

use crate::lab::{self, Lab, SOON, Signalbox, eventually};

/// Name, IPv4, IPv6.
pub(crate) const EAST: [(&str, &str, &str); 3] = [
    ("east-1", "10.2.0.2", "fd00:2::2"),
    ("east-2", "10.2.0.3", "fd00:2::3"),
    ("east-3", "10.2.0.4", "fd00:2::6"),
];
/// Names of the hosts.
pub(crate) const ALL: [&str; 3] = [EAST[0].0, EAST[1].0, EAST[2].0];

/// Services, and the cluster with these hosts, checked by connecting to a port.
pub(crate) fn body(services: &str, check: u16, hosts: &[&str]) -> String {
    let chosen = EAST.iter().filter(|(name, ..)| hosts.contains(name));
    let list: String = chosen
        .map(|(name, v4, v6)| {
            format!("      - {{ name: {name}, address: {v4} }}\n      - {{ name: {name}-v6, address: \"{v6}\" }}\n")
        })
        .collect();
    format!(
        "services:\n{services}clusters:\n  - name: east\n    \
         health: {{ tcp: {{ port: {check} }}, interval: 1s, fast_interval: 300ms, timeout: 1s, rise: 1, fall: 2 }}\n    hosts:\n{list}"
    )
}

/// A service on both of the balancer's addresses.
pub(crate) fn service(name: &str, protocol: &str, port: u16, more: &str) -> String {
    format!(
        "  - {{ name: {name}, protocol: {protocol}, listen: [\"10.1.0.1:{port}\", \"[fd00:1::1]:{port}\"], \
         cluster: east{more} }}\n"
    )
}

/// Starts the balancer, and waits until every host has its share.
pub(crate) fn start(lab: &Lab, body: &str) -> Signalbox {
    let sb = Signalbox::start(lab, body);
    wait_shares(&sb, &ALL);
    sb
}

/// Waits until exactly these hosts get new flows, each the same share.
pub(crate) fn wait_shares(sb: &Signalbox, hosts: &[&str]) {
    let even = 100.0 / hosts.len() as f64;
    let is_so = || {
        EAST.iter().all(|(name, ..)| {
            let wanted = if hosts.contains(name) { even } else { 0.0 };
            let near = |name: &str| (share(sb, name) - wanted).abs() < 1.0;
            near(name) && near(&format!("{name}-v6"))
        })
    };
    assert!(
        eventually(SOON, is_so),
        "{hosts:?}: {}\n{}",
        sb.json("/api/v1/services"),
        sb.proc.log()
    );
}

/// A host's part of the new flows, in percent.
fn share(sb: &Signalbox, host: &str) -> f64 {
    let answer = sb.json("/api/v1/services");
    let found = lab::signalbox::find(&answer["services"][0]["hosts"], "name", host);
    found["share"].as_f64().unwrap_or(0.0)
}

/// Takes a host out of rotation, or in again, by both of its addresses.
pub(crate) fn rotate(sb: &Signalbox, action: &str, host: &str) {
    let names = [host.to_owned(), format!("{host}-v6")];
    let words = json!({ "action": action, "names": names, "timeout": 300.0 });
    let response = sb.unix("POST", "/api/v1/rotations", &words.to_string());
    assert!(response.status == 200 || response.status == 202, "{}", response.body);
}
