//! The model: the meaning of a configuration without mistakes. Built by `signalbox::config`, never half valid.
//!
//! References that a person wrote stay names; those that programs follow are indices into [`Model::clusters`].

mod admin;
pub mod agent;
mod app_pattern;
pub mod claimed;
mod cluster;
mod datapath;
mod discovered;
mod expose;
pub mod ha;
mod health_check;
mod health_page;
pub mod http;
pub mod kubernetes;
pub mod labels;
mod limits;
mod listener;
mod named_host;
pub mod observe;
mod role;
mod route;
mod routing_events;
pub mod services;
pub mod shield;
mod subset;
pub mod tls;
pub mod tls_profile;

use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

pub use admin::{Admin, AdminTls, Balancer, DEFAULT_ADMIN_CONNECTIONS, EtcdStore};
pub use app_pattern::{AppPattern, PatternError};
pub use cluster::{Balance, Cluster, ClusterWithBackup, Host};
pub use datapath::{Datapath, PeekPlace, Tier};
pub use discovered::JoinPolicy;
pub use expose::{AppEndpoint, ExposeRule};
pub use ha::HighAvailability;
pub use health_check::{
    CheckProxyHeader, Ejection, HealthCheck, HttpProbe, Probe, ROUTER_HEALTH_PATH, ROUTER_HEALTH_PORT, TlsProbe,
    UdpProbe, UdpQuestion,
};
pub use health_page::HealthPage;
pub use limits::{HandshakeLimits, HeadLimits, HttpTimeouts, Limits, PerSource, Timeouts};
pub use listener::{Bind, Listener, Protocol, Routing};
pub use named_host::{DEFAULT_RESOLVE_INTERVAL, DNS_PREFIX, NamedHost};
pub use observe::{AccessLog, END_LABELS, EndSet, LogTarget, Metrics};
pub use role::ClusterRole;
pub use route::{PathRoute, Preference, Route, Unmatched};
pub use routing_events::{
    ApplicationSettings, Broker, BrokerTls, EndpointFilter, HealthPageTemplate, Login, Naming, RoutingEvents,
};
pub use services::{FIRST_CUT_PORT, Layer4, Service};
pub use shield::Shield;
pub use subset::{Subset, SubsetSize};
use tls::TlsSettings;

/// Meaning of a whole configuration.
#[derive(Clone, Debug, Serialize)]
pub struct Model {
    /// Admin API, which shows signalbox's state.
    pub admin: Admin,
    /// Listeners, where clients come in.
    pub listeners: Vec<Listener>,
    /// Clusters, where traffic goes.
    pub clusters: Vec<Cluster>,
    /// Routes from names to clusters.
    pub routes: Vec<Route>,
    /// Treatment of a name without a route.
    pub unmatched: Unmatched,
    /// Time limits.
    pub timeouts: Timeouts,
    /// Limits against greedy clients.
    pub limits: Limits,
    /// Tiers that carry bytes, where a listener says nothing else.
    pub datapath: Datapath,
    /// Directory for data that arrives by API, events and rotation.
    pub store: PathBuf,
    /// Table in an etcd that several balancers share; `None`: each has its own.
    pub etcd: Option<EtcdStore>,
    /// Other balancers of the set, which serve the same addresses or names.
    pub balancers: Vec<Balancer>,
    /// Part of each cluster's hosts that this balancer uses.
    pub subset: Subset,
    /// Source of events about OpenShift's applications; `None`: there is none.
    pub routing_events: Option<RoutingEvents>,
    /// Layer-4 services: ports without a name to peek at.
    pub services: Vec<Service>,
    /// Settings common to all layer-4 services.
    pub layer4: Layer4,
    /// Shield of listeners and services: the settings that apply to all.
    pub shield: Shield,
    /// Series that `/metrics` shows.
    pub metrics: Metrics,
    /// Log of connections; `None`: there is none.
    #[serde(rename = "log")]
    pub access_log: Option<AccessLog>,
    /// TLS settings that listeners share.
    pub tls: TlsSettings,
    /// Files with the pages of the balancer's own answers, by status code.
    pub pages: BTreeMap<u16, PathBuf>,
    /// Virtual addresses that several nodes share; `None`: there are none.
    pub ha: Option<HighAvailability>,
}

impl Model {
    /// Port where clients find names over TLS: 443 if some listener has it.
    #[must_use]
    pub fn https_port(&self) -> Option<u16> {
        let speak_tls = self
            .listeners
            .iter()
            .filter(|listener| listener.protocol == Protocol::Tls);
        let mut ports = speak_tls.flat_map(|listener| &listener.listen).map(|bind| bind.port);
        let first = ports.next()?;
        if first == 443 || ports.any(|port| port == 443) {
            return Some(443);
        }
        Some(first)
    }

    /// File or directory of this name beside the store.
    #[must_use]
    pub fn beside_store(&self, name: &str) -> PathBuf {
        self.store.with_file_name(name)
    }

    /// Whether there are layer-4 services, or may be as soon as routing events report applications.
    #[must_use]
    pub fn has_services(&self) -> bool {
        let exposes = |events: &RoutingEvents| !events.expose.is_empty();
        !self.services.is_empty() || self.routing_events.as_ref().is_some_and(exposes)
    }
}

/// Returns the word of a value in a list of all values.
fn word_of<T: PartialEq>(all: &[(&'static str, T)], value: &T) -> &'static str {
    let found = all.iter().find(|(_, one)| one == value);
    found.map_or("", |(word, _)| word)
}
