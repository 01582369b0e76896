//! Priorities: which node has which group while all are well, and which one is next.

use signalbox_common::hash;

use crate::model::HighAvailability;
use crate::model::ha::{HaNode, VipGroup};

/// Priority of a group's first node. High ones shorten the time until a node takes over (RFC 9568, `Skew_Time`), and
/// 255 is for owners of an address.
const FIRST_PRIORITY: u8 = 250;
const PRIORITY_STEP: u8 = 10;
/// Lowest priority by chance, of nodes that do not know each other.
const LEAST_PRIORITY: u8 = 100;

/// Priorities of the node `own` in each group. Every node computes the same: the first of a group is the node that it
/// prefers, or else the one with the greatest hash (rendezvous hashing) of those that are not yet first of their part of
/// all groups; the others follow by hash. A node that is not among the nodes has priorities by chance.
#[must_use]
pub fn own_priorities(ha: &HighAvailability, own: &str) -> Vec<u8> {
    if !ha.nodes.iter().any(|node| node.name == own) {
        let chance = |group: &VipGroup| {
            let range = u64::from(FIRST_PRIORITY - LEAST_PRIORITY) + 1;
            LEAST_PRIORITY + u8::try_from(weight(&group.name, own) % range).unwrap_or_default()
        };
        return ha.groups.iter().map(chance).collect();
    }
    let orders = orders(ha);
    let priority = |order: &Vec<&HaNode>| {
        let rank = order.iter().position(|node| node.name == own).unwrap_or(order.len());
        FIRST_PRIORITY - PRIORITY_STEP * u8::try_from(rank).unwrap_or_default()
    };
    orders.iter().map(priority).collect()
}

/// Nodes of each group, the first one first.
#[must_use]
pub fn orders(ha: &HighAvailability) -> Vec<Vec<&HaNode>> {
    let mut orders: Vec<_> = ha.groups.iter().map(|group| order(group, &ha.nodes)).collect();
    let most = ha.groups.len().div_ceil(ha.nodes.len().max(1));
    let preferred = |name: &str| {
        ha.groups
            .iter()
            .filter(|group| group.prefer.as_deref() == Some(name))
            .count()
    };
    let mut firsts: Vec<(&str, usize)> = Vec::new();
    for node in &ha.nodes {
        firsts.push((&node.name, preferred(&node.name)));
    }
    for (group, order) in ha.groups.iter().zip(&mut orders) {
        if group.prefer.is_some() {
            continue;
        }
        let count = |node: &HaNode| {
            firsts
                .iter()
                .position(|(name, count)| *name == node.name && *count < most)
        };
        if let Some((at, slot)) = order.iter().enumerate().find_map(|(at, node)| Some((at, count(node)?))) {
            firsts[slot].1 += 1;
            let first = order.remove(at);
            order.insert(0, first);
        }
    }
    orders
}

/// Nodes of a group by hash, after the one that it prefers.
fn order<'a>(group: &VipGroup, nodes: &'a [HaNode]) -> Vec<&'a HaNode> {
    let mut order: Vec<&HaNode> = nodes.iter().collect();
    order.sort_by_key(|node| {
        let is_preferred = group.prefer.as_deref() == Some(&node.name);
        std::cmp::Reverse((is_preferred, weight(&group.name, &node.name)))
    });
    order
}

fn weight(group: &str, node: &str) -> u64 {
    hash::mix(hash::bytes(hash::bytes(0, group.as_bytes()), node.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::availability::ha::testing::ha;

    #[test]
    fn nodes_agree_and_groups_are_divided_among_them() {
        for (nodes, groups) in [(1, 3), (2, 2), (2, 5), (3, 7), (8, 255)] {
            let ha = ha(nodes, groups);
            let of_nodes: Vec<_> = ha.nodes.iter().map(|node| own_priorities(&ha, &node.name)).collect();
            let most = groups.div_ceil(nodes);
            for priorities in &of_nodes {
                assert!(
                    priorities.iter().filter(|priority| **priority == 250).count() <= most,
                    "{of_nodes:?}"
                );
            }
            for group in 0..groups {
                let mut all: Vec<_> = of_nodes.iter().map(|priorities| priorities[group]).collect();
                all.sort_unstable_by(|one, other| other.cmp(one));
                let expected: Vec<_> = (0..nodes).map(|rank| 250 - 10 * u8::try_from(rank).unwrap()).collect();
                assert_eq!(all, expected);
            }
        }
    }

    #[test]
    fn a_preferred_node_is_first() {
        let mut ha = ha(3, 4);
        for group in &mut ha.groups {
            group.prefer = Some("n2".to_owned());
        }
        assert_eq!(own_priorities(&ha, "n2"), [250; 4]);
        ha.groups[3].prefer = None;
        assert!(
            own_priorities(&ha, "n2")[3] < 250,
            "it has three groups of four already"
        );
    }

    #[test]
    fn nodes_that_do_not_know_each_other_differ() {
        let ha = ha(0, 6);
        let (one, other) = (own_priorities(&ha, "node-a"), own_priorities(&ha, "node-b"));
        assert!(one != other && one.iter().chain(&other).all(|priority| (100..=250).contains(priority)));
        assert_eq!(own_priorities(&ha, "node-a"), one);
    }
}
