//! Tables for the page on benchmarks: the load tests of the thesis with its columns, and how the rest compares.

use std::fmt::Write;

use super::Report;
use super::columns::number;
use super::row::Row;
use crate::contender::{BASELINE, REFERENCE};

pub(super) const OURS: &str = "signalbox-auto";
/// Contenders, and their names for readers.
pub(super) const CONTENDER_NAMES: [(&str, &str); 7] = [
    (BASELINE, "plain routing"),
    (REFERENCE, "HAProxy"),
    ("nginx", "nginx"),
    ("envoy", "Envoy"),
    ("traefik", "Traefik"),
    ("caddy", "Caddy"),
    (OURS, "**signalbox**"),
];

/// A line of a table: its head, and the text of a row.
type Line = (&'static str, fn(&Row) -> String);

const REQUESTS: &[Line] = &[
    ("total requests", |r| number(r.summary.work, 1.0, 0)),
    ("requests/s", |r| number(r.summary.rate, 1.0, 0)),
    ("mean ms", |r| number(r.summary.mean, 1e-3, 3)),
    TAIL,
];

/// Line of the latency's 50th, 99th and 99.9th percentile.
const TAIL: Line = ("p50 / p99 / p99.9 ms", |r| {
    let times = [r.summary.p50, r.summary.p99, r.summary.p999];
    times.map(|time| number(time, 1e-3, 2)).join(" / ")
});

/// Scenarios, their names for readers, and their lines.
const TABLES: [&[(&str, &str, &[Line])]; 3] = [
    &[
        ("unique-1", "unique connections, 1 at a time", REQUESTS),
        ("unique-100", "100 at a time", REQUESTS),
        ("unique-500", "500 at a time", REQUESTS),
        ("reused-1", "reused connections, 1", REQUESTS),
        ("reused-100", "100", REQUESTS),
        ("reused-500", "500", REQUESTS),
    ],
    &[
        ("large-4", "answers of 1 MiB, 4 connections", GBIT),
        ("bulk-1", "bulk, 1 stream", GBIT),
        ("bulk-4", "bulk, 4 streams", GBIT),
        ("tls-100", "TLS handshakes, 100 at a time", RATE),
        ("latency-half", "latency at half the rate", LATENCY),
    ],
    &[
        (
            "plain-unique-100",
            "plain, unique connections, 100 at a time",
            HTTP_REQUESTS,
        ),
        ("plain-reused-64", "plain, 64 reused connections", HTTP_REQUESTS),
        ("plain-large-4", "plain, 1 MiB, 4 connections", HTTP_LARGE),
        ("edge-full-100", "edge, full handshakes, 100 at a time", HTTP_REQUESTS),
        (
            "edge-resumed-100",
            "edge, resumed sessions, 100 at a time",
            HTTP_REQUESTS,
        ),
        ("edge-reused-64", "edge, 64 reused connections", HTTP_REQUESTS),
        ("edge-large-4", "edge, 1 MiB, 4 connections", HTTP_LARGE),
        (
            "reencrypt-full-100",
            "re-encrypt, full handshakes, 100 at a time",
            HTTP_REQUESTS,
        ),
        (
            "reencrypt-reused-64",
            "re-encrypt, 64 reused connections",
            HTTP_REQUESTS,
        ),
        ("reencrypt-large-4", "re-encrypt, 1 MiB, 4 connections", HTTP_LARGE),
    ],
];

const GBIT: &[Line] = &[("Gbit/s", |r| number(r.summary.gbit, 1.0, 1)), RATIO];
const RATE: &[Line] = &[("a second", |r| number(r.summary.rate, 1.0, 0)), TAIL, RATIO];
const LATENCY: &[Line] = &[
    ("p50 ms", |r| number(r.summary.p50, 1e-3, 3)),
    ("p99 ms", |r| number(r.summary.p99, 1e-3, 3)),
    ("p99.9 ms", |r| number(r.summary.p999, 1e-3, 3)),
    ("p99 x HAProxy", |r| number(r.summary.ratio, 1.0, 2)),
];
const HTTP_REQUESTS: &[Line] = &[
    ("requests/s", |r| number(r.summary.rate, 1.0, 0)),
    RATIO,
    ("p50 / p99 ms", |r| {
        let times = [r.summary.p50, r.summary.p99];
        times.map(|time| number(time, 1e-3, 2)).join(" / ")
    }),
    ("balancer's CPU µs/request", |r| number(r.summary.own_cpu, 1.0, 1)),
];
const HTTP_LARGE: &[Line] = &[
    ("Gbit/s", |r| number(r.summary.gbit, 1.0, 1)),
    RATIO,
    ("balancer's CPU ms/GB", |r| number(r.summary.own_cpu, 1e-3, 0)),
];
const RATIO: Line = ("x HAProxy", |r| number(r.summary.ratio, 1.0, 2));

/// Text of the tables, of rows with the most threads; scenarios that were not run are left out.
pub(super) fn text(report: &Report) -> String {
    let rows = &report.rows;
    let threads = most_threads(rows);
    let mut text = about(report);
    for table in TABLES {
        let there = |name: &str| rows.iter().any(|row| row.scenario.name == name);
        if !table.iter().any(|(scenario, ..)| there(scenario)) {
            continue;
        }
        let names: Vec<_> = CONTENDER_NAMES.iter().map(|(_, name)| *name).collect();
        let _ = write!(
            text,
            "\n| | | {} |\n|---|---|{}\n",
            names.join(" | "),
            "---:|".repeat(CONTENDER_NAMES.len())
        );
        for &(scenario, title, lines) in table {
            if there(scenario) {
                write_lines(&mut text, title, lines, &|who| find(rows, scenario, who, threads));
            }
        }
    }
    text
}

fn write_lines<'a>(text: &mut String, title: &str, lines: &[Line], row: &dyn Fn(&str) -> Option<&'a Row>) {
    for (number, (what, cell)) in lines.iter().enumerate() {
        let cells: Vec<_> = CONTENDER_NAMES
            .iter()
            .map(|(who, _)| shown(who, row(who), *cell))
            .collect();
        let title = if number == 0 { title } else { "" };
        let _ = writeln!(text, "| {title} | {what} | {} |", cells.join(" | "));
    }
}

