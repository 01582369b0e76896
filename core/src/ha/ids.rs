//! Virtual router ids: one for each group, the same on all nodes and unlike those of others in the network.

use std::collections::BTreeSet;

/// Ids of `count` groups: the numbers behind `offset` but those that are excluded.
pub fn assign(count: usize, offset: u8, excluded: &BTreeSet<u8>) -> Result<Vec<u8>, String> {
    let free = (offset..u8::MAX).map(|id| id + 1).filter(|id| !excluded.contains(id));
    let ids: Vec<u8> = free.take(count).collect();
    if ids.len() < count {
        return Err(format!(
            "there are {count} groups, but behind the offset {offset} only {} virtual router ids of 1 to 255 that are \
             not excluded: lower the offset, exclude fewer, or put more addresses into a group",
            ids.len()
        ));
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excluded_ids_are_left_out() {
        assert_eq!(assign(3, 0, &BTreeSet::new()), Ok(vec![1, 2, 3]));
        assert_eq!(assign(3, 10, &BTreeSet::from([11, 13])), Ok(vec![12, 14, 15]));
        assert_eq!(assign(1, 254, &BTreeSet::new()), Ok(vec![255]));
        assert_eq!(assign(255, 0, &BTreeSet::new()).unwrap().len(), 255);
    }

    #[test]
    fn too_many_groups_are_refused() {
        let problem = assign(3, 253, &BTreeSet::from([255])).unwrap_err();
        assert!(
            problem.contains("3 groups") && problem.contains("only 1 virtual"),
            "{problem}"
        );
        assert!(assign(256, 0, &BTreeSet::new()).is_err());
        assert!(assign(1, 255, &BTreeSet::new()).is_err());
    }
}
