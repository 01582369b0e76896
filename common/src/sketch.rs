//! Counts by source: count-min sketches (Cormode, Muthukrishnan, 2005) of connections and of token buckets, in memory
//! that programs and userspace change at the same time.
//!
//! A source has one cell in each row. A count is the least of its cells: never too low, and too high only where all
//! cells are shared with busier sources.

use crate::hash;

/// Rows of a sketch: the number of a source's cells.
pub const ROWS: usize = 3;
/// Cells of a row.
pub const COLUMNS: u32 = 1 << 15;
/// Cells of a sketch.
pub const CELLS: u32 = ROWS as u32 * COLUMNS;

/// The sketches, by the first of their cells in `PEEK_SKETCHES`.
pub mod first_cell {
    use super::CELLS;

    /// Connections of sources, for the limits of all listeners together and of each shield.
    pub const CONNECTIONS: u32 = 0;
    /// Token buckets of sources: [`super::use_token`].
    pub const TOKENS: u32 = CELLS;
    /// Connections and requests of sources at a route.
    pub const AT_ROUTE: u32 = 2 * CELLS;
    /// Times at which the buckets of sources at a route are full: [`super::use_period`].
    pub const FULL_AT: u32 = 3 * CELLS;
    /// Cells of all sketches.
    pub const ALL_CELLS: u32 = 4 * CELLS;
}

/// Cell of a source in a row, under a secret seed, so that no client can aim at another source's cells.
#[inline(always)]
#[must_use]
pub const fn cell(row: u32, seed: u64, source: &[u32; 4]) -> u32 {
    row * COLUMNS + (hash::words(seed ^ (0x51 + row as u64), source) as u32 & (COLUMNS - 1))
}

/// Whether an address is one of IPv4 (IPv4-mapped), or of the IPv6 prefix that those are in.
const fn is_short(address: &[u32; 4]) -> bool {
    address[0] == 0 && address[1] == 0 && address[2] >> 16 == 0
}

/// The source of an address: the /32 of an IPv4 address, the /64 of an IPv6 address.
#[inline(always)]
#[must_use]
pub const fn source(address: &[u32; 4]) -> [u32; 4] {
    if is_short(address) {
        *address
    } else {
        [address[0], address[1], 0, 0]
    }
}

/// The leading `bits` of an IPv6 address, or of an IPv4-mapped one.
#[inline(always)]
#[must_use]
pub const fn prefix(address: &[u32; 4], bits: u32) -> [u32; 4] {
    [
        address[0] & mask(bits, 0),
        address[1] & mask(bits, 32),
        address[2] & mask(bits, 64),
        address[3] & mask(bits, 96),
    ]
}

/// Mask of the word that begins at a bit.
#[inline(always)]
const fn mask(bits: u32, at: u32) -> u32 {
    if bits <= at {
        0
    } else if bits - at >= 32 {
        u32::MAX
    } else {
        !(u32::MAX >> (bits - at))
    }
}

/// Takes a token from a bucket of one second's worth. High half of `bucket`: tokens used, in 1/256; low half: time of
/// the last use, in ms. `None` where the bucket is empty.
#[inline(always)]
#[must_use]
pub const fn use_token(bucket: u64, now_ms: u32, rate: u32) -> Option<u64> {
    let full = rate as u64 * 256;
    let (used, then) = (bucket >> 32, bucket as u32);
    // The other's clock may be a moment ahead: no time has passed then.
    let passed = now_ms.wrapping_sub(then);
    let (passed, latest) = if passed > u32::MAX / 2 {
        (0, then)
    } else {
        (passed, now_ms)
    };
    let back = passed as u64 * full / 1000;
    let used = used.saturating_sub(back);
    let most = if full > u32::MAX as u64 { u32::MAX as u64 } else { full };
    if used + 256 > most {
        return None;
    }
    Some((used + 256) << 32 | latest as u64)
}

/// Uses a bucket of a period, by the generic cell rate algorithm (ITU-T I.371): returns the time at which it is full
/// again. All times in ns.
#[inline(always)]
#[must_use]
pub const fn use_period(full_at: u64, now: u64, cost: u64) -> u64 {
    let from = if full_at > now { full_at } else { now };
    from.saturating_add(cost)
}

/// Part of a time at which a bucket is full that exceeds its depth `most`; 0: the use is granted.
#[inline(always)]
#[must_use]
pub const fn excess(full_at: u64, now: u64, most: u64) -> u64 {
    full_at.saturating_sub(now).saturating_sub(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> [u32; 4] {
        let bytes = match text.parse().unwrap() {
            core::net::IpAddr::V4(v4) => core::net::Ipv4Addr::to_ipv6_mapped(&v4).octets(),
            core::net::IpAddr::V6(v6) => v6.octets(),
        };
        core::array::from_fn(|at| u32::from_be_bytes(bytes[4 * at..4 * at + 4].try_into().unwrap()))
    }

    #[test]
    fn sources_are_addresses_of_ipv4_and_halves_of_ipv6_addresses() {
        assert_eq!(source(&words("10.1.2.3")), words("10.1.2.3"));
        assert_eq!(source(&words("2001:db8::1:2")), words("2001:db8::"));
        assert_eq!(source(&words("::1")), words("::1"));
        assert_eq!(prefix(&words("10.1.2.3"), 96 + 24), words("10.1.2.0"));
        assert_eq!(prefix(&words("2001:db8:1:2:3::4"), 48), words("2001:db8:1::"));
        assert_eq!(prefix(&words("2001:db8:1:2:3::4"), 0), [0; 4]);
        assert_eq!(prefix(&words("2001:db8:1:2:3::4"), 128), words("2001:db8:1:2:3::4"));
    }

    #[test]
    fn a_word_hashes_as_its_bytes() {
        let bytes: [u8; 16] = core::array::from_fn(|at| at as u8 * 17);
        let words = core::array::from_fn(|at| u32::from_be_bytes(bytes[4 * at..4 * at + 4].try_into().unwrap()));
        assert_eq!(hash::words(7, &words), hash::addr(7, bytes));
    }
}
