//! Names that a route of the Gateway API has by its Gateways: those that it shares with their listeners.
//!
//! Source: <https://gateway-api.sigs.k8s.io/reference/spec/#httprouterule> and its description of `hostnames`. The
//! Gateway's controller decides whether a listener admits routes of a namespace, and reports it in the route's status.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::object::{Parent, RequestedNames};
use super::{Admission, Object, ObjectKind, annotations, reason};
use crate::model::kubernetes::{GatewayName, ShardFilter};

/// Most Gateways that a reason names.
const MAX_NAMED: usize = 4;

/// A Gateway, as far as it decides on names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Namespace and name of the Gateway.
    pub name: GatewayName,
    /// Class of the Gateway.
    pub class: String,
    /// Listeners of the Gateway.
    pub listeners: Vec<GatewayListener>,
}

/// Listener of a Gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayListener {
    /// Name of the listener, by which routes choose it as `sectionName`.
    pub name: String,
    /// Port of the listener.
    pub port: u16,
    /// Protocol: `HTTP`, `HTTPS`, `TLS` or another.
    pub protocol: String,
    /// Host name, or wildcard, that the listener takes; empty for all.
    pub hostname: String,
}

/// Gateways that the configuration chooses.
pub(super) struct SelectedGateways<'a> {
    shard: &'a ShardFilter,
    /// Gateways of the API server; `None`: signalbox may not list them.
    known: Option<HashMap<&'a GatewayName, &'a Gateway, FixedState>>,
}

impl<'a> SelectedGateways<'a> {
    pub(super) fn new(seen: Option<&[&'a Gateway]>, choice: &'a ShardFilter) -> Self {
        let by_name = |all: &[&'a Gateway]| all.iter().map(|gateway| (&gateway.name, *gateway)).collect();
        Self {
            shard: choice,
            known: seen.map(by_name),
        }
    }

    /// Names that a route has by the chosen Gateways, or why it has none.
    pub(super) fn requested_names<'o>(&'o self, object: &'o Object) -> Result<RequestedNames<'o>, String> {
        let parents: Vec<&Parent> = object.parents.iter().filter(|parent| self.selects(parent)).collect();
        let other = |why: String| Err(format!("{}: {why}", reason::OTHER_GATEWAY));
        if parents.is_empty() {
            return other(match join_names(object.parents.iter()).as_str() {
                "" => "it names no Gateway".to_owned(),
                named => format!("its Gateway is {named}"),
            });
        }
        let accepted = parents
            .iter()
            .filter(|parent| !matches!(parent.admission, Admission::Refused(_)));
        let accepted: Vec<&Parent> = accepted.copied().collect();
        if accepted.is_empty() {
            let mut refusals = parents.iter().filter_map(|parent| match &parent.admission {
                Admission::Refused(why) => Some(annotations::truncated(why)),
                Admission::Admitted | Admission::Unknown => None,
            });
            let why = refusals.next().unwrap_or_default();
            return Err(format!("{}: {why}", reason::NOT_ADMITTED));
        }
        let Some(seen) = &self.known else {
            return Ok(RequestedNames::all(object));
        };
        let present = accepted
            .iter()
            .filter_map(|parent| Some((*parent, *seen.get(&parent.gateway)?)));
        let present: Vec<(&Parent, &Gateway)> = present.collect();
        if present.is_empty() {
            return other(format!("there is no Gateway {}", join_names(accepted.into_iter())));
        }
        Ok(common_names(object, &present))
    }

    fn selects(&self, parent: &Parent) -> bool {
        let of_class = || {
            let gateway = self.known.as_ref()?.get(&parent.gateway)?;
            Some(self.shard.gateway_classes.contains(&gateway.class))
        };
        self.shard.gateways.contains(&parent.gateway) || of_class().unwrap_or(false)
    }
}

/// Names of Gateways, as a person reads them.
fn join_names<'a>(parents: impl Iterator<Item = &'a Parent>) -> String {
    let mut names: Vec<String> = parents.map(|parent| parent.gateway.to_string()).collect();
    names.dedup();
    names.truncate(MAX_NAMED);
    annotations::truncated(&names.join(", "))
}

/// Names that a route and the listeners of its Gateways have in common.
fn common_names<'o>(object: &'o Object, parents: &[(&'o Parent, &'o Gateway)]) -> RequestedNames<'o> {
    let listeners = parents.iter().flat_map(|(parent, gateway)| {
        let listeners = gateway.listeners.iter();
        listeners.filter(|listener| listener_matches(listener, object.kind, parent))
    });
    let listeners: Vec<&'o str> = listeners.map(|listener| listener.hostname.as_str()).collect();
    let mut asked = RequestedNames::default();
    if object.hostnames.is_empty() {
        // A route without hostnames inherits those of its listeners. A listener that takes all names has none to give.
        asked.names = listeners.into_iter().filter(|hostname| !hostname.is_empty()).collect();
    } else {
        for host in &object.hostnames {
            let before = asked.names.len();
            asked
                .names
                .extend(listeners.iter().filter_map(|listener| intersection(host, listener)));
            if asked.names.len() == before {
                let why = format!("{}: no listener of its Gateway accepts this name", reason::NO_LISTENER);
                asked.unserved.push((host, why));
            }
        }
    }
    asked.names.sort_unstable();
    asked.names.dedup();
    asked
}

