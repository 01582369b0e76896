//! Clusters that the configuration does not name, and settings that apply to them all the same.

use super::{
    ApplicationSettings, Balance, Cluster, ClusterRole, Ejection, ExposeRule, HealthCheck, Model, RoutingEvents,
};
use serde::Serialize;

/// Share of a discovered hostname that a second cluster gets where no weight is set for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum JoinPolicy {
    /// No share.
    #[default]
    None,
    /// A share by the claim's weight.
    Share,
}

impl JoinPolicy {
    /// All values, with their names in the configuration.
    pub const ALL: [(&'static str, Self); 2] = [("none", Self::None), ("share", Self::Share)];
}

impl Model {
    /// Whether a source may report a cluster.
    pub(crate) fn accepts(&self, source: &str, cluster: &str) -> bool {
        if source.starts_with(super::DNS_PREFIX) {
            let named = self.clusters.iter().find(|known| known.name == cluster);
            return named.is_some_and(|cluster| cluster.named_by(source).next().is_some());
        }
        self.accepts_discovery(cluster)
    }

    /// Whether sources may report a cluster: the configuration does not name it, or has `learn` or `kubernetes` there.
    #[must_use]
    pub fn accepts_discovery(&self, cluster: &str) -> bool {
        let named = self.clusters.iter().find(|known| known.name == cluster);
        named.is_none_or(Cluster::accepts_discovery)
    }
}

impl Cluster {
    /// Cluster known only from a source.
    #[must_use]
    pub fn discovered(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            role: ClusterRole::Routers,
            balance: Balance::LeastConnections,
            health: HealthCheck::DEFAULT,
            ejection: Ejection::DEFAULT,
            proxy_protocol: None,
            drain: None,
            hosts: Vec::new(),
            named_hosts: Vec::new(),
            resolve: super::DEFAULT_RESOLVE_INTERVAL,
            learn: true,
            kubernetes: None,
            subset: None,
            join: JoinPolicy::None,
            backend_tls: super::tls::BackendTls::default(),
            h2c: false,
            repairs_answers: false,
            max_host_connections: None,
        }
    }

    /// Cluster of an application, `NAMESPACE/APP`, with the settings that `routing_events` has for it.
    #[must_use]
    pub fn application(name: &str, events: Option<&RoutingEvents>) -> Self {
        let cluster = Self {
            role: ClusterRole::Servers,
            health: ApplicationSettings::HEALTH,
            ..Self::discovered(name)
        };
        let Some(settings) = events.and_then(|events| events.settings_of(name)) else {
            return cluster;
        };
        Self {
            balance: settings.balance,
            health: settings.health.clone(),
            ejection: settings.ejection,
            proxy_protocol: settings.proxy_protocol,
            drain: settings.drain,
            ..cluster
        }
    }

    /// Cluster of an exposed service, `NAMESPACE/APP:PORTNAME`, by the rule that exposes it.
    #[must_use]
    pub fn exposed(name: &str, rule: &ExposeRule, events: Option<&RoutingEvents>) -> Self {
        let cluster = Self::discovered(name);
        let application = cluster.application_name().unwrap_or(name);
        let settings = events.and_then(|events| events.settings_of(application));
        Self {
            role: ClusterRole::Servers,
            health: rule.health.clone(),
            drain: settings.and_then(|settings| settings.drain),
            ..cluster
        }
    }

    /// Whether the cluster is an application reported by routing events: no other name has a slash.
    #[must_use]
    pub fn is_application(&self) -> bool {
        self.name.contains('/')
    }

    /// Application, `NAMESPACE/APP`, whose endpoints the cluster has: all of them, or those of one port name.
    #[must_use]
    pub fn application_name(&self) -> Option<&str> {
        let name = self
            .name
            .split_once(':')
            .map_or(&*self.name, |(application, _)| application);
        self.is_application().then_some(name)
    }
}
