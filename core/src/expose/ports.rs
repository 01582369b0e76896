//! Which name gets which port of a range.
//!
//! A port that a name has stays its own. Names without one are matched with free ports by rendezvous hashing: a name asks
//! for the port with the highest hash of both, and a port takes the name with the highest. This stable matching is the
//! same in whatever order the names are told of, so that balancers without a memory agree as soon as they know the same
//! names.

use std::collections::{BTreeMap, BTreeSet};

use signalbox_common::hash;

/// The same on every balancer, and in every version: ports depend on it.
const SEED: u64 = 0x6578_706f_7365_3031;

/// How much a name and a port want each other.
fn score(name: &str, port: u16) -> u64 {
    hash::mix(hash::bytes(SEED, name.as_bytes()) ^ u64::from(port))
}

/// What became of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The port of each name that has got one.
    pub given: BTreeMap<String, u16>,
    /// Names that are not there now and have lost the port that was kept for them.
    pub robbed: BTreeSet<String>,
}

/// Gives ports of a range to names. `usable` are its ports that nobody else has; `held` are the ports that `wanted` names
/// have already, and `kept` those of names that are not there now but may come back: these are given to others only when
/// no other port is left, and never where balancers share a table (`is_shared`): another one may know them.
#[must_use]
pub fn choose(
    usable: &BTreeSet<u16>,
    wanted: &BTreeSet<&str>,
    held: &BTreeMap<&str, u16>,
    kept: &BTreeMap<&str, u16>,
    is_shared: bool,
) -> Choice {
    // Two balancers may have given one port to two names.
    let mut taken: BTreeMap<u16, &str> = BTreeMap::new();
    for (&name, &port) in held.iter().filter(|(name, _)| wanted.contains(*name)) {
        if usable.contains(&port) {
            let holder = taken.entry(port).or_insert(name);
            if rank(name, port) > rank(holder, port) {
                *holder = name;
            }
        }
    }
    let seated: BTreeSet<&str> = taken.values().copied().collect();
    let waiting: Vec<&str> = wanted.difference(&seated).copied().collect();
    let reserved: BTreeSet<u16> = kept.values().copied().collect();
    let free = |taken: &BTreeMap<u16, &str>, is_last: bool| -> BTreeSet<u16> {
        let is_free = |port: &&u16| !taken.contains_key(*port) && (is_last || !reserved.contains(*port));
        usable.iter().filter(is_free).copied().collect()
    };
    let (first, left) = matched(&waiting, &free(&taken, false));
    taken.extend(first);
    if !is_shared {
        let (second, _) = matched(&left, &free(&taken, true));
        taken.extend(second);
    }
    // Two names may have one port in a shared table: then nobody has taken it from the one that is not here.
    let is_robbed = |(_, port): &(&&str, &u16)| !is_shared && taken.contains_key(*port);
    Choice {
        robbed: kept
            .iter()
            .filter(is_robbed)
            .map(|(name, _)| (*name).to_owned())
            .collect(),
        given: taken.into_iter().map(|(port, name)| (name.to_owned(), port)).collect(),
    }
}

/// Greater for the name that a port would rather have.
pub(super) fn rank(name: &str, port: u16) -> (u64, &str) {
    (score(name, port), name)
}

/// The stable matching of names and ports (Gale, Shapley: "College admissions and the stability of marriage", 1962), and
/// the names that got no port.
fn matched<'a>(names: &[&'a str], free: &BTreeSet<u16>) -> (BTreeMap<u16, &'a str>, Vec<&'a str>) {
    let mut taken: BTreeMap<u16, &str> = BTreeMap::new();
    let mut left = Vec::new();
    if free.is_empty() {
        return (taken, names.to_vec());
    }
    // Each with the ports that it has not asked for yet, the dearest last.
    let mut asking: Vec<(&str, Vec<u16>)> = Vec::new();
    for name in names {
        let mut ports: Vec<u16> = free.iter().copied().collect();
        ports.sort_unstable_by_key(|port| (score(name, *port), *port));
        asking.push((name, ports));
    }
    let mut asked: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
    while let Some((name, mut ports)) = asking.pop() {
        let Some(port) = ports.pop() else {
            left.push(name);
            continue;
        };
        match taken.get(&port).copied() {
            Some(holder) if rank(holder, port) > rank(name, port) => asking.push((name, ports)),
            holder => {
                let refused = asked.insert(port, ports);
                taken.insert(port, name);
                if let (Some(holder), Some(ports)) = (holder, refused) {
                    asking.push((holder, ports));
                }
            }
        }
    }
    left.sort_unstable();
    (taken, left)
}
