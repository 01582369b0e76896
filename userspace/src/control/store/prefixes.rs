//! Prefixes of the shield that the API has set, and changes of them.

use std::collections::HashSet;
use std::sync::Arc;

use ipnet::IpNet;
use signalbox_core::model::shield::Prefixes;

use super::Store;

/// A change of prefixes.
pub enum PrefixChange {
    /// Replaces all prefixes.
    Replace(Prefixes),
    /// Adds prefixes, and removes those in `forget`: they are neither denied nor allowed.
    Edit { add: Prefixes, forget: Vec<IpNet> },
}

impl PrefixChange {
    /// Returns whether the change only removes.
    #[must_use]
    pub fn adds_nothing(&self) -> bool {
        match self {
            Self::Replace(add) | Self::Edit { add, .. } => add.is_empty(),
        }
    }

    fn applied(self, before: Option<&Arc<Prefixes>>) -> Prefixes {
        let (mut all, add, gone) = match self {
            Self::Replace(all) => (all, Prefixes::default(), Vec::new()),
            Self::Edit { add, forget } => (before.map(|before| (**before).clone()).unwrap_or_default(), add, forget),
        };
        // The newest verdict on a prefix counts.
        let said: HashSet<IpNet> = add
            .deny
            .iter()
            .chain(&add.allow)
            .chain(&gone)
            .map(IpNet::trunc)
            .collect();
        for list in [&mut all.deny, &mut all.allow] {
            list.retain(|net| !said.contains(&net.trunc()));
        }
        all.deny.extend(add.deny);
        all.allow.extend(add.allow);
        for list in [&mut all.deny, &mut all.allow] {
            list.iter_mut().for_each(|net| *net = net.trunc());
        }
        all
    }
}

impl Store {
    /// Changes prefixes, on disk as well. Returns the new prefixes.
    pub(super) fn set_prefixes(&mut self, name: &str, change: PrefixChange) -> Result<Arc<Prefixes>, String> {
        self.ensure_restored()
            .map_err(|error| crate::sys::error_chain(&error))?;
        let prefixes = Arc::new(change.applied(self.persistent.shield.get(name)));
        let outcome = self.persistent.set_prefixes(name, &prefixes);
        outcome.map_err(|error| crate::sys::error_chain(&error))?;
        self.needs_publish = true;
        Ok(prefixes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(list: &[&str]) -> Vec<IpNet> {
        list.iter().map(|net| net.parse().unwrap()).collect()
    }

    #[test]
    fn what_is_said_of_a_prefix_last_counts_and_all_else_stays() {
        let of = |deny: &[&str], allow: &[&str]| Prefixes {
            deny: nets(deny),
            allow: nets(allow),
        };
        let before = Arc::new(of(&["10.1.0.0/16", "10.2.0.0/16"], &["10.3.0.0/16"]));
        let edited = PrefixChange::Edit {
            add: of(&["10.3.0.9/16"], &["10.1.0.0/16"]),
            forget: nets(&["10.2.0.0/16"]),
        };
        assert_eq!(edited.applied(Some(&before)), of(&["10.3.0.0/16"], &["10.1.0.0/16"]));
        let replaced = PrefixChange::Replace(of(&["10.4.0.0/16"], &[]));
        assert_eq!(replaced.applied(Some(&before)), of(&["10.4.0.0/16"], &[]));
    }
}
