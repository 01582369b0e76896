//! The URLs at which an application is served: those that a listener takes and a host of the application answers.

use std::collections::BTreeSet;

use signalbox_core::model::{Model, Protocol};

/// Returns the URLs of each name, HTTPS first. An alias's certificate gives no URL by itself: TLS goes to a host's own
/// TLS port, or nowhere. Hosts count whatever their health, so that a URL does not come and go with a check.
pub(super) fn application_urls(model: &Model, cluster: usize, names: &[String]) -> Vec<String> {
    let schemes = [("https", Protocol::Tls, 443), ("http", Protocol::Http, 80)];
    let ports = schemes.map(|(scheme, protocol, usual)| (scheme, usual, ports(model, cluster, protocol)));
    let mut urls = Vec::new();
    for name in names.iter().filter(|name| leads_to(model, name, cluster)) {
        for (scheme, usual, ports) in &ports {
            urls.extend(ports.iter().map(|port| {
                if port == usual {
                    format!("{scheme}://{name}/")
                } else {
                    format!("{scheme}://{name}:{port}/")
                }
            }));
        }
    }
    urls
}

fn leads_to(model: &Model, name: &str, cluster: usize) -> bool {
    let route = model.routes.iter().find(|route| route.hostname.to_string() == *name);
    route.is_some_and(|route| route.clusters.iter().any(|(at, _)| *at == cluster))
}

/// Returns the ports of listeners that speak this protocol, if a host of the cluster speaks it too.
fn ports(model: &Model, cluster: usize, protocol: Protocol) -> BTreeSet<u16> {
    let has_host = |hosts: &[signalbox_core::model::Host]| hosts.iter().any(|host| host.port(protocol).is_some());
    if !model
        .clusters
        .get(cluster)
        .is_some_and(|cluster| has_host(&cluster.hosts))
    {
        return BTreeSet::new();
    }
    let listeners = model.listeners.iter().filter(|listener| listener.protocol == protocol);
    listeners
        .flat_map(|listener| &listener.listen)
        .map(|bind| bind.port)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"
version: 1
listeners:
  - { name: http, protocol: http, listen: ["10.0.0.1:80", "10.0.0.1:8080", "10.0.0.2:80"] }
  - { name: https, protocol: tls, listen: ["10.0.0.1:443"] }
clusters:
  - { name: plain, hosts: [{ name: p, address: 10.0.1.1, http: 80 }] }
  - { name: both, hosts: [{ name: b, address: 10.0.1.2, http: 80, https: 443 }] }
routes:
  - { host: plain.test, clusters: { plain: 1 } }
  - { host: both.test, clusters: { both: 1 } }
"#;

    #[test]
    fn only_what_a_listener_and_a_host_serve_is_promised() {
        let model = crate::config::parse(CONFIG).unwrap().model;
        let names = ["plain.test", "both.test", "unknown.test"].map(str::to_owned);
        assert_eq!(
            application_urls(&model, 0, &names),
            ["http://plain.test/", "http://plain.test:8080/"]
        );
        assert_eq!(
            application_urls(&model, 1, &names),
            ["https://both.test/", "http://both.test/", "http://both.test:8080/"]
        );
        let mut without_listeners = model;
        without_listeners.listeners.clear();
        assert!(application_urls(&without_listeners, 1, &names).is_empty());
    }
}
