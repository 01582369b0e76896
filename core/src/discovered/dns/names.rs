//! Names that get records: those that DNS can have, of a zone, and not below a wildcard.

use std::collections::BTreeSet;

use crate::wire::hostname::{Hostname, HostnamePattern};

/// Longest name in DNS, in characters.
const MAX_NAME: usize = 253;

/// Names of a table, by whether they get records.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OwnerNames {
    /// Names that get records.
    pub names: Vec<HostnamePattern>,
    /// Names below a wildcard of [`Self::names`]. DNS answers for them by the wildcard, and a separate record would
    /// hide the wildcard from the names below it (RFC 4592, section 2.2.1).
    pub covered: Vec<HostnamePattern>,
    /// Names that are not in the zone.
    pub outside: Vec<HostnamePattern>,
    /// Names that no host has in DNS.
    pub unfit: Vec<HostnamePattern>,
}

/// Sorts names by whether they get records.
pub fn owner_names<'a>(all: impl IntoIterator<Item = &'a HostnamePattern>, zone: Option<&Hostname>) -> OwnerNames {
    let mut sorted = OwnerNames::default();
    let mut fit = BTreeSet::new();
    for name in all {
        if !is_owner_name(name) {
            sorted.unfit.push(name.clone());
        } else if zone.is_some_and(|zone| !is_in_zone(node(name), zone)) {
            sorted.outside.push(name.clone());
        } else {
            fit.insert(name);
        }
    }
    let wildcards: BTreeSet<&str> = fit
        .iter()
        .filter(|name| matches!(name, HostnamePattern::Wildcard(_)))
        .map(|name| node(name).as_str())
        .collect();
    for name in fit {
        let list = if parents(node(name).as_str()).any(|parent| wildcards.contains(parent)) {
            &mut sorted.covered
        } else {
            &mut sorted.names
        };
        list.push(name.clone());
    }
    sorted
}

/// Name of the pattern, without its star.
fn node(pattern: &HostnamePattern) -> &Hostname {
    match pattern {
        HostnamePattern::Exact(name) | HostnamePattern::Wildcard(name) => name,
    }
}

/// Names above a name, the nearest first.
fn parents(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(name.split_once('.'), |(_, rest)| rest.split_once('.')).map(|(_, rest)| rest)
}

/// Whether a name is that of a zone or below it.
#[must_use]
pub fn is_in_zone(name: &Hostname, zone: &Hostname) -> bool {
    let rest = name.as_str().strip_suffix(zone.as_str());
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Whether name servers take address records for a name: a domain name of several labels, each of letters, digits and
/// inner hyphens (RFC 1123, section 2.1), and not an address.
#[must_use]
pub fn is_owner_name(pattern: &HostnamePattern) -> bool {
    let name = node(pattern).as_str();
    let is_label = |label: &str| !label.starts_with('-') && !label.ends_with('-') && !label.contains('_');
    let has_labels = name.split('.').all(is_label);
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    let top = name.rsplit('.').next().unwrap_or(name);
    let has_domain = name.contains('.') || matches!(pattern, HostnamePattern::Wildcard(_));
    has_labels && has_domain && !is_number(top) && pattern.to_string().len() <= MAX_NAME
}
