//! Decodes objects that claim names: Routes, Ingresses, and the Gateway API's routes.

use serde::Deserialize;
use serde_json::Value;
use signalbox_core::discovered::claims::{self, Admission, HeaderActions, Object, ObjectKind, RouterStatus};
use signalbox_core::discovered::discovery::HeaderAction;

use super::gateways::{ParentRef, parents};
use super::{Condition, Metadata, certificates, or_null};

/// Condition by which a Gateway's controller says whether it serves a route.
const ACCEPTED: &str = "Accepted";

/// Annotation that named an Ingress' class before `ingressClassName` did.
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

/// Object of any kind: fields that a kind does not have stay empty.
#[derive(Deserialize)]
struct RawObject {
    metadata: Metadata,
    #[serde(default, deserialize_with = "or_null")]
    spec: Spec,
    #[serde(default, deserialize_with = "or_null")]
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    /// Field of a Route.
    host: Option<String>,
    path: Option<String>,
    wildcard_policy: Option<String>,
    #[serde(deserialize_with = "or_null")]
    tls: Value,
    #[serde(deserialize_with = "or_null")]
    http_headers: HttpHeaders,
    /// Field of an Ingress.
    ingress_class_name: Option<String>,
    #[serde(deserialize_with = "or_null")]
    rules: Vec<Value>,
    /// Field of the Gateway API's routes.
    #[serde(deserialize_with = "or_null")]
    hostnames: Vec<String>,
    #[serde(deserialize_with = "or_null")]
    parent_refs: Vec<ParentRef>,
}

