//! Text of a file as a tree.

use signalbox_core::yaml::{self, Dialect};

use super::node::{NodePath, Position, YamlNode};
use super::report::Report;

/// Reads the only document of `text`, which cannot do without the keys `required`. `None`: there is a mistake, which is
/// in the report.
pub(super) fn read(text: &str, required: &str, report: &mut Report) -> Option<YamlNode> {
    let (position, message) = match yaml::read(text, Dialect::Plain) {
        Ok(documents) => match documents.into_iter().next() {
            Some(root) => return Some(root),
            None => (Position::START, format!("the file is empty: it needs {required}")),
        },
        Err(error) => (error.position, error.message),
    };
    report.error(position, &NodePath::ROOT, message);
    None
}
