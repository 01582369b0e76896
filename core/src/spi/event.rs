//! What an event says.

use std::net::SocketAddr;
use std::time::Duration;

use super::application::{AppKey, Certificate, Endpoint};

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The application that it is about.
    pub app: AppKey,
    /// What has happened to it.
    pub change: Change,
}

/// What has happened to an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was created, or announced again.
    Create {
        /// Whether it can have more than one gear; `None`: not said.
        scalable: Option<bool>,
        /// Whether it has more than one balancer; `None`: not said. Never said again when that changes.
        ha: Option<bool>,
    },
    /// It is gone, with all that belonged to it.
    Delete,
    /// It can be reached here.
    AddEndpoint {
        /// Where.
        at: SocketAddr,
        /// What is there.
        endpoint: Endpoint,
    },
    /// It can no longer be reached there.
    RemoveEndpoint {
        /// Where.
        at: SocketAddr,
        /// The gear that was there; `None`: not said.
        gear: Option<String>,
    },
    /// It has another name.
    AddAlias(String),
    /// It has lost a name, and the certificate for it.
    RemoveAlias(String),
    /// A name has a certificate.
    AddCertificate {
        /// The name.
        alias: String,
        /// Boxed: far larger than what else happens.
        certificate: Box<Certificate>,
    },
    /// A name has lost its certificate.
    RemoveCertificate(String),
    /// A gear (`None`: the whole application) is stopped.
    Stop(Option<String>),
    /// A gear (`None`: the whole application) runs again.
    Start(Option<String>),
    /// A gear (`None`: the whole application) is to get no new connections until it is rotated in.
    RotateOut {
        /// Which.
        gear: Option<String>,
        /// How long it may keep its flows; `None`: what the configuration says.
        timeout: Option<Duration>,
        /// Why, in the publisher's words; empty where none were given.
        reason: String,
    },
    /// A gear (`None`: the whole application) is to get connections again.
    RotateIn(Option<String>),
    /// A gear (`None`: the whole application) is placed in a geography.
    AddGeography {
        /// The geography's name.
        geography: String,
        /// Which.
        gear: Option<String>,
    },
    /// A gear (`None`: the whole application) is in a geography no more.
    RemoveGeography {
        /// The geography's name.
        geography: String,
        /// Which.
        gear: Option<String>,
    },
    /// A duplicate that says of itself that it is one: the event that it repeats comes too, so nothing is done. Were
    /// it done, one that arrives late would bring back an endpoint that is gone.
    Duplicate,
}
