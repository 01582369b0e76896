//! Anchors and aliases: pieces of the text written once and used again, within limits.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::{MAX_COPIED_VALUES, MAX_DEPTH, NodeKind, TEXT_BYTES_PER_VALUE, YamlNode};

/// Anchored nodes of a text.
pub(super) struct Anchors {
    /// Nodes by the parser's number, with the height of each.
    nodes: HashMap<usize, (YamlNode, usize), FixedState>,
    /// Number of values that may still be copied.
    budget: usize,
}

impl Default for Anchors {
    fn default() -> Self {
        Self {
            nodes: HashMap::default(),
            budget: MAX_COPIED_VALUES,
        }
    }
}

impl Anchors {
    /// Keeps a complete node for its aliases.
    pub(super) fn define(&mut self, id: usize, node: &YamlNode) -> Result<(), String> {
        let height = measure(node, &mut self.budget).ok_or_else(too_large)?;
        self.nodes.insert(id, (node.clone(), height));
        Ok(())
    }

    /// Returns the node that an alias refers to, if its height is at most `room`.
    pub(super) fn resolve(&mut self, id: usize, room: usize) -> Result<YamlNode, String> {
        let Some((node, height)) = self.nodes.get(&id) else {
            // With `a: &a [*a]` the parser knows the anchor before its node is complete.
            return Err("this alias stands for something that contains it".to_owned());
        };
        if *height > room {
            let message = format!("with this alias, lists and mappings are nested more than {MAX_DEPTH} deep");
            return Err(message);
        }
        measure(node, &mut self.budget).ok_or_else(too_large)?;
        Ok(node.clone())
    }
}

fn too_large() -> String {
    "with this anchor or alias, the text grows beyond a million values".to_owned()
}

/// Height of a node; its size is taken from `budget`. `None` when that is used up.
fn measure(node: &YamlNode, budget: &mut usize) -> Option<usize> {
    let text = match &node.kind {
        NodeKind::Scalar { text, .. } => text.len(),
        _ => 0,
    };
    *budget = budget.checked_sub(1 + text / TEXT_BYTES_PER_VALUE)?;
    let mut height = 0;
    match &node.kind {
        NodeKind::Null | NodeKind::Scalar { .. } | NodeKind::Binary => return Some(0),
        NodeKind::List(items) => {
            for item in items {
                height = measure(item, budget)?.max(height);
            }
        }
        NodeKind::Map(entries) => {
            for entry in entries {
                *budget = budget.checked_sub(entry.key.len() / TEXT_BYTES_PER_VALUE)?;
                height = measure(&entry.value, budget)?.max(height);
            }
        }
    }
    Some(height + 1)
}
