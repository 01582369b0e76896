//! Shield prefixes set by API, and changes of them.

use std::sync::Arc;

use signalbox_core::model::shield::Prefixes;

use super::Store;
use crate::control::event::PrefixChange;

impl Store {
    /// Changes prefixes, on disk too. Returns the new prefixes.
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
    use ipnet::IpNet;

    use super::*;

    fn nets(list: &[&str]) -> Vec<IpNet> {
        list.iter().map(|net| net.parse().unwrap()).collect()
    }

    #[test]
    fn an_edit_moves_or_forgets_prefixes_and_a_replace_resets_them() {
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
