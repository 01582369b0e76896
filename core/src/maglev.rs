//! Weighted Maglev hashing (Eisenbud et al., NSDI 2016, section 3.4): a table from hash to host in which a change of
//! the hosts moves few of the others' slots.

use signalbox_common::hash;

/// Slots of a table; prime, and at least 100 for each of some 650 hosts.
pub const SLOTS: usize = 65_537;

const OFFSET_SEED: u64 = 0x7369_676e_616c_626f;
const SKIP_SEED: u64 = 0x786d_6167_6c65_7631;

/// A host to place: its index, its weight (at least 1), and the bytes of its address, which alone decide its slots.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// What the table holds for it.
    pub index: u16,
    /// Its share of the slots.
    pub weight: u32,
    /// Its identity: the same on every balancer, whatever the order or the name.
    pub identity: [u8; 16],
}

/// Builds the table; empty where there are no candidates. The same from any order of the same candidates.
#[must_use]
pub fn build(candidates: &[Candidate]) -> Box<[u16]> {
    if candidates.is_empty() {
        return Box::default();
    }
    let mut hosts: Vec<&Candidate> = candidates.iter().collect();
    hosts.sort_by(|a, b| a.identity.cmp(&b.identity).then(a.index.cmp(&b.index)));
    let m = SLOTS as u64;
    let heaviest = hosts.iter().map(|h| h.weight.max(1)).max().unwrap_or(1);
    // (next position of the permutation, step, credit)
    let mut walks: Vec<(u64, u64, u32)> = hosts
        .iter()
        .map(|h| {
            let (offset, skip) = (
                hash::addr(OFFSET_SEED, h.identity) % m,
                hash::addr(SKIP_SEED, h.identity) % (m - 1) + 1,
            );
            (offset, skip, 0)
        })
        .collect();
    let mut table: Vec<Option<u16>> = vec![None; SLOTS];
    let mut filled = 0;
    loop {
        for (host, walk) in hosts.iter().zip(&mut walks) {
            walk.2 += host.weight.max(1);
            if walk.2 < heaviest {
                continue;
            }
            walk.2 -= heaviest;
            // The skip is coprime to the prime M: the walk visits every slot, so it finds a free one.
            while let Some(slot) = table.get_mut(walk.0 as usize) {
                walk.0 = (walk.0 + walk.1) % m;
                if slot.is_none() {
                    *slot = Some(host.index);
                    filled += 1;
                    break;
                }
            }
            if filled == SLOTS {
                return table.into_iter().map(Option::unwrap_or_default).collect();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hosts(count: u16) -> Vec<Candidate> {
        (0..count)
            .map(|index| {
                let mut identity = [0u8; 16];
                identity[14..].copy_from_slice(&index.to_be_bytes());
                Candidate {
                    index,
                    weight: 1,
                    identity,
                }
            })
            .collect()
    }

    fn share(table: &[u16], index: u16) -> usize {
        table.iter().filter(|&&slot| slot == index).count()
    }

    #[test]
    fn every_slot_is_filled_and_the_shares_are_even_within_one_percent() {
        let table = build(&hosts(20));
        for index in 0..20 {
            let (got, want) = (share(&table, index) as f64, SLOTS as f64 / 20.0);
            assert!((got - want).abs() / want < 0.01, "host {index}: {got} of {want}");
        }
    }

    #[test]
    fn weights_are_honoured_within_one_percent() {
        let mut some = hosts(3);
        some[1].weight = 2;
        some[2].weight = 7;
        let table = build(&some);
        for (index, weight) in [(0, 1.0), (1, 2.0), (2, 7.0)] {
            let (got, want) = (share(&table, index) as f64, SLOTS as f64 * weight / 10.0);
            assert!((got - want).abs() / want < 0.01, "host {index}: {got} of {want}");
        }
    }

    #[test]
    fn removing_a_host_moves_little_that_was_not_its_own() {
        let all = hosts(50);
        let (before, after) = (build(&all), build(&all[1..]));
        let moved = before.iter().zip(&after).filter(|(b, a)| **b != 0 && b != a).count();
        assert!(moved * 100 < SLOTS * 2, "{moved} slots moved needlessly");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]
        #[test]
        fn the_order_of_hosts_does_not_matter(count in 1u16..30, rotate in 0usize..30) {
            let mut some = hosts(count);
            let want = build(&some);
            some.rotate_left(rotate % usize::from(count));
            prop_assert_eq!(want, build(&some));
        }
    }
}
