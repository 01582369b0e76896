//! Builds the table of prefixes that [`signalbox_common::shield::prefixes`] looks addresses up in.
//!
//! Prefixes are sorted once, so that those below a node are consecutive, after the shorter ones that contain them.
//! Nodes are made level by level: the children of a node are side by side without being moved, and the table does not
//! depend on the order of the prefixes.

use std::cmp::Reverse;

use ipnet::IpNet;
use signalbox_common::shield::prefixes::{
    ALLOW, DENY, DIRECT_BITS, DIRECT_NODES, FIRST_V4, FIRST_V6, NO_MATCH, NODE_BITS, Node,
};

/// Verdict of a prefix on the addresses in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Addresses are denied.
    Deny,
    /// Addresses are allowed, even if a shorter prefix denies them.
    Allow,
}

/// Builds the table; empty where there are no prefixes. The longest prefix wins; of equal ones, [`Verdict::Allow`].
///
/// Bits after a prefix's length are ignored, and IPv4-mapped IPv6 prefixes count as IPv4.
#[must_use]
pub fn build(prefixes: impl IntoIterator<Item = (IpNet, Verdict)>) -> Vec<Node> {
    let mut prefixes: Vec<Prefix> = prefixes
        .into_iter()
        .map(|(net, verdict)| Prefix::new(net, verdict))
        .collect();
    // A prefix sorts before the longer ones in it; of equal prefixes the allowing one comes first and is kept.
    prefixes.sort_unstable_by_key(|p| (p.is_v6, p.bits, p.length, Reverse(p.verdict)));
    prefixes.dedup_by_key(|p| (p.is_v6, p.bits, p.length));
    drop_redundant(&mut prefixes);
    if prefixes.is_empty() {
        return Vec::new();
    }
    let mut nodes = Vec::new();
    let (mut level, mut depth) = (root_spans(&prefixes), DIRECT_BITS);
    while !level.is_empty() {
        nodes.reserve_exact(level.len());
        let (first, mut below) = (nodes.len() + level.len(), Vec::new());
        for span in level {
            // A table beyond 2^32 nodes fits into no map: the child index is cut off.
            let base = u32::try_from(first + below.len()).unwrap_or(u32::MAX);
            nodes.push(span.node(depth, base, &mut below));
        }
        (level, depth) = (below, depth + NODE_BITS);
    }
    nodes
}

#[derive(Clone, Copy)]
struct Prefix {
    /// Address from the highest bit on, in both families; zeros after the length.
    bits: u128,
    length: u32,
    is_v6: bool,
    /// Verdict: [`DENY`] or [`ALLOW`].
    verdict: u8,
}

impl Prefix {
    fn new(net: IpNet, verdict: Verdict) -> Self {
        const MAPPED: u32 = 96;
        let (bits, length, is_v6) = match net {
            IpNet::V4(net) => (
                u128::from(net.network().to_bits()) << MAPPED,
                net.prefix_len().into(),
                false,
            ),
            IpNet::V6(net) => {
                let (network, length) = (net.network(), u32::from(net.prefix_len()));
                match network.to_ipv4_mapped() {
                    Some(v4) if length >= MAPPED => (u128::from(v4.to_bits()) << MAPPED, length - MAPPED, false),
                    _ => (network.to_bits(), length, true),
                }
            }
        };
        let verdict = match verdict {
            Verdict::Deny => DENY as u8,
            Verdict::Allow => ALLOW as u8,
        };
        Self {
            bits,
            length,
            is_v6,
            verdict,
        }
    }

    /// Whether all addresses of another prefix are in this one.
    fn contains(&self, other: &Self) -> bool {
        let differing = (self.bits ^ other.bits).checked_shr(u128::BITS - self.length);
        self.is_v6 == other.is_v6 && self.length <= other.length && differing.unwrap_or(0) == 0
    }

    /// Index of the first node on the way of the prefix's addresses.
    fn root_index(&self) -> usize {
        let first = if self.is_v6 { FIRST_V6 } else { FIRST_V4 };
        first as usize + (self.bits >> (u128::BITS - DIRECT_BITS)) as usize
    }

