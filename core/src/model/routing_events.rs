//! Message broker that reports OpenShift's applications.

use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use super::{AppPattern, Balance, Ejection, ExposeRule, HealthCheck, Probe};
use crate::wire::peek::proxy::ProxyTlvs;

/// Origin of the events of OpenShift's routing SPI, and settings for the applications in them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RoutingEvents {
    /// Brokers that have the same messages, tried in turn. Empty: events come only by the admin API.
    pub brokers: Vec<Broker>,
    /// TLS to the brokers; `None`: plain TCP.
    pub tls: Option<BrokerTls>,
    /// Login at the brokers; `None`: no login is sent.
    pub login: Option<Login>,
    /// Destination to subscribe to: `/topic/...` or `/queue/...`.
    pub destination: String,
    /// Client id, by which the broker recognises this consumer.
    pub client_id: Option<String>,
    /// Name of a durable subscription to a topic, which the broker keeps while this consumer is away.
    pub subscription: Option<String>,
    /// Filter of the endpoints that get connections.
    pub filter: EndpointFilter,
    /// Naming of the DNS name that no event announces.
    pub naming: Naming,
    /// Directory for certificates; `None`: private keys are not kept.
    pub certificates: Option<PathBuf>,
    /// Settings of applications' clusters: the first whose pattern matches counts.
    pub applications: Vec<ApplicationSettings>,
    /// Rules for endpoints that become layer-4 services: the first that takes an endpoint counts.
    pub expose: Vec<ExposeRule>,
}

impl RoutingEvents {
    /// Settings of an application, by the name of its cluster.
    #[must_use]
    pub fn settings_of(&self, cluster: &str) -> Option<&ApplicationSettings> {
        self.applications
            .iter()
            .find(|settings| settings.pattern.matches(cluster))
    }

    /// Page settings for checks of an application's endpoints, by the name of its cluster.
    #[must_use]
    pub fn health_page_of(&self, cluster: &str) -> HealthPageTemplate {
        self.settings_of(cluster)
            .map(|settings| settings.health_page.clone())
            .unwrap_or_default()
    }
}

/// Settings of the clusters of some applications, as a cluster of the configuration has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ApplicationSettings {
    /// Pattern of applications.
    pub pattern: AppPattern,
    /// Balancing algorithm among the hosts.
    pub balance: Balance,
    /// Health check of the hosts.
    pub health: HealthCheck,
    /// Page settings for checks by HTTP.
    pub health_page: HealthPageTemplate,
    /// Ejection of hosts whose real connects fail.
    pub ejection: Ejection,
    /// TLVs of the PROXY protocol v2 header that hosts are sent; `None`: they get no header.
    pub proxy_protocol: Option<ProxyTlvs>,
    /// Drain time when an application or its host is taken out of rotation; `None`: [`super::Timeouts::drain`].
    pub drain: Option<Duration>,
}

impl ApplicationSettings {
    /// Check of applications' hosts, where nothing else is configured.
    pub const HEALTH: HealthCheck = HealthCheck {
        probe: Probe::Endpoint,
        ..HealthCheck::DEFAULT
    };
}

/// Address of a broker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Broker {
    /// Host name in lower case, or an address without brackets.
    pub host: String,
    /// STOMP port, not 0.
    pub port: u16,
}

impl std::fmt::Display for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// TLS settings for brokers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BrokerTls {
    /// PEM file with the authorities, one of which must have signed a broker's certificate.
    pub ca: PathBuf,
    /// PEM files with the client certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Login at a broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Login {
    /// User name.
    pub user: String,
    /// File whose first line is the password: read at each connection, so that the password can be changed.
    pub password_file: PathBuf,
}

/// Naming of the DNS name that no event announces: `PREFIX` `APP` `-` `NAMESPACE` `.` `DOMAIN`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Naming {
    /// Prefix: OpenShift's `HA_DNS_PREFIX`, `ha-` there.
    pub prefix: String,
    /// Domain: OpenShift's `CLOUD_DOMAIN`; `None`: applications only have their aliases.
    pub domain: Option<String>,
}

/// Filter of the endpoints that get connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EndpointFilter {
    /// Types, one of which an endpoint must have.
    pub types: BTreeSet<String>,
}

/// Settings for the pages of an application's endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HealthPageTemplate {
    /// Path; `None`: the one that the endpoint's mappings give.
    pub path: Option<String>,
    /// The Host header with [`Self::PLACEHOLDERS`] in it; `None`: the application's DNS name.
    pub host_header: Option<String>,
    /// Whether endpoints that do not claim to speak HTTP are checked too: the check has its own port.
    pub include_non_http: bool,
}

impl HealthPageTemplate {
    /// Placeholders in a Host header: the application, its namespace, and the gear by the name that its node knows,
    /// which is the application's name for the first gear and the gear's id for every other.
    pub const PLACEHOLDERS: [&str; 3] = ["{app}", "{namespace}", "{gear}"];
}
