//! The report as Markdown: pictures, and a table for each scenario.

use std::fmt::Write;

use super::Report;
use super::columns::{self, Column};
use super::plots::Picture;
use super::row::Row;
use crate::campaign::programs::Programs;

/// Text of the report.
pub(super) fn text(report: &Report, pictures: &[Picture]) -> String {
    let mut text = head(report);
    for picture in pictures {
        let _ = write!(text, "\n![{}]({})\n", picture.title, picture.file);
    }
    for rows in report.rows.chunk_by(|a, b| a.scenario == b.scenario) {
        let scenario = rows[0].scenario;
        let _ = write!(text, "\n## {} (`{}`)\n\n", scenario.title, scenario.name);
        table(&mut text, rows, columns::of(scenario.kind));
    }
    programs(&mut text, &report.programs);
    text
}

fn programs(text: &mut String, all: &[Programs]) {
    if all.iter().all(|of| of.programs.is_empty()) {
        return;
    }
    let _ = write!(
        text,
        "\n## BPF programs\n\nIn runs of their own, because counting costs time.\n\n\
         | scenario | contender | threads | program | runs | ns/run |\n|---|---|---:|---|---:|---:|\n"
    );
    for of in all {
        for program in &of.programs {
            let each = program.nanos as f64 / program.runs as f64;
            let _ = writeln!(
                text,
                "| {} | {} | {} | `{}` | {} | {each:.0} |",
                of.scenario, of.contender, of.threads, program.name, program.runs
            );
        }
    }
}

fn head(report: &Report) -> String {
    let facts = &report.facts;
    let mut text = format!(
        "# Benchmarks\n\n{}, {} CPUs, {} MiB, Linux {}. {} at {}, on {}. Conditions: {}. {} rounds of {} s after {} s of \
         warm-up, {:.0} s in all. Made by `cargo xtask bench {}`.\n\nMedians over the rounds; how to read them: \
         docs/benchmarks.md.\n\n| contender | version |\n|---|---|\n",
        facts.cpu,
        facts.cpus,
        facts.memory_mib,
        facts.kernel,
        facts.signalbox,
        facts.revision,
        facts.date,
        facts.conditions,
        facts.rounds,
        facts.seconds,
        facts.warm_up_seconds,
        report.seconds_taken,
        facts.arguments.join(" ")
    );
    for (contender, version) in &facts.versions {
        let _ = writeln!(text, "| {contender} | {} |", version.replace('|', "/"));
    }
    let _ = writeln!(text, "| (hosts) | {} |", facts.hosts);
    let (measured, disturbed) = report.disturbed();
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
            _ if row.absence.is_some() => row.absence.clone().unwrap_or_default().replace('|', "/"),
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

#[cfg(test)]
mod tests {
    use super::super::{fixture, plots};
    use super::*;
    use crate::scenario::ALL;

    #[test]
    fn every_table_is_as_wide_as_its_head() {
        let report = fixture::report();
        let text = text(&report, &plots::all(&report.rows));
        let mut width = None;
        for line in text.lines() {
            let cells = line.strip_prefix("| ").map(|line| line.matches('|').count());
            assert!(cells.is_none() || width.is_none() || cells == width, "{line}");
            width = if line.starts_with('|') { cells.or(width) } else { None };
        }
    }

    #[test]
    fn everything_is_in_it() {
        let report = fixture::report();
        let text = text(&report, &plots::all(&report.rows));
        for scenario in ALL {
            assert!(text.contains(&format!("(`{}`)", scenario.name)), "{}", scenario.name);
        }
        for picture in plots::NAMES {
            assert!(text.contains(&format!("]({picture})")), "{picture}");
        }
        assert!(text.contains("| bulk-4 | signalbox-auto | 2 | `steer` | 4 | 25 |"));
    }
}
