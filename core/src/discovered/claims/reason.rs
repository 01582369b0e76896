//! Reasons why an object or name is not served: one of these words, a colon, and a text for a person.

use std::collections::BTreeMap;

use crate::discovered::discovery::ClusterDiscovery;

/// Another object has the name.
pub const CLAIMED: &str = "HostAlreadyClaimed";
/// The object asks for no name.
pub const NO_HOST: &str = "NoHostValue";
/// The text that the object asks for is not a valid name.
pub const INVALID: &str = "InvalidHost";
/// A router, or a setting, does not admit the object.
pub const NOT_ADMITTED: &str = "RouteNotAdmitted";
/// The object's namespace is not one of those whose names the routers serve.
pub const OTHER_NAMESPACE: &str = "OtherNamespace";
/// The object is served by routers that are not the cluster's, or may be.
pub const OTHER_ROUTER: &str = "OtherRouter";
/// The Ingress is of a class that other routers serve.
pub const OTHER_CLASS: &str = "OtherIngressClass";
/// None of the route's Gateways is one that the configuration chooses.
pub const OTHER_GATEWAY: &str = "OtherGateway";
/// No listener of the route's Gateways takes the name.
pub const NO_LISTENER: &str = "NoMatchingListenerHostname";

/// All reasons of this module. The first four are those of OpenShift's router, the last is the Gateway API's.
pub const ALL: [&str; 9] = [
    CLAIMED,
    NO_HOST,
    INVALID,
    NOT_ADMITTED,
    OTHER_NAMESPACE,
    OTHER_ROUTER,
    OTHER_CLASS,
    OTHER_GATEWAY,
    NO_LISTENER,
];

/// Label for every reason that is not in [`ALL`]: scripts and other sources use their own words.
pub const UNKNOWN_REASON: &str = "Other";

/// Prefix of the origin shown for a router pod that cannot be a host.
pub(super) const POD_ORIGIN_PREFIX: &str = "Pod ";

/// Counts the names that are not served, by the word of the reason: one of [`ALL`], or [`UNKNOWN_REASON`]. Router pods
/// that cannot be hosts ask for no name, and do not count.
#[must_use]
pub fn count(learned: &ClusterDiscovery) -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::new();
    for rejected in &learned.rejected {
        if rejected.origin.starts_with(POD_ORIGIN_PREFIX) {
            continue;
        }
        let word = rejected.reason.split(':').next();
        let word = ALL
            .into_iter()
            .find(|known| Some(*known) == word)
            .unwrap_or(UNKNOWN_REASON);
        *counts.entry(word).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovered::discovery::Rejected;

    #[test]
    fn reasons_are_counted_by_their_first_word_and_pods_are_not() {
        let rejected = |origin: &str, reason: &str| Rejected {
            hostname: String::new(),
            origin: origin.into(),
            reason: reason.into(),
            rival: None,
        };
        let learned = ClusterDiscovery {
            rejected: vec![
                rejected("Route a/a", "OtherRouter: not admitted"),
                rejected("Route a/b", "OtherRouter: not admitted: twice"),
                rejected("Route a/c", "NoHostValue"),
                rejected("Pod openshift-ingress/router", "NoHostValue: it has no port"),
                rejected("route 7", "weight 101 is not 0 to 100"),
            ],
            ..ClusterDiscovery::default()
        };
        let counts: Vec<_> = count(&learned).into_iter().collect();
        assert_eq!(counts, [(NO_HOST, 1), (UNKNOWN_REASON, 1), (OTHER_ROUTER, 2)]);
    }
}
