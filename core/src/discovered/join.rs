//! Share of a host name that a cluster gets when another cluster has served that name before: none, until an operator
//! or the Route's owner sets a weight.
//!
//! A Route that appears on a new cluster must not get users before the application has been tried there. And someone
//! who gives another owner's host name to an application on another cluster must never get its users.

use crate::discovered::discovery::Claim;
use crate::model::JoinPolicy;

/// Weight of a claim that states none, if its cluster is the only or first one, or may join.
const DEFAULT_WEIGHT: u32 = 1;

/// A cluster's claim of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClaimShare<'a> {
    pub(crate) cluster: usize,
    pub(crate) join: JoinPolicy,
    pub(crate) claim: &'a Claim,
}

/// Claim that has existed for longest; of claims made in the same second, that of the cluster which comes first in the
/// configuration.
pub(crate) fn oldest<'a>(shares: &[ClaimShare<'a>]) -> Option<ClaimShare<'a>> {
    shares
        .iter()
        .min_by_key(|share| (share.claim.since, share.cluster))
        .copied()
}

impl ClaimShare<'_> {
    /// Weight of this claim beside the first claim.
    pub(crate) fn weight(&self, first: &Self) -> u32 {
        let said = self.claim.weight;
        if self.cluster == first.cluster || self.join == JoinPolicy::Share {
            return said.unwrap_or(DEFAULT_WEIGHT);
        }
        // Only the namespace that owns the first claim may set the second one's weight; an annotation of another
        // namespace does not count.
        if self.claim.owner == first.claim.owner {
            said.unwrap_or(0)
        } else {
            0
        }
    }

    /// Reason why this claim has no share, and the fix; `None`: it has one.
    pub(crate) fn zero_weight_reason(&self, first: &Self) -> Option<String> {
        if self.weight(first) != 0 {
            return None;
        }
        Some(
            if self.cluster == first.cluster || self.claim.owner == first.claim.owner {
                match self.claim.weight {
                    Some(0) => "its weight is 0".to_owned(),
                    _ => "it has joined without a weight: set one by `signalbox weight` or the annotation \
                      signalbox.io/weight, or write `join: share` at its cluster"
                        .to_owned(),
                }
            } else {
                "another owner has the name: set a weight by `signalbox weight`, or write `join: share` at its cluster"
                    .to_owned()
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::hostname::HostnamePattern;

    fn claim(since: u64, owner: &str, weight: Option<u32>) -> Claim {
        Claim {
            hostname: HostnamePattern::parse("app.test").unwrap(),
            depth: crate::wire::hostname::WildcardDepth::Any,
            weight,
            owner: owner.into(),
            since,
            origin: format!("Route {owner}/web"),
            notes: Vec::new(),
            settings: Vec::new(),
            labels: crate::model::labels::LabelSets::default(),
            termination: None,
            is_edge: false,
            insecure: crate::model::tls::InsecurePolicy::Allow,
            certificate: None,
        }
    }

    fn weights(claims: &[Claim], join: JoinPolicy) -> Vec<u32> {
        let share = |(cluster, claim)| ClaimShare { cluster, join, claim };
        let shares: Vec<_> = claims.iter().enumerate().map(share).collect();
        let first = oldest(&shares).unwrap();
        shares.iter().map(|share| share.weight(&first)).collect()
    }

    #[test]
    fn a_later_claim_gets_nothing_until_owner_or_operator_allows_it() {
        let both = |weight| [claim(10, "shop", None), claim(20, "shop", weight)];
        assert_eq!(weights(&both(None), JoinPolicy::None), [1, 0]);
        assert_eq!(weights(&both(Some(3)), JoinPolicy::None), [1, 3]);
        assert_eq!(weights(&both(Some(0)), JoinPolicy::None), [1, 0]);
        assert_eq!(weights(&both(None), JoinPolicy::Share), [1, 1]);
        let rival = [claim(10, "shop", Some(5)), claim(20, "thief", Some(100))];
        assert_eq!(weights(&rival, JoinPolicy::None), [5, 0]);
        assert_eq!(weights(&rival, JoinPolicy::Share), [5, 100], "an operator allows it");
    }

    #[test]
    fn the_order_of_telling_does_not_matter() {
        let claims = [claim(20, "shop", None), claim(10, "shop", None)];
        assert_eq!(weights(&claims, JoinPolicy::None), [0, 1]);
        let at_once = [claim(10, "shop", None), claim(10, "shop", None)];
        assert_eq!(
            weights(&at_once, JoinPolicy::None),
            [1, 0],
            "the first of the configuration"
        );
        assert_eq!(weights(&claims[..1], JoinPolicy::None), [1], "who is alone has all");
    }
}
