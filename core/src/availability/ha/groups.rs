//! Groups of virtual addresses by their number, as OpenShift's `--virtual-ip-groups` divides them.

use std::net::IpAddr;

use crate::model::ha::VipGroup;

/// Divides addresses into `count` groups in their order: each has `addresses / count`, and the first ones, as many as
/// the division leaves over, have one more. There are no empty groups.
#[must_use]
pub fn divide(vips: &[IpAddr], count: usize) -> Vec<VipGroup> {
    let count = count.clamp(1, vips.len().max(1));
    let (each, mut left_over) = (vips.len() / count, vips.len() % count);
    let (mut groups, mut rest) = (Vec::new(), vips);
    while !rest.is_empty() {
        let size = each + usize::from(left_over > 0);
        left_over = left_over.saturating_sub(1);
        let (own, others) = rest.split_at(size);
        groups.push(VipGroup {
            id: None,
            name: format!("g{}", groups.len() + 1),
            vips: own.to_vec(),
            sources: Vec::new(),
            prefer: None,
        });
        rest = others;
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::availability::ha::ranges::parse;

    #[test]
    fn the_first_groups_get_what_the_division_leaves_over() {
        let vips = parse("10.0.0.1-7").unwrap();
        for (count, sizes) in [
            (1, &[7][..]),
            (2, &[4, 3]),
            (3, &[3, 2, 2]),
            (5, &[2, 2, 1, 1, 1]),
            (9, &[1; 7]),
        ] {
            let groups = divide(&vips, count);
            let found: Vec<_> = groups.iter().map(|group| group.vips.len()).collect();
            assert_eq!(found, sizes, "{count}");
            let all: Vec<_> = groups.iter().flat_map(|group| group.vips.clone()).collect();
            assert_eq!(all, vips);
            assert_eq!(
                (groups[0].name.as_str(), groups.last().unwrap().name.clone()),
                ("g1", format!("g{}", sizes.len()))
            );
        }
        assert_eq!(divide(&[], 3), []);
    }
}
