//! Settles which object serves which name: objects ask in order of age, oldest first.

use std::collections::{BTreeSet, HashSet};

use foldhash::fast::FixedState;

use super::owners::{NameOwners, OwnerTable};
use super::shard::ShardMatcher;
use super::{ClaimRules, Object, ObjectKind, annotations, reason};
use crate::discovered::discovery::{CertificateOrigin, Claim, Rejected, RouteSettings};
use crate::model::tls::Termination;
use crate::wire::hostname::{Hostname, HostnamePattern};

/// Claims that are served, each name once and in order, and names that are rejected.
pub(super) fn resolve_claims(
    mut objects: Vec<&Object>,
    chooser: &ShardMatcher<'_>,
    rules: &ClaimRules,
) -> (Vec<Claim>, Vec<Rejected>) {
    objects.sort_unstable_by(|a, b| a.age_order().cmp(&b.age_order()));
    let spoken_for = covered_by_routes(&objects);
    let mut owners = OwnerTable::new(rules.wildcards);
    let mut rejected = Vec::new();
    for object in objects {
        let mut reject = |host: &str, reason: String, rival: Option<&Object>| {
            rejected.push(Rejected {
                hostname: annotations::truncated(host),
                origin: object.origin(),
                reason,
                rival: rival.map(Object::origin),
            });
        };
        let asked = match chooser.requested_names(object) {
            Ok(asked) => asked,
            Err(why) => {
                for text in unserved_names(object, &spoken_for) {
                    reject(&displayed_name(object, text, rules), why.clone(), None);
                }
                continue;
            }
        };
        for (text, why) in &asked.unserved {
            reject(&displayed_name(object, text, rules), why.clone(), None);
        }
        let (asked, dropped) = (asked.names, asked.unserved);
        if asked.is_empty() && dropped.is_empty() {
            reject("", no_hostname(object.kind), None);
        }
        let mut known = HashSet::with_hasher(FixedState::default());
        for text in &asked {
            if object.kind == ObjectKind::Ingress && spoken_for.contains(&(object.uid.as_str(), *text)) {
                continue;
            }
            match hostname_pattern(object, text, rules) {
                Err((host, reason)) => reject(&host, reason, None),
                // An Ingress may name a host in several of its rules.
                Ok(host) if asked.len() > 1 && !known.insert(host.clone()) => {}
                Ok(host) => {
                    if let Err((host, why, rival)) = owners.claim(host, object) {
                        reject(&host.to_string(), format!("{}: {why}", reason::CLAIMED), Some(rival));
                    }
                }
            }
        }
    }
    let claims = owners.into_names().map(|(host, holder)| claim(host, &holder, rules));
    let mut claims: Vec<Claim> = claims.collect();
    claims.sort_unstable_by(|a, b| a.hostname.cmp(&b.hostname));
    (claims, rejected)
}

/// Hosts of Ingresses, with the Ingresses' uids.
type CoveredByRoutes<'a> = HashSet<(&'a str, &'a str), FixedState>;

/// Collects the hosts of Ingresses that have a Route: OpenShift makes a Route of each, which then speaks for both.
fn covered_by_routes<'a>(objects: &[&'a Object]) -> CoveredByRoutes<'a> {
    let made = objects
        .iter()
        .filter_map(|object| object.ingress.as_deref().map(|ingress| (ingress, object)));
    made.flat_map(|(ingress, object)| object.hostnames.iter().map(move |host| (ingress, host.as_str())))
        .collect()
}

/// Names, each once, that are not served because an object is left out as a whole; an empty name if it has none.
fn unserved_names<'a>(object: &'a Object, spoken_for: &CoveredByRoutes<'_>) -> BTreeSet<&'a str> {
    let hosts = object.hostnames.iter().map(String::as_str);
    if object.kind == ObjectKind::Ingress {
        return hosts
            .filter(|host| !spoken_for.contains(&(object.uid.as_str(), *host)))
            .collect();
    }
    let given = object.router_statuses.iter().map(|said| said.hostname.as_str());
    let given = given.filter(|host| object.hostnames.is_empty() && !host.is_empty());
    let names: BTreeSet<_> = hosts.chain(given).collect();
    if names.is_empty() { BTreeSet::from([""]) } else { names }
}

/// Name that an object asks for, as a person knows it.
fn displayed_name(object: &Object, text: &str, rules: &ClaimRules) -> String {
    match hostname_pattern(object, text, rules) {
        Ok(host) => host.to_string(),
        Err((host, _)) => host,
    }
}

fn no_hostname(kind: ObjectKind) -> String {
    let why = match kind {
        ObjectKind::Route => "it has no host, and no router has assigned one: set `spec.host`",
        ObjectKind::Ingress => "it serves every name: give its rules a host",
        ObjectKind::TlsRoute | ObjectKind::HttpRoute => {
            "it serves all names of its Gateway: give it hostnames, or give them to the Gateway's listeners and name the Gateway \
             by `gateways`"
        }
    };
    format!("{}: {why}", reason::NO_HOST)
}

