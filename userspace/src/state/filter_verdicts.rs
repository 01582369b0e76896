//! Whether connections may bypass the rules of packet filters.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Verdicts on listeners with `peek: auto`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterVerdicts {
    /// There are no rules.
    NoRules,
    /// The rules are not known, for this reason.
    Unknown(String),
    /// By name of the listener.
    Judged(BTreeMap<String, ListenerVerdict>),
}

/// Verdicts on a listener's connections over IPv4, and over IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerVerdict(pub [FamilyVerdict; 2]);

/// Verdict on the connections of one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FamilyVerdict {
    /// The listener has no address of the family.
    Unused,
    /// No rule does anything to them.
    Free,
    /// A rule may do something to them.
    Left(String),
}

/// Why a listener is left to workers before there is a verdict.
pub(crate) const NOT_JUDGED: &str = "the rules have not been judged yet";

impl Default for FilterVerdicts {
    fn default() -> Self {
        Self::Unknown(NOT_JUDGED.to_owned())
    }
}

impl FilterVerdicts {
    /// Returns why all connections of a listener are left to workers; `None` if those of one address family are not.
    #[must_use]
    pub fn cause(&self, listener: &str) -> Option<&str> {
        match self {
            Self::NoRules => None,
            Self::Unknown(why) => Some(why),
            Self::Judged(listeners) => match listeners.get(listener) {
                None => Some(NOT_JUDGED),
                Some(ListenerVerdict(verdicts)) if verdicts.contains(&FamilyVerdict::Free) => None,
                Some(ListenerVerdict(verdicts)) => verdicts.iter().find_map(|verdict| match verdict {
                    FamilyVerdict::Left(why) => Some(why.as_str()),
                    _ => None,
                }),
            },
        }
    }

    /// Returns why connections to an address of a listener, or from a client of its family, are left to workers.
    #[must_use]
    pub fn cause_for(&self, listener: &str, address: IpAddr) -> Option<&str> {
        let Self::Judged(listeners) = self else {
            return self.cause(listener);
        };
        let [v4, v6] = match listeners.get(listener) {
            None => return Some(NOT_JUDGED),
            Some(ListenerVerdict(verdicts)) => verdicts,
        };
        match if address.to_canonical().is_ipv4() { v4 } else { v6 } {
            FamilyVerdict::Free => None,
            FamilyVerdict::Left(why) => Some(why),
            FamilyVerdict::Unused => Some(NOT_JUDGED),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_left_if_no_family_is_free() {
        let left = || FamilyVerdict::Left("a rule".to_owned());
        let of = |verdicts| FilterVerdicts::Judged([("web".to_owned(), ListenerVerdict(verdicts))].into());
        let (v4, v6): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [1; 16].into());
        let half = of([FamilyVerdict::Free, left()]);
        assert_eq!(half.cause("web"), None);
        assert_eq!(
            (half.cause_for("web", v4), half.cause_for("web", v6)),
            (None, Some("a rule"))
        );
        assert_eq!(of([FamilyVerdict::Unused, left()]).cause("web"), Some("a rule"));
        assert_eq!(half.cause("other"), Some(NOT_JUDGED));
        assert_eq!(FilterVerdicts::default().cause_for("web", v4), Some(NOT_JUDGED));
        assert_eq!(FilterVerdicts::NoRules.cause_for("web", v4), None);
    }
}
