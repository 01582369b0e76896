//! Messages of the rules for health checks when broken.

use super::{bent, only_mistake, only_mistakes};

#[test]
fn health() {
    let health = |to: &str| bent("name: west\n", &format!("name: west\n    health: {to}\n"));
    only_mistakes(
        &health,
        r#"
            { tcp: {}, http: {} } | clusters[1].health | at most one of `http`, `https`, `tcp` and `udp`; there is more than one
            { htp: {} }                             | clusters[1].health.htp            | did you mean `http`?
            { tcp:, interval: 2500ms, timeout: 3s } | clusters[1].health.timeout | the timeout (3s) must not exceed the interval (2500ms): change either
            { tcp:, fast_interval: 6s } | clusters[1].health.fast_interval | the fast interval (6s) must not exceed the interval (5s): change either
            { tcp:, proxy_protocol: v1 }            | clusters[1].health.proxy_protocol | a version of the PROXY protocol
            { tcp:, rise: 0 }                       | clusters[1].health.rise           | from 1 to 100
            { tcp:, fall: 101 }                     | clusters[1].health.fall           | from 1 to 100
            { tcp: { port: 99999 } }                | clusters[1].health.tcp.port       | from 1 to 65535
            { http: { path: healthz } }             | clusters[1].health.http.path      | begin it with `/`
            { http: { path: "/a\r\nX: y" } }        | clusters[1].health.http.path      | `/a\r\nX: y` is not a path
            { http: { host: "a b" } }               | clusters[1].health.http.host      | is not a Host header
            { http: { sni: a.b } }                  | clusters[1].health.http.sni       | unknown key `sni`
            { https: { sni: 10.0.0.1 } }            | clusters[1].health.https.sni      | a server name cannot be an address
            { https: { sni: '*.b' } }               | clusters[1].health.https.sni      | is not a server name
            { udp: { port: 53 } }                   | clusters[1].health.udp      | one of `send`, `dns` and `quic: true`
            { udp: { dns: a.b, quic: true } }       | clusters[1].health.udp      | one of `send`, `dns` and `quic: true`
            { udp: { dns: a.b, expect: x } }        | clusters[1].health.udp.expect | `expect` needs `send`
            { udp: { send: "hex:" } }               | clusters[1].health.udp.send | 1 to 1200 bytes
            { udp: { send: "hex:123" } }            | clusters[1].health.udp.send | pairs of hexadecimal digits
            { udp: { dns: "a b" } }                 | clusters[1].health.udp.dns  | is not a name to query
            { http: 80 }                            | clusters[1].health.http           | expected a mapping
        "#,
    );
}

#[test]
fn a_check_needs_a_port_to_reach() {
    let remedy = "the cluster's https health check cannot reach this host, which has no `https` port: \
                  give the host one, or the check a `port`";
    let text = bent("name: west\n", "name: west\n    health: { https: {} }\n")
        .replace("http: 80, https: 443 } ]", "http: 80 } ]");
    only_mistake(&text, "clusters[1].hosts[0]", remedy);
    // A mistake in the port is reported as a mistake, not as a missing port.
    only_mistake(
        &text.replace("https: {}", "https: { port: x }"),
        "clusters[1].health.https.port",
        "`x`",
    );
    only_mistake(
        &text.replace("https: {}", "https: { prot: 1 }"),
        "clusters[1].health.https.prot",
        "`port`",
    );
    only_mistake(
        &text.replace("http: 80 } ]", "https: x } ]"),
        "clusters[1].hosts[0].https",
        "`x`",
    );
}
