//! Rates of sources: token buckets in a table of fixed size.
//!
//! A bucket is stored as the time at which it will be full again (the generic cell rate algorithm): one number, and no
//! refill. A source whose buckets are full can be forgotten, since an unknown source has full buckets, too. Of the four
//! in a set, the one that is full first makes room for a new one. The memory is the same for any number of sources, and
//! a packet needs no allocation.
//!
//! CPUs write the same cell without waiting for each other. That may lose a token now and then; a lock would cost every
//! packet.

use super::abi::{Bucket, Guard, LimitKind, RateCell};

/// Finds the cell of a source: its index and 0. For an unknown source, the index of the cell to take over and 1.
#[inline(always)]
#[must_use]
pub fn find_cell(bucket: &Bucket, tag: u64) -> (u32, u32) {
    let (mut taken, mut least, mut is_new, mut i) = (0, u64::MAX, 1, 0);
    while i < 4 {
        let cell = &bucket.cells[i as usize];
        let [a, b, c] = cell.full_at;
        let full = a.max(b).max(c);
        if cell.tag == tag {
            // With 0 no cell that follows replaces this one.
            (taken, least, is_new) = (i, 0, 0);
        } else if full < least {
            (taken, least) = (i, full);
        }
        i += 1;
    }
    (taken, is_new)
}

/// The cell at index `at`; for a `new` source, emptied and given its tag.
#[inline(always)]
pub fn cell_at(bucket: &mut Bucket, at: u32, new: Option<u64>) -> &mut RateCell {
    let cell = &mut bucket.cells[at as usize & 3];
    if let Some(tag) = new {
        cell.tag = tag;
        cell.full_at[0] = 0;
        cell.full_at[1] = 0;
        cell.full_at[2] = 0;
    }
    cell
}

/// Takes `units` tokens, if there are as many; none otherwise.
#[inline(always)]
pub fn take_tokens(cell: &mut RateCell, guard: &Guard, what: LimitKind, units: u32, now: u64) -> bool {
    let limit = &guard.limits[what as usize];
    if limit.burst == 0 {
        return true;
    }
    let at = &mut cell.full_at[what as usize];
    let from = if *at > now { *at } else { now };
    // More than a full bucket would never be available: the kernel may have merged packets.
    let cost = ((limit.unit_time * units as u64) >> 10).min(limit.burst);
    let full = from + cost;
    if full - now > limit.burst {
        return false;
    }
    *at = full;
    true
}

/// Number of tokens that a source has left; `None` without a limit.
#[must_use]
pub fn tokens_left(cell: Option<&RateCell>, guard: &Guard, what: LimitKind, now: u64) -> Option<u64> {
    let limit = &guard.limits[what as usize];
    if limit.burst == 0 {
        return None;
    }
    let used = cell.map_or(0, |cell| cell.full_at[what as usize].saturating_sub(now));
    let held = u128::from(limit.burst.saturating_sub(used)) << 10;
    Some((held / u128::from(limit.unit_time.max(1))) as u64)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::super::abi::Limit;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const SECOND: u64 = 1_000_000_000;

    fn cell(bucket: &mut Bucket, tag: u64) -> &mut RateCell {
        let (at, is_new) = find_cell(bucket, tag);
        super::cell_at(bucket, at, (is_new != 0).then_some(tag))
    }

    fn guard(per_second: u64, burst: u64) -> Guard {
        let mut guard = Guard::default();
        guard.limits[LimitKind::Packets as usize] = Limit::new(per_second, burst);
        guard
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let (guard, mut cell) = (guard(10, 5), RateCell::default());
        let mut taken = |now| take_tokens(&mut cell, &guard, LimitKind::Packets, 1, now);
        let at_once = (0..20).filter(|_| taken(SECOND)).count();
        assert_eq!(at_once, 5);
        let later = (0..1000).filter(|n| taken(SECOND + n * SECOND / 100)).count();
        assert_eq!(later, 99, "ten seconds at ten in a second, but the first of them");
        assert_eq!(
            tokens_left(Some(&cell), &guard, LimitKind::Packets, 100 * SECOND),
            Some(5)
        );
        assert_eq!(tokens_left(None, &guard, LimitKind::Bytes, 0), None);
    }

    #[test]
    fn refused_packets_take_no_tokens() {
        let (guard, mut cell) = (guard(1, 3), RateCell::default());
        assert!(take_tokens(&mut cell, &guard, LimitKind::Packets, 1, SECOND));
        assert!(!take_tokens(&mut cell, &guard, LimitKind::Packets, 3, SECOND));
        assert!(take_tokens(&mut cell, &guard, LimitKind::Packets, 2, SECOND));
    }

    #[test]
    fn more_than_a_bucket_holds_takes_all_of_it() {
        let (guard, mut cell) = (guard(1, 3), RateCell::default());
        assert!(take_tokens(&mut cell, &guard, LimitKind::Packets, 9, SECOND));
        assert!(!take_tokens(&mut cell, &guard, LimitKind::Packets, 1, SECOND));
    }

    #[test]
    fn a_source_whose_buckets_are_full_makes_room_first() {
        let guard = guard(1, 100);
        let mut bucket = Bucket::default();
        for (tag, tokens) in [(1, 30), (3, 10), (5, 20), (7, 40)] {
            assert!(take_tokens(
                cell(&mut bucket, tag),
                &guard,
                LimitKind::Packets,
                tokens,
                SECOND
            ));
        }
        let known = |bucket: &Bucket| bucket.cells.iter().map(|cell| cell.tag).collect::<Vec<_>>();
        assert_eq!(known(&bucket), [1, 3, 5, 7]);
        cell(&mut bucket, 9);
        assert_eq!(known(&bucket), [1, 9, 5, 7]);
        assert_eq!(cell(&mut bucket, 7).full_at[1], 41 * SECOND);
    }

    proptest! {
        /// Over any period no source gets more than its burst plus what its rate has added.
        #[test]
        fn a_source_never_gets_more_than_its_burst_plus_rate(
            rate in 1u64..1000, burst in 4u64..1000, gaps in prop::collection::vec((0u64..SECOND, 1u32..5), 1..200),
        ) {
            let (guard, mut bucket) = (guard(rate, burst), Bucket::default());
            let (mut now, mut got) = (SECOND, 0u64);
            for (gap, units) in gaps {
                now += gap;
                if take_tokens(cell(&mut bucket, 11), &guard, LimitKind::Packets, units, now) {
                    got += u64::from(units);
                }
            }
            // A token takes a whole number of 1/1024 ns, rounded down: one too many in a million.
            let most = burst as f64 + (now - SECOND) as f64 / SECOND as f64 * rate as f64;
            prop_assert!(got as f64 <= most * 1.000_001 + 1e-6, "{got} of {most}");
        }
    }
}
