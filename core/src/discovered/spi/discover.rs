//! Knowledge that an application gives: hosts, and names that it serves.

use std::collections::HashSet;
use std::net::SocketAddr;

use super::application::{AppKey, Application, Endpoint};
use crate::discovered::discovery::{Claim, ClusterDiscovery, Rejected};
use crate::model::AppEndpoint;
use crate::model::labels::LabelSets;
use crate::model::tls::InsecurePolicy;
use crate::model::{EndpointFilter, HealthPageTemplate, Host, Naming};
use crate::wire::hostname::{HostnamePattern, WildcardDepth};

/// Longest name of a host, in bytes.
const MAX_HOST_NAME_BYTES: usize = 63;

/// Port name of endpoints that have none.
const DEFAULT_PORT_NAME: &str = "tcp";

impl EndpointFilter {
    fn passes(&self, endpoint: &Endpoint) -> bool {
        !self.types.is_disjoint(&endpoint.types)
    }
}

/// Hosts, names and endpoints of an application, for the cluster that is named as its key is.
#[must_use]
pub fn discover(
    application: &Application,
    naming: &Naming,
    filter: &EndpointFilter,
    asking: &HealthPageTemplate,
) -> ClusterDiscovery {
    let names = endpoint_host_names(application);
    let endpoints = application.endpoints.iter().zip(&names);
    let endpoints = endpoints.map(|((at, endpoint), name)| app_endpoint(application, *at, endpoint, name));
    let endpoints = endpoints.collect();
    let chosen = application.endpoints.iter().zip(names);
    let hosts = chosen.filter(|((_, endpoint), _)| filter.passes(endpoint) && !application.is_stopped(endpoint));
    let origin = format!("application {}", application.key);
    let mut discovery = ClusterDiscovery {
        hosts: hosts
            .map(|((at, endpoint), name)| Host {
                health_page: asking.render(application, endpoint, naming),
                ..host(name, *at, endpoint)
            })
            .collect(),
        endpoints,
        ..ClusterDiscovery::default()
    };
    let implied = ha_hostname(&application.key, naming);
    let mut seen = HashSet::new();
    for name in implied.iter().chain(&application.aliases) {
        match HostnamePattern::parse(name) {
            Ok(host) if seen.insert(host.clone()) => discovery.routes.push(Claim {
                hostname: host,
                depth: WildcardDepth::Any,
                weight: None,
                owner: application.key.to_string(),
                since: 0,
                origin: origin.clone(),
                notes: Vec::new(),
                settings: Vec::new(),
                labels: LabelSets::default(),
                termination: None,
                is_edge: false,
                insecure: InsecurePolicy::Allow,
                certificate: None,
            }),
            Ok(_) => {}
            Err(error) => discovery.rejected.push(Rejected {
                hostname: name.clone(),
                origin: origin.clone(),
                reason: error.to_string(),
                rival: None,
            }),
        }
    }
    discovery
}

/// Endpoint as services see it.
fn app_endpoint(application: &Application, at: SocketAddr, endpoint: &Endpoint, host: &str) -> AppEndpoint {
    let port_name = endpoint.name.as_deref().filter(|name| !name.is_empty());
    AppEndpoint {
        host: host.to_owned(),
        addr: at,
        port_name: port_name.map_or_else(|| DEFAULT_PORT_NAME.to_owned(), |name| shortened(name, name)),
        protocols: endpoint.protocols.clone(),
        is_stopped: application.is_stopped(endpoint),
    }
}

fn ha_hostname(key: &AppKey, naming: &Naming) -> Option<String> {
    let domain = naming.domain.as_ref()?;
    Some(format!("{}{}-{}.{domain}", naming.prefix, key.app, key.namespace))
}

fn host(name: String, at: SocketAddr, endpoint: &Endpoint) -> Host {
    let port = |wanted: bool| wanted.then_some(at.port());
    let speaks = |protocols: &[&str]| protocols.iter().any(|protocol| endpoint.protocols.contains(*protocol));
    let (plain, tls) = (["http", "ws"], ["https", "tls", "wss"]);
    let other = |protocol: &String| !plain.contains(&protocol.as_str()) && !tls.contains(&protocol.as_str());
    Host {
        name,
        address: at.ip(),
        http: port(speaks(&plain)),
        https: port(speaks(&tls)),
        // An endpoint without protocols is only known to speak TCP.
        tcp: port(endpoint.protocols.is_empty() || endpoint.protocols.iter().any(other)),
        ports: std::collections::BTreeMap::new(),
        weight: 1,
        backup: false,
        health_page: None,
    }
}

/// Names of the endpoints' hosts, in the order of the endpoints: `GEAR.PORTNAME`. Names are unique, and none depends on
/// which other endpoints pass a filter.
#[must_use]
pub fn endpoint_host_names(application: &Application) -> Vec<String> {
    let mut taken = HashSet::new();
    let names = application.endpoints.iter().map(|(at, endpoint)| {
        let mut name = endpoint_host_name(*at, endpoint);
        // Dots in a gear's id and in a port's name can make two pairs equal; a number then distinguishes them.
        let mut attempt = 0;
        while !taken.insert(name.clone()) {
            attempt += 1;
            name = shortened(&format!("{}-{}", at.ip(), at.port()), &format!("{at}\0{attempt}"));
            name = shortened(&format!("{name}-{attempt}"), &name);
        }
        name
    });
    names.collect()
}

fn endpoint_host_name(at: SocketAddr, endpoint: &Endpoint) -> String {
    let address = || format!("{}-{}", at.ip(), at.port());
    match (&endpoint.gear, &endpoint.name) {
        (Some(gear), Some(name)) => shortened(&format!("{gear}.{name}"), &format!("{gear}\0{name}")),
        // A gear may have several addresses without a port name.
        (Some(gear), None) => shortened(&format!("{gear}.{}", address()), &at.to_string()),
        (None, _) => shortened(&address(), &at.to_string()),
    }
}

/// Returns `text` if it is a name; otherwise as much of it as can be one, and a number that only depends on `whole`.
fn shortened(text: &str, whole: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if text.len() <= MAX_HOST_NAME_BYTES && text.chars().all(allowed) {
        return text.to_owned();
    }
    // FNV-1a gives equal results in every process and version.
    let hash = whole.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let kept: String = text
        .chars()
        .map(|c| if allowed(c) { c } else { '-' })
        .take(MAX_HOST_NAME_BYTES - 17)
        .collect();
    format!("{kept}-{hash:016x}")
}
