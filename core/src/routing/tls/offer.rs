//! Certificates with which a listener offers HTTP/2, as a table that is made when the configuration changes.

use std::collections::HashMap;

use crate::model::tls::{Http2, Termination};
use crate::model::{Listener, Model, Route, Unmatched};
use crate::routing::route_table::RouteTable;
use crate::wire::hostname::{Hostname, HostnamePattern};

use super::coalescing::PassthroughNames;
use super::names::parent;

/// Rule of a listener.
#[derive(Debug, Default)]
pub struct Http2Offer {
    policy: Http2,
    /// Names of routes whose TLS ends at the host.
    passthrough: PassthroughNames,
    /// Names whose TLS ends here, where all other names are passed through to some host, too.
    ended: Option<PassthroughNames>,
    /// Routes by name, where only certificates of a single one will do.
    routes: Option<RouteNames>,
}

impl Http2Offer {
    /// Rule of a listener for its routes.
    #[must_use]
    pub fn new(model: &Model, listener: &Listener) -> Self {
        let policy = model.tls.http2;
        if policy == Http2::Off {
            return Self {
                policy,
                ..Self::default()
            };
        }
        let is_passed = |route: &Route| listener.termination(Some(route)) == Termination::Passthrough;
        let of = |passed: bool| {
            let routes = model.routes.iter().filter(move |route| is_passed(route) == passed);
            routes.map(|route| (route.hostname.clone(), route.depth)).collect()
        };
        // A name without a route is refused, unless there is a place for all such names.
        let has_place = listener.cluster.is_some() || model.unmatched != Unmatched::Reject;
        let passes_others = has_place && listener.termination(None) == Termination::Passthrough;
        Self {
            policy,
            passthrough: of(true),
            ended: passes_others.then(|| of(false)),
            routes: (policy == Http2::Unique).then(|| RouteNames::new(&model.routes)),
        }
    }

    /// Whether HTTP/2 is offered with a certificate that has these names.
    #[must_use]
    pub fn is_offered(&self, names: &[HostnamePattern]) -> bool {
        let routes = self.routes.as_ref().map_or(0, |routes| routes.count(names));
        let reaches_others = self
            .ended
            .as_ref()
            .is_some_and(|ended| !names.iter().all(|name| ended.covers(name)));
        !reaches_others && self.policy.is_offered(names, routes, &self.passthrough)
    }
}

/// Routes by the names that certificates may have.
#[derive(Debug, Default)]
struct RouteNames {
    table: RouteTable,
    /// Routes of exact names, and of stars, by the part after the first label.
    below: HashMap<Hostname, Below>,
}

/// Routes right below a name.
#[derive(Clone, Copy, Debug)]
enum Below {
    One(usize),
    More,
}

impl RouteNames {
    fn new(routes: &[Route]) -> Self {
        let mut below = HashMap::new();
        for (id, route) in routes.iter().enumerate() {
            let suffix = match &route.hostname {
                HostnamePattern::Exact(name) => parent(name),
                HostnamePattern::Wildcard(suffix) => Some(suffix.clone()),
            };
            if let Some(suffix) = suffix {
                below
                    .entry(suffix)
                    .and_modify(|known| *known = Below::More)
                    .or_insert(Below::One(id));
            }
        }
        Self {
            table: RouteTable::new(routes.iter().map(|route| (&route.hostname, route.depth))),
            below,
        }
    }

    /// Number of routes that a certificate of these names answers for; 2 means more than one.
    fn count(&self, names: &[HostnamePattern]) -> usize {
        let mut only = None;
        for name in names {
            let found = match name {
                HostnamePattern::Exact(name) => self.table.find(name).map(Below::One),
                HostnamePattern::Wildcard(suffix) => self.below.get(suffix).copied(),
            };
            match (found, only) {
                (None, _) => {}
                (Some(Below::One(id)), None) => only = Some(id),
                (Some(Below::One(id)), Some(before)) if id == before => {}
                _ => return 2,
            }
        }
        usize::from(only.is_some())
    }
}

#[cfg(test)]
mod tests;
