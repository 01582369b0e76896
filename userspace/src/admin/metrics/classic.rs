//! Prometheus' text format 0.0.4, made from OpenMetrics text, for readers that ask for it and support no newer one.

use axum::http::{HeaderMap, header};

pub(super) const CLASSIC_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whether a request asks for the classic format and not for OpenMetrics, the default.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter();
    let accepted: Vec<_> = accepted.filter_map(|value| value.to_str().ok()).collect();
    let has = |kind: &str| accepted.iter().any(|value| value.to_ascii_lowercase().contains(kind));
    has("text/plain") && !has("application/openmetrics-text")
}

/// Converts OpenMetrics text, as `prometheus-client` writes it.
pub(super) fn converted(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        match line.split_once(' ') {
            Some(("#", comment)) => {
                let (kind, rest) = comment.split_once(' ').unwrap_or((comment, ""));
                let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
                match kind {
                    // The type comes next, and decides the metric's name in this format.
                    "HELP" => help = Some(value),
                    "TYPE" => {
                        let (suffix, value) = match value {
                            "counter" => ("_total", value),
                            "info" => ("_info", "gauge"),
                            "unknown" => ("", "untyped"),
                            other => ("", other),
                        };
                        if let Some(help) = help.take() {
                            out += &format!("# HELP {name}{suffix} {help}\n");
                        }
                        out += &format!("# TYPE {name}{suffix} {value}\n");
                    }
                    // Only OpenMetrics has units and an end of the text.
                    _ => {}
                }
            }
            _ => {
                out += without_exemplar(line);
                out.push('\n');
            }
        }
    }
    out
}

/// Returns a sample without its exemplar, which follows the value.
fn without_exemplar(line: &str) -> &str {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b'#' if !is_quoted => return line.get(..at).unwrap_or(line).trim_end(),
            _ => {}
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_their_suffix_and_newer_lines_go() {
        let text = "# HELP a_requests Requests.\n# TYPE a_requests counter\na_requests_total{x=\"1\"} 7 # {trace=\"9\"} 1\n\
                    # HELP a_seconds Time.\n# TYPE a_seconds histogram\n# UNIT a_seconds seconds\n\
                    a_seconds_bucket{le=\"+Inf\"} 2 # {trace=\"8\"} 0.5\na_seconds_count 2\n\
                    # HELP a_up Up.\n# TYPE a_up gauge\na_up 1\n# EOF\n";
        let classic = "# HELP a_requests_total Requests.\n# TYPE a_requests_total counter\na_requests_total{x=\"1\"} 7\n\
                       # HELP a_seconds Time.\n# TYPE a_seconds histogram\n\
                       a_seconds_bucket{le=\"+Inf\"} 2\na_seconds_count 2\n\
                       # HELP a_up Up.\n# TYPE a_up gauge\na_up 1\n";
        assert_eq!(converted(text), classic);
    }

    #[test]
    fn a_label_may_hold_what_begins_an_exemplar() {
        let line = r#"a_total{name="x # {\"y\"} 1"} 3"#;
        assert_eq!(converted(line), format!("{line}\n"));
    }

    #[test]
    fn only_readers_that_know_nothing_newer_get_it() {
        let wants = |accept: &str| {
            let headers = HeaderMap::from_iter([(header::ACCEPT, accept.parse().unwrap())]);
            is_wanted(&headers)
        };
        assert!(wants("text/plain;version=0.0.4;q=1,*/*;q=0.1"));
        assert!(!wants(
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
        ));
        assert!(!wants("*/*") && !is_wanted(&HeaderMap::new()));
    }
}
