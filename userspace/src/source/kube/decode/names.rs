//! What asks for names: Routes, Ingresses, and the Gateway API's routes.

use serde::Deserialize;
use serde_json::Value;
use signalbox_core::claims::{self, Admission, Kind, Object};

use super::{Condition, Metadata, or_null};

/// Any of them: what one has not, it does not ask for.
#[derive(Deserialize)]
struct Whole {
    metadata: Metadata,
    #[serde(default, deserialize_with = "or_null")]
    spec: Spec,
    #[serde(default, deserialize_with = "or_null")]
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    /// Route
    host: Option<String>,
    path: Option<String>,
    wildcard_policy: Option<String>,
    #[serde(deserialize_with = "or_null")]
    tls: Value,
    /// Ingress
    #[serde(deserialize_with = "or_null")]
    rules: Vec<Value>,
    /// Gateway API
    #[serde(deserialize_with = "or_null")]
    hostnames: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    /// Route. (An Ingress' status has none.)
    #[serde(deserialize_with = "or_null")]
    ingress: Vec<Said>,
    /// Gateway API
    #[serde(deserialize_with = "or_null")]
    parents: Vec<Said>,
}

/// What one router or Gateway says.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Said {
    host: Option<String>,
    #[serde(deserialize_with = "or_null")]
    conditions: Vec<Condition>,
}

/// An object that asks for names.
///
/// # Errors
///
/// It has no name, or what is asked of it has not the type that the API gives it.
pub fn object(kind: Kind, value: &Value) -> Result<Object, serde_json::Error> {
    let Whole { metadata, spec, status } = Whole::deserialize(value)?;
    let ingress = metadata
        .owner_references
        .into_iter()
        .find(|owner| owner.kind == "Ingress");
    let (said, word) = match kind {
        Kind::Route => (&status.ingress, "Admitted"),
        Kind::Ingress => (&Vec::new(), ""),
        Kind::TlsRoute | Kind::HttpRoute => (&status.parents, "Accepted"),
    };
    Ok(Object {
        kind,
        hosts: match kind {
            Kind::Route => route_hosts(spec.host, &status.ingress),
            Kind::Ingress => spec.rules.iter().map(rule_host).collect(),
            Kind::TlsRoute | Kind::HttpRoute => spec.hostnames,
        },
        path: (kind == Kind::Route).then(|| spec.path.unwrap_or_default()),
        subdomain: kind == Kind::Route && spec.wildcard_policy.as_deref() == Some("Subdomain"),
        passthrough: spec.tls.get("termination").and_then(Value::as_str) == Some("passthrough"),
        admission: admission(said, word),
        ingress: ingress.filter(|_| kind == Kind::Route).map(|owner| owner.uid),
        namespace: metadata.namespace,
        name: metadata.name,
        uid: metadata.uid,
        created: metadata.creation_timestamp,
        annotations: metadata
            .annotations
            .into_iter()
            .filter(|(key, _)| claims::is_read(key))
            .collect(),
    })
}

