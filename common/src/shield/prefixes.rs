//! A table of IPv4 and IPv6 prefixes: the verdict of the longest one that an address is in.
//!
//! A multibit trie whose nodes are compressed by bitmaps (Asai and Ohara: "Poptrie", SIGCOMM 2015). The first 16 bits
//! of an address are the index of its first node, and each node decides 6 more. The verdict of a shorter prefix is
//! written into the leaves below it, so the walk never turns back. Each node costs one load, and only the next index is
//! kept. An IPv4 address needs at most 3 nodes, an IPv6 address at most [`MAX_PATH_NODES`].
//!
//! `signalbox_core::limits::prefixes` builds the table. A table is never changed, only replaced as a whole.

/// Verdict: no prefix holds the address.
pub const NO_MATCH: u32 = 0;
/// Verdict: the longest prefix that holds the address denies it.
pub const DENY: u32 = 1;
/// Verdict: the longest prefix that holds the address allows it.
pub const ALLOW: u32 = 2;

/// Leading bits of an address that are the index of its first node.
pub const DIRECT_BITS: u32 = 16;
/// Bits that a node decides.
pub const NODE_BITS: u32 = 6;
/// Index of the first of the IPv4 nodes that are indexed directly.
pub const FIRST_V4: u32 = 0;
/// Index of the first of the IPv6 nodes that are indexed directly.
pub const FIRST_V6: u32 = 1 << DIRECT_BITS;
/// Nodes that are indexed directly; all others follow them.
pub const DIRECT_NODES: u32 = 2 << DIRECT_BITS;
/// Most nodes on the path of an address: 16 and 19 times 6 bits are the 128 of IPv6, and two zeros after them.
pub const MAX_PATH_NODES: u32 = 19;

const _: () = assert!(DIRECT_BITS + NODE_BITS * MAX_PATH_NODES >= 128);
const _: () = assert!(1 << NODE_BITS == u64::BITS);

/// Node of the trie. It decides the next 6 bits of an address: bit `i` of each mask is for the addresses whose 6 bits
/// are `i`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Slots that lead to a child node; the other masks do not apply to these.
    pub child: u64,
    /// Slots whose verdict is [`DENY`].
    pub deny: u64,
    /// Slots whose verdict is [`ALLOW`]; a slot in no mask has [`NO_MATCH`].
    pub allow: u64,
    /// Index of the child of the lowest bit of `child`; those of the higher bits follow it.
    pub base: u32,
    /// Always zero.
    pub _pad: u32,
}

impl Node {
    /// The verdict of a slot without a child.
    #[inline(always)]
    #[must_use]
    pub const fn leaf(&self, slot: u32) -> u32 {
        let (deny, allow) = (self.deny >> slot & 1, self.allow >> slot & 1);
        deny as u32 * DENY + allow as u32 * ALLOW
    }
}

/// Storage of nodes: a map of the kernel, or memory.
pub trait Nodes {
    /// The node at `index`; `None` beyond the end.
    fn node(&self, index: u32) -> Option<&Node>;
}

impl Nodes for [Node] {
    fn node(&self, index: u32) -> Option<&Node> {
        self.get(index as usize)
    }
}

/// Looks up the verdict on an address, [`NO_MATCH`], [`DENY`] or [`ALLOW`]: words in host order, an IPv4 address in the
/// last one.
///
/// The address is shifted through two registers, by constants alone. 5.10's verifier allows no load from the stack at a
/// variable index, and a shift of 128 bits would be a library's function. The loop's bound is only for the verifier,
/// and for a table that is wrong: with a correct one every walk ends earlier.
#[inline(always)]
#[must_use]
pub fn verdict<N: Nodes + ?Sized>(nodes: &N, address: &[u32; 4], is_v4: bool) -> u32 {
    let [w0, w1, w2, w3] = *address;
    // The rest of the address, its next bit the highest one of `high`.
    let (mut index, mut high, mut low) = if is_v4 {
        (FIRST_V4 + (w3 >> 16), u64::from(w3) << 48, 0)
    } else {
        (
            FIRST_V6 + (w0 >> 16),
            u64::from(w0) << 48 | u64::from(w1) << 16 | u64::from(w2 >> 16),
            u64::from(w2) << 48 | u64::from(w3) << 16,
        )
    };
    let mut steps = 0;
    while steps < MAX_PATH_NODES {
        let Some(node) = nodes.node(index) else {
            return NO_MATCH;
        };
        let slot = (high >> (u64::BITS - NODE_BITS)) as u32;
        let bit = 1u64 << slot;
        if node.child & bit == 0 {
            return node.leaf(slot);
        }
        index = node.base.wrapping_add(count_ones(node.child & (bit - 1)));
        high = high << NODE_BITS | low >> (u64::BITS - NODE_BITS);
        low <<= NODE_BITS;
        steps += 1;
    }
    NO_MATCH
}

