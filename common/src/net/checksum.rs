//! The Internet checksum, changed incrementally (RFC 1624).

use super::Buffer;

/// Difference that a change of a packet makes to a checksum over it: the sum, modulo 65535, of new less old 16-bit
/// words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Diff(u64);

impl Diff {
    /// An empty difference that is unknown to the verifier (see [`Buffer::hide_from_verifier`]).
    #[inline(always)]
    #[must_use]
    pub fn unknown_zero<B: Buffer + ?Sized>(packet: &B) -> Self {
        Self(u64::from(packet.hide_from_verifier(0)))
    }

    /// Adds the change of a 16-bit word at an even offset.
    #[inline(always)]
    pub fn u16(&mut self, old: u16, new: u16) {
        self.0 += u64::from(!old) + u64::from(new);
    }

    /// Adds the change of a 32-bit number at an even offset.
    #[inline(always)]
    pub fn u32(&mut self, old: u32, new: u32) {
        // Modulo 65535 the upper half counts as much as the lower one.
        self.0 += u64::from(!old) + u64::from(new);
    }

    /// Adds the change of a 32-bit number at an `offset` that may be odd.
    #[inline(always)]
    pub fn u32_at(&mut self, offset: u32, old: u32, new: u32) {
        // At an odd offset each byte has moved into the other half of its word: times 256, modulo 65535.
        self.0 += (u64::from(!old) + u64::from(new)) << ((offset & 1) * 8);
    }

    /// Adds the change of the byte at `offset`.
    #[inline(always)]
    pub fn u8_at(&mut self, offset: u32, old: u8, new: u8) {
        let shift = (!offset & 1) * 8;
        self.0 += (u64::from(0xffff ^ (u16::from(old) << shift))) + (u64::from(new) << shift);
    }

    /// Adds another difference to this one.
    #[inline(always)]
    pub fn merge(&mut self, other: Self) {
        self.0 += other.0;
    }

    /// The difference, folded into a 16-bit sum.
    #[inline(always)]
    #[must_use]
    pub const fn folded(self) -> u16 {
        let mut sum = self.0;
        sum = (sum & 0xffff_ffff) + (sum >> 32);
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        sum as u16
    }

    /// Whether the folded difference equals `sum`; 0 and 65535 are the same number.
    #[inline(always)]
    #[must_use]
    pub const fn equals(self, sum: u16) -> bool {
        let folded = self.folded();
        folded == sum || (folded == 0xffff && sum == 0) || (folded == 0 && sum == 0xffff)
    }

    /// The difference in the form that `bpf_l4_csum_replace` takes with a size of 0: a sum of words in memory order.
    #[inline(always)]
    #[must_use]
    pub const fn for_kernel(self) -> u64 {
        self.folded().to_be() as u64
    }

    /// The checksum that `checksum` becomes by the change.
    #[inline(always)]
    #[must_use]
    pub const fn apply_to(self, checksum: u16) -> u16 {
        let mut sum = !checksum as u32 + self.folded() as u32;
        sum = (sum & 0xffff) + (sum >> 16);
        !(sum as u16)
    }
}

/// Differences to the TCP or UDP checksum: by the addresses (the pseudo-header), and by the rest.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChecksumDiffs {
    /// Difference by the addresses.
    pub addresses: Diff,
    /// Difference by the bytes that the checksum covers itself.
    pub rest: Diff,
}

/// Checksum of `bytes`, as it is in a header, with `start` added to the sum.
#[cfg(test)]
pub(crate) fn of(bytes: &[u8], start: u32) -> u16 {
    let mut sum = u64::from(start);
    for pair in bytes.chunks(2) {
        sum += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Random changes at random offsets: the incremental checksum equals one that is computed from all bytes.
        #[test]
        fn changes_add_up(
            mut bytes in prop::collection::vec(any::<u8>(), 20..60),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u32>(), 0u8..4), 1..6),
        ) {
            let before = of(&bytes, 0);
            let mut diff = Diff::default();
            for (at, new, kind) in changes {
                let at = at.index(bytes.len() - 4);
                let even = at & !1;
                match kind {
                    0 => {
                        diff.u8_at(at as u32, bytes[at], new as u8);
                        bytes[at] = new as u8;
                    }
                    1 => {
                        let old = u16::from_be_bytes([bytes[even], bytes[even + 1]]);
                        diff.u16(old, new as u16);
                        bytes[even..even + 2].copy_from_slice(&(new as u16).to_be_bytes());
                    }
                    _ => {
                        let old = u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
                        diff.u32_at(at as u32, old, new);
                        bytes[at..at + 4].copy_from_slice(&new.to_be_bytes());
                    }
                }
            }
            // 0 and 0xffff are the same number in ones' complement.
            prop_assert_eq!(diff.apply_to(before) % 0xffff, of(&bytes, 0) % 0xffff);
        }
    }
}
