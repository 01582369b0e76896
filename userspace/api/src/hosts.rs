//! `GET /api/v1/hosts`.

use std::fmt;

use serde::{Deserialize, Serialize};
use signalbox_core::routing::health::Health;

use crate::Label;

/// All hosts of all clusters.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct HostsAnswer {
    pub hosts: Vec<HostStatus>,
}

/// A host of a cluster.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct HostStatus {
    pub cluster: String,
    pub name: String,
    /// Address, or the hostname if that has never had an address.
    pub address: String,
    /// State in one word, from the fields below.
    pub state: HostStanding,
    pub health: HostHealth,
    pub health_since: f64,
    pub checked_by: Option<String>,
    pub last_check: Option<LastCheck>,
    /// Reason why the last TLS handshake with the host failed.
    pub tls_fault: Option<String>,
    pub ejected: bool,
    pub draining: bool,
    /// True if the host is a listener of this balancer, and so gets no connections.
    pub own_listener: bool,
    /// Subject that takes the host out of rotation.
    pub out_of_rotation: Option<String>,
    pub hostname: Option<String>,
    /// Reason why the hostname could not be resolved last time.
    pub not_resolved: Option<String>,
    pub weight: Option<u32>,
    pub backup: bool,
    /// Role in this balancer's subset of the cluster's hosts.
    pub subset: Option<Label>,
    pub active_connections: u32,
    pub total_connections: u64,
    pub refused_connections: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

/// Result of a host's last check.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LastCheck {
    pub ok: bool,
    pub detail: String,
    /// Request of the check; absent before the first one. If the configuration leaves the choice to the host, also why
    /// this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
}

/// Health of a host by its checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum HostHealth {
    #[default]
    Unknown,
    Healthy,
    Unhealthy,
    /// The hostname has never had an address.
    Unresolved,
}

impl From<Health> for HostHealth {
    fn from(health: Health) -> Self {
        match health {
            Health::Unknown => Self::Unknown,
            Health::Healthy => Self::Healthy,
            Health::Unhealthy => Self::Unhealthy,
        }
    }
}

/// State of a host: the most important of its conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum HostStanding {
    #[default]
    Unknown,
    Healthy,
    Unhealthy,
    Unresolved,
    /// Connects of clients have failed: the host gets no new connections for a while.
    Ejected,
    OutOfRotation,
    /// The host is no longer configured, and its connections end.
    Draining,
    /// The host is a listener of this balancer: connections would come back.
    OwnListener,
}

impl HostStatus {
    /// Returns the state of the host with this health.
    #[must_use]
    pub fn standing(&self, health: HostHealth) -> HostStanding {
        match health {
            _ if self.draining => HostStanding::Draining,
            HostHealth::Unresolved => HostStanding::Unresolved,
            _ if self.own_listener => HostStanding::OwnListener,
            _ if self.out_of_rotation.is_some() => HostStanding::OutOfRotation,
            _ if self.ejected => HostStanding::Ejected,
            health => health.into(),
        }
    }

    /// Returns the host's state with this health as text, with all that people should know.
    #[must_use]
    pub fn state_text(&self, health: HostHealth) -> String {
        let state = self.standing(health);
        let mut text = state.to_string();
        if state == HostStanding::OutOfRotation {
            text = format!("{}, {text}", HostStanding::from(health));
        }
        if self.backup && state != HostStanding::Draining {
            text += ", backup";
        }
        if self.not_resolved.is_some() && !matches!(state, HostStanding::Draining | HostStanding::Unresolved) {
            text += ", name not resolved";
        }
        text
    }
}

impl From<HostHealth> for HostStanding {
    fn from(health: HostHealth) -> Self {
        match health {
            HostHealth::Unknown => Self::Unknown,
            HostHealth::Healthy => Self::Healthy,
            HostHealth::Unhealthy => Self::Unhealthy,
            HostHealth::Unresolved => Self::Unresolved,
        }
    }
}

impl fmt::Display for HostStanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "unknown",
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
            Self::Unresolved => "unresolved",
            Self::Ejected => "ejected",
            Self::OutOfRotation => "out of rotation",
            Self::Draining => "draining",
            Self::OwnListener => "own listener",
        })
    }
}
