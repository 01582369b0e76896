//! Whether HTTP/2 may be offered with a certificate.
//!
//! A browser that has an HTTP/2 connection uses it for every name that the connection's certificate covers and that
//! resolves to the same address (RFC 9113, section 9.1.1). Requests for a passthrough route would then arrive where TLS
//! ends, instead of at the route's hosts.

use std::collections::HashSet;

use crate::model::tls::Http2;
use crate::wire::hostname::{Hostname, HostnamePattern, WildcardDepth};

use super::names::parent;

impl Http2 {
    /// Whether HTTP/2 may be offered with a certificate that has the `names` (all of its subjectAltName, which is where
    /// browsers look) and answers for `routes` routes.
    #[must_use]
    pub fn is_offered(self, names: &[HostnamePattern], routes: usize, passthrough: &PassthroughNames) -> bool {
        match self {
            Self::Off => false,
            Self::Unique if routes != 1 => false,
            Self::Auto | Self::Unique => !names.iter().any(|name| passthrough.is_reached_by(name)),
        }
    }
}

/// Names of the passthrough routes of a listener.
#[derive(Clone, Debug, Default)]
pub struct PassthroughNames {
    exact: HashSet<Hostname>,
    /// Names without their first label: the part of a certificate's wildcard after its star.
    parents: HashSet<Hostname>,
    /// Suffixes of wildcards of one label.
    one_label: HashSet<Hostname>,
    /// Suffixes of wildcards of any number of labels.
    any_depth: HashSet<Hostname>,
}

impl PassthroughNames {
    /// Whether some name is both of a passthrough route and covered by the name `name` of a certificate, whose star
    /// stands for one label.
    #[must_use]
    pub fn is_reached_by(&self, name: &HostnamePattern) -> bool {
        match name {
            HostnamePattern::Exact(name) => {
                self.exact.contains(name)
                    || parent(name)
                        .is_some_and(|parent| self.one_label.contains(&parent) || self.is_in_any_depth(parent))
            }
            HostnamePattern::Wildcard(suffix) => {
                self.parents.contains(suffix) || self.one_label.contains(suffix) || self.is_in_any_depth(suffix.clone())
            }
        }
    }

    /// Whether all names that the name `name` of a certificate stands for are in this set.
    #[must_use]
    pub fn covers(&self, name: &HostnamePattern) -> bool {
        match name {
            HostnamePattern::Exact(_) => self.is_reached_by(name),
            HostnamePattern::Wildcard(suffix) => {
                self.one_label.contains(suffix) || self.is_in_any_depth(suffix.clone())
            }
        }
    }

    /// Whether names right below `suffix` are in a wildcard of any depth.
    fn is_in_any_depth(&self, suffix: Hostname) -> bool {
        std::iter::successors(Some(suffix), parent).any(|suffix| self.any_depth.contains(&suffix))
    }
}

impl FromIterator<(HostnamePattern, WildcardDepth)> for PassthroughNames {
    fn from_iter<I: IntoIterator<Item = (HostnamePattern, WildcardDepth)>>(patterns: I) -> Self {
        let mut names = Self::default();
        for (pattern, depth) in patterns {
            match (pattern, depth) {
                (HostnamePattern::Exact(name), _) => {
                    names.parents.extend(parent(&name));
                    names.exact.insert(name);
                }
                (HostnamePattern::Wildcard(suffix), WildcardDepth::One) => {
                    names.one_label.insert(suffix);
                }
                (HostnamePattern::Wildcard(suffix), WildcardDepth::Any) => {
                    names.any_depth.insert(suffix);
                }
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn patterns(texts: &[&str]) -> Vec<HostnamePattern> {
        texts.iter().map(|text| HostnamePattern::parse(text).unwrap()).collect()
    }

    #[test]
    fn http2_is_withheld_if_browsers_may_reach_a_passthrough_route() {
        let passthrough: PassthroughNames = patterns(&["pass.a.test"])
            .into_iter()
            .map(|pattern| (pattern, WildcardDepth::Any))
            .collect();
        for (policy, names, routes, offered) in [
            (Http2::Auto, &["www.a.test"][..], 3, true),
            (Http2::Auto, &["www.a.test", "*.a.test"], 1, false),
            (Http2::Auto, &["pass.a.test"], 1, false),
            (Http2::Unique, &["www.a.test"], 1, true),
            (Http2::Unique, &["www.a.test", "b.test"], 2, false),
            (Http2::Unique, &["*.a.test"], 1, false),
            (Http2::Off, &["www.a.test"], 1, false),
        ] {
            let is_offered = policy.is_offered(&patterns(names), routes, &passthrough);
            assert_eq!(is_offered, offered, "{policy:?} {names:?}");
        }
    }

    /// All names of one to four labels of `a` and `b`; enough for a witness of each pair of patterns of three labels.
    fn universe() -> Vec<Hostname> {
        let mut all = vec![String::new()];
        let mut last = all.clone();
        for _ in 0..5 {
            last = last
                .iter()
                .flat_map(|name| ["a.", "b."].map(|label| format!("{label}{name}")))
                .collect();
            all.extend(last.clone());
        }
        let names = all.iter().filter(|name| !name.is_empty());
        names.map(|name| Hostname::parse(name.as_bytes()).unwrap()).collect()
    }

    fn any_pattern() -> impl Strategy<Value = HostnamePattern> {
        let labels = prop::collection::vec(prop::sample::select(vec!["a", "b"]), 1..4);
        (any::<bool>(), labels).prop_map(|(star, labels)| {
            let name = labels.join(".");
            HostnamePattern::parse(&if star { format!("*.{name}") } else { name }).unwrap()
        })
    }

    proptest! {
        #[test]
        fn a_name_is_reached_when_some_name_is_in_both(
            routes in prop::collection::vec((any_pattern(), any::<bool>()), 0..4),
            certificate in any_pattern(),
        ) {
            let routes: Vec<_> = routes
                .into_iter()
                .map(|(pattern, any)| (pattern, if any { WildcardDepth::Any } else { WildcardDepth::One }))
                .collect();
            let expected = universe().iter().any(|name| {
                certificate.matches(name, WildcardDepth::One)
                    && routes.iter().any(|(pattern, depth)| pattern.matches(name, *depth))
            });
            let names: PassthroughNames = routes.into_iter().collect();
            prop_assert_eq!(names.is_reached_by(&certificate), expected);
        }
    }
}