/// A Route without a host of its own has those that routers give it, from `subdomain` or a template.
fn route_hosts(host: Option<String>, said: &[Said]) -> Vec<String> {
    if let Some(host) = host.filter(|host| !host.is_empty()) {
        return vec![host];
    }
    let mut hosts = Vec::new();
    for host in said
        .iter()
        .filter(|said| says(said, "Admitted") == Some(true))
        .filter_map(|said| said.host.clone())
    {
        if !host.is_empty() && !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    hosts
}

/// A rule without a host is for every name: an empty one, which is then said not to be served.
fn rule_host(rule: &Value) -> String {
    rule.get("host").and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// `None`: nothing.
fn says(said: &Said, word: &str) -> Option<bool> {
    let condition = said.conditions.iter().find(|condition| condition.kind == word)?;
    Some(condition.status == "True")
}

fn admission(said: &[Said], word: &str) -> Admission {
    if said.iter().any(|said| says(said, word) == Some(true)) {
        return Admission::Admitted;
    }
    let conditions = said.iter().flat_map(|said| &said.conditions);
    // `Unknown` is not yet a refusal.
    let mut refusals = conditions.filter(|condition| condition.kind == word && condition.status == "False");
    refusals.next().map_or(Admission::Unsaid, |condition| {
        Admission::Refused(match (condition.reason.as_str(), condition.message.as_str()) {
            ("", message) => message.to_owned(),
            (reason, "") => reason.to_owned(),
            (reason, message) => format!("{reason}: {message}"),
        })
    })
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
                "resourceVersion": "7", "annotations": {"signalbox.io/weight": "5", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
                "ownerReferences": [{"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "name": "i", "uid": "iu"}]},
            "spec": {"host": "app.test", "path": "/x", "to": {"kind": "Service", "name": "web", "weight": 100},
                "tls": {"termination": "passthrough"}, "wildcardPolicy": "Subdomain"},
            "status": {"ingress": [{"host": "app.test", "routerName": "default", "conditions": [
                {"type": "Admitted", "status": "False", "reason": "HostAlreadyClaimed", "message": "taken"}]}]},
        });
        let route = object(Kind::Route, &value).unwrap();
        assert_eq!(
            (route.hosts, route.path.as_deref()),
            (vec!["app.test".to_owned()], Some("/x"))
        );
        assert!(route.subdomain && route.passthrough);
        assert_eq!(route.admission, Admission::Refused("HostAlreadyClaimed: taken".into()));
        assert_eq!(route.ingress.as_deref(), Some("iu"));
        assert_eq!(
            route.annotations.into_iter().collect::<Vec<_>>(),
            [("signalbox.io/weight".into(), "5".into())]
        );
    }

    #[test]
    fn a_route_has_the_host_that_its_routers_give_it() {
        let said =
            |host: &str, status: &str| json!({"host": host, "conditions": [{"type": "Admitted", "status": status}]});
        let value = json!({
            "metadata": {"name": "web", "namespace": "shop", "annotations": null},
            "spec": {"subdomain": "web", "tls": null},
            "status": {"ingress": [said("web.b.test", "False"), said("web.a.test", "True"), said("web.a.test", "True")]},
        });
        let route = object(Kind::Route, &value).unwrap();
        assert_eq!(route.hosts, ["web.a.test"]);
        assert_eq!(
            (route.admission, route.path.as_deref()),
            (Admission::Admitted, Some(""))
        );
    }

    #[test]
    fn the_others_as_kubernetes_writes_them() {
        let metadata = json!({"name": "web", "namespace": "shop", "uid": "u"});
        let rules = json!([{"host": "a.test", "http": {"paths": []}}, {"http": null}]);
        let balancer = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
        let value =
            json!({"metadata": metadata, "spec": {"rules": rules, "tls": [{"hosts": ["a.test"]}]}, "status": balancer});
        let ingress = object(Kind::Ingress, &value).unwrap();
        assert_eq!(
            (ingress.hosts, ingress.path),
            (vec!["a.test".to_owned(), String::new()], None)
        );
        let parents = json!([{"conditions": [{"type": "Accepted", "status": "False", "reason": "NoMatchingParent"}]}]);
        let value = json!({"metadata": metadata, "spec": {"hostnames": ["a.test", "*.b.test"]}, "status": {"parents": parents}});
        let route = object(Kind::TlsRoute, &value).unwrap();
        assert_eq!(route.hosts.len(), 2);
        assert_eq!(route.admission, Admission::Refused("NoMatchingParent".into()));
        let value = json!({"metadata": metadata});
        let bare = object(Kind::HttpRoute, &value).unwrap();
        assert_eq!((bare.hosts.len(), bare.admission), (0, Admission::Unsaid));
    }

    #[test]
    fn what_has_the_wrong_type_is_refused() {
        for value in [
            json!(null),
            json!([]),
            json!({"spec": {"host": "a.test"}}),
            json!({"metadata": {"name": 5}}),
            json!({"metadata": {"name": "a"}, "spec": {"host": ["a.test"]}}),
            json!({"metadata": {"name": "a"}, "spec": {"hostnames": "a.test"}}),
            json!({"metadata": {"name": "a"}, "status": 5}),
        ] {
            assert!(object(Kind::Route, &value).is_err(), "{value}");
        }
    }
}
