//! Places of the paths that a file names: mistakes in those files are shown there.

use signalbox_core::wire::yaml::{self, Dialect};

use super::node::{NodeKind, NodeRef, Position};

/// A path in the file, and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigPlace {
    /// The path that is named.
    pub text: String,
    /// Keys that lead to it, such as `certificates[0].cert`.
    pub path: String,
    /// Line and column, from 1.
    pub at: (usize, usize),
}

/// Finds all paths of files in a configuration. One that cannot be read has none.
#[must_use]
pub fn paths(text: &str) -> Vec<ConfigPlace> {
    let mut all = Vec::new();
    for root in yaml::read(text, Dialect::Plain).iter().flatten() {
        collect(&NodeRef::root(root), &mut all);
    }
    all
}

fn collect(place: &NodeRef<'_>, all: &mut Vec<ConfigPlace>) {
    match &place.node.kind {
        NodeKind::Scalar { text, .. } if text.contains('/') => {
            let Position { line, column } = place.position();
            all.push(ConfigPlace {
                text: text.clone(),
                path: place.path.to_string(),
                at: (line, column),
            });
        }
        NodeKind::List(items) => {
            for (at, node) in items.iter().enumerate() {
                let path = place.path.index(at);
                collect(&NodeRef { node, path }, all);
            }
        }
        NodeKind::Map(entries) => {
            for entry in entries {
                let path = place.path.key(&entry.key);
                collect(
                    &NodeRef {
                        node: &entry.value,
                        path,
                    },
                    all,
                );
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_its_place() {
        let found = paths("certificates:\n  - cert: /a/b.pem\n    key: c\n");
        let expected = ConfigPlace {
            text: "/a/b.pem".to_owned(),
            path: "certificates[0].cert".to_owned(),
            at: (2, 11),
        };
        assert_eq!(found, [expected]);
        assert_eq!(paths("a: ["), []);
    }
}
