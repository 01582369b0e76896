//! Choice of the objects that the cluster's routers serve.

use signalbox_core::model::kubernetes::{GatewayName, Resource, RouterNames, ShardFilter};

use super::distinct;
use crate::map::MapDecoder;
use crate::node::{NodeKind, NodeRef, YamlNode};
use crate::report::{Report, quote};
use crate::scalar::optional_value;
use crate::selector;

/// Most routers, classes or Gateways: more are hardly one set of router hosts.
const MAX_NAMES: usize = 64;

/// Keys of the choice.
pub(super) struct ShardKeys<'a> {
    namespace_labels: Option<NodeRef<'a>>,
    router_name: Option<NodeRef<'a>>,
    ingress_class: Option<NodeRef<'a>>,
    gateways: Option<NodeRef<'a>>,
    gateway_class: Option<NodeRef<'a>>,
}

impl<'a> ShardKeys<'a> {
    pub(super) fn take(map: &mut MapDecoder<'a>) -> Self {
        Self {
            namespace_labels: map.take("namespace_labels"),
            router_name: map.take("router_name"),
            ingress_class: map.take("ingress_class"),
            gateways: map.take("gateways"),
            gateway_class: map.take("gateway_class"),
        }
    }

    /// Decodes the choice. `resources`: the resources that names are read from, if they are known. `own_pods`: where the
    /// file says which pods are routers.
    pub(super) fn decode(
        &self,
        resources: Option<&[Resource]>,
        own_pods: Option<&NodeRef<'_>>,
        report: &mut Report,
    ) -> Option<ShardFilter> {
        self.check_resources(resources, report);
        let namespace_labels = optional_value(self.namespace_labels.as_ref(), |place| selector::labels(place, report));
        let routers = self.routers(resources, own_pods, report);
        let classes = names(self.ingress_class.as_ref(), "classes", "a class of Ingresses", report);
        let gateways = optional_value(self.gateways.as_ref(), |place| {
            distinct(place, "Gateways", MAX_NAMES, report, gateway)
        });
        let gateway_classes = names(self.gateway_class.as_ref(), "classes", "a class of Gateways", report);
        if let (Some(_), Some(place)) = (&self.gateways, &self.gateway_class) {
            place.error(
                report,
                "`gateways` and `gateway_class` both select Gateways: give one of them",
            );
        }
        Some(ShardFilter {
            namespace_labels: namespace_labels?,
            routers: routers?,
            ingress_classes: classes?,
            gateways: gateways?.unwrap_or_default(),
            gateway_classes: gateway_classes?,
        })
    }

    /// Without `router_name`, OpenShift's default routers count, or every router if the file selects the pods.
    fn routers(
        &self,
        resources: Option<&[Resource]>,
        own_pods: Option<&NodeRef<'_>>,
        report: &mut Report,
    ) -> Option<RouterNames> {
        match (&self.router_name, own_pods) {
            (Some(place), _) if place.plain() == Some("any") => Some(RouterNames::Any),
            (Some(place), _) if has_any(place) => {
                let message = "`any` stands alone: write `router_name: any`, or the names of routers";
                place.error(report, message);
                None
            }
            (Some(place), _) => names(Some(place), "routers", "a router's name", report).map(RouterNames::Named),
            (None, None) => Some(RouterNames::Default),
            (None, Some(pods)) => {
                if resources.is_some_and(|resources| resources.contains(&Resource::Routes)) {
                    let message = "Routes count that any router has admitted, and these pods may not serve them: write \
                                   `router_name` with the name of these routers, or `router_name: any`";
                    pods.warn(report, message);
                }
                Some(RouterNames::Any)
            }
        }
    }

    /// Reports conditions on objects of resources that are not read.
    fn check_resources(&self, resources: Option<&[Resource]>, report: &mut Report) {
        let Some(resources) = resources else { return };
        let of_gateways = &[Resource::HttpRoutes, Resource::TlsRoutes][..];
        let keys = [
            (&self.router_name, "router_name", &[Resource::Routes][..], "Routes"),
            (
                &self.ingress_class,
                "ingress_class",
                &[Resource::Ingresses],
                "Ingresses",
            ),
            (&self.gateways, "gateways", of_gateways, "HTTPRoutes and TLSRoutes"),
            (
                &self.gateway_class,
                "gateway_class",
                of_gateways,
                "HTTPRoutes and TLSRoutes",
            ),
        ];
        for (place, key, of, words) in keys {
            let read = of.iter().any(|resource| resources.contains(resource));
            if let (Some(place), false) = (place, read) {
                place.error(
                    report,
                    format!("`{key}` selects {words}, which are missing in `resources`: add them, or leave it out"),
                );
            }
        }
    }
}

/// Whether a list of names has `any`.
fn has_any(place: &NodeRef<'_>) -> bool {
    let NodeKind::List(items) = &place.node.kind else {
        return false;
    };
    let is_any = |item: &YamlNode| matches!(&item.kind, NodeKind::Scalar { text, .. } if text == "any");
    items.iter().any(is_any)
}

/// Decodes a Gateway, written `NAMESPACE/NAME`.
fn gateway(place: &NodeRef<'_>, report: &mut Report) -> Option<GatewayName> {
    let text = place.text(report)?;
    let found = text
        .split_once('/')
        .filter(|(namespace, name)| selector::is_namespace(namespace) && selector::is_object_name(name));
    if found.is_none() {
        let shown = quote(text);
        place.error(
            report,
            format!("{shown} is not a Gateway: NAMESPACE/NAME, such as infra/public"),
        );
    }
    found.map(|(namespace, name)| GatewayName {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

/// Decodes a name, or a list of names.
fn names(place: Option<&NodeRef<'_>>, plural: &str, what: &str, report: &mut Report) -> Option<Vec<String>> {
    let Some(place) = place else {
        return Some(Vec::new());
    };
    if matches!(place.node.kind, NodeKind::List(_)) {
        return distinct(place, plural, MAX_NAMES, report, |item, report| {
            selector::object_name(item, what, report)
        });
    }
    selector::object_name(place, what, report).map(|name| vec![name])
}
