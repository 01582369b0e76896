//! A node of the file with the path to it.

use std::fmt;

pub(super) use signalbox_core::wire::yaml::{MapEntry, NodeKind, Position, YamlNode};

/// Path from the root to a node: a chain of borrowed steps, so that ten thousand valid routes cost no strings.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodePath<'a> {
    parent: Option<&'a Self>,
    step: PathStep<'a>,
}

#[derive(Clone, Copy, Debug)]
enum PathStep<'a> {
    Root,
    Key(&'a str),
    Index(usize),
}

impl<'a> NodePath<'a> {
    pub(super) const ROOT: Self = Self {
        parent: None,
        step: PathStep::Root,
    };

    pub(super) fn key(&'a self, key: &'a str) -> Self {
        Self {
            parent: Some(self),
            step: PathStep::Key(key),
        }
    }

    pub(super) fn index(&'a self, index: usize) -> Self {
        Self {
            parent: Some(self),
            step: PathStep::Index(index),
        }
    }
}

/// Shows `clusters[0].hosts[1].weight`; keys that would not read well are quoted: `routes[0].clusters["a b"]`.
impl fmt::Display for NodePath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            PathStep::Root => Ok(()),
            PathStep::Index(index) => write!(f, "[{index}]"),
            PathStep::Key(key) if is_plain(key) => {
                let dot = if matches!(
                    self.parent,
                    None | Some(NodePath {
                        step: PathStep::Root,
                        ..
                    })
                ) {
                    ""
                } else {
                    "."
                };
                write!(f, "{dot}{key}")
            }
            PathStep::Key(key) => {
                let short: String = key.chars().take(64).collect();
                write!(f, "[{short:?}]")
            }
        }
    }
}

fn is_plain(key: &str) -> bool {
    (1..=64).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// Node with the path to it, as decoders take it.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeRef<'a> {
    pub(super) node: &'a YamlNode,
    pub(super) path: NodePath<'a>,
}

impl<'a> NodeRef<'a> {
    pub(super) fn root(node: &'a YamlNode) -> Self {
        Self {
            node,
            path: NodePath::ROOT,
        }
    }

    pub(super) fn position(&self) -> Position {
        self.node.position
    }
}

#[cfg(test)]
mod tests {
    use super::NodePath;

    #[test]
    fn paths_read_like_the_file() {
        let clusters = NodePath::ROOT.key("clusters");
        let first = clusters.index(0);
        let weight = first.key("weight");
        assert_eq!(weight.to_string(), "clusters[0].weight");
        assert_eq!(first.key("a.b\n").to_string(), r#"clusters[0]["a.b\n"]"#);
        assert_eq!(NodePath::ROOT.to_string(), "");
    }
}
