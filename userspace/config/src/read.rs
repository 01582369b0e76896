//! Text of a file as a tree.

use signalbox_core::wire::yaml::{self, Dialect};

use super::node::{NodePath, Position, YamlNode};
use super::report::Report;

/// Reads the only document of `text`, which must have the keys `required`. `None`: there is a mistake, which is in the
/// report.
pub(super) fn read(text: &str, required: &str, report: &mut Report) -> Option<YamlNode> {
    let (position, message) = match yaml::read(text, Dialect::Plain) {
        Ok(documents) => match documents.into_iter().next() {
            Some(root) => return Some(root),
            None => (Position::START, format!("the file is empty: it needs {required}")),
        },
        Err(error) => tab_of_indentation(text, error.position.line).unwrap_or((error.position, error.message)),
    };
    report.error(position, &NodePath::ROOT, message);
    None
}

/// Mistake of a tab in the indentation of a line, where the parser stopped or on a later line: the parser's own message
/// names the construct that it was scanning.
fn tab_of_indentation(text: &str, from_line: usize) -> Option<(Position, String)> {
    let lines = (1..).zip(text.lines()).skip(from_line.saturating_sub(1));
    // The parser stops at the tab, or at the end of the value above it.
    let (line, blanks) = lines.take(2).find_map(|(number, line)| {
        let blanks = line.find(|c: char| !matches!(c, ' ' | '\t'))?;
        let column = line.get(..blanks)?.find('\t')?;
        Some((number, column))
    })?;
    let position = Position {
        line,
        column: blanks + 1,
    };
    Some((
        position,
        "a tab in the indentation: YAML allows only spaces there, write spaces".to_owned(),
    ))
}
