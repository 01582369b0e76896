//! A message broker that tells of OpenShift's applications.

use std::path::PathBuf;
use std::time::Duration;

use super::{Balance, Ejection, Expose, HealthCheck, Probe};
use crate::spi::{AppPattern, Asking, Filter, Naming};

/// Where the events of OpenShift's routing SPI come from, and what is made of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingEvents {
    /// Brokers that have the same messages; tried in turn. None: events are only posted.
    pub brokers: Vec<Broker>,
    /// How to talk TLS to them; `None`: plain TCP.
    pub tls: Option<BrokerTls>,
    /// Who to be.
    pub login: Option<Login>,
    /// What to subscribe to: `/topic/...` or `/queue/...`.
    pub destination: String,
    /// How the broker knows this consumer again.
    pub client_id: Option<String>,
    /// The name of a durable subscription to a topic, kept by the broker while this consumer is away.
    pub subscription: Option<String>,
    /// Which endpoints get connections.
    pub filter: Filter,
    /// How the name that no event announces is built.
    pub naming: Naming,
    /// The directory for certificates; `None`: private keys are not kept.
    pub certificates: Option<PathBuf>,
    /// Settings of applications' clusters: the first whose pattern matches counts.
    pub applications: Vec<ApplicationSettings>,
    /// Which endpoints become layer-4 services: the first rule that takes an endpoint counts.
    pub expose: Vec<Expose>,
}

impl RoutingEvents {
    /// The settings of an application, by the name of its cluster.
    #[must_use]
    pub fn settings_of(&self, cluster: &str) -> Option<&ApplicationSettings> {
        self.applications
            .iter()
            .find(|settings| settings.pattern.matches(cluster))
    }

    /// What a check asks the endpoints of an application for.
    #[must_use]
    pub fn asking_of(&self, cluster: &str) -> Asking {
        self.settings_of(cluster)
            .map(|settings| settings.asking.clone())
            .unwrap_or_default()
    }
}

/// Settings of the clusters of some applications, as a cluster of the configuration has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplicationSettings {
    /// Which applications.
    pub pattern: AppPattern,
    /// How a host is chosen.
    pub balance: Balance,
    /// How hosts are checked.
    pub health: HealthCheck,
    /// What checks by HTTP ask for.
    pub asking: Asking,
    /// When real failures set a host aside.
    pub ejection: Ejection,
    /// Whether hosts are sent a PROXY protocol v2 header.
    pub proxy_protocol: bool,
    /// How long what is taken out of rotation may keep its flows; `None`: [`super::Timeouts::drain`].
    pub drain: Option<Duration>,
}

impl ApplicationSettings {
    /// How the hosts of an application are checked, where nothing is said.
    pub const HEALTH: HealthCheck = HealthCheck {
        probe: Probe::Endpoint,
        ..HealthCheck::DEFAULT
    };
}

/// A broker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Broker {
    /// A host name, lower-case, or an address without brackets.
    pub host: String,
    /// Its STOMP port, not 0.
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

/// How to talk TLS to brokers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerTls {
    /// PEM file with the authorities, one of which must have signed a broker's certificate.
    pub ca: PathBuf,
    /// PEM files with the certificate to show, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Who to be to a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// The user.
    pub user: String,
    /// The file whose first line is the password: read at each connection, so that it can be changed.
    pub password_file: PathBuf,
}
