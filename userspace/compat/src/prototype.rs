//! Body of `POST /api/cluster/:clusterkey`, as plugins of the prototype
//! (ReToCode/openshift-cross-cluster-loadbalancer) send it every few seconds: all routes and router hosts of a
//! cluster.
//!
//! ```json
//! { "routes": { "a.test": { "url": "a.test", "weight": 1, "labels": { "app": "shop" } } },
//!   "routerHosts": { "router-1": { "name": "router-1", "hostIP": "10.2.0.2", "httpPort": 80, "httpsPort": 443 } } }
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use signalbox_core::discovered::discovery::{Claim, ClusterDiscovery, Rejected, WEIGHT_RANGE};
use signalbox_core::model::Host;
use signalbox_core::model::labels::LabelSets;
use signalbox_core::model::tls::InsecurePolicy;
use signalbox_core::wire::hostname::{HostnamePattern, WildcardDepth};

/// The body. Its field names are those of the wire; fields of later plugins are ignored.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PluginBody {
    #[serde(default)]
    routes: Option<BTreeMap<String, Route>>,
    #[serde(default)]
    router_hosts: Option<BTreeMap<String, RouterHost>>,
}

#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "PluginRoute"))]
struct Route {
    url: String,
    #[serde(default = "one", deserialize_with = "number")]
    weight: u32,
    #[serde(default)]
    labels: Option<LabelSets>,
}

#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
struct RouterHost {
    name: String,
    #[serde(rename = "hostIP")]
    host_ip: IpAddr,
    #[serde(default, deserialize_with = "number")]
    http_port: u16,
    #[serde(default, deserialize_with = "number")]
    https_port: u16,
}

fn one() -> u32 {
    1
}

/// Decodes a number, also in quotes.
fn number<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<T, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(u64),
        Text(String),
    }
    let number = match Written::deserialize(deserializer)? {
        Written::Number(number) => Some(number),
        Written::Text(text) => text.trim().parse().ok(),
    };
    number
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| serde::de::Error::custom("not a number that fits"))
}

