//! Subsets: the hosts of a cluster that a balancer uses, where each balancer of a set uses a part of them.
//!
//! Rendezvous (highest random weight) hashing over balancer and host: each balancer ranks all hosts and uses the first
//! ones, so that a host that comes or goes changes at most one place of each balancer. Where the other balancers are
//! known by name, each computes the choices of all, and hosts that no balancer has chosen take places of hosts that
//! several have. So, with any names, some balancer uses every host as long as there are as many places as hosts.

use std::cmp::Reverse;

use signalbox_common::hash;

use crate::model::{Model, SubsetSize};

/// Order in which a balancer uses the hosts of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostOrder {
    /// All hosts, by their index in the cluster.
    pub hosts: Vec<u16>,
    /// Number of hosts that are used: the first ones, and one further host for each of them that is not usable.
    pub size: usize,
}

impl HostOrder {
    /// First usable hosts, as many as the size says.
    #[must_use]
    pub fn used(&self, is_usable: impl Fn(u16) -> bool) -> Vec<u16> {
        let usable = self.hosts.iter().copied().filter(|&host| is_usable(host));
        usable.take(self.size).collect()
    }

    /// First hosts, as many as the size says, whether or not they are usable.
    #[must_use]
    pub fn own(&self) -> &[u16] {
        self.hosts.get(..self.size).unwrap_or(&self.hosts)
    }
}

/// Orders of the clusters of a model, for this balancer; `None` where it uses all hosts. `machine` is its name where
/// the model has none.
#[must_use]
pub fn host_orders(model: &Model, machine: &str) -> Vec<Option<HostOrder>> {
    let me = model.subset.name.as_deref().unwrap_or(machine);
    let names: Option<Vec<String>> = model.balancers.iter().map(|other| other.name.clone()).collect();
    // Which hosts an unnamed balancer uses cannot be known: without all names, no other balancer is taken into account.
    let others = names.unwrap_or_default();
    let of = |cluster: &crate::model::Cluster| {
        let size = cluster.subset.unwrap_or(model.subset.size);
        let hosts = cluster.hosts.iter().map(|host| host.name.as_str());
        (size != SubsetSize::All).then(|| host_order(me, &others, &cluster.name, hosts, size))
    };
    model.clusters.iter().map(of).collect()
}

/// Weight of a host for a balancer.
fn rendezvous_weight(balancer: u64, host: u64) -> u64 {
    hash::mix(hash::mix(balancer) ^ host)
}

/// Order of balancer `me`, among `others`, for the hosts of a cluster, which are known by their names.
#[must_use]
pub fn host_order<'a>(
    me: &str,
    others: &[String],
    cluster: &str,
    hosts: impl IntoIterator<Item = &'a str>,
    size: SubsetSize,
) -> HostOrder {
    let seed = hash::bytes(0, cluster.as_bytes());
    let hosts: Vec<u64> = hosts
        .into_iter()
        .map(|name| hash::bytes(seed, name.as_bytes()))
        .collect();
    let size = size.of(hosts.len());
    let named = |name: &str| hash::bytes(1, name.as_bytes());
    let me = named(me);
    let ranked = ranking(me, &hosts);
    let mut own: Vec<u16> = ranked.iter().copied().take(size).collect();
    if !others.is_empty() && size < hosts.len() {
        let mut balancers: Vec<u64> = others.iter().map(|name| named(name)).chain([me]).collect();
        balancers.sort_unstable();
        balancers.dedup();
        let at = balancers.iter().position(|&balancer| balancer == me).unwrap_or(0);
        own = covering_choices(&balancers, &hosts, size).swap_remove(at);
    }
    let mut is_own = vec![false; hosts.len()];
    own.iter().for_each(|&host| is_own[usize::from(host)] = true);
    own.extend(ranked.into_iter().filter(|&host| !is_own[usize::from(host)]));
    HostOrder { hosts: own, size }
}

/// Indices of hosts by weight for the balancer, the greatest first.
fn ranking(balancer: u64, hosts: &[u64]) -> Vec<u16> {
    let mut ranked: Vec<u16> = (0..hosts.len()).map(|host| host as u16).collect();
    // Hosts of equal weight are ordered by their hash, so that every balancer orders them alike.
    ranked.sort_by_cached_key(|&host| {
        let host = hosts.get(usize::from(host)).copied().unwrap_or_default();
        Reverse((rendezvous_weight(balancer, host), host))
    });
    ranked
}