/// Counts the bits that are set. BPF has no instruction for it, so arithmetic does it: sums of 2, 4 and 8 bits side by
/// side, then of all bytes in the highest one.
#[inline(always)]
#[must_use]
pub const fn count_ones(mut x: u64) -> u32 {
    x -= x >> 1 & 0x5555_5555_5555_5555;
    x = (x & 0x3333_3333_3333_3333) + (x >> 2 & 0x3333_3333_3333_3333);
    x = (x + (x >> 4)) & 0x0f0f_0f0f_0f0f_0f0f;
    (x.wrapping_mul(0x0101_0101_0101_0101) >> 56) as u32
}

const _: () = assert!(size_of::<Node>() == 32);

// SAFETY: repr(C), no implicit padding (the size is asserted above), every bit pattern is a valid value.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Node {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn direct() -> Vec<Node> {
        vec![Node::default(); DIRECT_NODES as usize]
    }

    #[test]
    fn a_leaf_of_the_first_node_decides_by_bits_16_to_22() {
        let mut nodes = direct();
        nodes[0x0a01].deny = 1 << 0b00_0001;
        nodes[0x0a01].allow = 1 << 0b11_1111;
        for (address, want) in [
            (0x0a01_03ff, NO_MATCH),
            (0x0a01_0400, DENY),
            (0x0a01_07ff, DENY),
            (0x0a01_0800, NO_MATCH),
            (0x0a01_fbff, NO_MATCH),
            (0x0a01_fc00, ALLOW),
            (0x0a02_0400, NO_MATCH),
        ] {
            assert_eq!(
                verdict(nodes.as_slice(), &[0, 0, 0, address], true),
                want,
                "{address:x}"
            );
            assert_eq!(verdict(nodes.as_slice(), &[0, 0, 0, address], false), NO_MATCH);
        }
    }

    #[test]
    fn children_follow_each_other_and_what_is_not_there_is_none() {
        let mut nodes = direct();
        nodes[FIRST_V6 as usize + 0x2001].child = 1 << 3 | 1 << 40 | 1 << 63;
        nodes[FIRST_V6 as usize + 0x2001].base = DIRECT_NODES;
        nodes.extend([DENY, ALLOW].map(|verdict| Node {
            deny: if verdict == DENY { u64::MAX } else { 0 },
            allow: if verdict == ALLOW { u64::MAX } else { 0 },
            ..Node::default()
        }));
        for (slot, want) in [(3, DENY), (40, ALLOW), (63, NO_MATCH), (0, NO_MATCH)] {
            assert_eq!(
                verdict(nodes.as_slice(), &[0x2001_0000 | slot << 10, 0, 0, 0], false),
                want
            );
        }
        assert_eq!(verdict::<[Node]>(&[], &[0; 4], true), NO_MATCH);
    }

    /// Every bit of an address is looked at once, in its place: a chain of nodes with one child each, down to the last
    /// bit.
    #[test]
    fn the_words_are_taken_6_bits_at_a_time() {
        let address = [0x2001_0db8, 0x8567_89ab, 0xcdef_fedc, 0xba98_7653];
        let whole = address.iter().fold(0u128, |sum, &word| sum << 32 | u128::from(word));
        let mut nodes = direct();
        let mut at = FIRST_V6 as usize + 0x2001;
        for depth in (16..124).step_by(6) {
            nodes[at].child = 1 << (whole << depth >> 122);
            nodes[at].base = nodes.len() as u32;
            at = nodes.len();
            nodes.push(Node::default());
        }
        nodes[at].deny = 1 << (whole << 124 >> 122);
        assert_eq!(verdict(nodes.as_slice(), &address, false), DENY);
        for bit in 0..128 {
            let mut other = address;
            other[bit / 32] ^= 1 << (bit % 32);
            assert_eq!(verdict(nodes.as_slice(), &other, false), NO_MATCH, "bit {bit}");
        }
    }

    #[test]
    fn a_table_that_leads_in_a_circle_is_left() {
        let mut nodes = direct();
        nodes[0].child = u64::MAX;
        nodes[0].base = 0;
        assert_eq!(verdict(nodes.as_slice(), &[0; 4], true), NO_MATCH);
        nodes[0].base = u32::MAX;
        assert_eq!(verdict(nodes.as_slice(), &[0, 0, 0, 0xfc00], true), NO_MATCH);
    }

    proptest! {
        #[test]
        fn ones_are_counted(x: u64, shift in 0u32..64) {
            prop_assert_eq!(count_ones(x), x.count_ones());
            prop_assert_eq!(count_ones(x >> shift), (x >> shift).count_ones());
            prop_assert_eq!(count_ones(u64::MAX >> shift), 64 - shift);
        }
    }
}