/// Whether a listener is one that a route's entry refers to. A vendor's own protocol may carry any kind of route.
fn listener_matches(listener: &GatewayListener, kind: ObjectKind, parent: &Parent) -> bool {
    let protocol = match listener.protocol.as_str() {
        "HTTP" | "HTTPS" => kind == ObjectKind::HttpRoute,
        "TLS" => kind == ObjectKind::TlsRoute,
        "TCP" | "UDP" => false,
        _ => true,
    };
    let section = parent
        .section_name
        .as_ref()
        .is_none_or(|section| *section == listener.name);
    protocol && section && parent.port.is_none_or(|port| port == listener.port)
}

/// Narrower of a route's hostname and a listener's, if it lies within the other. `None`: they share no name.
fn intersection<'o>(route: &'o str, listener: &'o str) -> Option<&'o str> {
    if listener.is_empty() {
        return Some(route);
    }
    match (route.strip_prefix("*."), listener.strip_prefix("*.")) {
        (None, None) => route.eq_ignore_ascii_case(listener).then_some(route),
        (None, Some(domain)) => is_subdomain(route, domain).then_some(route),
        (Some(domain), None) => is_subdomain(listener, domain).then_some(listener),
        (Some(ours), Some(theirs)) if ours.eq_ignore_ascii_case(theirs) || is_subdomain(ours, theirs) => Some(route),
        (Some(ours), Some(theirs)) => is_subdomain(theirs, ours).then_some(listener),
    }
}

/// Whether a name is a domain with one or more labels before it.
fn is_subdomain(name: &str, domain: &str) -> bool {
    let Some(at) = name.len().checked_sub(domain.len()).filter(|at| *at >= 2) else {
        return false;
    };
    let (first, last) = name.as_bytes().split_at(at);
    first.ends_with(b".") && last.eq_ignore_ascii_case(domain.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_and_a_listener_share_the_narrower_of_their_names() {
        for (route, listener, shared) in [
            ("a.test", "", Some("a.test")),
            ("*.a.test", "", Some("*.a.test")),
            ("a.test", "A.test", Some("a.test")),
            ("a.test", "b.test", None),
            ("x.a.test", "*.a.test", Some("x.a.test")),
            ("y.x.a.test", "*.a.test", Some("y.x.a.test")),
            ("a.test", "*.a.test", None),
            ("xa.test", "*.a.test", None),
            (".a.test", "*.a.test", None),
            ("*.a.test", "x.a.test", Some("x.a.test")),
            ("*.a.test", "y.x.a.test", Some("y.x.a.test")),
            ("*.a.test", "a.test", None),
            ("*.a.test", "*.A.test", Some("*.a.test")),
            ("*.x.a.test", "*.a.test", Some("*.x.a.test")),
            ("*.a.test", "*.x.a.test", Some("*.x.a.test")),
            ("*.a.test", "*.b.test", None),
            ("*.xa.test", "*.a.test", None),
            ("", "*.a.test", None),
        ] {
            assert_eq!(intersection(route, listener), shared, "{route} at {listener}");
        }
    }
}
