//! Whole files: what the example means, and what each rule says when it is broken.

mod clusters;
mod expose;
mod fuzzing;
mod health;
mod kubernetes;
mod listeners;
mod meaning;
mod mistakes;
mod observe;
mod oddities;
mod routes;
mod routing_events;
mod services;
mod settings;
mod shield;
mod subset;
mod yaml;

use super::{Parsed, parse};

/// The example of the documentation, which the tests bend.
const EXAMPLE: &str = include_str!("../../../docs/example.yaml");

/// The example with one piece replaced.
#[track_caller]
fn bent(from: &str, to: &str) -> String {
    assert!(EXAMPLE.contains(from), "the example has no {from:?}");
    EXAMPLE.replacen(from, to, 1)
}

/// The example with lines added at its end.
fn plus(lines: &str) -> String {
    format!("{EXAMPLE}{lines}\n")
}

/// The reference's example that begins so.
fn documented(first: &str) -> &'static str {
    let reference = include_str!("../../../docs/configuration.md");
    let mut examples = reference.split("```yaml\n").filter_map(|rest| rest.split("```").next());
    examples.find(|text| text.starts_with(first)).unwrap()
}

#[track_caller]
fn right(text: &str) -> Parsed {
    match parse(text) {
        Ok(parsed) => parsed,
        Err(errors) => panic!("{}", errors.render()),
    }
}

/// Every mistake as `LINE:COL: path: message`.
fn mistakes_of(text: &str) -> Vec<String> {
    parse(text).map_or_else(
        |errors| errors.iter().map(ToString::to_string).collect(),
        |_| Vec::new(),
    )
}

/// There is exactly one mistake, and it reads like this.
#[track_caller]
fn only_mistake(text: &str, path: &str, part: &str) {
    let mistakes = mistakes_of(text);
    assert_eq!(mistakes.len(), 1, "{path}: {part}: {mistakes:#?}");
    let colon = if path.is_empty() { "" } else { ": " };
    let shown = mistakes[0].splitn(3, ':').nth(2).unwrap().trim_start();
    assert!(
        shown.starts_with(&format!("{path}{colon}")) && shown.contains(part),
        "{path}: {part}: {shown}"
    );
}

/// The same of each row of a table: a text of which `with` makes a file, the mistake's path in it, and how it reads.
#[track_caller]
fn only_mistakes(with: &dyn Fn(&str) -> String, table: &str) {
    for row in table.lines().filter(|row| !row.trim().is_empty()) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [of, path, part] = cells[..] else {
            panic!("{row}: a text, a path and a message are expected, with | between them")
        };
        only_mistake(&with(of), path, part);
    }
}
