//! The report as Markdown: a table for each scenario.

use std::fmt::Write;

use super::{Report, Row};
use crate::scenario::Kind;
use crate::stats::Spread;

/// A column: its head, and what a row has there.
type Column = (&'static str, fn(&Row) -> String);

const REQUESTS: &[Column] = &[
    ("total requests", |r| number(r.summary.work, 1.0, 0)),
    ("requests/s", |r| number(r.summary.rate, 1.0, 0)),
    ("min..max", |r| range(r.summary.rate, 0)),
    ("x HAProxy", |r| number(r.summary.ratio, 1.0, 2)),
    ("mean ms", |r| number(r.summary.mean, 1e-3, 3)),
    ("p50 ms", |r| number(r.summary.p50, 1e-3, 3)),
    ("p99 ms", |r| number(r.summary.p99, 1e-3, 3)),
    ("CPU µs/request", |r| number(r.summary.cpu, 1.0, 1)),
    ("added", |r| number(r.summary.added_cpu, 1.0, 1)),
    ("own", |r| number(r.summary.own_cpu, 1.0, 1)),
];

const LARGE: &[Column] = &[
    ("total requests", |r| number(r.summary.work, 1.0, 0)),
    ("requests/s", |r| number(r.summary.rate, 1.0, 0)),
    ("min..max", |r| range(r.summary.rate, 0)),
    ("x HAProxy", |r| number(r.summary.ratio, 1.0, 2)),
    ("Gbit/s", |r| number(r.summary.gbit, 1.0, 1)),
    ("mean ms", |r| number(r.summary.mean, 1e-3, 2)),
    ("p50 ms", |r| number(r.summary.p50, 1e-3, 2)),
    ("p99 ms", |r| number(r.summary.p99, 1e-3, 2)),
    ("CPU ms/GB", |r| number(r.summary.cpu, 1e-3, 0)),
    ("added", |r| number(r.summary.added_cpu, 1e-3, 0)),
    ("own", |r| number(r.summary.own_cpu, 1e-3, 0)),
];

const BULK: &[Column] = &[
    ("Gbit/s", |r| number(r.summary.rate, 1.0, 1)),
    ("min..max", |r| range(r.summary.rate, 1)),
    ("x HAProxy", |r| number(r.summary.ratio, 1.0, 2)),
    ("CPU ms/GB", |r| number(r.summary.cpu, 1e-3, 0)),
    ("added", |r| number(r.summary.added_cpu, 1e-3, 0)),
    ("own", |r| number(r.summary.own_cpu, 1e-3, 0)),
];

const IDLE: &[Column] = &[
    ("RSS KiB/connection", |r| number(r.summary.resident, 1.0 / 1024.0, 2)),
    ("x HAProxy", |r| number(r.summary.ratio, 1.0, 2)),
    ("added kernel KiB/connection", |r| {
        number(r.summary.added_kernel, 1.0 / 1024.0, 1)
    }),
];

/// All of it.
pub(super) fn text(report: &Report) -> String {
    let mut text = head(report);
    for rows in report.rows.chunk_by(|a, b| a.scenario == b.scenario) {
        let columns = match rows[0].scenario.kind {
            Kind::Unique(_) | Kind::Reused(_) => REQUESTS,
            Kind::Large(_) => LARGE,
            Kind::Bulk(_) => BULK,
            Kind::Idle(_) => IDLE,
        };
        let _ = write!(
            text,
            "\n## {} (`{}`)\n\n",
            rows[0].scenario.title, rows[0].scenario.name
        );
        table(&mut text, rows, columns);
    }
    text
}

fn head(report: &Report) -> String {
    let facts = &report.facts;
    let mut text = format!(
        "# Benchmarks\n\n{}, {} CPUs, {} MiB, Linux {}. {}. {}. {} at {}. {} rounds of {} s after {} s of warm-up, \
         {:.0} s in all. Made by `cargo xtask bench {}`.\n\nMedians over the rounds; how to read them: \
         [docs/benchmarks.md](../../docs/benchmarks.md).\n",
        facts.cpu,
        facts.cpus,
        facts.memory_mib,
        facts.kernel,
        facts.haproxy,
        facts.nginx,
        facts.signalbox,
        facts.revision,
        facts.rounds,
        facts.seconds,
        facts.warm_up_seconds,
        report.seconds_taken,
        facts.arguments.join(" ")
    );
    let (measured, disturbed) = report
        .rows
        .iter()
        .fold((0, 0), |(m, d), row| (m + row.samples.len(), d + row.disturbed));
    if disturbed > 0 || facts.busy_before > 0.05 {
        let _ = write!(
            text,
            "\n**The machine had other work**: {:.0} % busy before the run, {disturbed} of {measured} measurements \
             disturbed (`~`: how many of the row's).\n",
            facts.busy_before * 100.0
        );
    }
    match report.failed() {
        0 => {}
        failed => {
            let _ = write!(text, "\n**{failed} rows FAILED.** Their numbers are worth nothing.\n");
        }
    }
    text
}

fn table(text: &mut String, rows: &[Row], columns: &[Column]) {
    let heads: Vec<_> = columns.iter().map(|(head, _)| *head).collect();
    let _ = writeln!(text, "| contender | threads | {} | errors |", heads.join(" | "));
    let _ = writeln!(text, "|---|---:|{}---|", "---:|".repeat(columns.len()));
    for row in rows {
        let cells: Vec<_> = columns.iter().map(|(_, cell)| cell(row)).collect();
        let threads = if row.threads == 0 {
            "-".into()
        } else {
            row.threads.to_string()
        };
        let errors = match (row.errors.total(), row.disturbed) {
            (0, 0) => "0".into(),
            (0, disturbed) => format!("0 ~{disturbed}"),
            // A table's cell ends at `|`.
            _ => format!("**FAILED** {}", row.errors.to_string().replace('|', "/")),
        };
        let _ = writeln!(
            text,
            "| {} | {threads} | {} | {errors} |",
            row.contender,
            cells.join(" | ")
        );
    }
}

fn number(value: Option<Spread>, scale: f64, digits: usize) -> String {
    value.map_or_else(|| "-".into(), |spread| format!("{:.digits$}", spread.median * scale))
}

fn range(value: Option<Spread>, digits: usize) -> String {
    value.map_or_else(
        || "-".into(),
        |spread| format!("{:.digits$}..{:.digits$}", spread.min, spread.max),
    )
}
