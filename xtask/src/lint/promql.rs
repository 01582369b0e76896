//! Names in PromQL expressions: metrics with their matchers, and the labels that results are grouped by. Whether the
//! syntax is right, promtool checks.

/// Words that labels in parentheses follow.
const GROUPING: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
const OPERATORS: [&str; 5] = ["and", "or", "unless", "bool", "offset"];

/// Label matcher: `label = "value"`, or with another operator.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Matcher {
    pub(super) label: String,
    pub(super) operator: String,
    pub(super) value: String,
}

/// Metric that an expression reads.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Selector {
    pub(super) metric: String,
    pub(super) matchers: Vec<Matcher>,
}

/// Names in an expression.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) selectors: Vec<Selector>,
    pub(super) grouping: Vec<String>,
}

/// Finds the names in an expression.
pub(super) fn names(expression: &str) -> Names {
    let tokens = tokens(expression);
    let mut names = Names::default();
    let mut rest = tokens.as_slice();
    while let [first, after @ ..] = rest {
        rest = after;
        if !first.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            continue;
        }
        let is_call = after.first().is_some_and(|next| next == "(");
        if GROUPING.contains(&first.as_str()) {
            if let Some((inside, after)) = is_call.then(|| enclosed(after, ")")) {
                names
                    .grouping
                    .extend(inside.iter().filter(|token| *token != ",").cloned());
                rest = after;
            }
        } else if is_call || OPERATORS.contains(&first.as_str()) || begins_grouping(after) {
            // A function or an aggregation.
        } else {
            let has_matchers = after.first().is_some_and(|next| next == "{");
            let (inside, after) = if has_matchers {
                enclosed(after, "}")
            } else {
                (&[][..], after)
            };
            names.selectors.push(Selector {
                metric: first.clone(),
                matchers: inside.split(|token| token == ",").filter_map(matcher).collect(),
            });
            rest = after;
        }
    }
    names
}

fn begins_grouping(tokens: &[String]) -> bool {
    tokens.first().is_some_and(|token| token == "by" || token == "without")
}

fn matcher(tokens: &[String]) -> Option<Matcher> {
    let [label, operator @ .., value] = tokens else {
        return None;
    };
    Some(Matcher {
        label: label.clone(),
        operator: operator.concat(),
        value: value.trim_matches(['"', '\'']).to_owned(),
    })
}

/// Splits off the tokens between the first one and `end`.
fn enclosed<'t>(tokens: &'t [String], end: &str) -> (&'t [String], &'t [String]) {
    let length = tokens.iter().position(|token| token == end).unwrap_or(tokens.len());
    (
        tokens.get(1..length).unwrap_or_default(),
        tokens.get(length + 1..).unwrap_or_default(),
    )
}

/// Words, numbers with units, and variables of Grafana; texts in quotes; single signs.
fn tokens(expression: &str) -> Vec<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_:$.".contains(c);
    let mut tokens = Vec::new();
    let mut rest = expression.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if first == '"' || first == '\'' {
            rest[1..].find(first).map_or(rest.len(), |at| at + 2)
        } else if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        tokens.push(rest[..length].to_owned());
        rest = rest[length..].trim_start();
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promql_names_and_labels_are_told_from_functions_and_numbers() {
        let found = names(
            r#"sum by (job, le) (rate(a_total{x="1", y!~"b|by (z)"}[$__rate_interval])) / on (k) group_left () b:c > 1e3 or up"#,
        );
        let metrics: Vec<_> = found
            .selectors
            .iter()
            .map(|selector| selector.metric.as_str())
            .collect();
        assert_eq!(metrics, ["a_total", "b:c", "up"]);
        assert_eq!(found.grouping, ["job", "le", "k"]);
        let [x, y] = found.selectors[0].matchers.as_slice() else {
            panic!("{found:?}")
        };
        assert_eq!(
            (x.label.as_str(), x.operator.as_str(), x.value.as_str()),
            ("x", "=", "1")
        );
        assert_eq!(
            (y.label.as_str(), y.operator.as_str(), y.value.as_str()),
            ("y", "!~", "b|by (z)")
        );
    }
}
