//! nginx: a map of names to upstreams, `split_clients` blocks for names of several clusters, and the upstreams.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::{ExportTable, Split};
use crate::model::{Balance, Protocol};

/// nginx variable that the map sets.
const VARIABLE: &str = "$signalbox_cluster";

/// Keywords of nginx's `map` that a host name must not be taken for.
const RESERVED_KEYS: [&str; 4] = ["default", "hostnames", "include", "volatile"];

/// Longest name, in bytes, that fits into nginx's default buckets; and most names that fit into its default table.
const MAX_DEFAULT_NAME_BYTES: usize = 32;
const MAX_DEFAULT_NAMES: usize = 1024;

/// Name of a cluster's upstream. Slashes are replaced, because a slash would end the upstream's name in a URL.
fn upstream(table: &ExportTable<'_>, at: usize) -> String {
    table
        .cluster(at)
        .map_or_else(String::new, |cluster| cluster.name.replace('/', "+"))
}

pub(super) fn map(table: &ExportTable<'_>) -> String {
    let mut text = String::new();
    let mut variables: BTreeMap<&Split, String> = BTreeMap::new();
    let several = table
        .names
        .iter()
        .map(|(_, split)| split)
        .filter(|split| split.len() > 1);
    for (number, split) in (1..).zip(several.collect::<BTreeSet<_>>()) {
        let variable = format!("$signalbox_split_{number}");
        split_clients(table, &mut text, split, &variable);
        variables.insert(split, variable);
    }
    hash_sizes(table, &mut text);
    let asked = match table.protocol {
        Protocol::Http => "$host",
        Protocol::Tls | Protocol::Tcp => "$ssl_preread_server_name",
    };
    let _ = write!(text, "map {asked} {VARIABLE} {{\n  hostnames;\n  default \"\";\n"); // writing to a String cannot fail
    for (host, split) in &table.names {
        let name = host.to_string();
        let escape = if RESERVED_KEYS.contains(&name.as_str()) {
            "\\"
        } else {
            ""
        };
        let single = || split.first().map(|(at, _)| upstream(table, *at)).unwrap_or_default();
        let value = variables.get(split).cloned().unwrap_or_else(single);
        let _ = writeln!(text, "  {escape}{name} {value};");
    }
    text.push_str("}\n");
    upstreams(table, &mut text);
    text
}

/// Writes a `split_clients` block, which draws a cluster for each connection by weight.
fn split_clients(table: &ExportTable<'_>, text: &mut String, split: &Split, variable: &str) {
    let total: u32 = split.iter().map(|(_, weight)| weight).sum();
    let _ = writeln!(text, "split_clients \"$remote_addr $remote_port $msec\" {variable} {{");
    for (number, (at, weight)) in (1..).zip(split) {
        let name = upstream(table, *at);
        if number == split.len() {
            let _ = writeln!(text, "  * {name};");
        } else {
            let _ = writeln!(text, "  {:.2}% {name};", f64::from(*weight) * 100.0 / f64::from(total));
        }
    }
    text.push_str("}\n");
}

/// Writes the sizes of the map's hash table, where nginx's defaults are too small for the names.
fn hash_sizes(table: &ExportTable<'_>, text: &mut String) {
    let longest = table.names.iter().map(|(host, _)| host.to_string().len()).max();
    if let Some(longest) = longest.filter(|longest| *longest > MAX_DEFAULT_NAME_BYTES) {
        let _ = writeln!(
            text,
            "map_hash_bucket_size {};",
            (longest + MAX_DEFAULT_NAME_BYTES).next_power_of_two()
        );
    }
    if table.names.len() > MAX_DEFAULT_NAMES {
        let _ = writeln!(
            text,
            "map_hash_max_size {};",
            (table.names.len() * 2).next_power_of_two()
        );
    }
}

fn upstreams(table: &ExportTable<'_>, text: &mut String) {
    let named: BTreeSet<usize> = table
        .names
        .iter()
        .flat_map(|(_, split)| split)
        .map(|(at, _)| *at)
        .collect();
    for at in named {
        let alone: Split = vec![(at, 1)];
        let balance = match table.balance(&alone) {
            Balance::LeastConnections => "  least_conn;\n",
            Balance::RoundRobin => "",
            Balance::RandomTwo => "  random two least_conn;\n",
            Balance::Maglev => "  hash $remote_addr consistent;\n",
        };
        let _ = write!(text, "upstream {} {{\n{balance}", upstream(table, at));
        let servers = table.servers(&alone);
        for server in &servers {
            let down = if server.is_out { " down" } else { "" };
            let _ = writeln!(text, "  server {} weight={}{down};", server.at, server.weight);
        }
        if servers.is_empty() {
            // nginx wants at least one server in an upstream.
            text.push_str("  server 127.0.0.1:9 down; # no host\n");
        }
        text.push_str("}\n");
    }
}
