//! Assigns the ports of a range to names.
//!
//! A name keeps the port that it has. Names without a port are matched with free ports by rendezvous hashing: a name
//! asks for the port with the highest hash of both, and a port takes the name with the highest. This stable matching
//! does not depend on the order in which names become known, so that balancers without a memory agree as soon as they
//! know equal names.

use std::collections::{BTreeMap, BTreeSet};

use signalbox_common::hash;

/// Hash seed; fixed for every balancer and version, because assigned ports depend on it.
const SEED: u64 = 0x6578_706f_7365_3031;

/// Preference of a name and a port for each other.
fn score(name: &str, port: u16) -> u64 {
    hash::mix(hash::bytes(SEED, name.as_bytes()) ^ u64::from(port))
}

/// Assignment of a range's ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortAssignment {
    /// Port of each name that has got one.
    pub assigned: BTreeMap<String, u16>,
    /// Names without endpoints at present whose kept port was given to another name.
    pub displaced: BTreeSet<String>,
}

/// Gives ports of a range to names. `usable` are its ports that no listener or service has; `held` are the ports that
/// `wanted` names already have, and `kept` those of absent names that may come back. Kept ports are given to others
/// only when no other port is left, and never where balancers share a table (`is_shared`), as another balancer may know
/// those names.
#[must_use]
pub fn assign(
    usable: &BTreeSet<u16>,
    wanted: &BTreeSet<&str>,
    held: &BTreeMap<&str, u16>,
    kept: &BTreeMap<&str, u16>,
    is_shared: bool,
) -> PortAssignment {
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
    let assigned: BTreeSet<&str> = taken.values().copied().collect();
    let waiting: Vec<&str> = wanted.difference(&assigned).copied().collect();
    let reserved: BTreeSet<u16> = kept.values().copied().collect();
    let free = |taken: &BTreeMap<u16, &str>, is_last: bool| -> BTreeSet<u16> {
        let is_free = |port: &&u16| !taken.contains_key(*port) && (is_last || !reserved.contains(*port));
        usable.iter().filter(is_free).copied().collect()
    };
    let (first, left) = stable_matching(&waiting, &free(&taken, false));
    taken.extend(first);
    if !is_shared {
        let (second, _) = stable_matching(&left, &free(&taken, true));
        taken.extend(second);
    }
    // In a shared table two names may have one port; an absent name has then not lost it to the other.
    let is_robbed = |(_, port): &(&&str, &u16)| !is_shared && taken.contains_key(*port);
    PortAssignment {
        displaced: kept
            .iter()
            .filter(is_robbed)
            .map(|(name, _)| (*name).to_owned())
            .collect(),
        assigned: taken.into_iter().map(|(port, name)| (name.to_owned(), port)).collect(),
    }
}

/// Sort key of names for a port: greatest for the name that the port prefers.
pub(super) fn rank(name: &str, port: u16) -> (u64, &str) {
    (score(name, port), name)
}

/// Stable matching of names and ports (Gale, Shapley: "College admissions and the stability of marriage", 1962), and
/// the names that got no port.
fn stable_matching<'a>(names: &[&'a str], free: &BTreeSet<u16>) -> (BTreeMap<u16, &'a str>, Vec<&'a str>) {
    let mut taken: BTreeMap<u16, &str> = BTreeMap::new();
    let mut left = Vec::new();
    if free.is_empty() {
        return (taken, names.to_vec());
    }
    // Pairs each name with the ports that it has not asked for yet, the preferred one last.
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
