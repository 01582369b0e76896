//! Which objects the cluster's routers serve.

use signalbox_core::model::kubernetes::{Choice, Resource};

use super::distinct;
use crate::map::Map;
use crate::node::{Kind, Place};
use crate::report::Report;
use crate::scalar::maybe;
use crate::selector;

/// More routers, classes or Gateways than this are hardly one set of router hosts.
const MAX_NAMES: usize = 64;

/// The keys.
pub(super) struct Keys<'a> {
    namespace_labels: Option<Place<'a>>,
    router_name: Option<Place<'a>>,
    ingress_class: Option<Place<'a>>,
}

impl<'a> Keys<'a> {
    pub(super) fn take(map: &mut Map<'a>) -> Self {
        Self {
            namespace_labels: map.take("namespace_labels"),
            router_name: map.take("router_name"),
            ingress_class: map.take("ingress_class"),
        }
    }

    /// `resources`: what names are read from, if that is known.
    pub(super) fn decode(&self, resources: Option<&[Resource]>, report: &mut Report) -> Option<Choice> {
        self.check_company(resources, report);
        let namespace_labels = maybe(self.namespace_labels.as_ref(), |place| selector::labels(place, report));
        let router_names = names(self.router_name.as_ref(), "routers", "a router's name", report);
        let classes = names(self.ingress_class.as_ref(), "classes", "a class of Ingresses", report);
        Some(Choice {
            namespace_labels: namespace_labels?,
            router_names: router_names?,
            ingress_classes: classes?,
        })
    }

    /// What chooses among objects that are not read at all is a mistake.
    fn check_company(&self, resources: Option<&[Resource]>, report: &mut Report) {
        let Some(resources) = resources else { return };
        let keys = [
            (&self.router_name, "router_name", Resource::Routes, "Routes"),
            (&self.ingress_class, "ingress_class", Resource::Ingresses, "Ingresses"),
        ];
        for (place, key, of, words) in keys {
            if let (Some(place), false) = (place, resources.contains(&of)) {
                place.fault(
                    report,
                    format!("`{key}` chooses among {words}, which `resources` leaves out"),
                );
            }
        }
    }
}

/// One name, or a list of them.
fn names(place: Option<&Place<'_>>, plural: &str, what: &str, report: &mut Report) -> Option<Vec<String>> {
    let Some(place) = place else {
        return Some(Vec::new());
    };
    if matches!(place.node.kind, Kind::List(_)) {
        return distinct(place, plural, MAX_NAMES, report, |item, report| {
            selector::object_name(item, what, report)
        });
    }
    selector::object_name(place, what, report).map(|name| vec![name])
}
