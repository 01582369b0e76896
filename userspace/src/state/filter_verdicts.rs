//! Whether connections may bypass the rules of packet filters.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use signalbox_core::firewall::LeftClients;

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
    /// Rules may do something to those of these clients alone.
    FreeExcept(Arc<LeftClients>),
    /// A rule may do something to any of them.
    Left(String),
}

impl FamilyVerdict {
    /// Whether connections are free, at least those of some clients.
    const fn is_free(&self) -> bool {
        matches!(self, Self::Free | Self::FreeExcept(_))
    }
}

/// Why a listener is left to workers before there is a verdict.
pub(crate) const NOT_JUDGED: &str = "the rules have not been judged yet";

impl Default for FilterVerdicts {
    fn default() -> Self {
        Self::Unknown(NOT_JUDGED.to_owned())
    }
}

impl FilterVerdicts {
    /// Returns why all connections of a listener are left to workers; `None` if some are not.
    #[must_use]
    pub fn cause(&self, listener: &str) -> Option<&str> {
        match self {
            Self::NoRules => None,
            Self::Unknown(why) => Some(why),
            Self::Judged(listeners) => match listeners.get(listener) {
                None => Some(NOT_JUDGED),
                Some(ListenerVerdict(verdicts)) if verdicts.iter().any(FamilyVerdict::is_free) => None,
                Some(ListenerVerdict(verdicts)) => verdicts.iter().find_map(|verdict| match verdict {
                    FamilyVerdict::Left(why) => Some(why.as_str()),
                    _ => None,
                }),
            },
        }
    }

    /// Returns why all connections to an address of a listener are left to workers.
    #[must_use]
    pub fn cause_for(&self, listener: &str, address: IpAddr) -> Option<&str> {
        let verdict = match self.of_family(listener, address) {
            Ok(verdict) => verdict?,
            Err(cause) => return Some(cause),
        };
        match verdict {
            FamilyVerdict::Free | FamilyVerdict::FreeExcept(_) => None,
            FamilyVerdict::Left(why) => Some(why),
            FamilyVerdict::Unused => Some(NOT_JUDGED),
        }
    }

    /// Returns why connections of a client are left to workers.
    #[must_use]
    pub fn cause_for_client(&self, listener: &str, client: IpAddr) -> Option<&str> {
        let client = client.to_canonical();
        match self.of_family(listener, client) {
            Ok(Some(FamilyVerdict::FreeExcept(left))) => left.reason_for(client),
            _ => self.cause_for(listener, client),
        }
    }

    /// Returns the clients whose connections to an address of a listener are left to workers, while others' are not.
    #[must_use]
    pub fn left_clients(&self, listener: &str, address: IpAddr) -> Option<&LeftClients> {
        match self.of_family(listener, address) {
            Ok(Some(FamilyVerdict::FreeExcept(left))) => Some(left),
            _ => None,
        }
    }

    /// Returns the clients of each family whose connections are left to workers, while others' are not.
    #[must_use]
    pub fn left_of_each_family(&self, listener: &str) -> [Option<&LeftClients>; 2] {
        let of_family = |own: IpAddr| self.left_clients(listener, own);
        [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()].map(of_family)
    }

    /// Returns the number of ranges of addresses whose connections are left to workers while others' are not, and one of
    /// the rules.
    #[must_use]
    pub fn left_ranges(&self, listener: &str) -> Option<(usize, &str)> {
        let left = self.left_of_each_family(listener).into_iter().flatten();
        let left = left.map(|left| (left.range_count(), left.first_reason()));
        left.reduce(|(a, rule), (b, _)| (a + b, rule))
    }

    /// Returns the verdict for the family of an address; `None` if there are no rules. `Err`: why there is no verdict.
    fn of_family(&self, listener: &str, address: IpAddr) -> Result<Option<&FamilyVerdict>, &str> {
        let ListenerVerdict([v4, v6]) = match self {
            Self::NoRules => return Ok(None),
            Self::Unknown(why) => return Err(why),
            Self::Judged(listeners) => listeners.get(listener).ok_or(NOT_JUDGED)?,
        };
        Ok(Some(if address.to_canonical().is_ipv4() { v4 } else { v6 }))
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
        assert_eq!(FilterVerdicts::NoRules.cause_for_client("web", v4), None);
        assert_eq!(half.cause_for_client("web", v6), Some("a rule"));
    }
}
