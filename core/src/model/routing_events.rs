//! A message broker that tells of OpenShift's applications.

use std::path::PathBuf;

use crate::spi::{Filter, Naming};

/// Where the events of OpenShift's routing SPI come from, and what is made of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingEvents {
    /// Brokers that have the same messages; tried in turn. At least one.
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
