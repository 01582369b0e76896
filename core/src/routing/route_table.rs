//! Route table: an exact name beats wildcards, and of the wildcards that match, the longest wins.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::wire::hostname::{Hostname, HostnamePattern, WildcardDepth};

/// Index of a route in the model.
pub type RouteId = usize;

/// Immutable look-up table of host patterns.
#[derive(Debug, Default)]
pub struct RouteTable {
    exact: HashMap<Hostname, RouteId, FixedState>,
    wildcard: HashMap<Hostname, (RouteId, WildcardDepth), FixedState>,
}

impl RouteTable {
    /// Builds a table of patterns, with the depth of each star; of two equal patterns the first wins.
    pub fn new<'a>(patterns: impl IntoIterator<Item = (&'a HostnamePattern, WildcardDepth)>) -> Self {
        let mut table = Self::default();
        let patterns = patterns.into_iter();
        table.exact.reserve(patterns.size_hint().0);
        for (id, (pattern, depth)) in patterns.enumerate() {
            match pattern {
                HostnamePattern::Exact(name) => {
                    table.exact.entry(name.clone()).or_insert(id);
                }
                HostnamePattern::Wildcard(suffix) => {
                    table.wildcard.entry(suffix.clone()).or_insert((id, depth));
                }
            }
        }
        table
    }

    /// Route of a name.
    #[must_use]
    pub fn find(&self, name: &Hostname) -> Option<RouteId> {
        if let Some(id) = self.exact.get(name) {
            return Some(*id);
        }
        if self.wildcard.is_empty() {
            return None;
        }
        let mut rest = name.as_str();
        // Stars must stand for one label at the first suffix, and for more at later ones.
        let mut needed = WildcardDepth::One;
        while let Some((_, suffix)) = rest.split_once('.') {
            if let Some((id, depth)) = self.wildcard.get(suffix)
                && *depth >= needed
            {
                return Some(*id);
            }
            rest = suffix;
            needed = WildcardDepth::Any;
        }
        None
    }
}

/// Lets the wildcard map be searched with a part of a name.
impl std::borrow::Borrow<str> for Hostname {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(patterns: &[&str]) -> RouteTable {
        let patterns: Vec<_> = patterns.iter().map(|p| HostnamePattern::parse(p).unwrap()).collect();
        RouteTable::new(patterns.iter().map(|pattern| (pattern, WildcardDepth::Any)))
    }

    fn find(table: &RouteTable, name: &str) -> Option<RouteId> {
        table.find(&Hostname::parse(name.as_bytes()).unwrap())
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
    fn a_one_label_wildcard_leaves_deeper_names_to_a_shorter_one() {
        let patterns = ["*.apps.acme.test", "*.acme.test"].map(|p| HostnamePattern::parse(p).unwrap());
        let t = RouteTable::new(patterns.iter().zip([WildcardDepth::One, WildcardDepth::Any]));
        assert_eq!(find(&t, "a.apps.acme.test"), Some(0));
        assert_eq!(find(&t, "b.a.apps.acme.test"), Some(1));
        let t = RouteTable::new(patterns.iter().zip([WildcardDepth::One, WildcardDepth::One]));
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
            let depth = |any: bool| if any { WildcardDepth::Any } else { WildcardDepth::One };
            let parsed: Vec<_> = patterns.iter().map(|(p, any)| (HostnamePattern::parse(p).unwrap(), depth(*any))).collect();
            let labels = |text: &str| text.split('.').count();
            let want = parsed.iter().enumerate().filter_map(|(id, (p, depth))| match p {
                HostnamePattern::Exact(n) => (n.as_str() == name).then_some((usize::MAX, id)),
                HostnamePattern::Wildcard(s) => (name.ends_with(&format!(".{s}"))
                    && (*depth == WildcardDepth::Any || labels(&name) == labels(s.as_str()) + 1))
                    .then_some((s.as_str().len(), id)),
            }).max().map(|(_, id)| id);
            let table = RouteTable::new(parsed.iter().map(|(pattern, depth)| (pattern, *depth)));
            prop_assert_eq!(table.find(&Hostname::parse(name.as_bytes()).unwrap()), want);
        }
    }
}
