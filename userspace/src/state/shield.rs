//! The shield's second line: denied sources, for connections that userspace accepts. The shield's programs have not
//! seen a client's packets on a very new interface, or where the kernel refuses the programs.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use signalbox_common::shield::prefixes::{DENY, Node, verdict};

use crate::kernel::address::to_words;

/// Indices of the interfaces with the shield's programs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ShieldCover {
    pub interfaces: BTreeSet<u32>,
    /// Names of the listeners whose rules the programs have.
    pub listeners: BTreeSet<String>,
    /// Whether there is a guard, but an interface that carries packets will never have a program.
    pub is_partial: bool,
}

/// A table of prefixes; empty if there are none.
pub type PrefixTable = Arc<Vec<Node>>;

/// Prefix tables of the guarded listeners.
#[derive(Clone, Default)]
pub struct DeniedSources {
    /// Prefixes of all guarded listeners.
    pub shared: PrefixTable,
    /// Each guarded listener's own prefixes, by its name.
    pub of_listeners: HashMap<String, PrefixTable>,
    /// Previous tables, while the programs get the new ones. Until they have them, a source is denied only if both
    /// tables deny it. Otherwise a client would be reset that the programs are about to admit, or to ignore.
    pub before: Option<Arc<Self>>,
}

impl DeniedSources {
    /// Returns whether a listener's connections from an address are denied. Like the shield's programs, denies what
    /// either table denies.
    #[must_use]
    pub fn denies(&self, listener: &str, source: IpAddr) -> bool {
        let Some(own) = self.of_listeners.get(listener) else {
            return false;
        };
        let is_denied = |table: &PrefixTable| {
            !table.is_empty() && verdict(table.as_slice(), &to_words(source), source.is_ipv4()) == DENY
        };
        let was_denied = || {
            self.before
                .as_ref()
                .is_none_or(|before| before.denies(listener, source))
        };
        (is_denied(&self.shared) || is_denied(own)) && was_denied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use signalbox_core::limits::prefixes::{Verdict, build};

    fn table(prefixes: &[(&str, Verdict)]) -> PrefixTable {
        Arc::new(build(
            prefixes.iter().map(|(net, verdict)| (net.parse().unwrap(), *verdict)),
        ))
    }

    #[test]
    fn a_deny_in_either_table_applies_only_to_guarded_listeners() {
        let denied = DeniedSources {
            shared: table(&[
                ("192.0.2.0/24", Verdict::Deny),
                ("192.0.2.7/32", Verdict::Allow),
                ("2001:db8::/32", Verdict::Deny),
            ]),
            of_listeners: HashMap::from([
                ("web".to_owned(), table(&[("192.0.2.7/32", Verdict::Deny)])),
                ("mail".to_owned(), table(&[("192.0.2.0/24", Verdict::Allow)])),
            ]),
            before: None,
        };
        for (listener, source, is_denied) in [
            ("web", "192.0.2.1", true),
            ("web", "192.0.2.7", true),
            ("web", "192.0.3.1", false),
            ("web", "2001:db8::1", true),
            ("mail", "192.0.2.1", true),
            ("mail", "192.0.2.7", false),
            ("open", "192.0.2.1", false),
        ] {
            assert_eq!(
                denied.denies(listener, source.parse().unwrap()),
                is_denied,
                "{listener} {source}"
            );
        }
        let next = DeniedSources {
            shared: table(&[("192.0.2.0/25", Verdict::Deny), ("198.51.100.0/24", Verdict::Deny)]),
            before: Some(Arc::new(denied.clone())),
            ..denied
        };
        for (source, is_denied) in [("192.0.2.1", true), ("192.0.2.200", false), ("198.51.100.1", false)] {
            assert_eq!(next.denies("web", source.parse().unwrap()), is_denied, "{source}");
        }
    }
}