/// Parses the name that an object asks for; on failure, the name as it is shown and the reason against it.
fn hostname_pattern(object: &Object, text: &str, rules: &ClaimRules) -> Result<HostnamePattern, (String, String)> {
    if text.is_empty() {
        return Err((String::new(), no_hostname(object.kind)));
    }
    let invalid = |why: &dyn std::fmt::Display| (text.to_owned(), format!("{}: {why}", reason::INVALID));
    let pattern = match object.kind {
        ObjectKind::Route => {
            let host = Hostname::parse(text.as_bytes()).map_err(|error| invalid(&error))?;
            if object.subdomain {
                let Some((_, domain)) = host.as_str().split_once('.') else {
                    return Err(invalid(
                        &"wildcardPolicy Subdomain needs a host with a domain, as in www.acme.test",
                    ));
                };
                Hostname::parse(domain.as_bytes()).map(HostnamePattern::Wildcard)
            } else {
                Ok(HostnamePattern::Exact(host))
            }
        }
        ObjectKind::Ingress | ObjectKind::TlsRoute | ObjectKind::HttpRoute => HostnamePattern::parse(text),
    };
    let pattern = pattern.map_err(|error| invalid(&error))?;
    if matches!(pattern, HostnamePattern::Wildcard(_)) && !rules.wildcards {
        let why = "wildcards are not served: set `wildcards: true` in the cluster's `kubernetes` to allow them";
        return Err((pattern.to_string(), format!("{}: {why}", reason::NOT_ADMITTED)));
    }
    Ok(pattern)
}

fn claim(hostname: HostnamePattern, holder: &NameOwners<'_>, rules: &ClaimRules) -> Claim {
    let first = holder.oldest;
    let decoded = annotations::decode(first);
    let (weight, mut notes, mut settings) = (decoded.weight, decoded.notes, vec![decoded.settings]);
    notes.extend(path_note(first));
    for other in &holder.others {
        let decoded = annotations::decode(other);
        let asked = decoded.weight;
        let unused = asked.filter(|_| asked != weight);
        let unused =
            unused.map(|asked| format!("its weight {asked} is ignored: the weight of the oldest object applies"));
        let more = decoded.notes.into_iter().chain(path_note(other)).chain(unused);
        notes.extend(more.map(|note| format!("{}: {note}", other.origin())));
        settings.push(decoded.settings);
    }
    let loosest = settings.iter().map(|settings| settings.insecure).min();
    let insecure = loosest.unwrap_or_default();
    let is_alike = settings.iter().all(|settings| settings.insecure == insecure);
    if is_alike && settings.iter().all(RouteSettings::is_empty) {
        settings.clear();
    }
    let all = || std::iter::once(first).chain(holder.others.iter().copied());
    let (termination, certificate) = tls(all(), &hostname, rules);
    let is_edge = termination.is_some() && all().all(|object| object.is_edge);
    Claim {
        depth: all()
            .map(|object| object.kind.depth())
            .max()
            .filter(|_| matches!(hostname, HostnamePattern::Wildcard(_)))
            .unwrap_or_default(),
        hostname,
        weight,
        owner: first.namespace.clone(),
        since: first.created_at(),
        origin: first.origin(),
        notes,
        settings,
        labels: all().map(|object| object.labels.clone()).collect(),
        termination,
        is_edge,
        insecure,
        certificate,
    }
}

/// Place where TLS of a name ends, if the objects that share it name one, and the oldest of their certificates. One of
/// them that passes TLS through decides for all: before TLS ends, a connection's path is not known.
fn tls<'a>(
    holders: impl Iterator<Item = &'a Object> + Clone,
    hostname: &HostnamePattern,
    rules: &ClaimRules,
) -> (Option<Termination>, Option<CertificateOrigin>) {
    if holders.clone().any(Object::passes_tls) {
        return (Some(Termination::Passthrough), None);
    }
    if !rules.takes_certificates {
        return (None, None);
    }
    let certificate = holders.clone().find_map(|object| object.certificate(hostname));
    let ends = certificate.is_some() || holders.clone().any(|object| object.ends_tls);
    (ends.then_some(Termination::Reencrypt), certificate)
}

fn path_note(object: &Object) -> Option<String> {
    let path = object.path.as_deref().filter(|path| !path.is_empty())?;
    let path = annotations::truncated(path);
    Some(if object.passthrough {
        format!("path {path}: ignored, because no router can read it in TLS that passes through")
    } else {
        format!("path {path}: left to the router, which gets all paths of the name")
    })
}
