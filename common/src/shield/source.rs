//! Sources: an address, masked to the bits that a guard tells sources by.

use super::abi::Guard;
use crate::hash;
use crate::net::tuple::is_v4;

/// Masks an address to the bits that the guard tells sources by.
#[inline(always)]
#[must_use]
pub const fn mask_source(address: &[u32; 4], guard: &Guard) -> [u32; 4] {
    if is_v4(address) {
        [0, 0, 0xffff, address[3] & guard.mask_v4]
    } else {
        let mask = &guard.mask_v6;
        [
            address[0] & mask[0],
            address[1] & mask[1],
            address[2] & mask[2],
            address[3] & mask[3],
        ]
    }
}

/// Hash by which a source is known at a guard. Never 0, the tag of an empty cell.
#[inline(always)]
#[must_use]
pub const fn tag(seed: u64, source: &[u32; 4], guard: u32) -> u64 {
    let [a, b, c, d] = *source;
    let high = hash::mix(seed ^ guard as u64 ^ ((a as u64) << 32 | b as u64));
    hash::mix(high ^ ((c as u64) << 32 | d as u64)) | 1
}

/// Index of a tag's bucket among `buckets`.
#[inline(always)]
#[must_use]
pub const fn bucket_index(tag: u64, buckets: u32) -> u32 {
    (((tag >> 32) * buckets as u64) >> 32) as u32
}

/// Words of the IPv6 mask of `bits` bits, at most 128.
#[must_use]
pub const fn mask_v6(bits: u32) -> [u32; 4] {
    let mask = if bits == 0 { 0 } else { u128::MAX << (128 - bits) };
    [
        (mask >> 96) as u32,
        (mask >> 64) as u32,
        (mask >> 32) as u32,
        mask as u32,
    ]
}

/// IPv4 mask of `bits` bits, at most 32.
#[must_use]
pub const fn mask_v4(bits: u32) -> u32 {
    if bits == 0 { 0 } else { u32::MAX << (32 - bits) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_prefix_are_one_source() {
        let guard = Guard {
            mask_v4: mask_v4(24),
            mask_v6: mask_v6(64),
            ..Guard::default()
        };
        let v4 = |last: u32| [0, 0, 0xffff, 0xc000_0200 + last];
        assert_eq!(mask_source(&v4(1), &guard), mask_source(&v4(255), &guard));
        assert_ne!(mask_source(&v4(1), &guard), mask_source(&v4(256), &guard));
        let v6 = |third, last| [0x2001_0db8, third, 0x1234, last];
        assert_eq!(mask_source(&v6(7, 1), &guard), [0x2001_0db8, 7, 0, 0]);
        assert_ne!(mask_source(&v6(7, 1), &guard), mask_source(&v6(8, 1), &guard));
        assert_eq!(mask_v6(0), [0; 4]);
        assert_eq!(mask_v6(128), [u32::MAX; 4]);
        assert_eq!((mask_v4(0), mask_v4(32)), (0, u32::MAX));
    }

    #[test]
    fn tags_differ_by_guard_and_seed_and_places_are_within_bounds() {
        let source = [0, 0, 0xffff, 1];
        assert_ne!(tag(1, &source, 0), tag(2, &source, 0));
        assert_ne!(tag(1, &source, 0), tag(1, &source, 1));
        assert_eq!(bucket_index(u64::MAX, 1000), 999);
        assert_eq!(bucket_index(1, 1000), 0);
    }
}
