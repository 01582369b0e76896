//! Alerts and recording rules of Prometheus: promtool understands and tests them, their metrics are documented, and the
//! runbook has a section for each alert.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{
    Lint,
    broken::Broken,
    files::{MANIFEST, RUNBOOK},
    metrics::Metrics,
};
use crate::exec::Run;

const DIRECTORY: &str = "packaging/prometheus";
const SEVERITIES: [&str; 2] = ["critical", "warning"];

pub(super) const LINT: Lint = Lint {
    tools: &["promtool"],
    prepare: || Ok(()),
    check,
    broken: &[
        Broken {
            file: "packaging/prometheus/alerts.yaml",
            from: "signalbox_feature == 1",
            to: "signalbox_feature === 1",
            says: "could not parse expression",
        },
        Broken {
            file: "packaging/prometheus/alerts.yaml",
            from: "signalbox_feature == 1",
            to: "signalbox_features == 1",
            says: "signalbox_features is not in",
        },
        Broken {
            file: "packaging/prometheus/recording.yaml",
            from: "by (job, instance, cluster, direction)",
            to: "by (job, instance, cluster, way)",
            says: "label way",
        },
        Broken {
            file: "packaging/prometheus/alerts.yaml",
            from: "mode!=\"address\"",
            to: "mode!=\"adress\"",
            says: "no mode \"adress\"",
        },
        Broken {
            file: "packaging/prometheus/alerts.yaml",
            from: "{mode!=\"address\"}",
            to: "",
            says: "SignalboxHaSplit in mode address",
        },
        Broken {
            file: "packaging/prometheus/tests.yaml",
            from: "      - { eval_time: 29m, alertname: SignalboxDown, exp_alerts: [] }\n",
            to: "",
            says: "SignalboxDown: tests.yaml has no silent case",
        },
        Broken {
            file: "packaging/prometheus/tests.yaml",
            from: "eval_time: 40m\n        alertname: SignalboxDown",
            to: "eval_time: 40m\n        alertname: SignalboxRestarts",
            says: "SignalboxDown: tests.yaml has no firing case",
        },
        Broken {
            file: "packaging/prometheus/alerts.yaml",
            from: "severity: critical",
            to: "severity: page",
            says: "SignalboxDown: severity",
        },
        Broken {
            file: "packaging/prometheus/alerts.yaml",
            from: "runbook.md#signalboxdown",
            to: "runbook.md#signalbox-down",
            says: "SignalboxDown: runbook_url",
        },
        Broken {
            file: RUNBOOK,
            from: "## SignalboxDown\n",
            to: "## SignalboxGone\n",
            says: "SignalboxGone: no alert",
        },
    ],
};

fn check(root: &Path) -> Result<Vec<String>> {
    let mut problems = promtool(root, &["check", "rules", "recording.yaml", "alerts.yaml"])?;
    problems.extend(promtool(root, &["test", "rules", "tests.yaml"])?);
    let mut metrics = Metrics::read(root)?;
    let runbook = fs::read_to_string(root.join(RUNBOOK)).with_context(|| format!("reading {RUNBOOK}"))?;
    let mut sections: BTreeSet<&str> = runbook.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let runbook_url = runbook_url(root)?;
    let tested = tested(root)?;
    for rule in rules(root, "recording.yaml")? {
        problems.extend(metrics.problems(text(&rule, "expr")));
        metrics.record(text(&rule, "record"), text(&rule, "expr"));
    }
    for rule in rules(root, "alerts.yaml")? {
        let name = text(&rule, "alert");
        problems.extend(
            metrics
                .problems(text(&rule, "expr"))
                .iter()
                .map(|problem| format!("{name}: {problem}")),
        );
        let severity = text(&rule["labels"], "severity");
        if !SEVERITIES.contains(&severity) {
            problems.push(format!("{name}: severity {severity} is none of {SEVERITIES:?}"));
        }
        let url = text(&rule["annotations"], "runbook_url");
        if url != format!("{runbook_url}#{}", name.to_lowercase()) {
            problems.push(format!(
                "{name}: runbook_url {url} is not {runbook_url}#{}",
                name.to_lowercase()
            ));
        }
        if !sections.remove(name) {
            problems.push(format!("{name}: {RUNBOOK} has no section of this name"));
        }
        for (case, fires) in [("firing", true), ("silent", false)] {
            if !tested.contains(&(name.to_owned(), fires)) {
                problems.push(format!("{name}: tests.yaml has no {case} case"));
            }
        }
    }
    problems.extend(
        sections
            .iter()
            .map(|section| format!("{section}: no alert leads to this section of {RUNBOOK}")),
    );
    Ok(problems)
}

/// Runs promtool on files of the directory; returns its output if it fails.
fn promtool(root: &Path, words: &[&str]) -> Result<Vec<String>> {
    let (is_fine, said) = Run::new("promtool")?.args(words).dir(&root.join(DIRECTORY)).outcome()?;
    Ok(if is_fine { Vec::new() } else { vec![said] })
}

/// Address of the runbook where the sources are published.
fn runbook_url(root: &Path) -> Result<String> {
    let manifest = fs::read_to_string(root.join(MANIFEST)).context("reading Cargo.toml")?;
    let line = manifest.lines().find_map(|line| line.strip_prefix("repository = \""));
    let repository = line.context("Cargo.toml has no `repository`")?.trim_end_matches('"');
    Ok(format!("{repository}/blob/main/{RUNBOOK}"))
}

/// Alerts that tests have, and whether they fire there.
fn tested(root: &Path) -> Result<BTreeSet<(String, bool)>> {
    let tests = yaml(&root.join(DIRECTORY).join("tests.yaml"))?;
    let cases = list(&tests["tests"])
        .iter()
        .flat_map(|test| list(&test["alert_rule_test"]));
    Ok(cases
        .map(|case| {
            (
                text(case, "alertname").to_owned(),
                !list(&case["exp_alerts"]).is_empty(),
            )
        })
        .collect())
}

/// Rules of a file, group after group.
pub(super) fn rules(root: &Path, file: &str) -> Result<Vec<Value>> {
    let groups = yaml(&root.join(DIRECTORY).join(file))?;
    Ok(list(&groups["groups"])
        .iter()
        .flat_map(|group| list(&group["rules"]))
        .cloned()
        .collect())
}

pub(super) fn yaml(file: &Path) -> Result<Value> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    serde_saphyr::from_str(&text).with_context(|| format!("{} is no YAML", file.display()))
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}
