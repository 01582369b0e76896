//! Virtual router ids: one for each group, the same on all nodes and unlike those of others in the network.
//!
//! A group's id does not depend on its place in the list: nodes whose lists differ during a roll-out use the same ids
//! for the same groups.

use std::collections::{BTreeMap, BTreeSet};

/// A group's name, and the id that the configuration gives it.
pub type NamedGroup<'a> = (&'a str, Option<u8>);

/// Ids of groups. A group without a configured id gets the one of the number that its name ends with, counted among the
/// ids after `offset` that are not excluded; a name without a number is hashed. If that id is taken, the group gets the
/// next free one.
pub fn assign(groups: &[NamedGroup<'_>], offset: u8, excluded: &BTreeSet<u8>) -> Result<Vec<u8>, String> {
    let free: Vec<u8> = (offset..u8::MAX)
        .map(|id| id + 1)
        .filter(|id| !excluded.contains(id))
        .collect();
    let mut taken = BTreeMap::new();
    for &(name, id) in groups {
        let Some(id) = id else { continue };
        if let Some(other) = taken.insert(id, name) {
            return Err(format!("the groups `{other}` and `{name}` have the same id, {id}"));
        }
    }
    // In the order of names, those with a number first: a group that is added seldom moves another one.
    let mut others: Vec<_> = groups
        .iter()
        .filter(|(_, id)| id.is_none())
        .map(|(name, _)| *name)
        .collect();
    others.sort_unstable_by_key(|name| (number_of(name).is_none(), number_of(name), *name));
    let mut found = BTreeMap::new();
    for name in others {
        let start = number_of(name).map_or_else(|| hash(name), |number| number.wrapping_sub(1));
        let after_start = (0..free.len()).filter_map(|step| free.get(start.wrapping_add(step) % free.len()));
        let Some(&id) = after_start.into_iter().find(|id| !taken.contains_key(id)) else {
            return Err(format!(
                "there are {} groups, but after the offset {offset} only {} virtual router ids of 1 to 255 that are not \
                 excluded: lower the offset, exclude fewer, or put more addresses into a group",
                groups.len(),
                free.len()
            ));
        };
        taken.insert(id, name);
        found.insert(name, id);
    }
    let of = |&(name, id): &NamedGroup<'_>| id.or_else(|| found.get(name).copied());
    Ok(groups.iter().filter_map(of).collect())
}

/// The number that a name ends with, unless it is no place among ids.
fn number_of(name: &str) -> Option<usize> {
    let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
    let digits = digits.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    digits
        .parse()
        .ok()
        .filter(|number| (1..=usize::from(u8::MAX)).contains(number))
}

/// FNV-1a, the same on all nodes and in all versions.
fn hash(name: &str) -> usize {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    hash as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(names: &[&str], offset: u8, excluded: &[u8]) -> Vec<u8> {
        let groups: Vec<_> = names.iter().map(|name| (*name, None)).collect();
        assign(&groups, offset, &excluded.iter().copied().collect()).unwrap()
    }

    #[test]
    fn a_group_names_final_number_picks_among_ids_not_excluded() {
        assert_eq!(ids(&["g1", "g2", "g3"], 0, &[]), [1, 2, 3]);
        assert_eq!(ids(&["g1", "g2", "g3"], 10, &[11, 13]), [12, 14, 15]);
        assert_eq!(ids(&["g1"], 254, &[]), [255]);
        // Names that end with the same number, or with one that is no id.
        assert_eq!(ids(&["a-1", "b-1"], 0, &[]), [1, 2]);
        let odd = ids(&["g0", "g256", "g1"], 0, &[]);
        assert_eq!((odd.len(), odd[2]), (3, 1));
    }

    #[test]
    fn a_place_in_the_list_does_not_matter() {
        assert_eq!(ids(&["g5", "g6"], 0, &[]), [5, 6]);
        assert_eq!(ids(&["g7", "g6", "g5"], 0, &[]), [7, 6, 5]);
        let names = ["web", "mail", "intern", "ldap"];
        let all = ids(&names, 0, &[]);
        for first in 0..names.len() {
            let mut turned = names;
            turned.rotate_left(first);
            let mut expected = all.clone();
            expected.rotate_left(first);
            assert_eq!(ids(&turned, 0, &[]), expected);
        }
        assert_eq!(ids(&["web", "ldap"], 0, &[]), [all[0], all[3]]);
    }

    #[test]
    fn an_id_of_its_own_comes_first() {
        let excluded = BTreeSet::from([51]);
        let groups = [("g1", None), ("web", Some(1)), ("old", Some(51))];
        assert_eq!(assign(&groups, 0, &excluded), Ok(vec![2, 1, 51]));
        let problem = assign(&[("a", Some(7)), ("b", Some(7))], 0, &excluded).unwrap_err();
        assert!(problem.contains("`a` and `b`") && problem.contains('7'), "{problem}");
    }

    #[test]
    fn too_many_groups_are_refused() {
        let names: Vec<_> = (1..=256).map(|n| format!("g{n}")).collect();
        let groups = |count: usize| {
            names[..count]
                .iter()
                .map(|name| (name.as_str(), None))
                .collect::<Vec<_>>()
        };
        let problem = assign(&groups(3), 253, &BTreeSet::from([255])).unwrap_err();
        assert!(
            problem.contains("3 groups") && problem.contains("only 1 virtual"),
            "{problem}"
        );
        assert_eq!(assign(&groups(255), 0, &BTreeSet::new()).unwrap().len(), 255);
        assert!(assign(&groups(256), 0, &BTreeSet::new()).is_err());
        assert!(assign(&groups(1), 255, &BTreeSet::new()).is_err());
    }
}
