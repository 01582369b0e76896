//! Anchors and aliases: pieces of the file written once and used again, within limits.

use std::collections::HashMap;

use super::node::{Node, NodeKind};

/// Most nodes that may be copied in all: enough to share settings, too few for a "billion laughs".
const MAX_COPIED_NODES: usize = 1_000_000;

/// Anchored nodes of a file.
pub(super) struct Anchors {
    /// Nodes by the parser's number, with the height of each.
    nodes: HashMap<usize, (Node, usize)>,
    copies: usize,
}

impl Default for Anchors {
    fn default() -> Self {
        Self {
            nodes: HashMap::new(),
            copies: MAX_COPIED_NODES,
        }
    }
}

impl Anchors {
    /// Keeps a complete node for its aliases.
    pub(super) fn define(&mut self, id: usize, node: &Node) -> Result<(), String> {
        let height = measure(node, &mut self.copies).ok_or_else(too_large)?;
        self.nodes.insert(id, (node.clone(), height));
        Ok(())
    }

    /// Returns the node that an alias stands for, if its height is at most `room`.
    pub(super) fn resolve(&mut self, id: usize, room: usize) -> Result<Node, String> {
        let Some((node, height)) = self.nodes.get(&id) else {
            // With `a: &a [*a]` the parser knows the anchor before its node is complete.
            return Err("this alias stands for something that contains it".to_owned());
        };
        if *height > room {
            return Err(
                "with this alias, lists and mappings are nested deeper than a configuration ever is".to_owned(),
            );
        }
        measure(node, &mut self.copies).ok_or_else(too_large)?;
        Ok(node.clone())
    }
}

fn too_large() -> String {
    "the file's anchors and aliases grow it beyond a million values".to_owned()
}

/// Height of a node; its size is taken from `left`. `None` when that is used up.
fn measure(node: &Node, budget: &mut usize) -> Option<usize> {
    *budget = budget.checked_sub(1)?;
    let mut height = 0;
    match &node.kind {
        NodeKind::Null | NodeKind::Scalar { .. } => return Some(0),
        NodeKind::List(items) => {
            for item in items {
                height = measure(item, budget)?.max(height);
            }
        }
        NodeKind::Map(entries) => {
            for entry in entries {
                height = measure(&entry.value, budget)?.max(height);
            }
        }
    }
    Some(height + 1)
}