/// Cell of a contender.
pub(super) fn shown(who: &str, row: Option<&Row>, cell: fn(&Row) -> String) -> String {
    match row {
        // The words before the reason: not installed, or not supported.
        Some(Row { absence: Some(why), .. }) => why.split(':').next().unwrap_or_default().to_owned(),
        Some(row) if row.errors.total() > 0 => "failed".into(),
        Some(row) if who == OURS => format!("**{}**", cell(row)),
        Some(row) => cell(row),
        None => "-".into(),
    }
}

/// Kernel, conditions, commit, day and versions of a run.
pub(super) fn about(report: &Report) -> String {
    let facts = &report.facts;
    let versions = CONTENDER_NAMES.iter().filter_map(|(who, _)| {
        let version = facts.versions.get(*who)?;
        let is_missing = version.starts_with("not installed");
        Some(if is_missing {
            format!("{who} not installed")
        } else {
            version.clone()
        })
    });
    let versions: Vec<_> = versions.collect();
    let (measured, disturbed) = report.disturbed();
    let sentence = format!(
        "Linux {}, {} CPUs ({}); {}; {} at commit {}, {}; {}; medians of {} rounds of {} s; {disturbed} of {measured} \
         measurements were disturbed by others' programs.",
        facts.kernel,
        facts.cpus,
        facts.cpu,
        facts.conditions,
        facts.signalbox,
        facts.revision,
        facts.date,
        versions.join(", "),
        facts.rounds,
        facts.seconds
    );
    wrap(&sentence)
}

/// Breaks a text into lines of at most 120 columns.
fn wrap(text: &str) -> String {
    let (mut lines, mut width) = (String::new(), 0);
    for word in text.split(' ') {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > 120 {
            lines.push('\n');
            width = 0;
        } else if width > 0 {
            lines.push(' ');
            width += 1;
        }
        lines += word;
        width += length;
    }
    lines + "\n"
}

/// Largest number of threads of any contender.
pub(super) fn most_threads(rows: &[Row]) -> usize {
    rows.iter().map(|row| row.threads).max().unwrap_or(0)
}

/// Row of a contender with `threads` threads.
pub(super) fn find<'a>(rows: &'a [Row], scenario: &str, who: &str, threads: usize) -> Option<&'a Row> {
    let threads = if who == BASELINE { 0 } else { threads };
    let is = |row: &&Row| row.contender == who && row.threads == threads;
    rows.iter().filter(|row| row.scenario.name == scenario).find(is)
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;
    use crate::scenario::{ALL, HTTP};

    #[test]
    fn every_line_has_a_cell_for_everybody() {
        let rows = fixture::rows();
        for &(scenario, title, lines) in TABLES.iter().flat_map(|table| table.iter()) {
            assert!(ALL.iter().chain(&HTTP).any(|s| s.name == scenario), "{scenario}");
            let mut text = String::new();
            write_lines(&mut text, title, lines, &|who| find(&rows, scenario, who, 2));
            for line in text.lines() {
                assert_eq!(line.matches('|').count(), 10, "{line}");
                assert!(
                    !line.contains(" - ") && line.contains("| not supported |"),
                    "{scenario}: {line}"
                );
            }
        }
    }

    #[test]
    fn a_run_says_where_and_when_it_was() {
        let text = about(&fixture::report());
        let wanted = "Linux 6.1, 2 CPUs (CPU); no condition; signalbox at commit abc, 2026-11-28; HAProxy 3.2.1, envoy \
             not installed; medians\nof 2 rounds";
        assert!(text.starts_with(wanted), "{text}");
        assert!(text.lines().all(|line| line.len() <= 120));
    }

    #[test]
    fn rows_are_those_with_the_most_threads() {
        let rows = fixture::rows();
        assert_eq!(find(&rows, "unique-100", REFERENCE, 2).unwrap().threads, 2);
        assert_eq!(find(&rows, "unique-100", BASELINE, 2).unwrap().threads, 0);
        assert!(find(&rows, "unique-100", REFERENCE, 3).is_none());
    }
}
