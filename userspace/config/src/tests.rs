//! Whole files: the meaning of the example, and the message of each rule when it is broken.

mod clusters;
mod coming_from;
mod differences;
mod expose;
mod fuzzing;
mod ha;
mod health;
mod kubernetes;
mod listeners;
mod meaning;
mod mistakes;
mod observe;
mod oddities;
mod pages;
mod reference;
mod routes;
mod routing_events;
mod services;
mod settings;
mod shield;
mod slips;
mod subset;
mod tls;
mod yaml;

use super::{Parsed, parse};

/// Example of the documentation, which the tests bend.
const EXAMPLE: &str = include_str!("../../../docs/example.yaml");

/// Example with one piece replaced.
#[track_caller]
fn bent(from: &str, to: &str) -> String {
    assert!(EXAMPLE.contains(from), "the example has no {from:?}");
    EXAMPLE.replacen(from, to, 1)
}

/// Example with lines added at its end.
fn plus(lines: &str) -> String {
    format!("{EXAMPLE}{lines}\n")
}

/// Example in docs/configuration.md whose text begins with `first`.
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

/// All mistakes of a text as `LINE:COL: path: message`.
fn mistakes_of(text: &str) -> Vec<String> {
    parse(text).map_or_else(
        |errors| errors.iter().map(ToString::to_string).collect(),
        |_| Vec::new(),
    )
}

/// Asserts that a text has exactly one mistake, at this path and with this part of a message.
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

/// Asserts that texts have one mistake each. Columns: input of `with`, which makes a file; path; part of the message.
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
