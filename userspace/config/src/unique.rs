//! Names that must be unique in a list.

use std::collections::HashMap;

use super::node::{NodeRef, Position};
use super::report::{Report, quote};

/// Names given so far, with their places.
#[derive(Default)]
pub(super) struct UniqueNames(HashMap<String, Position>);

impl UniqueNames {
    /// Decodes a name; a repeated one is reported. `what`: the named thing, such as a listener, a cluster or a host.
    pub(super) fn name(&mut self, place: &NodeRef<'_>, what: &str, report: &mut Report) -> Option<String> {
        let name = place.name(report)?;
        if let Some(first) = self.0.get(name) {
            let message = format!("there already is a {what} {} on line {}", quote(name), first.line);
            place.error(report, message);
            return None;
        }
        self.0.insert(name.to_owned(), place.position());
        Some(name.to_owned())
    }
}
