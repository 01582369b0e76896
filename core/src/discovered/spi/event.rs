//! Events of the routing SPI.

use std::net::SocketAddr;
use std::time::Duration;

use super::application::{AppKey, Certificate, Endpoint};

/// Event about an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingEvent {
    /// Application that the event is about.
    pub app: AppKey,
    /// Change that the event reports.
    pub change: AppChange,
}

/// Change of an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppChange {
    /// The application was created, or announced again.
    Create {
        /// Whether the application can have more than one gear; `None`: unknown.
        scalable: Option<bool>,
        /// Whether the application has more than one balancer; `None`: unknown. Later changes are never announced.
        ha: Option<bool>,
    },
    /// The application is gone, with everything that belonged to it.
    Delete,
    /// The application has an endpoint.
    AddEndpoint {
        /// Address of the endpoint.
        addr: SocketAddr,
        /// Gear, port name, protocols and types of the endpoint.
        endpoint: Endpoint,
    },
    /// The application has lost an endpoint.
    RemoveEndpoint {
        /// Address of the endpoint.
        addr: SocketAddr,
        /// Gear that was at the address; `None`: unknown.
        gear: Option<String>,
    },
    /// The application has another name.
    AddAlias(String),
    /// The application has lost a name, and the certificate for that.
    RemoveAlias(String),
    /// A name has a certificate.
    AddCertificate {
        /// Alias that the certificate is for.
        alias: String,
        /// Certificate; boxed because it is far larger than the fields of other changes.
        certificate: Box<Certificate>,
    },
    /// A name has lost its certificate.
    RemoveCertificate(String),
    /// A gear (`None`: the whole application) is stopped.
    Stop(Option<String>),
    /// A gear (`None`: the whole application) runs again.
    Start(Option<String>),
    /// A gear (`None`: the whole application) gets no new connections from now on, until it is rotated in.
    RotateOut {
        /// Id of the gear; `None`: the whole application.
        gear: Option<String>,
        /// Time that flows may take to end; `None`: as configured.
        timeout: Option<Duration>,
        /// Reason in the publisher's words; empty where none was given.
        reason: String,
    },
    /// A gear (`None`: the whole application) gets connections again.
    RotateIn(Option<String>),
    /// A gear (`None`: the whole application) is placed in a geography.
    AddGeography {
        /// Name of the geography.
        geography: String,
        /// Id of the gear; `None`: the whole application.
        gear: Option<String>,
    },
    /// A gear (`None`: the whole application) is no longer in a geography.
    RemoveGeography {
        /// Name of the geography.
        geography: String,
        /// Id of the gear; `None`: the whole application.
        gear: Option<String>,
    },
    /// The event is marked as a duplicate: the event that it repeats comes too, so nothing is done. A duplicate that is
    /// applied late would bring back an endpoint that is gone.
    Duplicate,
}
