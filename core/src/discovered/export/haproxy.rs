//! HAProxy: a map of names, a map of wildcards, and the backends that both name.

use std::fmt::Write as _;

use super::{ExportTable, Split};
use crate::model::{Balance, Protocol};
use crate::wire::hostname::HostnamePattern;

/// Name of a backend: the cluster's, or of several clusters each with its weight. No cluster's name has a colon, and a
/// name in HAProxy may have no slash. Backends for TLS end in `::tls`, as one HAProxy may have those for HTTP too.
fn backend(table: &ExportTable<'_>, split: &Split) -> String {
    let name = |at: usize| {
        let name = table.cluster(at).map_or("", |cluster| &cluster.name);
        name.replace('/', ":")
    };
    let named = match split[..] {
        [(at, _)] => name(at),
        _ => {
            let parts = split.iter().map(|(at, weight)| format!("{}:{weight}", name(*at)));
            parts.collect::<Vec<_>>().join(":")
        }
    };
    match table.protocol {
        Protocol::Http => named,
        Protocol::Tls | Protocol::Tcp => named + "::tls",
    }
}

pub(super) fn map(table: &ExportTable<'_>, wildcards: bool) -> String {
    let mut text = String::new();
    for (host, split) in &table.names {
        let key = match host {
            HostnamePattern::Exact(name) if !wildcards => name.as_str().to_owned(),
            HostnamePattern::Wildcard(suffix) if wildcards => format!(".{}", suffix.as_str()),
            _ => continue,
        };
        let _ = writeln!(text, "{key} {}", backend(table, split)); // writing to a String cannot fail
    }
    text
}

pub(super) fn backends(table: &ExportTable<'_>) -> String {
    let mode = match table.protocol {
        Protocol::Http => "http",
        Protocol::Tls | Protocol::Tcp => "tcp",
    };
    let mut text = String::new();
    for (name, split) in table.splits(|split| backend(table, split)) {
        let balance = match table.balance(split) {
            Balance::LeastConnections => "leastconn",
            Balance::RoundRobin => "roundrobin",
            Balance::RandomTwo => "random(2)",
            Balance::Maglev => "source\n  hash-type consistent",
        };
        let _ = write!(text, "backend {name}\n  mode {mode}\n  balance {balance}\n");
        for server in table.servers(split) {
            let own = server.name;
            let _ = write!(
                text,
                "  server {}:{own} {} weight {} check",
                server.cluster.name.replace('/', ":"),
                server.at,
                server.weight
            );
            text.push_str(if server.cluster.proxy_protocol.is_some() {
                " send-proxy-v2"
            } else {
                ""
            });
            text.push_str(if server.is_out { " disabled\n" } else { "\n" });
        }
    }
    text
}
