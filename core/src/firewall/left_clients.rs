//! Clients that rules may do something to, while they do nothing to others.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv4Subnets, Ipv6Net, Ipv6Subnets};

use super::class::family_of;
use super::form::IpFamily;
use super::pattern::{NumberRanges, number_of_address};

/// Most prefixes of a list.
const MAX_LISTED: usize = 16_384;

/// Clients whose connections do not bypass netfilter, with the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftClients {
    /// First and last address of each range, sorted. No address is in two.
    ranges: Vec<(u128, u128)>,
    /// The rule of each range, as text.
    reasons: Vec<Arc<str>>,
    family: IpFamily,
    listed: Vec<(IpNet, bool)>,
}

impl LeftClients {
    /// Makes it of the ranges of addresses that are left, by reason, and of those of all other clients. `None`: a list of
    /// them would be too long.
    #[must_use]
    pub(super) fn new(
        left: BTreeMap<String, Vec<(u128, u128)>>,
        others: &NumberRanges,
        family: IpFamily,
    ) -> Option<Self> {
        let mut all = Vec::new();
        for (reason, ranges) in left {
            let reason: Arc<str> = reason.into();
            let joined: NumberRanges = ranges.into_iter().collect();
            all.extend(joined.ranges().map(|range| (range, Arc::clone(&reason))));
        }
        all.sort_unstable();
        let (ranges, reasons): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        let of_left = list(ranges.iter().copied(), false, family);
        let of_others = list(others.ranges(), true, family);
        let listed = of_left.into_iter().chain(of_others).min_by_key(Vec::len)?;
        Some(Self {
            ranges,
            reasons,
            family,
            listed,
        })
    }

    /// Returns prefixes, and for each whether it is of other clients than these. A client's longest prefix counts.
    #[must_use]
    pub fn listed(&self) -> &[(IpNet, bool)] {
        &self.listed
    }

    /// Returns the number of ranges of addresses.
    #[must_use]
    pub fn range_count(&self) -> usize {
        self.ranges.len()
    }

    /// Returns the rule that may do something to a client's connections.
    #[must_use]
    pub fn reason_for(&self, client: IpAddr) -> Option<&str> {
        let number = number_of_address(client);
        let after = self.ranges.partition_point(|(first, _)| *first <= number);
        let at = after.checked_sub(1).filter(|_| family_of(client) == self.family)?;
        (number <= self.ranges[at].1).then(|| &*self.reasons[at])
    }

    /// Returns one of the rules.
    #[must_use]
    pub fn first_reason(&self) -> &str {
        self.reasons.first().map_or("", |reason| reason)
    }
}

/// List of some ranges' prefixes with a value, and of all other addresses with the other value; `None` if it is too long.
fn list(ranges: impl Iterator<Item = (u128, u128)>, value: bool, family: IpFamily) -> Option<Vec<(IpNet, bool)>> {
    let all = match family {
        IpFamily::V4 => IpNet::V4(Ipv4Net::default()),
        IpFamily::V6 => IpNet::V6(Ipv6Net::default()),
    };
    let prefixes = ranges.flat_map(|range| prefixes_of(range, family));
    let prefixes = prefixes.map(|prefix| (prefix, value)).take(MAX_LISTED);
    let listed: Vec<_> = [(all, !value)].into_iter().chain(prefixes).collect();
    (listed.len() <= MAX_LISTED).then_some(listed)
}

/// The fewest prefixes that have exactly the addresses of a range.
fn prefixes_of((first, last): (u128, u128), family: IpFamily) -> Vec<IpNet> {
    match family {
        IpFamily::V4 => Ipv4Subnets::new((first as u32).into(), (last as u32).into(), 0)
            .map(IpNet::from)
            .collect(),
        IpFamily::V6 => Ipv6Subnets::new(first.into(), last.into(), 0)
            .map(IpNet::from)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::firewall::class::any_unicast;
    use crate::firewall::pattern::ValuePattern;

    fn numbers(text: &str) -> NumberRanges {
        ValuePattern::address(text).unwrap().numbers
    }

    #[test]
    fn each_client_has_the_rule_that_is_about_it() {
        let of_a = ["10.1.0.0-10.1.127.255", "10.1.128.0-10.1.255.255", "192.0.2.7"];
        let ranges = |texts: &[&str]| {
            texts
                .iter()
                .flat_map(|text| numbers(text).ranges().collect::<Vec<_>>())
                .collect()
        };
        let left = [
            ("a".to_owned(), ranges(&of_a)),
            ("b".to_owned(), ranges(&["10.3.0.4/30"])),
        ];
        let free = of_a
            .iter()
            .chain(&["10.3.0.4/30"])
            .fold(any_unicast(IpFamily::V4), |free, text| free.without(&numbers(text)));
        let left = LeftClients::new(left.into(), &free, IpFamily::V4).unwrap();
        let listed = left.listed().iter();
        let listed: Vec<_> = listed.map(|(prefix, is_free)| format!("{prefix} {is_free}")).collect();
        let expected = [
            "0.0.0.0/0 true",
            "10.1.0.0/16 false",
            "10.3.0.4/30 false",
            "192.0.2.7/32 false",
        ];
        assert_eq!((left.range_count(), listed), (3, expected.map(str::to_owned).into()));
        let reason = |client: &str| left.reason_for(client.parse().unwrap());
        for (clients, expected) in [
            ("10.1.0.0 10.1.255.255 192.0.2.7", Some("a")),
            ("10.3.0.4 10.3.0.7", Some("b")),
            (
                "1.1.1.1 10.0.255.255 10.2.0.0 10.3.0.8 192.0.2.6 192.0.2.8 fd00::1 ::a01:1",
                None,
            ),
        ] {
            for client in clients.split(' ') {
                assert_eq!(reason(client), expected, "{client}");
            }
        }
    }

    #[test]
    fn the_shorter_list_is_taken() {
        let free: NumberRanges = (0..2000).map(|at| (at * 7919 + 5, at * 7919 + 5)).collect();
        let left = any_unicast(IpFamily::V4).without(&free);
        let left = [("policy".to_owned(), left.ranges().collect())].into();
        let left = LeftClients::new(left, &free, IpFamily::V4).unwrap();
        assert_eq!((left.listed().len(), left.listed()[0].1), (2001, false));
        assert_eq!(left.reason_for([0, 0, 0, 5].into()), None);
        assert_eq!(left.reason_for([0, 0, 0, 6].into()), Some("policy"));
    }
}