    /// Slot of the prefix in a node at a depth: the 6 bits that the node decides by.
    fn slot(&self, depth: u32) -> u32 {
        (self.bits << depth >> (u128::BITS - NODE_BITS)) as u32
    }
}

/// Drops prefixes whose verdict is that of the next shorter one around them: they would cost nodes and change nothing.
fn drop_redundant(sorted: &mut Vec<Prefix>) {
    let mut around: Vec<Prefix> = Vec::new();
    sorted.retain(|prefix| {
        while around.pop_if(|outer| !outer.contains(prefix)).is_some() {}
        let is_needed = around.last().is_none_or(|outer| outer.verdict != prefix.verdict);
        if is_needed {
            around.push(*prefix);
        }
        is_needed
    });
}

/// Span of addresses that a node covers.
#[derive(Clone, Copy)]
struct Span<'a> {
    /// Prefixes in the span that are longer than the bits that lead to the node.
    prefixes: &'a [Prefix],
    /// Verdict of the longest prefix that holds the whole span.
    inherited: u8,
}

/// Spans of the nodes that are indexed directly.
fn root_spans(prefixes: &[Prefix]) -> Vec<Span<'_>> {
    let none = Span {
        prefixes: &[],
        inherited: NO_MATCH as u8,
    };
    let mut spans = vec![none; DIRECT_NODES as usize];
    let mut rest = prefixes;
    while let Some((prefix, others)) = rest.split_first() {
        let index = prefix.root_index();
        if prefix.length <= DIRECT_BITS {
            let held = spans.iter_mut().skip(index).take(1 << (DIRECT_BITS - prefix.length));
            held.for_each(|span| span.inherited = prefix.verdict);
            rest = others;
        } else {
            let inside;
            (inside, rest) = split_leading(rest, |other| other.root_index() == index);
            if let Some(span) = spans.get_mut(index) {
                span.prefixes = inside;
            }
        }
    }
    spans
}

impl<'a> Span<'a> {
    /// Makes the span's node, whose children are to begin at `base`; the children's spans are added to `below`.
    fn node(self, depth: u32, base: u32, below: &mut Vec<Self>) -> Node {
        let mut node = Node::default();
        fill_slots(&mut node, u64::MAX, self.inherited);
        let mut rest = self.prefixes;
        while let Some((prefix, others)) = rest.split_first() {
            let slot = prefix.slot(depth);
            if let Some(deeper) = (depth + NODE_BITS).checked_sub(prefix.length) {
                // The prefix is longer than `depth`, so that it covers half of the slots at the most.
                let slots = (1u64 << (1 << deeper)) - 1;
                fill_slots(&mut node, slots << slot, prefix.verdict);
                rest = others;
            } else {
                let prefixes;
                (prefixes, rest) = split_leading(rest, |other| other.slot(depth) == slot);
                let above = node.leaf(slot) as u8;
                below.push(Span {
                    prefixes,
                    inherited: above,
                });
                node.child |= 1 << slot;
                node.base = base;
            }
        }
        // Bits that no lookup reads are left zero.
        node.deny &= !node.child;
        node.allow &= !node.child;
        node
    }
}

/// Sets the verdict of slots.
fn fill_slots(node: &mut Node, slots: u64, verdict: u8) {
    node.deny &= !slots;
    node.allow &= !slots;
    match u32::from(verdict) {
        DENY => node.deny |= slots,
        ALLOW => node.allow |= slots,
        _ => {}
    }
}

/// Splits prefixes into the leading ones that are inside and the rest.
fn split_leading(prefixes: &[Prefix], is_inside: impl Fn(&Prefix) -> bool) -> (&[Prefix], &[Prefix]) {
    let inside = prefixes.iter().take_while(|prefix| is_inside(prefix)).count();
    prefixes.split_at(inside)
}

#[cfg(test)]
mod tests;
