//! Route table: exact beats wildcard, and the longest wildcard that stands for the name wins.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::name::{Depth, HostName, HostPattern};

/// Index of a route in the model.
pub type RouteId = usize;

/// Immutable look-up table of host patterns.
#[derive(Debug, Default)]
pub struct Table {
    exact: HashMap<HostName, RouteId, FixedState>,
    wildcard: HashMap<HostName, (RouteId, Depth), FixedState>,
}

impl Table {
    /// Builds a table of patterns, with the depth of each star; of two equal patterns the first wins.
    pub fn new<'a>(patterns: impl IntoIterator<Item = (&'a HostPattern, Depth)>) -> Self {
        let mut table = Self::default();
        let patterns = patterns.into_iter();
        table.exact.reserve(patterns.size_hint().0);
        for (id, (pattern, depth)) in patterns.enumerate() {
            match pattern {
                HostPattern::Exact(name) => {
                    table.exact.entry(name.clone()).or_insert(id);
                }
                HostPattern::Wildcard(suffix) => {
                    table.wildcard.entry(suffix.clone()).or_insert((id, depth));
                }
            }
        }
        table
    }

    /// Route of a name.
    #[must_use]
    pub fn find(&self, name: &HostName) -> Option<RouteId> {
        if let Some(id) = self.exact.get(name) {
            return Some(*id);
        }
        if self.wildcard.is_empty() {
            return None;
        }
        let mut rest = name.as_str();
        // Stars must stand for one label at the first suffix, and for more at later ones.
        let mut needed = Depth::One;
        while let Some((_, suffix)) = rest.split_once('.') {
            if let Some((id, depth)) = self.wildcard.get(suffix)
                && *depth >= needed
            {
                return Some(*id);
            }
            rest = suffix;
            needed = Depth::Any;
        }
        None
    }
}

/// Lets the wildcard map be searched with a part of a name.
impl std::borrow::Borrow<str> for HostName {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(patterns: &[&str]) -> Table {
        let patterns: Vec<_> = patterns.iter().map(|p| HostPattern::parse(p).unwrap()).collect();
        Table::new(patterns.iter().map(|pattern| (pattern, Depth::Any)))
    }

    fn find(table: &Table, name: &str) -> Option<RouteId> {
        table.find(&HostName::parse(name.as_bytes()).unwrap())
    }

    #[test]
    fn exact_beats_wildcard_and_the_longest_wildcard_wins() {
        let t = table(&["*.acme.test", "*.apps.acme.test", "shop.apps.acme.test"]);
        assert_eq!(find(&t, "shop.apps.acme.test"), Some(2));
        assert_eq!(find(&t, "SHOP.apps.acme.test."), Some(2));
        assert_eq!(find(&t, "blog.apps.acme.test"), Some(1));
        assert_eq!(find(&t, "a.b.apps.acme.test"), Some(1));
        assert_eq!(find(&t, "apps.acme.test"), Some(0));
        assert_eq!(find(&t, "acme.test"), None, "a wildcard does not match its own suffix");
        assert_eq!(find(&t, "xacme.test"), None);
    }

    #[test]
    fn a_star_for_one_label_leaves_deeper_names_to_a_shorter_wildcard() {
        let patterns = ["*.apps.acme.test", "*.acme.test"].map(|p| HostPattern::parse(p).unwrap());
        let t = Table::new(patterns.iter().zip([Depth::One, Depth::Any]));
        assert_eq!(find(&t, "a.apps.acme.test"), Some(0));
        assert_eq!(find(&t, "b.a.apps.acme.test"), Some(1));
        let t = Table::new(patterns.iter().zip([Depth::One, Depth::One]));
        assert_eq!(find(&t, "apps.acme.test"), Some(1));
        assert_eq!(find(&t, "b.a.apps.acme.test"), None);
    }

    proptest! {
        /// Compares with the rule spelled out naively.
        #[test]
        fn as_a_linear_search_would(
            patterns in prop::collection::btree_map("(\\*\\.)?[ab](\\.[ab]){0,3}", any::<bool>(), 0..20),
            name in "[ab](\\.[ab]){0,4}",
        ) {
            let depth = |any: bool| if any { Depth::Any } else { Depth::One };
            let parsed: Vec<_> = patterns.iter().map(|(p, any)| (HostPattern::parse(p).unwrap(), depth(*any))).collect();
            let labels = |text: &str| text.split('.').count();
            let want = parsed.iter().enumerate().filter_map(|(id, (p, depth))| match p {
                HostPattern::Exact(n) => (n.as_str() == name).then_some((usize::MAX, id)),
                HostPattern::Wildcard(s) => (name.ends_with(&format!(".{s}"))
                    && (*depth == Depth::Any || labels(&name) == labels(s.as_str()) + 1))
                    .then_some((s.as_str().len(), id)),
            }).max().map(|(_, id)| id);
            let table = Table::new(parsed.iter().map(|(pattern, depth)| (pattern, *depth)));
            prop_assert_eq!(table.find(&HostName::parse(name.as_bytes()).unwrap()), want);
        }
    }
}
