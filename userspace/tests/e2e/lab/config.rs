//! Pieces of configuration files.

use super::topology::HOSTS;

/// A check that notices a dead host within three seconds, and does not take a slow answer of a busy machine for a dead
/// host; the servers of the lab answer it on :1936.
pub(crate) const FAST_HEALTH: &str = "health: { http: { port: 1936, path: /healthz }, interval: 2s, fast_interval: 500ms, timeout: 2s, rise: 1, fall: 2 }";

/// Listeners at 10.1.0.1 and fd00:1::1 for the lab's client.
pub(crate) const WEB_LISTENERS: &str = r#"listeners:
  - { name: http,  protocol: http, listen: ["10.1.0.1:80", "[fd00:1::1]:80"] }
  - { name: https, protocol: tls,  listen: ["10.1.0.1:443", "[fd00:1::1]:443"] }
"#;

/// A host by its name in the lab; `west-1` is reached by IPv6 as in the example, all others by IPv4.
pub(crate) fn host(name: &str) -> String {
    host_with(name, "")
}

/// A host with further keys, such as `weight: 2`.
pub(crate) fn host_with(name: &str, keys: &str) -> String {
    let (_, v4, v6) = HOSTS.iter().find(|(host, ..)| *host == name).unwrap();
    let address = if name == "west-1" { v6 } else { v4 };
    let comma = if keys.is_empty() { "" } else { ", " };
    format!("{{ name: {name}, address: \"{address}\", http: 80, https: 443, tcp: 3306{comma}{keys} }}")
}

/// An entry of `clusters:`. `keys` are further lines, such as `balance: maglev`; without a `health:` among them the
/// fast one is used.
pub(crate) fn cluster(name: &str, keys: &[&str], hosts: &[&str]) -> String {
    let hosts: Vec<_> = hosts.iter().map(|name| host(name)).collect();
    cluster_of(name, keys, &hosts)
}

/// Makes a cluster with the hosts spelt out.
pub(crate) fn cluster_of(name: &str, keys: &[&str], hosts: &[String]) -> String {
    let mut text = format!("  - name: {name}\n");
    let health = (!keys.iter().any(|k| k.starts_with("health:"))).then_some(FAST_HEALTH);
    for key in keys.iter().copied().chain(health) {
        text += &format!("    {key}\n");
    }
    text + &format!("    hosts:\n{}", yaml_list("      ", hosts))
}

/// Lines of a YAML sequence.
pub(crate) fn yaml_list(indent: &str, items: &[String]) -> String {
    items.iter().map(|item| format!("{indent}- {item}\n")).collect()
}

/// The usual two clusters of the usual two listeners, east with three hosts and west with two, and these routes, such
/// as `{ host: a.test, clusters: { east: 1 } }`.
pub(crate) fn web(routes: &[&str]) -> String {
    let east = cluster("east", &["balance: least-connections"], &["east-1", "east-2", "east-3"]);
    let west = cluster("west", &[], &["west-1", "west-2"]);
    let routes: Vec<_> = routes.iter().map(ToString::to_string).collect();
    format!(
        "{WEB_LISTENERS}clusters:\n{east}{west}routes:\n{}unmatched: reject\n",
        yaml_list("  ", &routes)
    )
}

/// Makes a `tcp` listener at 10.1.0.1:3306 for the given hosts, and further top-level lines such as `timeouts: { idle:
/// 2s }`.
pub(crate) fn tcp(extra: &str, hosts: &[&str]) -> String {
    let east = cluster("east", &["balance: round-robin"], hosts);
    let listener = "{ name: mysql, protocol: tcp, listen: [\"10.1.0.1:3306\"], cluster: east }";
    format!("{extra}\nlisteners:\n  - {listener}\nclusters:\n{east}")
}
