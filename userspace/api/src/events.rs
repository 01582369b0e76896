//! OpenShift's routing events, by API.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::sources::SourceView;

/// `GET /api/v1/routing-events`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct EventsStatus {
    pub source: SourceView,
    pub blocked: Option<Blocked>,
    pub dead_letters: Vec<DeadLetter>,
}

/// Answer to `POST /api/v1/routing-events`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EventsAnswer {
    pub outcome: EventsOutcome,
}

/// Answer to `POST /api/v1/routing-events/skip`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SkipAnswer {
    pub skipped: DeadLetter,
}

/// Result of a text of events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct EventsOutcome {
    /// Number of events in the text.
    pub events: usize,
    /// Clusters that have changed. Empty: everything was known already.
    pub changed: Vec<String>,
    /// Changed clusters that the store refused, with the reason, which is permanent.
    pub refused: BTreeMap<String, String>,
}

/// Message that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Blocked {
    /// Time of the first failure, in milliseconds since 1970.
    pub since_ms: u64,
    /// Number of attempts to record the message that have failed.
    pub attempts: u64,
    /// Reason of the last failure.
    pub reason: String,
    /// First 4 KiB of the message, up to where a private key or pass phrase might begin.
    pub text: String,
}

/// Message that could not be understood, or that an operator had skipped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeadLetter {
    /// Time in milliseconds since 1970.
    pub at_ms: u64,
    /// Reason: document, line and the text expected there.
    pub reason: String,
    /// First 4 KiB of the message, up to where a private key or pass phrase might begin.
    pub text: String,
}
