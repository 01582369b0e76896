//! Map entries by which the program finds the route of a name: entries for names, and for wildcards.
//!
//! A name that userspace routes has an entry too if a wildcard routed by the program would match it otherwise.

use std::collections::HashMap;

use signalbox_common::peek::abi::{MAX_PEEK_ROUTES, MAX_PEEK_WILDCARDS, PeekName, PeekRoute, PeekWildcard};
use signalbox_core::wire::hostname::WildcardDepth;

/// Entries of `PEEK_ROUTES` and `PEEK_WILDCARDS`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NameEntries {
    pub(super) routes: HashMap<PeekName, PeekRoute>,
    pub(super) wildcards: HashMap<PeekName, PeekWildcard>,
    /// Wildcards that the program could route if its maps were larger.
    pub(super) without_room: Vec<PeekName>,
}

impl NameEntries {
    /// Makes the entries of the routes that the program has; `left_out` are those that it lacks. Both include names and
    /// wildcards. `depths` has all wildcards.
    pub(super) fn new(
        routes: HashMap<PeekName, PeekRoute>,
        left_out: impl IntoIterator<Item = PeekName>,
        depths: &HashMap<PeekName, WildcardDepth>,
    ) -> Self {
        let (wildcards, names): (HashMap<_, _>, HashMap<_, _>) =
            routes.into_iter().partition(|(name, _)| name.is_wildcard());
        if wildcards.is_empty() {
            return Self {
                routes: names,
                ..Self::default()
            };
        }
        let is_covered = |name: &PeekName| suffixes(name).any(|suffix| depths.contains_key(&suffix));
        let exceptions = left_out.into_iter().filter(|name| !name.is_wildcard());
        let exceptions: Vec<_> = exceptions.filter(is_covered).collect();
        let has_room = names.len() + exceptions.len() <= MAX_PEEK_ROUTES as usize;
        if !has_room || depths.len() > MAX_PEEK_WILDCARDS as usize {
            return Self {
                routes: names,
                wildcards: HashMap::new(),
                without_room: wildcards.into_keys().collect(),
            };
        }
        let route_of = |name: &PeekName| wildcards.get(name).copied().unwrap_or(PeekRoute::LEFT_OUT);
        let entry_of = |name: &PeekName, depth: WildcardDepth| {
            let own = route_of(name);
            let for_several = match depth {
                WildcardDepth::Any => own,
                WildcardDepth::One => {
                    let wider = suffixes(name).find(|suffix| depths.get(suffix) == Some(&WildcardDepth::Any));
                    wider.as_ref().map_or(PeekRoute::LEFT_OUT, route_of)
                }
            };
            PeekWildcard {
                length: name.length.into(),
                routes: [own, for_several],
            }
        };
        let entries = depths.iter().map(|(name, depth)| (*name, entry_of(name, *depth)));
        let mut routes = names;
        routes.extend(exceptions.into_iter().map(|name| (name, PeekRoute::LEFT_OUT)));
        Self {
            wildcards: entries.collect(),
            routes,
            without_room: Vec::new(),
        }
    }

    /// Whether the program routes a name, or the names of a wildcard.
    pub(super) fn has(&self, name: &PeekName) -> bool {
        let route = match self.wildcards.get(name) {
            Some(wildcard) => wildcard.routes.first(),
            None => self.routes.get(name),
        };
        route.is_some_and(|route| route.turns > 0)
    }

    /// Number of names and wildcards that the program routes.
    pub(super) fn len(&self) -> usize {
        let names = self.wildcards.keys().chain(self.routes.keys());
        names.filter(|name| self.has(name)).count()
    }
}

