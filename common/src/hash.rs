//! signalbox's hash: the same bits in a BPF program, in every process and on every machine.
//!
//! splitmix64's finaliser (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014), folded over
//! 8-byte words. Not for secrets, and safe against chosen input only with a secret seed.

/// Spreads the bits of a word over the whole word; a bijection.
#[inline(always)]
#[must_use]
pub const fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Hash of a byte string under a seed.
#[must_use]
pub fn bytes(seed: u64, data: &[u8]) -> u64 {
    let mut state = mix(seed ^ data.len() as u64);
    for chunk in data.chunks(8) {
        let mut word = [0u8; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        state = mix(state ^ u64::from_le_bytes(word));
    }
    state
}

/// Hash of a 16-byte address under a seed.
#[inline(always)]
#[must_use]
pub const fn addr(seed: u64, addr: [u8; 16]) -> u64 {
    let word = u128::from_le_bytes(addr);
    mix(mix(seed ^ word as u64) ^ (word >> 64) as u64)
}

/// Hash of an address in the words of a [`Tuple`](crate::net::Tuple): that of [`addr`].
#[inline(always)]
#[must_use]
pub const fn words(seed: u64, words: &[u32; 4]) -> u64 {
    let first = words[0].swap_bytes() as u64 | (words[1].swap_bytes() as u64) << 32;
    let last = words[2].swap_bytes() as u64 | (words[3].swap_bytes() as u64) << 32;
    mix(mix(seed ^ first) ^ last)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables of several balancers agree only while these bits never change.
    #[test]
    fn the_bits_are_fixed() {
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(bytes(1, b"east-1"), bytes(1, b"east-1"));
        assert_ne!(bytes(1, b"east-1"), bytes(2, b"east-1"));
        assert_ne!(bytes(0, b"a\0"), bytes(0, b"a"));
    }
}
