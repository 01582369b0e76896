//! Events of the API's streams (`text/event-stream`): the variant is the kind of an event, its content the data.

use serde::Serialize;

use crate::changes::ChangeEvent;
use crate::ha::Condition;
use crate::live::{Hello, SampleChange};
use crate::shield::DropView;

/// Events of `GET /api/v1/live`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "event", content = "data", rename_all = "lowercase")]
pub enum LiveEvent {
    Hello(Hello),
    Sample(SampleChange),
    /// Number of samples that a client has missed, because it reads too slowly.
    Missed(u64),
}

/// Events of `GET /api/v1/drops/follow`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "event", content = "data", rename_all = "lowercase")]
pub enum DropEvent {
    Hello(Hello),
    Drop(DropView),
    /// Number of samples that a client has missed, because it reads too slowly.
    Missed(u64),
}

/// Events of `POST /api/v1/ha/follow`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "event", content = "data", rename_all = "lowercase")]
pub enum ConditionEvent {
    Condition(Condition),
}

/// Events of `GET /api/v1/events`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum ChangesEvent {
    Notice(ChangesNotice),
    Change(ChangeEvent),
}

/// Events about the stream of changes itself.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "event", content = "data", rename_all = "lowercase")]
pub enum ChangesNotice {
    Hello(Hello),
    /// Number of changes that a client has missed, because it reads too slowly. It should load the state again.
    Missed(u64),
}
