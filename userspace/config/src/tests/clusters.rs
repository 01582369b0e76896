//! Messages of the rules for clusters and hosts when broken.

use signalbox_core::model::ClusterRole;

use super::{bent, only_mistake, only_mistakes, parse};

#[test]
fn clusters() {
    only_mistake(
        &bent("name: west\n", "name: east\n")
            .replace("west: 80", "east: 80")
            .replace("{ east: 10, east: 80 }", "{ east: 1 }")
            .replace("west: 100", "east: 100"),
        "clusters[1].name",
        "there already is a cluster `east` on line 8",
    );
    let balance = "`least-conections` is not a way to balance; did you mean `least-connections`? \
                   (allowed: least-connections, round-robin, random-two or maglev)";
    only_mistake(
        &bent("least-connections", "least-conections"),
        "clusters[0].balance",
        balance,
    );
    let with = |to: &str| bent("name: west\n", &format!("name: west\n    ejection: {to}\n"));
    only_mistakes(
        &with,
        r"
            { max_percent: 101 } | clusters[1].ejection.max_percent | from 0 to 100
            { time: 0s }         | clusters[1].ejection.time        | more than 0
            { failures: x }      | clusters[1].ejection.failures    | `x` is not a whole number
        ",
    );
}

#[test]
fn a_cluster_has_a_role() {
    let with = |role: &str| bent("name: west\n", &format!("name: west\n    role: {role}\n"));
    let roles = |text: &str| {
        super::right(text)
            .model
            .clusters
            .into_iter()
            .map(|cluster| cluster.role)
            .collect::<Vec<_>>()
    };
    assert_eq!(roles(&with("servers")), [ClusterRole::Routers, ClusterRole::Servers]);
    only_mistakes(
        &with,
        "server | clusters[1].role | is not a role of hosts; did you mean `servers`?",
    );
}

#[test]
fn a_cluster_with_a_mistake_still_is_a_cluster() {
    only_mistake(
        &bent("balance: least-connections", "balance: x"),
        "clusters[0].balance",
        "is not a way to balance",
    );
    only_mistake(
        &bent("- name: east", "- name: ea st"),
        "clusters[0].name",
        "is not a name",
    );
    only_mistake(
        &bent("- name: east", "- naem: east"),
        "clusters[0].naem",
        "did you mean `name`?",
    );
    only_mistake(
        &bent("clusters:\n", "clutsers:\n"),
        "clutsers",
        "did you mean `clusters`?",
    );
}

#[test]
fn hosts() {
    let host = |to: &str| bent("name: west-1, address: \"fd00:2::4\", http: 80, https: 443", to);
    only_mistakes(
        &host,
        r"
            name: w, address: 10.0.0.1 | clusters[1].hosts[0] | the host has no port: give it at least one of `http`, `https`, `tcp` and `ports`
            name: w, http: 80                             | clusters[1].hosts[0]         | the key `address` is missing
            name: w, address: 10.0.0.1, http: 0           | clusters[1].hosts[0].http    | `0` is not a whole number from 1 to 65535
            name: w, address: 10.0.0.1, htp: 80           | clusters[1].hosts[0].htp     | unknown key `htp`; did you mean `http`?
            name: w, http: 80, address: 10.2.0.300        | clusters[1].hosts[0].address | is not an IP address, such as 10.2.0.2 or fd00:2::4
            name: w, http: 80, address: 0.0.0.0           | clusters[1].hosts[0].address | is not the address of one machine
            name: w, http: 80, address: '::ffff:10.0.0.1' | clusters[1].hosts[0].address | write 10.0.0.1
        ",
    );
    only_mistake(
        &bent("name: east-2", "name: east-1"),
        "clusters[0].hosts[1].name",
        "there already is a host `east-1` on line 12",
    );
    only_mistake(
        &bent("weight: 2", "weight: 101"),
        "clusters[0].hosts[1].weight",
        "`101` is not a whole number from 1 to 100",
    );
    only_mistake(
        &bent("    hosts: [", "    ohsts: ["),
        "clusters[1].ohsts",
        "did you mean `hosts`?",
    );
}

#[test]
fn a_hostname_in_the_place_of_an_address() {
    let text = "version: 1\nlisteners: [{ name: db, protocol: tcp, listen: [\"10.1.0.1:3306\"], cluster: east }]\n\
                clusters:\n  - name: east\n    resolve: 10s\n    \
                hosts: [{ name: db, address: DB.example.com., tcp: 3306, backup: true }]\n";
    let parsed = parse(text).unwrap_or_else(|errors| panic!("{errors}"));
    assert!(parsed.warnings.is_empty(), "{:?}", parsed.warnings);
    let cluster = &parsed.model.clusters[0];
    let host = cluster.named_hosts[0].at([10, 2, 0, 2].into());
    assert!(cluster.hosts.is_empty());
    assert_eq!(cluster.resolve, std::time::Duration::from_secs(10));
    assert_eq!(cluster.named_hosts[0].hostname.as_str(), "db.example.com");
    assert_eq!(
        (host.name.as_str(), host.tcp, host.backup),
        ("db-10.2.0.2", Some(3306), true)
    );
}
