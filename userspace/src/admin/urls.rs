//! The URLs of an application: those that a listener accepts and a host of the application answers.

use std::collections::BTreeSet;

use signalbox_core::model::tls::Termination;
use signalbox_core::model::{Listener, Model, Protocol};
use signalbox_core::wire::hostname::Hostname;

use crate::state::{Shared, Snapshot};

/// Returns the URLs of each name, HTTPS first. Unhealthy hosts count too, so that a URL does not come and go with a
/// check.
pub(super) fn application_urls(shared: &Shared, snapshot: &Snapshot, cluster: usize, names: &[String]) -> Vec<String> {
    let tls_end = |listener: &Listener, name: &Hostname| {
        let end = shared.termination(snapshot, listener, Some(name));
        let has_certificate = || {
            let tls = snapshot.tls.listeners.get(&listener.name)?;
            tls.resolver.choose(&shared.tls.certificates.load(), Some(name), &[])
        };
        (end == Termination::Passthrough || has_certificate().is_some()).then_some(end)
    };
    urls(&snapshot.model, cluster, names, tls_end)
}

/// URLs of names. `tls_end` says where TLS of a name ends at a listener; `None`: no handshake succeeds.
fn urls(
    model: &Model,
    cluster: usize,
    names: &[String],
    tls_end: impl Fn(&Listener, &Hostname) -> Option<Termination>,
) -> Vec<String> {
    let speaks = |protocol| {
        let hosts = model.clusters.get(cluster).map(|cluster| &cluster.hosts);
        hosts.is_some_and(|hosts| hosts.iter().any(|host| host.port(protocol).is_some()))
    };
    let mut urls = Vec::new();
    for name in names.iter().filter_map(|name| Hostname::parse(name.as_bytes()).ok()) {
        if !leads_to(model, &name, cluster) {
            continue;
        }
        for (scheme, protocol, usual) in [("https", Protocol::Tls, 443), ("http", Protocol::Http, 80)] {
            let serves = |listener: &&Listener| {
                let end = match protocol {
                    Protocol::Tls => tls_end(listener, &name),
                    _ => Some(Termination::Passthrough),
                };
                listener.protocol == protocol
                    && end.is_some_and(|end| {
                        speaks(if end == Termination::Edge {
                            Protocol::Http
                        } else {
                            protocol
                        })
                    })
            };
            let listeners = model.listeners.iter().filter(serves);
            let ports: BTreeSet<u16> = listeners
                .flat_map(|listener| &listener.listen)
                .map(|at| at.port)
                .collect();
            urls.extend(ports.into_iter().map(|port| {
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

fn leads_to(model: &Model, name: &Hostname, cluster: usize) -> bool {
    let route = model
        .routes
        .iter()
        .find(|route| route.hostname.to_string() == name.as_str());
    route.is_some_and(|route| route.clusters.iter().any(|(at, _)| *at == cluster))
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
            urls(&model, 0, &names, |_, _| Some(Termination::Passthrough)),
            ["http://plain.test/", "http://plain.test:8080/"]
        );
        assert_eq!(
            urls(&model, 1, &names, |_, _| Some(Termination::Passthrough)),
            ["https://both.test/", "http://both.test/", "http://both.test:8080/"]
        );
        let ended_here = |end: Option<Termination>| urls(&model, 0, &names, move |_, _| end);
        assert_eq!(
            ended_here(Some(Termination::Edge))[..2],
            ["https://plain.test/", "http://plain.test/"]
        );
        assert_eq!(ended_here(Some(Termination::Reencrypt))[0], "http://plain.test/");
        assert_eq!(ended_here(None)[0], "http://plain.test/", "no certificate");
        let mut without_listeners = model;
        without_listeners.listeners.clear();
        assert!(urls(&without_listeners, 1, &names, |_, _| None).is_empty());
    }
}
