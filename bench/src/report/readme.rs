//! The README's table: a line for each of the most telling scenarios, with its one figure.

use std::fmt::Write as _;

use super::Report;
use super::columns::number;
use super::row::Row;
use super::tables::{CONTENDER_NAMES, about, find, most_threads, shown};

/// A line: scenario, title and figure.
type ReadmeLine = (&'static str, &'static str, fn(&Row) -> String);

const RATE: fn(&Row) -> String = |r| number(r.summary.rate, 1.0, 0);
const MEMORY: fn(&Row) -> String = |r| number(r.summary.resident, 1.0 / 1024.0, 1);

const LINES: [ReadmeLine; 22] = [
    ("unique-100", "new connections, 100 at a time: requests/s", RATE),
    ("tls-100", "TLS passed through, 100 new at a time: handshakes/s", RATE),
    (
        "latency-half",
        "connections that stay, at half the slowest's rate: p99 ms",
        |r| number(r.summary.p99, 1e-3, 3),
    ),
    ("bulk-4", "bulk, 4 streams: Gbit/s", |r| number(r.summary.gbit, 1.0, 1)),
    ("idle-plain-9000", "an idle connection: KiB of the process", MEMORY),
    ("idle-tls-9000", "an idle connection, TLS passed through: KiB", MEMORY),
    ("none", "new connections, 100 at a time, no condition: requests/s", RATE),
    ("netfilter", "with rules of a packet filter", RATE),
    ("access-log", "with an access log", RATE),
    ("proxy-protocol", "with a PROXY header to hosts", RATE),
    ("limits", "with limits per source and per route", RATE),
    ("plain-reused-64", "HTTP/1 by request, 64 connections: requests/s", RATE),
    (
        "edge-full-100",
        "TLS that ends here, 100 new at a time: handshakes/s",
        RATE,
    ),
    ("edge-reused-64", "TLS that ends here, 64 connections: requests/s", RATE),
    (
        "http2-streams-10",
        "HTTP/2, 10 connections of 32 streams: requests/s",
        RATE,
    ),
    ("websocket-1000", "1000 WebSockets: echoes/s", RATE),
    (
        "idle-http1-9000",
        "an idle connection of HTTP/1 by request: KiB of the process",
        MEMORY,
    ),
    (
        "idle-edge-9000",
        "an idle connection, TLS ended: KiB of the process",
        MEMORY,
    ),
    ("idle-http2-9000", "an idle connection of HTTP/2: KiB", MEMORY),
    ("idle-websocket-9000", "an idle WebSocket: KiB", MEMORY),
    ("change-1000", "1000 further routes: ms until all answer", |r| {
        number(r.summary.until_all, 1e-3, 0)
    }),
    ("change-1000", "longest latency meanwhile: ms", |r| {
        number(r.summary.worst, 1e-3, 1)
    }),
];

/// Text of the table, of rows with the most threads; scenarios that were not run are left out.
pub(super) fn text(report: &Report) -> String {
    let rows = &report.rows;
    let threads = most_threads(rows);
    let names: Vec<_> = CONTENDER_NAMES.iter().map(|(_, name)| *name).collect();
    let mut text = about(report);
    let _ = write!(
        text,
        "\n| | {} |\n|---|{}\n",
        names.join(" | "),
        "---:|".repeat(names.len())
    );
    for (scenario, title, cell) in LINES {
        if rows.iter().any(|row| row.scenario.name == scenario) {
            let cells = CONTENDER_NAMES.map(|(who, _)| shown(who, find(rows, scenario, who, threads), cell));
            let _ = writeln!(text, "| {title} | {} |", cells.join(" | "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    #[test]
    fn every_line_is_of_a_scenario_and_has_a_cell_for_everybody() {
        let text = text(&fixture::report());
        for (_, title, _) in LINES {
            let line = text
                .lines()
                .find(|line| line.contains(title))
                .unwrap_or_else(|| panic!("{title}"));
            assert_eq!(line.matches('|').count(), 9, "{line}");
            assert!(!line.contains(" - |") && line.contains("| not supported |"), "{line}");
        }
    }

    #[test]
    fn the_run_is_named() {
        assert!(text(&fixture::report()).contains("signalbox at commit abc, 2026-11-28; HAProxy 3.2.1"));
    }
}