/// Parses a plugin's message. A route that cannot be served is rejected alone. A host that cannot be understood makes
/// the whole body wrong, because fewer hosts would carry the load.
pub fn parse(text: &str) -> Result<ClusterDiscovery, String> {
    let expected = r#"expected {"routes": {"a.test": {"url": "a.test", "weight": 1}}, "routerHosts": {"router-1": {"name": "router-1", "hostIP": "10.2.0.2", "httpPort": 80, "httpsPort": 443}}}"#;
    // Decoded as a map first: serde takes a list for an object's fields in order, and so an empty one for an empty
    // cluster.
    let body: PluginBody = serde_json::from_str::<serde_json::Map<String, Value>>(text)
        .and_then(|object| serde_json::from_value(object.into()))
        .map_err(|error| format!("{error}; {expected}"))?;
    let mut learned = ClusterDiscovery::default();
    for (key, host) in body.router_hosts.unwrap_or_default() {
        let port = |port: u16| (port != 0).then_some(port);
        if host.name != key {
            return Err(format!("router host {key:?} calls itself {:?}", host.name));
        }
        if host.http_port == 0 && host.https_port == 0 {
            return Err(format!("router host {key:?} has neither httpPort nor httpsPort"));
        }
        learned.hosts.push(Host {
            name: key,
            address: host.host_ip.to_canonical(),
            http: port(host.http_port),
            https: port(host.https_port),
            tcp: None,
            ports: std::collections::BTreeMap::new(),
            weight: 1,
            backup: false,
            health_page: None,
        });
    }
    for (key, route) in body.routes.unwrap_or_default() {
        let wrong = route.labels.as_ref().and_then(LabelSets::invalid_label);
        let reason = match HostnamePattern::parse(&route.url) {
            Ok(_) if !WEIGHT_RANGE.contains(&route.weight) => format!("weight {} is not 0 to 100", route.weight),
            Ok(_) if wrong.is_some() => format!("{:?} is not a Kubernetes label", wrong.unwrap_or_default()),
            Ok(host) if learned.routes.iter().any(|claim| claim.hostname == host) => {
                "another route has the name".into()
            }
            Ok(host) => {
                learned.routes.push(Claim {
                    hostname: host,
                    depth: WildcardDepth::Any,
                    // The plugin sends 1 where no weight is set.
                    weight: (route.weight != 1).then_some(route.weight),
                    owner: String::new(),
                    since: 0,
                    origin: format!("route {key}"),
                    notes: Vec::new(),
                    settings: Vec::new(),
                    labels: route.labels.unwrap_or_default(),
                    termination: None,
                    is_edge: false,
                    insecure: InsecurePolicy::Allow,
                    certificate: None,
                });
                continue;
            }
            Err(error) => error.to_string(),
        };
        learned.rejected.push(Rejected {
            hostname: route.url,
            origin: format!("route {key}"),
            reason,
            rival: None,
        });
    }
    Ok(learned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugins_body_is_understood() {
        let text = r#"{"routes":{"a.test":{"url":"A.test","weight":30,"labels":{"app":"shop"}},"b.test":{"url":"b.test","labels":null}},
            "routerHosts":{"router-1":{"name":"router-1","hostIP":"10.2.0.2","httpPort":80,"httpsPort":"443"}}}"#;
        let learned = parse(text).unwrap();
        let routes: Vec<_> = learned
            .routes
            .iter()
            .map(|r| (r.hostname.to_string(), r.weight))
            .collect();
        assert_eq!(routes, [("a.test".into(), Some(30)), ("b.test".into(), None)]);
        let labels: Vec<_> = learned
            .routes
            .iter()
            .map(|r| r.labels.iter().flatten().count())
            .collect();
        assert_eq!(labels, [1, 0]);
        let host = &learned.hosts[0];
        assert_eq!((host.http, host.https, host.weight), (Some(80), Some(443), 1));
        assert_eq!(
            parse("{}").unwrap(),
            ClusterDiscovery::default(),
            "a cluster that has lost everything"
        );
        assert_eq!(
            parse(r#"{"routes":null,"routerHosts":null}"#).unwrap(),
            ClusterDiscovery::default(),
            "as Go writes nil maps"
        );
    }

    #[test]
    fn a_bad_route_is_rejected_and_a_bad_host_makes_all_of_it_wrong() {
        let text = r#"{"routes":{"x":{"url":"*.*.test","weight":1},"y":{"url":"y.test","weight":101},"z":{"url":"z.test","weight":102},
            "a.test":{"url":"a.test","weight":1},"A.test":{"url":"a.test","weight":1},"l":{"url":"l.test","labels":{"a b":"c"}}}}"#;
        let learned = parse(text).unwrap();
        assert_eq!(learned.routes.len(), 1);
        let reasons: Vec<_> = learned.rejected.iter().map(|r| r.reason.as_str()).collect();
        assert!(reasons.contains(&"weight 101 is not 0 to 100") && reasons.contains(&"weight 102 is not 0 to 100"));
        assert!(reasons.contains(&"\"a b=c\" is not a Kubernetes label"), "{reasons:?}");
        assert_eq!(reasons.len(), 5);
        for (bad, part) in [
            ("[]", "expected {"),
            (
                r#"{"routerHosts":{"r":{"name":"r","hostIP":"nowhere","httpPort":80}}}"#,
                "invalid IP",
            ),
            (
                r#"{"routerHosts":{"r":{"name":"r","hostIP":"10.2.0.2","httpPort":70000}}}"#,
                "fits",
            ),
            (
                r#"{"routerHosts":{"r":{"name":"q","hostIP":"10.2.0.2","httpPort":80}}}"#,
                "calls itself",
            ),
            (
                r#"{"routerHosts":{"r":{"name":"r","hostIP":"10.2.0.2"}}}"#,
                "neither httpPort nor httpsPort",
            ),
        ] {
            let error = parse(bad).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
