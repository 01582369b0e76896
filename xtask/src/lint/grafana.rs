//! Dashboards of Grafana: promtool understands each expression, its metrics are documented, and panels do not overlap.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::{
    Lint,
    alerts::{list, rules, text},
    broken::Broken,
    metrics::Metrics,
};
use crate::exec::Run;

const DIRECTORY: &str = "packaging/grafana";
/// Columns of Grafana's grid.
const COLUMNS: u64 = 24;

pub(super) const LINT: Lint = Lint {
    tools: &["promtool"],
    prepare: || Ok(()),
    check,
    broken: &[
        Broken {
            file: "packaging/grafana/signalbox-fleet.json",
            from: "sum(signalbox_connections_current{",
            to: "sum((signalbox_connections_current{",
            says: "unclosed left parenthesis",
        },
        Broken {
            file: "packaging/grafana/signalbox-balancer.json",
            from: "signalbox_routes{",
            to: "signalbox_roads{",
            says: "signalbox_roads is not in",
        },
        Broken {
            file: "packaging/grafana/signalbox-balancer.json",
            from: "sum by (listener, outcome)",
            to: "sum by (listener, result)",
            says: "label result",
        },
        Broken {
            file: "packaging/grafana/signalbox-ha.json",
            from: "label_values(signalbox_ha_info",
            to: "label_values(signalbox_ha_name",
            says: "signalbox_ha_name is not in",
        },
        Broken {
            file: "packaging/grafana/signalbox-ha.json",
            from: "\"uid\": \"signalbox-ha\"",
            to: "\"uid\": \"signalbox-fleet\"",
            says: "uid",
        },
        Broken {
            file: "packaging/grafana/signalbox-fleet.json",
            from: "\"x\": 4, \"y\": 0, \"w\": 4",
            to: "\"x\": 4, \"y\": 0, \"w\": 5",
            says: "overlap",
        },
        Broken {
            file: "packaging/grafana/signalbox-fleet.json",
            from: "\"datasource\": {\"type\": \"prometheus\", \"uid\": \"${datasource}\"}, \"fieldConfig\"",
            to: "\"datasource\": {\"type\": \"prometheus\", \"uid\": \"mine\"}, \"fieldConfig\"",
            says: "data source",
        },
    ],
};

fn check(root: &Path) -> Result<Vec<String>> {
    let mut metrics = Metrics::read(root)?;
    for rule in rules(root, "recording.yaml")? {
        metrics.record(text(&rule, "record"), text(&rule, "expr"));
    }
    let mut problems = Vec::new();
    let mut expressions = Vec::new();
    for path in dashboards(root)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let read = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let board: Value = serde_json::from_str(&read).with_context(|| format!("{name} is no JSON"))?;
        // Links lead to a dashboard by its uid.
        if format!("{}.json", text(&board, "uid")) != name {
            problems.push(format!("{name}: its uid is {}", board["uid"]));
        }
        problems.extend(layout(&board).into_iter().map(|problem| format!("{name}: {problem}")));
        let found = expressions_of(&board);
        for expression in &found {
            problems.extend(
                metrics
                    .problems(expression)
                    .iter()
                    .map(|problem| format!("{name}: {problem}")),
            );
        }
        expressions.extend(found);
    }
    problems.extend(promtool(&expressions)?);
    Ok(problems)
}

pub(super) fn dashboards(root: &Path) -> Result<Vec<std::path::PathBuf>> {
    let entries = fs::read_dir(root.join(DIRECTORY)).with_context(|| format!("reading {DIRECTORY}"))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let mut boards: Vec<_> = paths
        .into_iter()
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .collect();
    if boards.is_empty() {
        bail!("{DIRECTORY} has no dashboards");
    }
    boards.sort();
    Ok(boards)
}

/// Expressions of panels, and the queries of variables.
fn expressions_of(board: &Value) -> Vec<String> {
    let targets = list(&board["panels"]).iter().flat_map(|panel| list(&panel["targets"]));
    let mut found: Vec<String> = targets.map(|target| text(target, "expr").to_owned()).collect();
    for variable in list(&board["templating"]["list"]) {
        let query = text(&variable["query"], "query");
        if let Some((selector, label)) = query
            .strip_prefix("label_values(")
            .and_then(|rest| rest.rsplit_once(", "))
        {
            found.push(format!("count by ({}) ({selector})", label.trim_end_matches(')')));
        }
    }
    found
        .iter()
        .map(|expression| expression.replace("$__rate_interval", "5m"))
        .collect()
}

/// Finds panels that overlap, and those with a data source other than the dashboard's.
fn layout(board: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    let mut taken = BTreeSet::new();
    for panel in list(&board["panels"]) {
        let title = text(panel, "title");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap_or(0));
        let fields = (y..y + h).flat_map(|row| (x..x + w).map(move |column| (row, column)));
        let is_new: Vec<bool> = fields.map(|field| taken.insert(field)).collect();
        if is_new.is_empty() || is_new.contains(&false) || x + w > COLUMNS {
            problems.push(format!("`{title}` has no place, or its place overlaps another's"));
        }
        if panel["datasource"]["uid"] != "${datasource}" {
            problems.push(format!("`{title}` has a data source of its own"));
        }
        if list(&panel["targets"]).is_empty() {
            problems.push(format!("`{title}` shows nothing"));
        }
    }
    problems
}

/// Has promtool read the expressions, as recording rules.
fn promtool(expressions: &[String]) -> Result<Vec<String>> {
    let rules: Vec<Value> = (expressions.iter().enumerate())
        .map(|(at, expression)| json!({ "record": format!("dashboard:{at}"), "expr": expression }))
        .collect();
    let file = crate::root::root()?.join("target/lint/dashboards.json");
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(
        &file,
        json!({ "groups": [{ "name": "dashboards", "rules": rules }] }).to_string(),
    )?;
    let (is_fine, said) = Run::new("promtool")?.args(["check", "rules"]).args([&file]).outcome()?;
    Ok(if is_fine { Vec::new() } else { vec![said] })
}
