//! Weighted Maglev hashing (Eisenbud et al., NSDI 2016, section 3.4): a table from hash to host in which a change of
//! the hosts moves few of the others' slots.

use signalbox_common::hash;

/// Number of slots in a table; prime, and at least 100 for each of some 650 hosts.
pub const SLOTS: usize = 65_537;

const OFFSET_SEED: u64 = 0x7369_676e_616c_626f;
const SKIP_SEED: u64 = 0x786d_6167_6c65_7631;

/// Host to place in the table: its address alone decides which slots it prefers, its weight how many it gets.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Value that the table holds for the host.
    pub index: u16,
    /// Weight of the host, which decides its share of the slots; at least 1.
    pub weight: u32,
    /// Bytes of the host's address: equal on every balancer, and independent of the host's order or name.
    pub identity: [u8; 16],
}

/// Builds the table; empty where there are no candidates. The order of the candidates does not matter.
#[must_use]
pub fn build(candidates: &[Candidate]) -> Box<[u16]> {
    if candidates.is_empty() {
        return Box::default();
    }
    let mut hosts: Vec<&Candidate> = candidates.iter().collect();
    hosts.sort_by(|a, b| a.identity.cmp(&b.identity).then(a.index.cmp(&b.index)));
    let m = SLOTS as u64;
    let heaviest = hosts.iter().map(|h| h.weight.max(1)).max().unwrap_or(1);
    // Walks: (next position of the permutation, step, credit).
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

/// Most draws for a slot whose host is out, before the slot is given to any host that is in.
const MAX_REPAIR_DRAWS: u64 = 64;
const REPAIR_SEED: u64 = 0x7265_7061_6972_6564;

/// Rebuilds the table while some hosts are out: only their slots move, and only for as long as they are out.
///
/// A slot whose host is out takes the host of another slot, drawn by its own number, so that the other hosts share
/// these slots by weight. The result depends only on which hosts are in: not on the order in which hosts went out, nor
/// on earlier tables. Balancers that know equal hosts agree without talking; where only one of them takes a host for
/// dead, they differ in that host's slots alone.
#[must_use]
pub fn repaired(table: &[u16], is_in: impl Fn(u16) -> bool) -> Box<[u16]> {
    let hosts = table.iter().map(|&host| usize::from(host) + 1).max().unwrap_or(0);
    let is_in: Vec<bool> = (0..hosts).map(|host| is_in(host as u16)).collect();
    let stands = |host: &u16| is_in.get(usize::from(*host)).copied().unwrap_or(false);
    let others: Vec<u16> = (0..hosts as u16)
        .filter(|host| stands(host) && table.contains(host))
        .collect();
    if others.is_empty() {
        return table.into();
    }
    let drawn = |slot: u64, draw: u64| hash::mix(REPAIR_SEED ^ slot << 8 ^ draw) as usize;
    let mend = |(slot, host): (usize, &u16)| {
        let slot = slot as u64;
        let mut candidates = (0..MAX_REPAIR_DRAWS).filter_map(|draw| table.get(drawn(slot, draw) % table.len()));
        std::iter::once(host)
            .chain(candidates.by_ref())
            .find(|host| stands(host))
            .or_else(|| others.get(drawn(slot, MAX_REPAIR_DRAWS) % others.len()))
            .copied()
            .unwrap_or_default()
    };
    table.iter().enumerate().map(mend).collect()
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
    fn every_slot_is_filled_and_shares_are_even_within_one_percent() {
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

    #[test]
    fn a_host_that_leaves_moves_only_its_own_slots_and_regains_them() {
        let base = build(&hosts(50));
        let first = repaired(&base, |host| host != 7);
        let second = repaired(&base, |host| host != 7 && host != 9);
        let third = repaired(&base, |host| host != 9);
        assert!(!first.contains(&7) && !second.contains(&7) && !second.contains(&9));
        for slot in 0..SLOTS {
            assert!(first[slot] == base[slot] || base[slot] == 7);
            assert!(second[slot] == first[slot] || first[slot] == 9);
            assert!(third[slot] == second[slot] || third[slot] == 7 || base[slot] == 7);
        }
        assert_eq!(repaired(&base, |_| true), base);
    }

    #[test]
    fn while_hosts_are_out_the_others_have_their_shares() {
        let mut some = hosts(20);
        some.iter_mut()
            .for_each(|host| host.weight = 1 + u32::from(host.index % 4));
        let base = build(&some);
        let out = |host: u16| host.is_multiple_of(5);
        let table = repaired(&base, |host| !out(host));
        let total: u32 = some
            .iter()
            .filter(|host| !out(host.index))
            .map(|host| host.weight)
            .sum();
        for host in some.iter().filter(|host| !out(host.index)) {
            let (got, want) = (
                share(&table, host.index) as f64,
                SLOTS as f64 * f64::from(host.weight) / f64::from(total),
            );
            assert!((got - want).abs() / want < 0.05, "host {}: {got} of {want}", host.index);
        }
    }

    #[test]
    fn no_usable_host_keeps_the_table_and_a_single_one_gets_it_all() {
        let base = build(&hosts(300));
        assert_eq!(repaired(&base, |_| false), base);
        assert!(repaired(&base, |host| host == 299).iter().all(|&host| host == 299));
        assert!(repaired(&[], |_| true).is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Shares are exact to one percent at a hundred slots for each host, and every slot is filled, for all weights.
        #[test]
        fn shares_follow_weights(weights in prop::collection::vec(1u32..=100, 1..200)) {
            let mut some = hosts(weights.len() as u16);
            for (host, &weight) in some.iter_mut().zip(&weights) {
                host.weight = weight;
            }
            let table = build(&some);
            prop_assert_eq!(table.len(), SLOTS);
            let total: u32 = weights.iter().sum();
            for (index, &weight) in weights.iter().enumerate() {
                let want = SLOTS as f64 * f64::from(weight) / f64::from(total);
                let got = share(&table, index as u16) as f64;
                prop_assert!((got - want).abs() <= 1.0f64.max(want / 100.0), "host {}: {} of {}", index, got, want);
            }
        }
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
