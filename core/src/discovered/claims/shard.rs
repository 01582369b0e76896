//! Decides which objects the cluster's routers serve, and which names each of these objects asks for.
//!
//! One API server may have several sets of routers (shards), chosen by the labels of Routes and of their namespaces.
//! Each router writes into a Route's status whether the router serves that Route. An object that other routers serve is
//! left out: this cluster's routers would answer requests for its names with 503.

use std::collections::HashSet;

use foldhash::fast::FixedState;

use super::gateways::SelectedGateways;
use super::object::RequestedNames;
use super::{Admission, ClaimRules, ClusterObjects, Object, ObjectKind, RouterStatus, annotations, reason};
use crate::model::kubernetes::ShardFilter;

/// Most routers that a reason names.
const MAX_NAMED: usize = 4;

/// Decides which objects are served, by the configuration and the state of the cluster.
pub(super) struct ShardMatcher<'a> {
    shard: &'a ShardFilter,
    /// Whether labels, of object or namespace, have already chosen the objects that reach the check of routers.
    filtered_by_label: bool,
    namespaces: Option<HashSet<&'a str, FixedState>>,
    /// Default classes, which Ingresses without a class have; `None`: signalbox may not list classes.
    default_classes: Option<Vec<&'a str>>,
    gateways: SelectedGateways<'a>,
}

impl<'a> ShardMatcher<'a> {
    pub(super) fn new(objects: &ClusterObjects<'a>, rules: &'a ClaimRules) -> Self {
        let defaults = objects.ingress_classes.as_ref().map(|all| {
            let defaults = all.iter().filter(|class| class.is_default);
            defaults.map(|class| class.name.as_str()).collect()
        });
        let namespaces = objects.namespaces.as_ref().map(|all| all.iter().copied().collect());
        Self {
            filtered_by_label: rules.filtered_by_label
                || (rules.shard.namespace_labels.is_some() && namespaces.is_some()),
            shard: &rules.shard,
            namespaces,
            default_classes: defaults,
            gateways: SelectedGateways::new(objects.gateways.as_deref(), &rules.shard),
        }
    }

    /// Names that an object asks the cluster's routers to serve, or why other routers serve the object.
    pub(super) fn requested_names<'o>(&'o self, object: &'o Object) -> Result<RequestedNames<'o>, String> {
        self.check_namespace(object)?;
        self.check_class(object)?;
        if self.shard.filters_gateways() && matches!(object.kind, ObjectKind::TlsRoute | ObjectKind::HttpRoute) {
            return self.gateways.requested_names(object);
        }
        let said: Vec<&RouterStatus> = object
            .router_statuses
            .iter()
            .filter(|said| self.is_own_router(object, said))
            .collect();
        let admitted = self.check_routers(object, &said)?;
        if !object.hostnames.is_empty() || object.kind != ObjectKind::Route {
            return Ok(RequestedNames::all(object));
        }
        // A Route without `host` gets its names from routers, by `subdomain` or a template.
        let mut given: Vec<&str> = Vec::new();
        for host in admitted {
            if !host.is_empty() && !given.contains(&host) {
                given.push(host);
            }
        }
        Ok(RequestedNames {
            names: given,
            unserved: Vec::new(),
        })
    }

    fn check_namespace(&self, object: &Object) -> Result<(), String> {
        let Some(labels) = &self.shard.namespace_labels else {
            return Ok(());
        };
        let other = |why: &str| Err(format!("{}: {why}", reason::OTHER_NAMESPACE));
        match &self.namespaces {
            Some(namespaces) if namespaces.contains(object.namespace.as_str()) => Ok(()),
            Some(_) => other(&format!(
                "its namespace does not match `{}`",
                annotations::truncated(labels)
            )),
            // Routers of a shard write only into the status of that shard's Routes.
            None if object.kind == ObjectKind::Route && !self.shard.routers.named().is_empty() => Ok(()),
            None => other("signalbox may not read the labels of its namespace"),
        }
    }

    fn check_class(&self, object: &Object) -> Result<(), String> {
        let wanted = &self.shard.ingress_classes;
        if object.kind != ObjectKind::Ingress || wanted.is_empty() {
            return Ok(());
        }
        let is_wanted = |class: &str| wanted.iter().any(|wanted| wanted == class);
        let why = match (&object.class, &self.default_classes) {
            (Some(class), _) if is_wanted(class) => return Ok(()),
            (Some(class), _) => format!("its class is {}", annotations::truncated(class)),
            (None, Some(defaults)) if defaults.iter().any(|class| is_wanted(class)) => return Ok(()),
            (None, Some(_)) => {
                let wanted = annotations::truncated(&wanted.join(" or "));
                format!("it names no class, and {wanted} is not the default one")
            }
            (None, None) => "it names no class, and signalbox may not read which class is the default".to_owned(),
        };
        Err(format!("{}: {why}", reason::OTHER_CLASS))
    }

    /// Whether a status entry was written by one of the configured routers.
    fn is_own_router(&self, object: &Object, said: &RouterStatus) -> bool {
        object.kind != ObjectKind::Route || self.shard.routers.counts(&said.router)
    }

    /// Hosts under which routers serve the object. `said`: status entries of the configured routers alone.
    fn check_routers<'o>(&self, object: &Object, said: &[&'o RouterStatus]) -> Result<Vec<&'o str>, String> {
        let admitted = said.iter().filter(|said| said.admission == Admission::Admitted);
        let admitted: Vec<&str> = admitted.map(|said| said.hostname.as_str()).collect();
        if !admitted.is_empty() {
            return Ok(admitted);
        }
        let refusal = said.iter().find_map(|said| match &said.admission {
            Admission::Refused(why) => Some(why),
            Admission::Admitted | Admission::Unknown => None,
        });
        if let Some(why) = refusal {
            return Err(format!("{}: {}", reason::NOT_ADMITTED, annotations::truncated(why)));
        }
        self.check_unadmitted(object).map(|()| Vec::new())
    }

    /// Decides on an object that no configured router has written about. A Route chosen by router names alone waits;
    /// labels tell beforehand which routers a new Route belongs to. Without names, a Route without any status counts.
    fn check_unadmitted(&self, object: &Object) -> Result<(), String> {
        let routers = &self.shard.routers;
        if object.kind != ObjectKind::Route {
            return Ok(());
        }
        let others = object
            .router_statuses
            .iter()
            .filter(|said| !self.is_own_router(object, said));
        let others: Vec<&str> = others.map(|said| said.router.as_str()).take(MAX_NAMED).collect();
        if others.is_empty() && (routers.named().is_empty() || self.filtered_by_label) {
            return Ok(());
        }
        let wanted = match routers.named() {
            [] => "OpenShift's default ones, since `router_name` is not set".to_owned(),
            names => annotations::truncated(&names.join(" or ")),
        };
        let heard = match others.as_slice() {
            [] => "no other router has reported on it either".to_owned(),
            others => format!("reported by router {}", annotations::truncated(&others.join(", "))),
        };
        Err(format!(
            "{}: not admitted by router {wanted}; {heard}",
            reason::OTHER_ROUTER
        ))
    }
}
