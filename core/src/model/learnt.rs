//! Clusters that the configuration does not have, and what is said of them all the same.

use super::{ApplicationSettings, Balance, Cluster, Ejection, Expose, HealthCheck, Model, RoutingEvents};
use crate::join::Join;

impl Model {
    /// Whether what sources tell of a cluster counts: the configuration does not name it, or lets it learn.
    #[must_use]
    pub fn lets_learn(&self, cluster: &str) -> bool {
        let named = self.clusters.iter().find(|known| known.name == cluster);
        named.is_none_or(Cluster::learns)
    }
}

impl Cluster {
    /// A cluster that is known by what a source has learnt alone.
    #[must_use]
    pub fn learnt(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            balance: Balance::LeastConnections,
            health: HealthCheck::DEFAULT,
            ejection: Ejection::DEFAULT,
            proxy_protocol: false,
            drain: None,
            hosts: Vec::new(),
            learn: true,
            kubernetes: None,
            subset: None,
            join: Join::None,
        }
    }

    /// The cluster of an application, `NAMESPACE/APP`, as the configuration of routing events has it.
    #[must_use]
    pub fn application(name: &str, events: Option<&RoutingEvents>) -> Self {
        let cluster = Self {
            health: ApplicationSettings::HEALTH,
            ..Self::learnt(name)
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

    /// The cluster of an exposed service, `NAMESPACE/APP:PORTNAME`, by the rule that exposes it.
    #[must_use]
    pub fn exposed(name: &str, rule: &Expose, events: Option<&RoutingEvents>) -> Self {
        let cluster = Self::learnt(name);
        let application = cluster.application_name().unwrap_or(name);
        let settings = events.and_then(|events| events.settings_of(application));
        Self {
            health: rule.health.clone(),
            drain: settings.and_then(|settings| settings.drain),
            ..cluster
        }
    }

    /// Whether it is of an application that routing events tell of: no other name has a slash.
    #[must_use]
    pub fn is_application(&self) -> bool {
        self.name.contains('/')
    }

    /// The application, `NAMESPACE/APP`, whose endpoints it has, all or those of a port name.
    #[must_use]
    pub fn application_name(&self) -> Option<&str> {
        let name = self
            .name
            .split_once(':')
            .map_or(&*self.name, |(application, _)| application);
        self.is_application().then_some(name)
    }
}
