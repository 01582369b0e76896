//! Names and the namespaces that own them: a name belongs to the namespace of its oldest claim.

use std::collections::hash_map::Entry;

use super::names::Map;
use super::{Kind, Object};
use crate::name::HostPattern;

/// Objects of one namespace that serve a name.
pub(super) struct Holder<'a> {
    /// Oldest object of the name.
    pub(super) first: &'a Object,
    /// Younger objects of the name, oldest first.
    pub(super) others: Vec<&'a Object>,
}

/// Names claimed so far. Claims come oldest first, so that no later one takes anything away.
pub(super) struct Owners<'a> {
    names: Map<HostPattern, Holder<'a>>,
    /// First object of each name and path, without the oldest object of a name: most names have only that one.
    paths: Map<(HostPattern, &'a str), &'a Object>,
    domains: Option<Domains<'a>>,
}

/// Refused claim: the name, the reason, and the object that has the name.
type Refusal<'a> = (HostPattern, &'static str, &'a Object);

impl<'a> Owners<'a> {
    /// Begins without claims. `wildcards`: whether wildcard names are served.
    pub(super) fn new(wildcards: bool) -> Self {
        Self {
            names: Map::default(),
            paths: Map::default(),
            domains: wildcards.then(Domains::default),
        }
    }

    pub(super) fn claim(&mut self, host: HostPattern, object: &'a Object) -> Result<(), Refusal<'a>> {
        if let Some((why, rival)) = self.rival(&host, object) {
            return Err((host, why, rival));
        }
        if let Some(domains) = &mut self.domains {
            domains.note(&host, object);
        }
        match self.names.entry(host) {
            Entry::Occupied(holder) => {
                if let Some(path) = &object.path {
                    self.paths.insert((holder.key().clone(), path), object);
                }
                holder.into_mut().others.push(object);
            }
            Entry::Vacant(place) => {
                place.insert(Holder {
                    first: object,
                    others: Vec::new(),
                });
            }
        }
        Ok(())
    }

    fn rival(&self, host: &HostPattern, object: &Object) -> Option<(&'static str, &'a Object)> {
        let holder = self.names.get(host);
        if let Some(holder) = holder
            && holder.first.namespace != object.namespace
        {
            return Some(("an older object of another namespace has the name", holder.first));
        }
        if let Some(domains) = &self.domains
            && let Some(rival) = domains.rival(host, object)
        {
            let why = match host {
                HostPattern::Exact(_) => "an older Route of another namespace has the wildcard above it",
                HostPattern::Wildcard(_) => "an older Route of another namespace has a name below it",
            };
            return Some((why, rival));
        }
        let (holder, path) = (holder?, object.path.as_deref()?);
        let twin = if holder.first.path.as_deref() == Some(path) {
            Some(holder.first)
        } else {
            self.paths.get(&(host.clone(), path)).copied()
        };
        twin.map(|rival| ("an older Route of the namespace has the same name and path", rival))
    }

    /// All names with the objects that serve them.
    pub(super) fn into_holders(self) -> impl Iterator<Item = (HostPattern, Holder<'a>)> {
        self.names.into_iter()
    }
}

/// Routes' names and the wildcards directly above them: OpenShift's router does not let a namespace take names out of
/// another's wildcard, or a wildcard over another's names. Other kinds have no such rule.
#[derive(Default)]
struct Domains<'a> {
    wildcards: Map<String, &'a Object>,
    /// Oldest Route below a domain, and the oldest Route there of any other namespace.
    names: Map<String, (&'a Object, Option<&'a Object>)>,
}

impl<'a> Domains<'a> {
    fn rival(&self, host: &HostPattern, object: &Object) -> Option<&'a Object> {
        if object.kind != Kind::Route {
            return None;
        }
        let foreign = |rival: &&'a Object| rival.namespace != object.namespace;
        match host {
            HostPattern::Exact(name) => {
                let (_, domain) = name.as_str().split_once('.')?;
                self.wildcards.get(domain).copied().filter(foreign)
            }
            HostPattern::Wildcard(domain) => {
                let (first, second) = *self.names.get(domain.as_str())?;
                Some(first).filter(foreign).or_else(|| second.filter(foreign))
            }
        }
    }

    fn note(&mut self, host: &HostPattern, object: &'a Object) {
        if object.kind != Kind::Route {
            return;
        }
        match host {
            HostPattern::Exact(name) => {
                let Some((_, domain)) = name.as_str().split_once('.') else {
                    return;
                };
                let (first, second) = self.names.entry(domain.to_owned()).or_insert((object, None));
                if second.is_none() && first.namespace != object.namespace {
                    *second = Some(object);
                }
            }
            HostPattern::Wildcard(domain) => {
                self.wildcards.entry(domain.as_str().to_owned()).or_insert(object);
            }
        }
    }
}
