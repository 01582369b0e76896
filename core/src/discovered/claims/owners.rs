//! Names and the namespaces that own them: a name belongs to the namespace of its oldest claim.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use foldhash::fast::FixedState;

use super::{Object, ObjectKind};
use crate::wire::hostname::HostnamePattern;

/// Hash map whose seed is fixed, so that each run gives the same result, as everywhere in `core`.
type FixedMap<K, V> = HashMap<K, V, FixedState>;

/// Objects of one namespace that serve a name.
pub(super) struct NameOwners<'a> {
    /// Oldest object of the name.
    pub(super) oldest: &'a Object,
    /// Younger objects of the name, oldest first.
    pub(super) others: Vec<&'a Object>,
}

/// Names claimed so far. Claims come oldest first, so that no later one takes anything away.
pub(super) struct OwnerTable<'a> {
    names: FixedMap<HostnamePattern, NameOwners<'a>>,
    /// First object of each name and path, without the oldest object of a name: most names have only that one.
    paths: FixedMap<(HostnamePattern, &'a str), &'a Object>,
    domains: Option<Domains<'a>>,
}

/// Refused claim: the name, the reason, and the object that has the name.
type ClaimConflict<'a> = (HostnamePattern, &'static str, &'a Object);

impl<'a> OwnerTable<'a> {
    /// Begins without claims. `wildcards`: whether wildcard names are served.
    pub(super) fn new(wildcards: bool) -> Self {
        Self {
            names: FixedMap::default(),
            paths: FixedMap::default(),
            domains: wildcards.then(Domains::default),
        }
    }

    pub(super) fn claim(&mut self, hostname: HostnamePattern, object: &'a Object) -> Result<(), ClaimConflict<'a>> {
        if let Some((why, rival)) = self.rival(&hostname, object) {
            return Err((hostname, why, rival));
        }
        if let Some(domains) = &mut self.domains {
            domains.insert(&hostname, object);
        }
        match self.names.entry(hostname) {
            Entry::Occupied(holder) => {
                if let Some(path) = &object.path {
                    self.paths.insert((holder.key().clone(), path), object);
                }
                holder.into_mut().others.push(object);
            }
            Entry::Vacant(place) => {
                place.insert(NameOwners {
                    oldest: object,
                    others: Vec::new(),
                });
            }
        }
        Ok(())
    }

    fn rival(&self, hostname: &HostnamePattern, object: &Object) -> Option<(&'static str, &'a Object)> {
        let holder = self.names.get(hostname);
        if let Some(holder) = holder
            && holder.oldest.namespace != object.namespace
        {
            return Some(("an older object of another namespace has the name", holder.oldest));
        }
        if let Some(domains) = &self.domains
            && let Some(rival) = domains.rival(hostname, object)
        {
            let why = match hostname {
                HostnamePattern::Exact(_) => "an older Route of another namespace has the wildcard above it",
                HostnamePattern::Wildcard(_) => "an older Route of another namespace has a name below it",
            };
            return Some((why, rival));
        }
        let (holder, path) = (holder?, object.path.as_deref()?);
        let twin = if holder.oldest.path.as_deref() == Some(path) {
            Some(holder.oldest)
        } else {
            self.paths.get(&(hostname.clone(), path)).copied()
        };
        twin.map(|rival| ("an older Route of the namespace has the same name and path", rival))
    }

    /// All names with the objects that serve them.
    pub(super) fn into_names(self) -> impl Iterator<Item = (HostnamePattern, NameOwners<'a>)> {
        self.names.into_iter()
    }
}

/// Routes' names and the wildcards directly above them: OpenShift's router does not let a namespace take names out of
/// another's wildcard, or a wildcard over another's names. Other kinds have no such rule.
#[derive(Default)]
struct Domains<'a> {
    wildcards: FixedMap<String, &'a Object>,
    /// Oldest Route below a domain, and the oldest Route there of any other namespace.
    names: FixedMap<String, (&'a Object, Option<&'a Object>)>,
}

impl<'a> Domains<'a> {
    fn rival(&self, hostname: &HostnamePattern, object: &Object) -> Option<&'a Object> {
        if object.kind != ObjectKind::Route {
            return None;
        }
        let foreign = |rival: &&'a Object| rival.namespace != object.namespace;
        match hostname {
            HostnamePattern::Exact(name) => {
                let (_, domain) = name.as_str().split_once('.')?;
                self.wildcards.get(domain).copied().filter(foreign)
            }
            HostnamePattern::Wildcard(domain) => {
                let (first, second) = *self.names.get(domain.as_str())?;
                Some(first).filter(foreign).or_else(|| second.filter(foreign))
            }
        }
    }

    fn insert(&mut self, hostname: &HostnamePattern, object: &'a Object) {
        if object.kind != ObjectKind::Route {
            return;
        }
        match hostname {
            HostnamePattern::Exact(name) => {
                let Some((_, domain)) = name.as_str().split_once('.') else {
                    return;
                };
                let (first, second) = self.names.entry(domain.to_owned()).or_insert((object, None));
                if second.is_none() && first.namespace != object.namespace {
                    *second = Some(object);
                }
            }
            HostnamePattern::Wildcard(domain) => {
                self.wildcards.entry(domain.as_str().to_owned()).or_insert(object);
            }
        }
    }
}
