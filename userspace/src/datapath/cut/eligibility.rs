//! Decision whether a connection may be cut, by what is known before its host is asked. The datapath and `explain` ask the
//! same function.

use std::net::IpAddr;

use signalbox_core::model::Datapath;

use crate::state::outcome::Ineligible;

/// Facts of a connection that decide whether it may be cut.
pub(crate) struct CutFacts {
    /// Settings of its listener.
    pub(crate) datapath: Datapath,
    /// Whether it counts against a limit of its source: the flow GC gives such counts back by the peer's address.
    pub(crate) is_counted: bool,
    /// Whether a PROXY header names another source than the peer.
    pub(crate) is_named_by_proxy: bool,
    /// Whether tier cut is available.
    pub(crate) is_available: bool,
    /// Client and host, where both are known.
    pub(crate) ends: Option<(IpAddr, IpAddr)>,
}

impl CutFacts {
    /// Returns why the connection is not to be cut: the first reason, or `None`.
    pub(crate) fn obstacle(&self) -> Option<Ineligible> {
        if !self.datapath.cut || self.datapath.tier.is_some() {
            return Some(Ineligible::Disabled);
        }
        if self.is_counted && self.is_named_by_proxy {
            return Some(Ineligible::NamedSource);
        }
        if !self.is_available {
            return Some(Ineligible::NotAvailable);
        }
        let differ = self
            .ends
            .is_some_and(|(client, host)| client.is_ipv4() != host.is_ipv4());
        differ.then_some(Ineligible::FamilyMismatch)
    }
}
