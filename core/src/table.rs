//! From a name to its route: exact beats wildcard, the longest wildcard wins.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::name::{HostName, HostPattern};

/// Index of a route in the model.
pub type RouteId = usize;

/// An immutable look-up table of host patterns.
#[derive(Debug, Default)]
pub struct Table {
    exact: HashMap<HostName, RouteId, FixedState>,
    wildcard: HashMap<HostName, RouteId, FixedState>,
}

impl Table {
    /// A table of patterns; of two equal ones the first wins.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a HostPattern>) -> Self {
        let mut table = Self::default();
        let patterns = patterns.into_iter();
        table.exact.reserve(patterns.size_hint().0);
        for (id, pattern) in patterns.enumerate() {
            match pattern {
                HostPattern::Exact(name) => table.exact.entry(name.clone()).or_insert(id),
                HostPattern::Wildcard(suffix) => table.wildcard.entry(suffix.clone()).or_insert(id),
            };
        }
        table
    }

    /// The route of a name.
    #[must_use]
    pub fn find(&self, name: &HostName) -> Option<RouteId> {
        if let Some(id) = self.exact.get(name) {
            return Some(*id);
        }
        if self.wildcard.is_empty() {
            return None;
        }
        let mut rest = name.as_str();
        while let Some((_, suffix)) = rest.split_once('.') {
            if let Some(id) = self.wildcard.get(suffix) {
                return Some(*id);
            }
            rest = suffix;
        }
        None
    }
}

/// Lets the wildcard map be asked with a part of a name.
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
        Table::new(&patterns)
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

    proptest! {
        /// Against the rule spelled out naively.
        #[test]
        fn as_a_linear_search_would(patterns in prop::collection::vec("(\\*\\.)?[ab](\\.[ab]){0,3}", 0..20), name in "[ab](\\.[ab]){0,4}") {
            let parsed: Vec<_> = patterns.iter().map(|p| HostPattern::parse(p).unwrap()).collect();
            let want = parsed.iter().enumerate().filter_map(|(id, p)| match p {
                HostPattern::Exact(n) => (n.as_str() == name).then_some((usize::MAX, id)),
                HostPattern::Wildcard(s) => name.ends_with(&format!(".{s}")).then_some((s.as_str().len(), id)),
            }).max_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1))).map(|(_, id)| id);
            prop_assert_eq!(Table::new(&parsed).find(&HostName::parse(name.as_bytes()).unwrap()), want);
        }
    }
}
