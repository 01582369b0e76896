//! The shield: guards, prefixes, dropped packets.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use signalbox_core::model::shield::{Prefixes, SourceLimits};

use crate::Label;
use crate::services::HookView;

/// `GET /api/v1/shield`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ShieldAnswer {
    pub guards: Vec<GuardView>,
    /// Number of prefixes that apply to all guards.
    pub common_prefixes: usize,
    pub hooks: Vec<HookView>,
    pub troubles: Vec<String>,
}

/// Kind of a guarded object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum GuardKind {
    #[default]
    Listener,
    Service,
}

impl GuardKind {
    /// Returns the kind's word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Listener => "listener",
            Self::Service => "service",
        }
    }
}

/// A guarded listener or service with its counts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct GuardView {
    pub kind: GuardKind,
    pub name: String,
    /// Treatment of malformed packets: `drop` or `pass`.
    pub malformed: Label,
    pub syn_cookies: Label,
    #[serde(skip_deserializing)]
    pub limits: SourceLimits,
    /// Number of the guard's own prefixes, without those that apply to all.
    pub prefixes: usize,
    /// Packets, by decision.
    pub decisions: BTreeMap<Label, u64>,
}

/// Treatment of a client's next connection.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ShieldVerdict {
    pub verdict: Label,
    pub reason: String,
    /// Prefix that denies the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Connections of the client's source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent: Option<u32>,
    /// Budget of the client's source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<TokensLeft>,
}

/// Budget of a source: the amounts that it may send at once; absent without a limit.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct TokensLeft {
    pub connections: Option<u64>,
    pub packets: Option<u64>,
    pub bytes: Option<u64>,
}

/// `GET /api/v1/shield/explain`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShieldExplanation {
    pub client: IpAddr,
    pub guards: Vec<GuardVerdict>,
}

/// Treatment of a client by a guard.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct GuardVerdict {
    pub kind: GuardKind,
    pub name: String,
    pub shield: ShieldVerdict,
}

/// `GET /api/v1/shield/prefixes`: the prefixes that were set by API, by the name of the listener or service.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PrefixesAnswer {
    pub prefixes: BTreeMap<String, Prefixes>,
}

/// Answer to a change of a listener's or service's prefixes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuardPrefixesAnswer {
    pub prefixes: Prefixes,
}

/// `GET /api/v1/drops`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DropsAnswer {
    pub drops: Vec<DropView>,
}

/// A sample of a dropped packet.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DropView {
    /// Time in milliseconds since 1970.
    #[serde(default)]
    pub time_ms: u64,
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub protocol: Label,
    /// Name of the listener or service.
    pub guard: String,
    #[serde(default)]
    pub kind: Option<GuardKind>,
    pub reason: Label,
    /// Length of the IP packet.
    #[serde(default)]
    pub bytes: u32,
    /// TCP control bits as letters, such as `SA`.
    #[serde(default)]
    pub flags: String,
    #[serde(default)]
    pub interface: String,
}
