//! Report of a migration for people, in Markdown.

use std::fmt::Write as _;

use super::guard::times::Times;
use super::guard::{GuardKind, MissedFaults, QualityFigures};
use super::{Migration, MigrationState};

/// Most names that a report lists.
const MAX_LISTED_NAMES: usize = 100;

/// Writes the report; `now` is used as the end of steps that have not ended.
#[must_use]
pub fn markdown(migration: &Migration, now: u64) -> String {
    let plan = &migration.plan;
    let mut text = format!("# Migration {}: {} to {}\n\n", migration.id, plan.from, plan.to);
    let outcome = match migration.state {
        MigrationState::Completed => "completed".to_owned(),
        state => state.as_str().replace('_', " "),
    };
    // Writing to a string cannot fail.
    let _ = writeln!(text, "- Outcome: **{outcome}**");
    if !migration.reason.is_empty() {
        let _ = writeln!(text, "- Reason: {}", migration.reason);
    }
    if !migration.by.is_empty() {
        let _ = writeln!(text, "- Ordered by: {}", migration.by);
    }
    let seconds = |from: u64, to: Option<u64>| to.unwrap_or(now).saturating_sub(from) as f64 / 1000.0;
    let _ = writeln!(text, "- Duration: {:.1} s", seconds(migration.started, migration.ended));
    if let (Some(began), Some(ended)) = (migration.went_back_at, migration.ended) {
        let _ = writeln!(
            text,
            "- Weights from before in force after: {:.1} s",
            seconds(began, Some(ended))
        );
    }
    if !plan.testers.is_empty() {
        let testers: Vec<_> = plan.testers.iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "- Testers: {}", testers.join(", "));
    }
    let names: Vec<_> = migration.names.keys().map(String::as_str).collect();
    let listed = &names[..names.len().min(MAX_LISTED_NAMES)];
    let more = names.len() - listed.len();
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    let _ = writeln!(text, "- Names ({}): {}{more}", names.len(), listed.join(", "));
    write_probes(&mut text, migration);
    text.push_str(
        "\n| Step | Held | Cluster | Connects | failed | Flows ended | broken | Requests | 5xx | Connect (median, p95) | First byte (median, p95) |\n\
         |---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for step in &migration.steps {
        let held = format!("{} % | {:.1} s", step.percent, seconds(step.since, step.ended));
        let _ = writeln!(text, "| {held} | {} | {} |", plan.to, row(&step.new));
        let _ = writeln!(text, "| | | {} | {} |", plan.from, row(&step.old));
    }
    text.push('\n');
    for step in migration.steps.iter().filter(|step| !step.missed.is_empty()) {
        let missed = step.missed.iter().map(|MissedFaults { guard, permille }| {
            let what = match guard {
                GuardKind::Connects => "failed connects",
                GuardKind::Connections => "broken connections",
                _ => "answers with 5xx",
            };
            format!("{} of {what}", *permille as f64 / 10.0)
        });
        let missed: Vec<_> = missed.collect();
        let _ = writeln!(
            text,
            "- {} %: percentage points that {} can have more than {} (with 95 % certainty): {}",
            step.percent,
            plan.to,
            plan.from,
            missed.join(", ")
        );
    }
    text
}

/// Writes what probes of names have shown.
fn write_probes(text: &mut String, migration: &Migration) {
    let probes = &migration.probes;
    if !migration.left_out.is_empty() {
        let left_out: Vec<_> = (migration.left_out.iter().take(MAX_LISTED_NAMES))
            .map(|(name, why)| format!("{name} ({why})"))
            .collect();
        let _ = writeln!(
            text,
            "- Left out ({}): {}",
            migration.left_out.len(),
            left_out.join(", ")
        );
    }
    if probes.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "- Probes: {} rounds; in the last one {} names, {} with a worse answer, {} with another one, {} of which nothing can be said",
        probes.rounds, probes.names, probes.worse, probes.different, probes.unknown
    );
    for (name, why) in &probes.listed {
        let _ = writeln!(text, "  - {name}: {why}");
    }
}

fn row(figures: &QualityFigures) -> String {
    let times = |times: &Times| match (times.percentile(50), times.percentile(95)) {
        (Some(median), Some(late)) => {
            let [median, late] = [median, late].map(|micros| micros as f64 / 1000.0);
            format!("{median:.1}, {late:.1} ms")
        }
        _ => "-".to_owned(),
    };
    format!(
        "{} | {} | {} | {} | {} | {} | {} | {}",
        figures.connects,
        figures.connect_failures,
        figures.flows_ended,
        figures.flows_broken,
        figures.answers,
        figures.server_errors,
        times(&figures.connect_times),
        times(&figures.first_byte_times),
    )
}
