//! Clients that rules may do something to, while they do nothing to others.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};

use super::form::IpFamily;
use super::pattern::NumberRanges;

/// Clients whose connections do not bypass netfilter, with the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftClients {
    /// Sorted; none is within another.
    prefixes: Vec<IpNet>,
    /// The rule of each prefix, as text.
    reasons: Vec<Arc<str>>,
}

impl LeftClients {
    /// Makes the fewest prefixes of ranges of addresses, by reason. No address is in two ranges.
    #[must_use]
    pub(super) fn new(by_reason: BTreeMap<String, Vec<(u128, u128)>>, family: IpFamily) -> Self {
        let mut all = Vec::new();
        for (reason, ranges) in by_reason {
            let reason: Arc<str> = reason.into();
            let joined: NumberRanges = ranges.into_iter().collect();
            let prefixes = joined.ranges().flat_map(|range| prefixes_of(range, family));
            all.extend(prefixes.map(|prefix| (prefix, Arc::clone(&reason))));
        }
        all.sort_unstable();
        let (prefixes, reasons) = all.into_iter().unzip();
        Self { prefixes, reasons }
    }

    /// Returns the prefixes of the clients.
    #[must_use]
    pub fn prefixes(&self) -> &[IpNet] {
        &self.prefixes
    }

    /// Returns the rule that may do something to a client's connections.
    #[must_use]
    pub fn reason_for(&self, client: IpAddr) -> Option<&str> {
        let after = self.prefixes.partition_point(|prefix| prefix.network() <= client);
        let at = after.checked_sub(1)?;
        self.prefixes[at].contains(&client).then(|| &*self.reasons[at])
    }

    /// Returns one of the rules.
    #[must_use]
    pub fn first_reason(&self) -> &str {
        self.reasons.first().map_or("", |reason| reason)
    }
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
    use crate::firewall::pattern::ValuePattern;

    #[test]
    fn each_client_has_the_rule_that_is_about_it() {
        let ranges = |texts: &[&str]| {
            let of = |text: &&str| ValuePattern::address(text).unwrap().numbers.ranges().next().unwrap();
            texts.iter().map(of).collect()
        };
        let by_reason = [
            (
                "a".to_owned(),
                ranges(&["10.1.0.0-10.1.127.255", "10.1.128.0-10.1.255.255", "192.0.2.7"]),
            ),
            ("b".to_owned(), ranges(&["10.3.0.4/30"])),
        ];
        let left = LeftClients::new(by_reason.into(), IpFamily::V4);
        let prefixes: Vec<_> = left.prefixes().iter().map(ToString::to_string).collect();
        assert_eq!(prefixes, ["10.1.0.0/16", "10.3.0.4/30", "192.0.2.7/32"]);
        let reason = |client: &str| left.reason_for(client.parse().unwrap());
        for (client, expected) in [
            ("10.1.0.0", "a"),
            ("10.1.255.255", "a"),
            ("10.3.0.5", "b"),
            ("192.0.2.7", "a"),
        ] {
            assert_eq!(reason(client), Some(expected), "{client}");
        }
        for client in [
            "1.1.1.1",
            "10.0.255.255",
            "10.2.0.0",
            "10.3.0.8",
            "192.0.2.6",
            "192.0.2.8",
            "fd00::1",
        ] {
            assert_eq!(reason(client), None, "{client}");
        }
    }
}
