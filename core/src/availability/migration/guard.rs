//! Guards of a migration: conditions on real traffic that compare the new cluster with the old one.
//!
//! A guard fails if the new cluster's share of faults is above the old one's by more than a margin, with little risk
//! that chance alone made it look so ([`rate`]). A slow cluster is found in the same way: a time above a limit that
//! follows from the old cluster's times is a fault.

pub mod rate;
pub mod times;

mod looks;
mod period;

use serde::{Deserialize, Serialize};

pub(super) use period::Period;
pub use period::{MissedFaults, OldFigures};
use rate::Rate;
use times::Times;

/// Counts of how well a cluster has served: since the start, or in a period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct QualityFigures {
    /// Connects that a host has accepted.
    pub connects: u64,
    /// Time of those connects, in microseconds, added up.
    pub connect_micros: u64,
    /// Connects that were refused, timed out or failed otherwise.
    pub connect_failures: u64,
    /// Flows ended of those that are carried as a whole.
    pub flows_ended: u64,
    /// Flows among them that the host has reset, or finished without an answer.
    pub flows_broken: u64,
    /// Requests ended of those that are routed one by one.
    pub answers: u64,
    /// Requests among them with a status code of 500 or more.
    pub server_errors: u64,
    /// Requests whose answers have begun.
    pub first_bytes: u64,
    /// Time from the requests to the begin of those answers, in microseconds, added up.
    pub first_byte_micros: u64,
    /// Times of the connects, counted since a migration has begun.
    #[serde(skip_serializing_if = "Times::is_empty")]
    pub connect_times: Times,
    /// Times to the begin of the answers, counted likewise.
    #[serde(skip_serializing_if = "Times::is_empty")]
    pub first_byte_times: Times,
}

impl QualityFigures {
    /// Applies a function to each pair of counts.
    fn zip(&self, other: &Self, with: impl Fn(u64, u64) -> u64 + Copy) -> Self {
        Self {
            connects: with(self.connects, other.connects),
            connect_micros: with(self.connect_micros, other.connect_micros),
            connect_failures: with(self.connect_failures, other.connect_failures),
            flows_ended: with(self.flows_ended, other.flows_ended),
            flows_broken: with(self.flows_broken, other.flows_broken),
            answers: with(self.answers, other.answers),
            server_errors: with(self.server_errors, other.server_errors),
            first_bytes: with(self.first_bytes, other.first_bytes),
            first_byte_micros: with(self.first_byte_micros, other.first_byte_micros),
            connect_times: self.connect_times.zip(&other.connect_times, with),
            first_byte_times: self.first_byte_times.zip(&other.first_byte_times, with),
        }
    }

    /// Adds the counts of another route.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.zip(other, u64::saturating_add)
    }

    /// Returns the counts since an earlier time.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.zip(earlier, u64::saturating_sub)
    }

    /// Faults of a kind, and all events of it.
    const fn rate(&self, of: GuardKind) -> Rate {
        match of {
            GuardKind::Connects => Rate::new(self.connect_failures, self.connects + self.connect_failures),
            GuardKind::Connections => Rate::new(self.flows_broken, self.flows_ended),
            GuardKind::ServerErrors => Rate::new(self.server_errors, self.answers),
            GuardKind::Hosts | GuardKind::Latency | GuardKind::Probes => Rate::new(0, 0),
        }
    }

    /// Returns the number of connects and requests that say something about the cluster.
    #[must_use]
    pub fn samples(&self) -> u64 {
        (self.connects + self.connect_failures).max(self.answers)
    }
}

/// Guard of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "MigrationGuard")
)]
#[serde(rename_all = "snake_case")]
pub enum GuardKind {
    /// The new cluster has a host that takes connections.
    Hosts,
    /// Connects that failed.
    Connects,
    /// Connections that were reset, or ended without an answer.
    Connections,
    /// Requests that were answered with 5xx.
    ServerErrors,
    /// Times of connects and to the begin of answers.
    Latency,
    /// Answers of hosts to requests for each name.
    Probes,
}

impl GuardKind {
    /// All guards.
    pub const ALL: [Self; 6] = [
        Self::Hosts,
        Self::Connects,
        Self::Connections,
        Self::ServerErrors,
        Self::Latency,
        Self::Probes,
    ];

    /// Returns the guard's name in the API and in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hosts => "hosts",
            Self::Connects => "connects",
            Self::Connections => "connections",
            Self::ServerErrors => "server_errors",
            Self::Latency => "latency",
            Self::Probes => "probes",
        }
    }
}

/// Limits beyond which a step is rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuardLimits {
    /// Share of faults in thousandths by which the new cluster may exceed the old one.
    pub max_error_permille: u64,
    /// Multiple of the old cluster's median and 95th percentile, in percent, that the new one's may reach; 0: any.
    pub max_latency_percent: u64,
    /// Samples below which no step ends.
    pub min_samples: u64,
}

impl Default for GuardLimits {
    fn default() -> Self {
        Self {
            max_error_permille: 10,
            max_latency_percent: 300,
            min_samples: 20,
        }
    }
}

#[cfg(test)]
mod tests;
