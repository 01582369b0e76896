//! Which names a route of the Gateway API has by its Gateways: those that it shares with their listeners.
//!
//! <https://gateway-api.sigs.k8s.io/reference/spec/#httprouterule> and the description of `hostnames` there. Which
//! namespaces a listener admits routes from is for the Gateway's controller to say, in the route's status.

use super::choice::Asked;
use super::names::Map;
use super::{Admission, Kind, Object, annotations, reason};
use crate::model::kubernetes::{Choice, GatewayName};

/// How many Gateways are named in a reason.
const MAX_NAMED: usize = 4;

/// A Gateway, as far as it decides on names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Where it stands.
    pub name: GatewayName,
    /// Its class.
    pub class: String,
    /// What it listens on.
    pub listeners: Vec<Listener>,
}

/// What a Gateway listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its name, by which routes choose it as `sectionName`.
    pub name: String,
    /// Its port.
    pub port: u16,
    /// `HTTP`, `HTTPS`, `TLS` or another.
    pub protocol: String,
    /// The name, or wildcard, that it takes; empty for all.
    pub hostname: String,
}

/// A Gateway by which a route wants to be served: an entry of `parentRefs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Which one.
    pub gateway: GatewayName,
    /// The listener of this name alone.
    pub section: Option<String>,
    /// The listeners of this port alone.
    pub port: Option<u16>,
    /// What the Gateway's controller says of it.
    pub admission: Admission,
}

/// The Gateways that the configuration chooses.
pub(super) struct Gateways<'a> {
    choice: &'a Choice,
    /// Those that there are; `None`: they may not be seen.
    seen: Option<Map<&'a GatewayName, &'a Gateway>>,
}

impl<'a> Gateways<'a> {
    pub(super) fn new(seen: Option<&[&'a Gateway]>, choice: &'a Choice) -> Self {
        let by_name = |all: &[&'a Gateway]| all.iter().map(|gateway| (&gateway.name, *gateway)).collect();
        Self {
            choice,
            seen: seen.map(by_name),
        }
    }

    /// The names that a route has by the chosen Gateways, or why it has none.
    pub(super) fn asked<'o>(&'o self, object: &'o Object) -> Result<Asked<'o>, String> {
        let parents: Vec<&Parent> = object.parents.iter().filter(|parent| self.chooses(parent)).collect();
        let other = |why: String| Err(format!("{}: {why}", reason::OTHER_GATEWAY));
        if parents.is_empty() {
            return other(match named(object.parents.iter()).as_str() {
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
                Admission::Refused(why) => Some(annotations::short(why)),
                Admission::Admitted | Admission::Unsaid => None,
            });
            let why = refusals.next().unwrap_or_default();
            return Err(format!("{}: {why}", reason::NOT_ADMITTED));
        }
        let Some(seen) = &self.seen else {
            return Ok(Asked::all(object));
        };
        let present = accepted
            .iter()
            .filter_map(|parent| Some((*parent, *seen.get(&parent.gateway)?)));
        let present: Vec<(&Parent, &Gateway)> = present.collect();
        if present.is_empty() {
            return other(format!("there is no Gateway {}", named(accepted.into_iter())));
        }
        Ok(shared(object, &present))
    }

    fn chooses(&self, parent: &Parent) -> bool {
        let of_class = || {
            let gateway = self.seen.as_ref()?.get(&parent.gateway)?;
            Some(self.choice.gateway_classes.contains(&gateway.class))
        };
        self.choice.gateways.contains(&parent.gateway) || of_class().unwrap_or(false)
    }
}

/// The names of Gateways, as a person reads them.
fn named<'a>(parents: impl Iterator<Item = &'a Parent>) -> String {
    let mut names: Vec<String> = parents.map(|parent| parent.gateway.to_string()).collect();
    names.dedup();
    names.truncate(MAX_NAMED);
    annotations::short(&names.join(", "))
}

/// The names that a route and the listeners of its Gateways have in common.
fn shared<'o>(object: &'o Object, parents: &[(&'o Parent, &'o Gateway)]) -> Asked<'o> {
    let listeners = parents.iter().flat_map(|(parent, gateway)| {
        let listeners = gateway.listeners.iter();
        listeners.filter(|listener| takes(listener, object.kind, parent))
    });
    let listeners: Vec<&'o str> = listeners.map(|listener| listener.hostname.as_str()).collect();
    let mut asked = Asked::default();
    if object.hosts.is_empty() {
        // A route without hostnames inherits its listeners'. One that takes all names has none to give.
        asked.names = listeners.into_iter().filter(|hostname| !hostname.is_empty()).collect();
    } else {
        for host in &object.hosts {
            let before = asked.names.len();
            asked
                .names
                .extend(listeners.iter().filter_map(|listener| narrower(host, listener)));
            if asked.names.len() == before {
                let why = format!("{}: no listener of its Gateway takes this name", reason::NO_LISTENER);
                asked.dropped.push((host, why));
            }
        }
    }
    asked.names.sort_unstable();
    asked.names.dedup();
    asked
}

/// Whether a listener is one of those that a route's entry means. A protocol of somebody's own may carry anything.
fn takes(listener: &Listener, kind: Kind, parent: &Parent) -> bool {
    let protocol = match listener.protocol.as_str() {
        "HTTP" | "HTTPS" => kind == Kind::HttpRoute,
        "TLS" => kind == Kind::TlsRoute,
        "TCP" | "UDP" => false,
        _ => true,
    };
    let section = parent.section.as_ref().is_none_or(|section| *section == listener.name);
    protocol && section && parent.port.is_none_or(|port| port == listener.port)
}

/// The names for which both a route's hostname and a listener's stand: one of the two, the narrower. `None`: no name.
fn narrower<'o>(route: &'o str, listener: &'o str) -> Option<&'o str> {
    if listener.is_empty() {
        return Some(route);
    }
    match (route.strip_prefix("*."), listener.strip_prefix("*.")) {
        (None, None) => route.eq_ignore_ascii_case(listener).then_some(route),
        (None, Some(domain)) => is_below(route, domain).then_some(route),
        (Some(domain), None) => is_below(listener, domain).then_some(listener),
        (Some(ours), Some(theirs)) if ours.eq_ignore_ascii_case(theirs) || is_below(ours, theirs) => Some(route),
        (Some(ours), Some(theirs)) => is_below(theirs, ours).then_some(listener),
    }
}

/// Whether a name has one or more labels before a domain.
fn is_below(name: &str, domain: &str) -> bool {
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
            assert_eq!(narrower(route, listener), shared, "{route} at {listener}");
        }
    }
}