/// Choices of all balancers; each host is in one of them at least, as long as there are places for all.
fn covering_choices(balancers: &[u64], hosts: &[u64], size: usize) -> Vec<Vec<u16>> {
    let key = |host: u16| hosts.get(usize::from(host)).copied().unwrap_or_default();
    let mut chosen: Vec<Vec<u16>> = balancers
        .iter()
        .map(|&balancer| ranking(balancer, hosts).into_iter().take(size).collect())
        .collect();
    let mut used = vec![0u32; hosts.len()];
    for host in chosen.iter().flatten() {
        used[usize::from(*host)] += 1;
    }
    let mut left: Vec<u16> = (0u16..)
        .take(hosts.len())
        .filter(|&host| used[usize::from(host)] == 0)
        .collect();
    // The order must not depend on that of the hosts.
    left.sort_by_key(|&host| key(host));
    for host in left {
        let mut wanting: Vec<usize> = (0..balancers.len()).collect();
        wanting.sort_by_key(|&at| Reverse(rendezvous_weight(balancers[at], key(host))));
        for at in wanting {
            // The balancer gives up, of its hosts that others use too, the one with the least weight.
            let places = chosen[at].iter().enumerate();
            let spare = places.filter(|(_, other)| used[usize::from(**other)] > 1);
            let least = spare.min_by_key(|(_, other)| (rendezvous_weight(balancers[at], key(**other)), key(**other)));
            let Some((place, &other)) = least else { continue };
            used[usize::from(other)] -= 1;
            used[usize::from(host)] += 1;
            chosen[at][place] = host;
            break;
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn names(prefix: &str, count: usize) -> Vec<String> {
        (0..count).map(|n| format!("{prefix}{n}")).collect()
    }

    /// Names of the hosts that a balancer uses while `usable` holds for these.
    fn used(
        me: &str,
        others: &[String],
        hosts: &[String],
        size: SubsetSize,
        usable: impl Fn(&str) -> bool,
    ) -> BTreeSet<String> {
        let order = host_order(me, others, "east", hosts.iter().map(String::as_str), size);
        let used = order.used(|host| usable(&hosts[usize::from(host)]));
        used.into_iter().map(|host| hosts[usize::from(host)].clone()).collect()
    }

    fn of_all(balancers: &[String], hosts: &[String], size: SubsetSize) -> Vec<BTreeSet<String>> {
        balancers
            .iter()
            .map(|me| used(me, balancers, hosts, size, |_| true))
            .collect()
    }

    #[test]
    fn a_size_is_at_least_one_and_at_most_all() {
        let of = |size: SubsetSize| [0, 1, 3, 10].map(|hosts| size.of(hosts));
        assert_eq!(of(SubsetSize::All), [0, 1, 3, 10]);
        assert_eq!(of(SubsetSize::Hosts(4)), [0, 1, 3, 4]);
        assert_eq!(of(SubsetSize::Percent(33)), [0, 1, 1, 4]);
        assert_eq!(of(SubsetSize::Percent(100)), [0, 1, 3, 10]);
    }

    /// Balancers of different versions serve together, so that their choices must never change.
    #[test]
    fn the_choice_is_fixed() {
        let hosts = names("h", 12);
        let chosen = of_all(&names("lb-", 3), &hosts, SubsetSize::Hosts(4));
        let chosen: Vec<Vec<&str>> = chosen
            .iter()
            .map(|set| set.iter().map(String::as_str).collect())
            .collect();
        assert_eq!(chosen, FIXED);
    }

    const FIXED: [[&str; 4]; 3] = [
        ["h0", "h2", "h6", "h8"],
        ["h10", "h11", "h4", "h5"],
        ["h1", "h3", "h7", "h9"],
    ];

    #[test]
    fn triple_subsets_cover_nearly_all_hosts_without_peer_names() {
        let hosts = names("h", 100);
        let mut covered = BTreeSet::new();
        for me in names("lb-", 10) {
            covered.extend(used(&me, &[], &hosts, SubsetSize::Hosts(30), |_| true));
        }
        // Expected: 100 (1 - 1/e^3.6).
        assert!(covered.len() >= 94, "{}", covered.len());
    }

    #[test]
    fn balancers_that_come_and_go_move_little() {
        let hosts = names("h", 100);
        let all = names("lb-", 10);
        let before = of_all(&all, &hosts, SubsetSize::Percent(30));
        let after = of_all(&all[1..], &hosts, SubsetSize::Percent(30));
        let moved: usize = before[1..]
            .iter()
            .zip(&after)
            .map(|(b, a)| b.difference(a).count())
            .sum();
        // Of 270 places only those move that cover hosts of the balancer that is gone.
        assert!(moved <= 15, "{moved} places moved");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever their names, all hosts are used where there are places for all, and no balancer has too many.
        #[test]
        fn all_hosts_are_covered(balancers in 1usize..12, hosts in 1usize..60, size in 1u32..30, salt in 0u32..1000) {
            let (balancers, hosts) = (names(&format!("b{salt}-"), balancers), names(&format!("h{salt}-"), hosts));
            let chosen = of_all(&balancers, &hosts, SubsetSize::Hosts(size));
            let size = SubsetSize::Hosts(size).of(hosts.len());
            for set in &chosen {
                prop_assert_eq!(set.len(), size);
            }
            let covered: BTreeSet<_> = chosen.iter().flatten().collect();
            prop_assert!(covered.len() >= hosts.len().min(balancers.len() * size) || balancers.len() * size < hosts.len());
            if balancers.len() * size >= hosts.len() {
                prop_assert_eq!(covered.len(), hosts.len());
            }
        }

        /// A host that goes, or comes, changes one place of a balancer that does not know the others.
        #[test]
        fn one_host_is_one_place(hosts in 2usize..60, gone in 0usize..60, size in 1u32..30) {
            let all = names("h", hosts);
            let mut fewer = all.clone();
            let gone = fewer.remove(gone % hosts);
            let before = used("lb-1", &[], &all, SubsetSize::Hosts(size), |_| true);
            let after = used("lb-1", &[], &fewer, SubsetSize::Hosts(size), |_| true);
            let lost: Vec<_> = before.difference(&after).collect();
            prop_assert!(lost.is_empty() || lost == [&gone], "{lost:?}");
            prop_assert!(after.difference(&before).count() <= usize::from(before.contains(&gone)));
        }

        /// A host that goes changes few places of a balancer that knows the others, whichever host it is.
        #[test]
        fn one_host_is_few_places(balancers in 2usize..10, hosts in 20usize..60, gone in 0usize..60, salt in 0u32..1000) {
            let balancers = names(&format!("b{salt}-"), balancers);
            let all = names("h", hosts);
            let mut fewer = all.clone();
            let gone = fewer.remove(gone % hosts);
            // Places are twice as many as hosts.
            let size = SubsetSize::Hosts((2 * hosts).div_ceil(balancers.len()) as u32);
            let (before, after) = (of_all(&balancers, &all, size), of_all(&balancers, &fewer, size));
            let moved: usize = before.iter().zip(&after)
                .map(|(b, a)| b.difference(a).filter(|name| **name != gone).count())
                .sum();
            prop_assert!(moved <= balancers.len(), "{moved} places moved that were not {gone}'s");
        }

        /// Hosts that are down are replaced by the next usable ones, and no other place changes.
        #[test]
        fn the_next_usable_ones_step_in(hosts in 2usize..40, size in 1u32..20, down in prop::collection::btree_set(0usize..40, 0..10)) {
            let all = names("h", hosts);
            let others = names("lb-", 4);
            let is_up = |name: &str| !down.iter().any(|n| name == format!("h{n}"));
            let own = used("lb-0", &others, &all, SubsetSize::Hosts(size), |_| true);
            let now = used("lb-0", &others, &all, SubsetSize::Hosts(size), is_up);
            let up = all.iter().filter(|name| is_up(name)).count();
            prop_assert_eq!(now.len(), SubsetSize::Hosts(size).of(hosts).min(up));
            let kept: BTreeSet<_> = own.iter().filter(|name| is_up(name)).cloned().collect();
            prop_assert!(kept.is_subset(&now), "{kept:?} of {now:?}");
        }

        /// The order in which hosts and balancers are known makes no difference.
        #[test]
        fn a_subset_is_independent_of_host_and_balancer_order(hosts in 2usize..30, turn in 0usize..30, size in 1u32..10) {
            let mut all = names("h", hosts);
            let mut balancers = names("lb-", 5);
            let before = used("lb-2", &balancers, &all, SubsetSize::Hosts(size), |_| true);
            all.rotate_left(turn % hosts);
            balancers.reverse();
            prop_assert_eq!(before, used("lb-2", &balancers, &all, SubsetSize::Hosts(size), |_| true));
        }
    }
}