/// Fields that a Route changes.
#[derive(Default, Deserialize)]
#[serde(default)]
struct HttpHeaders {
    #[serde(deserialize_with = "or_null")]
    actions: RawActions,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawActions {
    #[serde(deserialize_with = "or_null")]
    request: Vec<RawAction>,
    #[serde(deserialize_with = "or_null")]
    response: Vec<RawAction>,
}

#[derive(Deserialize)]
struct RawAction {
    name: String,
    action: RawChange,
}

/// Change of a field: `Set` with a value, or `Delete`.
#[derive(Deserialize)]
struct RawChange {
    set: Option<RawValue>,
}

#[derive(Deserialize)]
struct RawValue {
    value: String,
}

impl RawActions {
    fn decoded(self) -> HeaderActions {
        let decode = |actions: Vec<RawAction>| {
            let actions = actions.into_iter().map(|RawAction { name, action }| HeaderAction {
                name,
                value: action.set.map(|set| set.value),
            });
            actions.collect()
        };
        HeaderActions {
            request: decode(self.request),
            response: decode(self.response),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    /// Status of a Route. (An Ingress' status has no such field.)
    #[serde(deserialize_with = "or_null")]
    ingress: Vec<RawRouterStatus>,
    /// Status of the Gateway API's routes.
    #[serde(deserialize_with = "or_null")]
    parents: Vec<RawRouterStatus>,
}

/// Status by one router or Gateway.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawRouterStatus {
    host: Option<String>,
    router_name: Option<String>,
    parent_ref: Option<ParentRef>,
    #[serde(deserialize_with = "or_null")]
    conditions: Vec<Condition>,
}

/// Decodes an object that claims names.
///
/// # Errors
///
/// The object has no name, or a field that is used has not the type of the API.
pub fn object(kind: ObjectKind, value: &Value) -> Result<Object, serde_json::Error> {
    let RawObject { metadata, spec, status } = RawObject::deserialize(value)?;
    let (certificates, ends_tls) = certificates::named(kind, &spec.tls)?;
    let ingress = metadata
        .owner_references
        .into_iter()
        .find(|owner| owner.kind == "Ingress");
    let accepted = status.parents.iter();
    let accepted = accepted.filter_map(|word| Some((word.parent_ref.as_ref()?, admission(&word.conditions, ACCEPTED))));
    let parents = parents(spec.parent_refs, &accepted.collect::<Vec<_>>(), &metadata.namespace);
    let said = match kind {
        ObjectKind::Route => status
            .ingress
            .into_iter()
            .map(|word| word.router_status("Admitted"))
            .collect(),
        ObjectKind::Ingress => Vec::new(),
        ObjectKind::TlsRoute | ObjectKind::HttpRoute => status
            .parents
            .into_iter()
            .map(|word| word.router_status(ACCEPTED))
            .collect(),
    };
    Ok(Object {
        kind,
        hostnames: match kind {
            ObjectKind::Route => spec.host.filter(|host| !host.is_empty()).into_iter().collect(),
            ObjectKind::Ingress => spec.rules.iter().map(rule_host).collect(),
            ObjectKind::TlsRoute | ObjectKind::HttpRoute => spec.hostnames,
        },
        path: (kind == ObjectKind::Route).then(|| spec.path.unwrap_or_default()),
        subdomain: kind == ObjectKind::Route && spec.wildcard_policy.as_deref() == Some("Subdomain"),
        passthrough: spec.tls.get("termination").and_then(Value::as_str) == Some("passthrough"),
        certificates,
        ends_tls,
        // An Ingress knows no other way.
        is_edge: kind == ObjectKind::Ingress || spec.tls.get("termination").and_then(Value::as_str) == Some("edge"),
        insecure: match kind {
            ObjectKind::Route => spec.tls.get("insecureEdgeTerminationPolicy").and_then(policy_text),
            ObjectKind::Ingress | ObjectKind::TlsRoute | ObjectKind::HttpRoute => None,
        },
        router_statuses: said,
        parents,
        // The older annotation counts before the field, as the API has it.
        class: match kind {
            ObjectKind::Ingress => metadata
                .annotations
                .get(CLASS_ANNOTATION)
                .cloned()
                .or(spec.ingress_class_name),
            ObjectKind::Route | ObjectKind::TlsRoute | ObjectKind::HttpRoute => None,
        },
        ingress: ingress.filter(|_| kind == ObjectKind::Route).map(|owner| owner.uid),
        namespace: metadata.namespace,
        name: metadata.name,
        uid: metadata.uid,
        created: metadata.creation_timestamp,
        annotations: metadata
            .annotations
            .into_iter()
            .filter(|(key, _)| claims::is_known_annotation(key))
            .collect(),
        header_actions: match kind {
            ObjectKind::Route => spec.http_headers.actions.decoded(),
            ObjectKind::Ingress | ObjectKind::TlsRoute | ObjectKind::HttpRoute => HeaderActions::default(),
        },
        labels: metadata.labels,
    })
}

/// Returns a policy as its object writes it; one that is no string is for a note.
fn policy_text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// Returns the host of a rule. A rule without one is for every name: the empty name is then rejected.
fn rule_host(rule: &Value) -> String {
    rule.get("host").and_then(Value::as_str).unwrap_or_default().to_owned()
}

impl RawRouterStatus {
    /// Returns the verdict of a router. `kind`: the condition that says whether the object is served.
    fn router_status(self, kind: &str) -> RouterStatus {
        RouterStatus {
            router: self.router_name.unwrap_or_default(),
            hostname: self.host.unwrap_or_default(),
            admission: admission(&self.conditions, kind),
        }
    }
}

fn admission(conditions: &[Condition], kind: &str) -> Admission {
    let Some(condition) = conditions.iter().find(|condition| condition.kind == kind) else {
        return Admission::Unknown;
    };
    match condition.status.as_str() {
        "True" => Admission::Admitted,
        "False" => Admission::Refused(match (condition.reason.as_str(), condition.message.as_str()) {
            ("", message) => message.to_owned(),
            (reason, "") => reason.to_owned(),
            (reason, message) => format!("{reason}: {message}"),
        }),
        // `Unknown` is not yet a refusal.
        _ => Admission::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_route_as_openshift_writes_it() {
        let value = json!({
            "apiVersion": "route.openshift.io/v1", "kind": "Route",
            "metadata": {"name": "web", "namespace": "shop", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
                "resourceVersion": "7", "labels": {"app": "shop"}, "annotations": {"signalbox.io/weight": "5", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
                "ownerReferences": [{"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "name": "i", "uid": "iu"}]},
            "spec": {"host": "app.test", "path": "/x", "to": {"kind": "Service", "name": "web", "weight": 100},
                "tls": {"termination": "passthrough"}, "wildcardPolicy": "Subdomain"},
            "status": {"ingress": [{"host": "app.test", "routerName": "default", "conditions": [
                {"type": "Admitted", "status": "False", "reason": "HostAlreadyClaimed", "message": "taken"}]}]},
        });
        let route = object(ObjectKind::Route, &value).unwrap();
        assert_eq!(
            (route.hostnames, route.path.as_deref()),
            (vec!["app.test".to_owned()], Some("/x"))
        );
        assert!(route.subdomain && route.passthrough);
        assert_eq!(route.labels, [("app".to_owned(), "shop".to_owned())].into());
        let refused = RouterStatus {
            router: "default".into(),
            hostname: "app.test".into(),
            admission: Admission::Refused("HostAlreadyClaimed: taken".into()),
        };
        assert_eq!(route.router_statuses, [refused]);
        assert_eq!(route.ingress.as_deref(), Some("iu"));
        assert_eq!(
            route.annotations.into_iter().collect::<Vec<_>>(),
            [("signalbox.io/weight".into(), "5".into())]
        );
    }

    #[test]
    fn a_route_changes_fields() {
        let set = json!([{"name": "X-Env", "action": {"type": "Set", "set": {"value": "prod"}}}]);
        let delete = json!([{"name": "Server", "action": {"type": "Delete"}}]);
        let value = json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"host": "app.test", "tls": {"termination": "edge"},
                "httpHeaders": {"actions": {"request": set, "response": delete}}},
        });
        let route = object(ObjectKind::Route, &value).unwrap();
        let action = |name: &str, value: Option<&str>| HeaderAction {
            name: name.into(),
            value: value.map(str::to_owned),
        };
        assert_eq!(route.header_actions.request, [action("X-Env", Some("prod"))]);
        assert_eq!(route.header_actions.response, [action("Server", None)]);
        assert!(route.is_edge && route.ends_tls && route.insecure.is_none());
        let bare = json!({"metadata": {"name": "web"}, "spec": {"httpHeaders": {"actions": null}}});
        assert_eq!(
            object(ObjectKind::Route, &bare).unwrap().header_actions,
            HeaderActions::default()
        );
    }

    #[test]
    fn a_route_says_what_becomes_of_plain_http() {
        let insecure = |policy: Value| {
            let tls = json!({"termination": "edge", "insecureEdgeTerminationPolicy": policy});
            let value = json!({"metadata": {"name": "web"}, "spec": {"tls": tls}});
            object(ObjectKind::Route, &value).unwrap().insecure
        };
        assert_eq!(insecure(json!("Redirect")).as_deref(), Some("Redirect"));
        assert_eq!(
            insecure(json!(5)).as_deref(),
            Some("5"),
            "it is noted, and loses nothing"
        );
        assert_eq!(insecure(Value::Null), None);
    }

    #[test]
    fn each_router_says_under_which_host_it_serves_a_route() {
        let word = |router: &str, host: &str, conditions: Value| json!({"routerName": router, "host": host, "conditions": conditions});
        let value = json!({
            "metadata": {"name": "web", "namespace": "shop", "annotations": null},
            "spec": {"host": "", "subdomain": "web", "tls": null},
            "status": {"ingress": [
                word("internal", "web.b.test", json!([{"type": "Admitted", "status": "Unknown"}])),
                word("default", "web.a.test", json!([{"type": "UnservableInFutureVersions", "status": "False"},
                    {"type": "Admitted", "status": "True"}])),
                {"conditions": null}]},
        });
        let route = object(ObjectKind::Route, &value).unwrap();
        assert_eq!((route.hostnames.len(), route.path.as_deref()), (0, Some("")));
        let said: Vec<_> = route
            .router_statuses
            .iter()
            .map(|said| (said.router.as_str(), said.hostname.as_str(), &said.admission))
            .collect();
        let unsaid = &Admission::Unknown;
        let expected = [
            ("internal", "web.b.test", unsaid),
            ("default", "web.a.test", &Admission::Admitted),
            ("", "", unsaid),
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn the_others_as_kubernetes_writes_them() {
        let metadata = json!({"name": "web", "namespace": "shop", "uid": "u"});
        let rules = json!([{"host": "a.test", "http": {"paths": []}}, {"http": null}]);
        let balancer = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
        let value =
            json!({"metadata": metadata, "spec": {"rules": rules, "tls": [{"hosts": ["a.test"]}]}, "status": balancer});
        let ingress = object(ObjectKind::Ingress, &value).unwrap();
        assert_eq!(
            (ingress.hostnames, ingress.path),
            (vec!["a.test".to_owned(), String::new()], None)
        );
        assert_eq!(ingress.class, None);
        let of_class = |annotations: Value, class: Value| {
            let metadata = json!({"name": "web", "annotations": annotations});
            let value = json!({"metadata": metadata, "spec": {"ingressClassName": class}});
            object(ObjectKind::Ingress, &value).unwrap().class
        };
        assert_eq!(of_class(Value::Null, json!("public")).as_deref(), Some("public"));
        let older = json!({"kubernetes.io/ingress.class": "nginx"});
        assert_eq!(of_class(older.clone(), Value::Null).as_deref(), Some("nginx"));
        assert_eq!(of_class(older, json!("public")).as_deref(), Some("nginx"));
        let parents = json!([{"conditions": [{"type": "Accepted", "status": "False", "reason": "NoMatchingParent"}]}]);
        let value = json!({"metadata": metadata, "spec": {"hostnames": ["a.test", "*.b.test"]}, "status": {"parents": parents}});
        let route = object(ObjectKind::TlsRoute, &value).unwrap();
        assert_eq!(route.hostnames.len(), 2);
        assert_eq!(
            route.router_statuses[0].admission,
            Admission::Refused("NoMatchingParent".into())
        );
        let value = json!({"metadata": metadata});
        let bare = object(ObjectKind::HttpRoute, &value).unwrap();
        assert_eq!((bare.hostnames.len(), bare.router_statuses.len()), (0, 0));
    }

    #[test]
    fn objects_with_fields_of_the_wrong_type_are_refused() {
        for value in [
            json!(null),
            json!([]),
            json!({"spec": {"host": "a.test"}}),
            json!({"metadata": {"name": 5}}),
            json!({"metadata": {"name": "a"}, "spec": {"host": ["a.test"]}}),
            json!({"metadata": {"name": "a"}, "spec": {"hostnames": "a.test"}}),
            json!({"metadata": {"name": "a"}, "status": 5}),
        ] {
            assert!(object(ObjectKind::Route, &value).is_err(), "{value}");
        }
    }
}
