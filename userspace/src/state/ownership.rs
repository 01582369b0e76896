//! Ownership of virtual addresses: the groups that this node has at the moment.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use signalbox_core::ha::floating::FloatingSources;

/// Names of the groups that this node has; `None` until somebody has reported them.
#[derive(Debug, Default)]
pub struct Ownership(ArcSwapOption<HashSet<String>>);

impl Ownership {
    /// Replaces the groups that this node has.
    pub fn set(&self, groups: HashSet<String>) {
        self.0.store(Some(Arc::new(groups)));
    }

    /// Returns the groups that this node has.
    #[must_use]
    pub fn groups(&self) -> Option<Arc<HashSet<String>>> {
        self.0.load_full()
    }

    /// Whether this node is known to have a virtual address.
    #[must_use]
    pub fn has_gained(&self, floating: &FloatingSources, vip: IpAddr) -> bool {
        let name = floating.group_of(vip).and_then(|group| floating.name_of(group));
        let groups = self.0.load();
        name.zip(groups.as_ref()).is_some_and(|(name, groups)| groups.contains(name))
    }

    /// Whether flows to an address are this node's business: those to addresses that do not move always are, and all of
    /// them before the first report.
    #[must_use]
    pub fn has(&self, floating: &FloatingSources, vip: IpAddr) -> bool {
        let Some(name) = floating.group_of(vip).and_then(|group| floating.name_of(group)) else {
            return true;
        };
        self.0.load().as_ref().is_none_or(|groups| groups.contains(name))
    }
}