/// Wildcards that may match a name, or the names of a wildcard, the longest first.
fn suffixes(name: &PeekName) -> impl Iterator<Item = PeekName> + use<> {
    let name = *name;
    (1..usize::from(name.length))
        .filter(move |&at| name.text.get(at) == Some(&b'.'))
        .map(move |at| {
            let mut suffix = PeekName::empty(name.protocol);
            suffix.length = name.length - at as u8;
            for (to, from) in suffix.text.iter_mut().zip(name.text.iter().skip(at)) {
                *to = *from;
            }
            suffix
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use signalbox_common::peek::abi::{PeekSuffix, protocol::HTTP};
    use signalbox_common::peek::name::NameReverser;
    use signalbox_core::routing::route_table::RouteTable;
    use signalbox_core::wire::hostname::{Hostname, HostnamePattern};

    /// A route that is known by its number.
    fn route(number: usize) -> PeekRoute {
        PeekRoute {
            number: number as u32,
            turns: 1,
            ..PeekRoute::LEFT_OUT
        }
    }

    /// Number of the route that the program finds for a name: the same steps as in ebpf/src/peek/wildcard.rs.
    fn found(entries: &NameEntries, text: &str) -> Option<u32> {
        let name = PeekName::new(HTTP, text)?;
        let found = entries.routes.get(&name).or_else(|| {
            let (mut reverser, mut suffix) = (NameReverser::new(), PeekSuffix::empty(HTTP));
            while reverser.step(&name, &mut suffix) {}
            let begins = |wildcard: &&PeekName| {
                let (bits, key) = wildcard.suffix();
                let bytes = bits as usize / 8 - 1;
                bytes <= usize::from(name.length) && suffix.text[..bytes] == key.text[..bytes]
            };
            let longest = entries.wildcards.keys().filter(begins).max_by_key(|name| name.length)?;
            let wildcard = &entries.wildcards[longest];
            let is_one_label = reverser.first_label + wildcard.length == u32::from(name.length);
            (reverser.is_bad == 0).then(|| &wildcard.routes[usize::from(!is_one_label)])
        });
        found.filter(|route| route.turns > 0).map(|route| route.number)
    }

    fn key(pattern: &HostnamePattern) -> PeekName {
        match pattern {
            HostnamePattern::Exact(name) => PeekName::new(HTTP, name.as_str()).unwrap(),
            HostnamePattern::Wildcard(suffix) => PeekName::wildcard(HTTP, suffix.as_str()).unwrap(),
        }
    }

    fn entries(patterns: &[(HostnamePattern, WildcardDepth, bool)]) -> NameEntries {
        let (mut routes, mut left_out, mut depths) = (HashMap::new(), Vec::new(), HashMap::new());
        for (number, (pattern, depth, is_left_out)) in patterns.iter().enumerate() {
            let name = key(pattern);
            if name.is_wildcard() {
                depths.insert(name, *depth);
            }
            if *is_left_out {
                left_out.push(name);
            } else {
                routes.insert(name, route(number));
            }
        }
        NameEntries::new(routes, left_out, &depths)
    }

    proptest! {
        /// The program finds userspace's route, or leaves the name to it. Left-out names are always left to it.
        #[test]
        fn the_program_finds_what_userspace_finds(
            patterns in proptest::collection::btree_map("(\\*\\.)?([ab]\\.){0,3}t", any::<(bool, bool)>(), 0..12),
            names in proptest::collection::vec("([ab]?\\.){0,4}t\\.?", 1..20),
        ) {
            let patterns: Vec<_> = patterns
                .into_iter()
                .map(|(text, (is_deep, is_left_out))| {
                    let depth = if is_deep { WildcardDepth::Any } else { WildcardDepth::One };
                    (HostnamePattern::parse(&text).unwrap(), depth, is_left_out)
                })
                .collect();
            let entries = entries(&patterns);
            let table = RouteTable::new(patterns.iter().map(|(pattern, depth, _)| (pattern, *depth)));
            for name in names {
                // Without its last dot userspace knows the name, and may route a name that the program leaves to it.
                let theirs = Hostname::parse(name.as_bytes()).ok().and_then(|name| table.find(&name));
                let theirs = theirs.filter(|&id| !patterns[id].2).map(|id| id as u32);
                let ours = found(&entries, &name);
                prop_assert!(ours == theirs || ours.is_none() && name.ends_with('.'), "{} {:?} {:?}", name, ours, theirs);
            }
        }
    }

    #[test]
    fn without_a_wildcard_in_the_kernel_nothing_is_an_exception() {
        let pattern = |text: &str| HostnamePattern::parse(text).unwrap();
        let left_out = [
            (pattern("*.t"), WildcardDepth::Any, true),
            (pattern("a.t"), WildcardDepth::Any, true),
            (pattern("b.t"), WildcardDepth::Any, false),
        ];
        let entries = entries(&left_out);
        assert_eq!(
            (entries.routes.len(), entries.wildcards.len(), entries.len()),
            (1, 0, 1)
        );
    }

    #[test]
    fn wildcards_with_too_many_exceptions_are_left_to_userspace() {
        let name = |n: u32| PeekName::new(HTTP, &format!("a{n}.t")).unwrap();
        let wildcard = PeekName::wildcard(HTTP, "t").unwrap();
        let depths = HashMap::from([(wildcard, WildcardDepth::Any)]);
        let routes = || HashMap::from([(wildcard, route(1)), (name(0), route(2))]);
        let entries = NameEntries::new(routes(), (1..MAX_PEEK_ROUTES).map(name), &depths);
        assert!(entries.has(&wildcard) && entries.has(&name(0)) && !entries.has(&name(1)));
        let entries = NameEntries::new(routes(), (1..=MAX_PEEK_ROUTES).map(name), &depths);
        assert!(!entries.has(&wildcard) && entries.has(&name(0)) && !entries.routes.contains_key(&name(1)));
        assert_eq!(entries.without_room, [wildcard]);
    }
}
