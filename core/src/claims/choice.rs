//! Decides which objects the cluster's routers serve, and which names each of these objects asks for.
//!
//! One API server may have several sets of routers (shards), chosen by the labels of Routes and of their namespaces.
//! Each router writes into a Route's status whether it serves that Route. An object that other routers serve is left
//! out: this cluster's routers would answer requests for its names with 503.

use std::collections::HashSet;

use foldhash::fast::FixedState;

use super::gateways::Gateways;
use super::{Admission, Kind, Object, Rules, Said, Seen, annotations, reason};
use crate::model::kubernetes::Choice;

/// Most routers that a reason names.
const MAX_NAMED: usize = 4;

/// Names that an object asks the cluster's routers to serve.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Asked<'a> {
    /// Names, as the object writes them.
    pub(super) names: Vec<&'a str>,
    /// Names that the routers do not serve for the object, each with the reason.
    pub(super) dropped: Vec<(&'a str, String)>,
}

/// Decides which objects are served, by the configuration and by what is seen of the cluster.
pub(super) struct Chooser<'a> {
    choice: &'a Choice,
    /// Whether labels, of object or namespace, have already chosen the objects that reach the check of routers.
    labelled: bool,
    namespaces: Option<HashSet<&'a str, FixedState>>,
    /// Default classes, which Ingresses without a class have; `None`: signalbox may not list classes.
    default_classes: Option<Vec<&'a str>>,
    gateways: Gateways<'a>,
}

impl<'a> Asked<'a> {
    /// All names that an object itself asks for.
    pub(super) fn all(object: &'a Object) -> Self {
        Self {
            names: object.hosts.iter().map(String::as_str).collect(),
            dropped: Vec::new(),
        }
    }
}

impl<'a> Chooser<'a> {
    pub(super) fn new(seen: &Seen<'a>, rules: &'a Rules) -> Self {
        let defaults = seen.ingress_classes.as_ref().map(|all| {
            let defaults = all.iter().filter(|class| class.is_default);
            defaults.map(|class| class.name.as_str()).collect()
        });
        let namespaces = seen.namespaces.as_ref().map(|all| all.iter().copied().collect());
        Self {
            labelled: rules.labelled || (rules.choice.namespace_labels.is_some() && namespaces.is_some()),
            choice: &rules.choice,
            namespaces,
            default_classes: defaults,
            gateways: Gateways::new(seen.gateways.as_deref(), &rules.choice),
        }
    }

    /// Names that an object asks the cluster's routers to serve, or why other routers serve the object.
    pub(super) fn asked<'o>(&'o self, object: &'o Object) -> Result<Asked<'o>, String> {
        self.check_namespace(object)?;
        self.check_class(object)?;
        if self.choice.by_gateway() && matches!(object.kind, Kind::TlsRoute | Kind::HttpRoute) {
            return self.gateways.asked(object);
        }
        let said: Vec<&Said> = object.said.iter().filter(|said| self.counts(object, said)).collect();
        let admitted = self.check_routers(object, &said)?;
        if !object.hosts.is_empty() || object.kind != Kind::Route {
            return Ok(Asked::all(object));
        }
        // A Route without a host of its own gets its names from routers, by `subdomain` or a template.
        let mut given: Vec<&str> = Vec::new();
        for host in admitted {
            if !host.is_empty() && !given.contains(&host) {
                given.push(host);
            }
        }
        Ok(Asked {
            names: given,
            dropped: Vec::new(),
        })
    }

    fn check_namespace(&self, object: &Object) -> Result<(), String> {
        let Some(labels) = &self.choice.namespace_labels else {
            return Ok(());
        };
        let other = |why: &str| Err(format!("{}: {why}", reason::OTHER_NAMESPACE));
        match &self.namespaces {
            Some(namespaces) if namespaces.contains(object.namespace.as_str()) => Ok(()),
            Some(_) => other(&format!(
                "its namespace does not match `{}`",
                annotations::short(labels)
            )),
            // Routers of a shard write only into the status of that shard's Routes.
            None if object.kind == Kind::Route && !self.choice.router_names.is_empty() => Ok(()),
            None => other("the labels of its namespace may not be read"),
        }
    }

    fn check_class(&self, object: &Object) -> Result<(), String> {
        let wanted = &self.choice.ingress_classes;
        if object.kind != Kind::Ingress || wanted.is_empty() {
            return Ok(());
        }
        let is_wanted = |class: &str| wanted.iter().any(|wanted| wanted == class);
        let why = match (&object.class, &self.default_classes) {
            (Some(class), _) if is_wanted(class) => return Ok(()),
            (Some(class), _) => format!("its class is {}", annotations::short(class)),
            (None, Some(defaults)) if defaults.iter().any(|class| is_wanted(class)) => return Ok(()),
            (None, Some(_)) => {
                let wanted = annotations::short(&wanted.join(" or "));
                format!("it names no class, and {wanted} is not the default one")
            }
            (None, None) => "it names no class, and which one is the default may not be read".to_owned(),
        };
        Err(format!("{}: {why}", reason::OTHER_CLASS))
    }

    /// Whether a status entry was written by one of the configured routers.
    fn counts(&self, object: &Object, said: &Said) -> bool {
        let names = &self.choice.router_names;
        object.kind != Kind::Route || names.is_empty() || names.contains(&said.router)
    }

    /// Hosts under which routers serve the object. `said`: status entries of the configured routers alone.
    fn check_routers<'o>(&self, object: &Object, said: &[&'o Said]) -> Result<Vec<&'o str>, String> {
        let admitted = said.iter().filter(|said| said.admission == Admission::Admitted);
        let admitted: Vec<&str> = admitted.map(|said| said.host.as_str()).collect();
        if !admitted.is_empty() {
            return Ok(admitted);
        }
        let refusal = said.iter().find_map(|said| match &said.admission {
            Admission::Refused(why) => Some(why),
            Admission::Admitted | Admission::Unsaid => None,
        });
        if let Some(why) = refusal {
            return Err(format!("{}: {}", reason::NOT_ADMITTED, annotations::short(why)));
        }
        self.check_silence(object).map(|()| Vec::new())
    }

    /// Decides on an object that no configured router has written about. A Route chosen by router names alone waits;
    /// labels tell beforehand which routers a new Route belongs to.
    fn check_silence(&self, object: &Object) -> Result<(), String> {
        let names = &self.choice.router_names;
        if object.kind != Kind::Route || names.is_empty() {
            return Ok(());
        }
        let others = object.said.iter().filter(|said| !self.counts(object, said));
        let others: Vec<&str> = others.map(|said| said.router.as_str()).take(MAX_NAMED).collect();
        if others.is_empty() && self.labelled {
            return Ok(());
        }
        let wanted = annotations::short(&names.join(" or "));
        let heard = match others.as_slice() {
            [] => "no other has spoken of it either".to_owned(),
            others => format!("spoken of by router {}", annotations::short(&others.join(", "))),
        };
        Err(format!(
            "{}: not admitted by router {wanted}; {heard}",
            reason::OTHER_ROUTER
        ))
    }
}
