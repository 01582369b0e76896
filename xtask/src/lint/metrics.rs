//! docs/metrics.md as rules and dashboards need it: metrics, their labels, and the values of labels that it lists.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result};

use super::files::METRICS;
use super::promql::{Matcher, names};

/// Labels that Prometheus adds to each scraped target.
const TARGET_LABELS: [&str; 2] = ["job", "instance"];

/// Values of a label, by its name; none where any value is allowed.
type Labels = BTreeMap<String, Vec<String>>;

/// Metrics that may be named, by their names.
pub(super) struct Metrics(BTreeMap<String, Labels>);

impl Metrics {
    pub(super) fn read(root: &Path) -> Result<Self> {
        let text = fs::read_to_string(root.join(METRICS)).with_context(|| format!("reading {METRICS}"))?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let rows = text
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
        let mut metrics: BTreeMap<String, Labels> = rows
            .map(|(name, rest)| (name.to_owned(), labels(rest.split('|').next().unwrap_or_default())))
            .collect();
        metrics.insert("up".to_owned(), Labels::new());
        Self(metrics)
    }

    /// Adds a recording rule, whose labels are those that its expression groups by.
    pub(super) fn record(&mut self, name: &str, expression: &str) {
        let labels = names(expression).grouping.into_iter().map(|label| (label, Vec::new()));
        self.0.insert(name.to_owned(), labels.collect());
    }

    /// Returns the names in an expression that do not exist.
    pub(super) fn problems(&self, expression: &str) -> Vec<String> {
        let names = names(expression);
        let mut problems = Vec::new();
        let mut known = Vec::new();
        for selector in &names.selectors {
            let Some(labels) = self.labels_of(&selector.metric) else {
                problems.push(format!("{} is not in {METRICS}", selector.metric));
                continue;
            };
            for matcher in &selector.matchers {
                problems.extend(mismatch(&selector.metric, &labels, matcher));
            }
            known.extend(labels.into_keys());
        }
        for label in names.grouping {
            if !known.contains(&label) && !TARGET_LABELS.contains(&label.as_str()) {
                problems.push(format!("no metric of `{expression}` has the label {label}"));
            }
        }
        problems
    }

    /// Returns a metric's labels; those of a histogram's parts are the histogram's.
    fn labels_of(&self, metric: &str) -> Option<Labels> {
        if let Some(labels) = self.0.get(metric) {
            return Some(labels.clone());
        }
        let parts = ["_bucket", "_count", "_sum"];
        let (suffix, base) = parts.iter().find_map(|part| Some((part, metric.strip_suffix(part)?)))?;
        let mut labels = self.0.get(base).filter(|_| base.ends_with("_seconds"))?.clone();
        if *suffix == "_bucket" {
            labels.insert("le".to_owned(), Vec::new());
        }
        Some(labels)
    }
}

fn mismatch(metric: &str, labels: &Labels, matcher: &Matcher) -> Option<String> {
    let Matcher { label, operator, value } = matcher;
    if TARGET_LABELS.contains(&label.as_str()) {
        return None;
    }
    let Some(values) = labels.get(label) else {
        return Some(format!("{metric} has no label {label} in {METRICS}"));
    };
    let is_list = value.chars().all(|c| c.is_ascii_alphanumeric() || "_|.".contains(c));
    if values.is_empty() || !is_list || value.is_empty() {
        return None;
    }
    let named: Vec<&str> = if operator.ends_with('~') {
        value.split('|').collect()
    } else {
        vec![value]
    };
    let unknown = named
        .into_iter()
        .find(|value| !values.iter().any(|known| known == value))?;
    Some(format!("{metric} has no {label} \"{unknown}\" in {METRICS}"))
}

/// Reads the cell of labels: names between commas, some with their values in parentheses.
fn labels(cell: &str) -> Labels {
    let mut labels = Labels::new();
    let mut rest = cell.trim();
    while !rest.is_empty() {
        let end = rest.find([',', '(']).unwrap_or(rest.len());
        let name = rest[..end].trim().to_owned();
        rest = &rest[end..];
        let mut values = Vec::new();
        if let Some(inside) = rest.strip_prefix('(') {
            let (listed, after) = inside.split_once(')').unwrap_or((inside, ""));
            values = listed.split(',').map(|value| value.trim().to_owned()).collect();
            // Text states that there are others.
            if values.iter().any(|value| value.contains(' ')) {
                values.clear();
            }
            rest = after;
        }
        labels.insert(name, values);
        rest = rest.trim_start_matches([',', ' ']);
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "| Metric | Labels |\n| `signalbox_a_total` | name, result (ok, failed) | text (b) |\n\
                            | `signalbox_t_seconds` | name, why (any, of those) | time |\n";

    #[test]
    fn labels_values_and_parts_of_histograms_are_known() {
        let mut metrics = Metrics::parse(DOCUMENT);
        metrics.record("signalbox:a:rate", "sum by (name) (rate(signalbox_a_total[5m]))");
        for fine in [
            r#"signalbox_a_total{result=~"ok|failed", name="$name", job="x"}"#,
            "sum by (le, name, instance) (rate(signalbox_t_seconds_bucket[5m]))",
            r#"signalbox_t_seconds{why="other"} and signalbox:a:rate{name="b"}"#,
        ] {
            assert_eq!(metrics.problems(fine), [""; 0], "{fine}");
        }
    }

    #[test]
    fn names_that_are_not_there_are_told() {
        let metrics = Metrics::parse(DOCUMENT);
        for (expression, says) in [
            ("signalbox_b_total", "signalbox_b_total is not in"),
            ("signalbox_a_total_bucket", "signalbox_a_total_bucket is not in"),
            (r#"signalbox_a_total{host="x"}"#, "no label host"),
            (r#"signalbox_a_total{result!~"ok|bad"}"#, "no result \"bad\""),
            ("sum by (host) (signalbox_a_total)", "the label host"),
            (r#"signalbox_t_seconds_sum{le="1"}"#, "no label le"),
        ] {
            let problems = metrics.problems(expression);
            assert!(
                problems.iter().any(|problem| problem.contains(says)),
                "{expression}: {problems:?}"
            );
        }
    }
}
