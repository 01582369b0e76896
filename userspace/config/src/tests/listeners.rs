//! Messages of the rules for listeners when broken.

use super::{bent, only_mistake, only_mistakes};

#[test]
fn listeners() {
    only_mistake(
        "version: 1\nclusters: []\nlisteners: []",
        "listeners",
        "there is no listener: at least one is needed",
    );
    only_mistake(
        "version: 1\nclusters: []\nlisteners:",
        "listeners",
        "there is no listener",
    );
    only_mistake(
        &bent("name: mysql", "name: http"),
        "listeners[2].name",
        "there already is a listener `http` on line 4",
    );
    only_mistake(&bent("name: mysql, ", ""), "listeners[2]", "the key `name` is missing");
    only_mistake(
        &bent("name: mysql", "name: my sql"),
        "listeners[2].name",
        "1 to 63 letters, digits, `.`, `_` or `-`",
    );
    only_mistake(
        &bent("name: mysql", &format!("name: {}", "x".repeat(64))),
        "listeners[2].name",
        "is not a name",
    );
    only_mistake(
        &bent("protocol: tls", "protocol: tls, routing: request"),
        "listeners[1].routing",
        "`routing: request` needs `protocol: http`: signalbox reads only the first bytes of tls",
    );
    only_mistake(
        &bent("protocol: http", "protocol: http, routing: requests"),
        "listeners[0].routing",
        "`requests` is not a unit of routing; did you mean `request`? (allowed: connection or request)",
    );
    let protocol = "`htpp` is not a protocol; did you mean `http`? (allowed: http, https, tls or tcp)";
    only_mistake(
        &bent("protocol: http", "protocol: htpp"),
        "listeners[0].protocol",
        protocol,
    );
    only_mistake(
        &bent(", cluster: east", ""),
        "listeners[2]",
        "a tcp listener needs a `cluster`",
    );
    only_mistake(
        &bent("cluster: east", "cluster: easst"),
        "listeners[2].cluster",
        "no cluster `easst`; did you mean `east`?",
    );
    only_mistake(
        &bent("cluster: east", "clutser: east"),
        "listeners[2].clutser",
        "did you mean `cluster`?",
    );
    only_mistake(
        &bent("cluster: east", "cluster: east, backup: wset"),
        "listeners[2].backup",
        "no cluster `wset`; did you mean `west`?",
    );
    only_mistake(
        &bent("cluster: east", "cluster: east, backup: east"),
        "listeners[2].backup",
        "a cluster cannot be its own backup: name another cluster",
    );
    only_mistake(
        &bent("protocol: http", "protocol: http, backup: east"),
        "listeners[0].backup",
        "`backup` needs a `cluster`",
    );
    only_mistake(
        &bent("[\"10.1.0.1:3306\"]", "[]"),
        "listeners[2].listen",
        "a listener needs at least one address",
    );
    only_mistake(
        &bent("[\"10.1.0.1:3306\"]", "10.1.0.1:3306"),
        "listeners[2].listen",
        "expected a list (`[a, b]`",
    );
    only_mistake(
        &bent("- { name: mysql", "- mysql\n  - { name: mysql"),
        "listeners[2]",
        "expected a mapping",
    );
}

#[test]
fn more_listeners_than_allowed() {
    let mut text = "version: 1\nclusters: [{name: c, hosts: []}]\nlisteners:\n".to_owned();
    for n in 1..=300 {
        text.push_str(&format!(
            "- {{name: l{n}, protocol: tcp, cluster: c, listen: [\"10.0.0.1:{n}\"]}}\n"
        ));
    }
    only_mistake(
        &text,
        "listeners[256]",
        "there are 300 listeners; at most 256 are allowed",
    );
}

#[test]
fn an_address_has_one_listener() {
    let path = "listeners[2].listen[0]";
    let used = "10.1.0.1:443 is already used by listener `https` on line 5";
    only_mistake(&bent("10.1.0.1:3306", "10.1.0.1:443"), path, used);
    only_mistake(&bent("10.1.0.1:3306", "10.1.0.1/32:443"), path, used);
    only_mistake(
        &bent("10.1.0.1:3306", "[FD00:1:0::1]:443"),
        path,
        "[fd00:1::1]:443 is already used by listener `https`",
    );
    only_mistake(
        &bent("10.1.0.1:3306\"", "*:1\", \":1\""),
        "listeners[2].listen[1]",
        "0.0.0.0/0:1 is already used by listener",
    );
    only_mistake(
        &bent("10.1.0.1:3306", "127.0.0.1:8089"),
        path,
        "127.0.0.1:8089 is already used by admin.listen on line 2",
    );
    let text = bent("10.1.0.1:3306", "127.0.0.1:8089").replace("admin: {", "# admin: {");
    only_mistake(&text, path, "127.0.0.1:8089 is already used by admin.listen by default");
}

#[test]
fn proxy_protocol() {
    let with = |to: &str| bent("cluster: east }", &format!("cluster: east, proxy_protocol: {to} }}"));
    only_mistakes(
        &with,
        r"
            {}                         | listeners[2].proxy_protocol            | the key `trusted` is missing
            v2                         | listeners[2].proxy_protocol            | expected a mapping
            { trusted: [10.0.0.1/8] }  | listeners[2].proxy_protocol.trusted[0] | `10.0.0.1/8` has bits set beyond its length: write 10.0.0.0/8
            { trusted: [lan] }         | listeners[2].proxy_protocol.trusted[0] | `lan` is not a prefix, such as 10.0.0.0/8 or fd00::/8
            { trusted: [10.0.0.0/40] } | listeners[2].proxy_protocol.trusted[0] | the prefix length of 10.0.0.0 must be 0 to 32
        ",
    );
    let text = bent("name: west\n", "name: west\n    proxy_protocol: v1\n");
    only_mistake(
        &text,
        "clusters[1].proxy_protocol",
        "`v1` is not a version of the PROXY protocol; did you mean `v2`?",
    );
    only_mistakes(
        &|to: &str| bent("name: west\n", &format!("name: west\n    proxy_protocol: {to}\n")),
        "
            { version: 1 }                 | clusters[1].proxy_protocol.version | hosts get version 2
            { version: 2, tlvs: [crc32] }  | clusters[1].proxy_protocol.tlvs[0] | did you mean `crc32c`?
            { version: 2, tlvs: alpn }     | clusters[1].proxy_protocol.tlvs    | expected a list
        ",
    );
}
