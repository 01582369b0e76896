//! Gateways, and how the routes of the Gateway API name them.

use serde::Deserialize;
use serde_json::Value;
use signalbox_core::discovered::claims::{Admission, Gateway, GatewayListener, Parent};
use signalbox_core::model::kubernetes::GatewayName;

use super::{Metadata, or_null};

/// API group of the Gateway API: the default of a reference.
const GROUP: &str = "gateway.networking.k8s.io";

/// Reference of a route to its parent: the Gateway that should serve it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ParentRef {
    group: Option<String>,
    kind: Option<String>,
    namespace: Option<String>,
    name: String,
    section_name: Option<String>,
    port: Option<u16>,
}

impl ParentRef {
    /// Returns the Gateway that the parent names; `None` for a Service or another kind. `home`: the route's namespace.
    fn parent(self, home: &str) -> Option<Parent> {
        let of_group = self.group.as_deref().is_none_or(|group| group == GROUP);
        let is_gateway = of_group && self.kind.as_deref().is_none_or(|kind| kind == "Gateway");
        is_gateway.then(|| Parent {
            gateway: GatewayName {
                namespace: self.namespace.unwrap_or_else(|| home.to_owned()),
                name: self.name,
            },
            section_name: self.section_name,
            port: self.port,
            admission: Admission::Unknown,
        })
    }
}

/// Returns the Gateways among a route's parents. `said`: the controllers' conditions by reference. One acceptance is
/// enough.
pub(super) fn parents(refs: Vec<ParentRef>, said: &[(&ParentRef, Admission)], home: &str) -> Vec<Parent> {
    let said = said
        .iter()
        .filter_map(|(of, admission)| Some(((*of).clone().parent(home)?, admission)));
    let said: Vec<(Parent, &Admission)> = said.collect();
    let mut parents: Vec<Parent> = refs.into_iter().filter_map(|one| one.parent(home)).collect();
    for parent in &mut parents {
        let of_it = said
            .iter()
            .filter(|(of, _)| of == parent)
            .map(|(_, admission)| *admission);
        let word = of_it.max_by_key(|admission| match admission {
            Admission::Unknown => 0,
            Admission::Refused(_) => 1,
            Admission::Admitted => 2,
        });
        let word = word.cloned();
        parent.admission = word.unwrap_or(Admission::Unknown);
    }
    parents
}

#[derive(Deserialize)]
struct RawGateway {
    metadata: Metadata,
    spec: GatewaySpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GatewaySpec {
    gateway_class_name: String,
    #[serde(default, deserialize_with = "or_null")]
    listeners: Vec<ListenerSpec>,
}

#[derive(Deserialize)]
struct ListenerSpec {
    name: String,
    port: u16,
    protocol: String,
    hostname: Option<String>,
}

/// Decodes a Gateway.
///
/// # Errors
///
/// The object has no name, or a field that is used has not the type of the API.
pub fn gateway(value: &Value) -> Result<Gateway, serde_json::Error> {
    let RawGateway { metadata, spec } = RawGateway::deserialize(value)?;
    let listener = |listener: ListenerSpec| GatewayListener {
        name: listener.name,
        port: listener.port,
        protocol: listener.protocol,
        hostname: listener.hostname.unwrap_or_default(),
    };
    Ok(Gateway {
        name: GatewayName {
            namespace: metadata.namespace,
            name: metadata.name,
        },
        class: spec.gateway_class_name,
        listeners: spec.listeners.into_iter().map(listener).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use signalbox_core::discovered::claims::ObjectKind;

    #[test]
    fn a_route_names_its_gateways_and_their_controllers_answer() {
        let public = json!({"name": "public", "namespace": "infra", "sectionName": "web", "port": 80});
        let whole = json!({"group": GROUP, "kind": "Gateway", "name": "own"});
        let service = json!({"group": "", "kind": "Service", "name": "mesh"});
        let word = |of: &Value, status: &str| {
            json!({"parentRef": of, "controllerName": "example.com/c",
            "conditions": [{"type": "ResolvedRefs", "status": "True"}, {"type": "Accepted", "status": status, "reason": "R"}]})
        };
        let own = json!({"name": "own", "namespace": "shop"});
        let value = json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"hostnames": ["a.test"], "parentRefs": [public, whole, service, {"name": "new"}]},
            "status": {"parents": [word(&public, "False"), word(&public, "True"), word(&own, "False"),
                word(&json!({"name": "public", "namespace": "infra"}), "False")]},
        });
        let parents = super::super::object(ObjectKind::HttpRoute, &value).unwrap().parents;
        let shown: Vec<_> = parents
            .iter()
            .map(|one| (one.gateway.to_string(), &one.admission))
            .collect();
        let refused = Admission::Refused("R".into());
        assert_eq!(
            shown,
            [
                ("infra/public".to_owned(), &Admission::Admitted),
                ("shop/own".to_owned(), &refused),
                ("shop/new".to_owned(), &Admission::Unknown),
            ]
        );
        assert_eq!(
            (parents[0].section_name.as_deref(), parents[0].port),
            (Some("web"), Some(80))
        );
    }

    #[test]
    fn a_gateway_has_a_class_and_listeners() {
        let listeners = json!([{"name": "web", "port": 80, "protocol": "HTTP"},
            {"name": "tls", "port": 443, "protocol": "TLS", "hostname": "*.a.test", "tls": {"mode": "Passthrough"}}]);
        let metadata = json!({"name": "public", "namespace": "infra"});
        let of = |listeners: Value| json!({"metadata": metadata, "spec": {"gatewayClassName": "istio", "listeners": listeners}});
        let found = gateway(&of(listeners)).unwrap();
        assert_eq!(
            (found.name.to_string().as_str(), found.class.as_str()),
            ("infra/public", "istio")
        );
        let names: Vec<_> = found.listeners.iter().map(|one| one.hostname.as_str()).collect();
        assert_eq!(names, ["", "*.a.test"]);
        assert_eq!(gateway(&of(Value::Null)).unwrap().listeners, []);
        for bad in [
            json!([{"name": "web"}]),
            json!("web"),
            json!([{"name": "web", "port": 70_000, "protocol": "HTTP"}]),
        ] {
            assert!(gateway(&of(bad.clone())).is_err(), "{bad}");
        }
    }
}
