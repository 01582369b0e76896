//! Objects as the API has them.

use serde_json::{Value, json};

fn metadata(origin: &str, age: u32) -> Value {
    let (namespace, name) = origin.split_once('/').unwrap();
    let created = format!("2026-01-01T00:{:02}:{:02}Z", age / 60 % 60, age % 60);
    json!({"namespace": namespace, "name": name, "uid": format!("uid-{origin}"), "creationTimestamp": created,
        "managedFields": [{"manager": "oc"}]})
}

pub(crate) fn route(age: u32, origin: &str, host: &str) -> Value {
    json!({
        "metadata": metadata(origin, age),
        "spec": {"host": host, "to": {"kind": "Service", "name": "web", "weight": 100}, "wildcardPolicy": "None"},
        "status": {"ingress": [{"host": host, "routerName": "default",
            "conditions": [{"type": "Admitted", "status": "True"}]}]},
    })
}

pub(crate) fn ingress(age: u32, origin: &str, host: &str) -> Value {
    json!({"metadata": metadata(origin, age), "spec": {"rules": [{"host": host}]}, "status": {"loadBalancer": {}}})
}

pub(crate) fn gateway_route(age: u32, origin: &str, host: &str) -> Value {
    json!({"metadata": metadata(origin, age), "spec": {"hostnames": [host]}})
}

/// A router's pod, as OpenShift 4 labels it.
pub(crate) fn router(name: &str, node: &str, ip: &str, ready: bool) -> Value {
    let mut metadata = metadata(&format!("openshift-ingress/{name}"), 0);
    metadata["labels"] = json!({"ingresscontroller.operator.openshift.io/deployment-ingresscontroller": "default"});
    let ports = json!([{"name": "http", "containerPort": 80, "hostPort": 80},
        {"name": "https", "containerPort": 443, "hostPort": 443}]);
    json!({
        "metadata": metadata,
        "spec": {"nodeName": node, "hostNetwork": true, "containers": [{"name": "router", "ports": ports}]},
        "status": {"phase": "Running", "hostIP": ip,
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
    })
}

/// The pod of a shard's router.
pub(crate) fn router_of(shard: &str, name: &str, node: &str, ip: &str) -> Value {
    let mut pod = router(name, node, ip, true);
    pod["metadata"]["labels"] = json!({"ingresscontroller.operator.openshift.io/deployment-ingresscontroller": shard});
    pod
}

/// A Route that these routers admit.
pub(crate) fn route_of(age: u32, origin: &str, host: &str, routers: &[&str]) -> Value {
    let mut route = route(age, origin, host);
    let admitted = json!([{"type": "Admitted", "status": "True"}]);
    let said = routers
        .iter()
        .map(|router| json!({"host": host, "routerName": router, "conditions": admitted}));
    route["status"]["ingress"] = said.collect();
    route
}

pub(crate) fn namespace(name: &str, labels: &Value) -> Value {
    let mut metadata = metadata(&format!("/{name}"), 0);
    metadata.as_object_mut().unwrap().remove("namespace");
    metadata["labels"] = labels.clone();
    json!({"metadata": metadata, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}})
}

pub(crate) fn ingress_class(name: &str, is_default: bool) -> Value {
    let mut metadata = metadata(&format!("/{name}"), 0);
    metadata.as_object_mut().unwrap().remove("namespace");
    metadata["annotations"] = json!({"ingressclass.kubernetes.io/is-default-class": is_default.to_string()});
    json!({"metadata": metadata, "spec": {"controller": "example.com/ingress"}})
}

/// A Gateway with a listener for HTTP.
pub(crate) fn gateway(origin: &str, class: &str, hostname: &str) -> Value {
    let listeners = json!([{"name": "web", "port": 80, "protocol": "HTTP", "hostname": hostname}]);
    json!({"metadata": metadata(origin, 0), "spec": {"gatewayClassName": class, "listeners": listeners}})
}

/// A Gateway API route that a Gateway's controller accepts, or does not.
pub(crate) fn attached(origin: &str, hostnames: &[&str], gateway: &str, accepted: bool) -> Value {
    let (namespace, name) = gateway.split_once('/').unwrap();
    let parent = json!({"namespace": namespace, "name": name, "sectionName": "web"});
    let status = if accepted { "True" } else { "False" };
    let conditions = json!([{"type": "Accepted", "status": status, "reason": "Told"}]);
    json!({"metadata": metadata(origin, 1), "spec": {"hostnames": hostnames, "parentRefs": [parent]},
        "status": {"parents": [{"parentRef": parent, "controllerName": "example.com/c", "conditions": conditions}]}})
}

/// Makes a router pod as OpenShift 3 has it.
pub(crate) fn router_of_3(name: &str, node: &str, ip: &str) -> Value {
    let mut pod = router(name, node, ip, true);
    pod["metadata"]["namespace"] = json!("default");
    pod["metadata"]["labels"] = json!({"deploymentconfig": "router"});
    pod
}

pub(crate) fn node(name: &str, external: Option<&str>) -> Value {
    let mut addresses = vec![json!({"type": "InternalIP", "address": "10.9.9.9"})];
    addresses.extend(external.map(|address| json!({"type": "ExternalIP", "address": address})));
    let mut metadata = metadata(&format!("/{name}"), 0);
    metadata.as_object_mut().unwrap().remove("namespace");
    json!({"metadata": metadata, "status": {"addresses": addresses}})
}
